"""Tests of this folder that cannot mean anything over a node, each with the reason.

With `TEST_BACKEND=attached` they are skipped; a key is a module or a function of one.
"""

from typing import Final

_THREAD: Final = "it looks into the control thread of its own process, which a node has elsewhere"
_RDMA: Final = "differences.md, rdma-of-nodes"
_SHARED: Final = "a child shares the sockets of a node: tests/rds/node/test_attached.py"
_EVENTS: Final = "connections are the node's: it shows all, and logs what happens to them"
_GOES_ON: Final = "messages are the node's, which goes on with them; a program counts its sockets"
_COPIED: Final = "every message is copied into memory that the node shares"

_BOUNDED: Final = "the memory of a socket holds what waits, and may be full before the path is"

IN_PROCESS_ONLY: Final = {
    "test_connections": _EVENTS,
    "test_control_faults": _THREAD,
    "test_control_faults_rdma": _THREAD,
    "test_differences::test_difference_fork": _SHARED,
    "test_differences::test_difference_handlers": _THREAD,
    "test_differences::test_difference_path_messages": _BOUNDED,
    "test_differences::test_difference_regions_not_pinned": _RDMA,
    "test_differences::test_difference_unused": _EVENTS,
    "test_draining::test_what_a_stopped_peer_has_not_acknowledged_is_left": _GOES_ON,
    "test_draining::test_what_was_never_sent_counts": _GOES_ON,
    "test_eviction": _THREAD,
    "test_failed_binds": _THREAD,
    "test_forks": _SHARED,
    "test_logging::test_a_handler_that_waits_for_the_program_stops_nothing": _THREAD,
    "test_logging::test_a_handler_may_bind_send_and_reconnect": _THREAD,
    "test_logging::test_what_is_logged_at_the_end_is_emitted": _THREAD,
    "test_payloads::test_a_buffer_to_be_kept_is_held_until_it_is_acknowledged": _COPIED,
    "test_rdma_transfers": _RDMA,
    "test_reentry": _THREAD,
    "test_scarcity": _THREAD,
    "test_transport_choice": _RDMA,
    "test_two_transports::test_a_child_has_sockets_of_its_own_and_the_parent_keeps_its": _RDMA,
    "test_two_transports::test_a_fault_where_rdma_is_controlled_fails_both": _THREAD,
    "test_two_transports::test_another_process_is_told_of_both": _RDMA,
    "test_two_transports::test_who_waits_wakes_when_the_node_closes": _THREAD,
    "test_undelivered": _GOES_ON,
    "test_unused::test_a_fork_while_it_ends_closes_the_copies": _THREAD,
}


def reason_not_over_nodes(module: str, function: str) -> str | None:
    """Return why a test does not apply to sockets of a node, None if it does."""
    name = module.rpartition(".")[2]
    return IN_PROCESS_ONLY.get(name) or IN_PROCESS_ONLY.get(f"{name}::{function}")
