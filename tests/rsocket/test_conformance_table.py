"""The fifteen points of docs/reference/rsocket.md 19, and the tests that show each.

For readers, and checked: all points are there, each with a test over devices, and all tests exist.
Those over devices run on sim, shm0, tcp0 and udp0, or on shm0, tcp0 and udp0 where they need
processes or threads; what a device cannot show stands with the stream core alone (`unit`, `sim`).
"""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

POINTS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("private data, both endian flags, scale of the iomap", (
        "rsocket/test_conformance_wire.py::test_the_answer_carries_forty_bytes",
        "rsocket/wire/test_wire.py::test_the_layout_of_connect_data",
        "rsocket/wire/test_wire.py::test_the_scale_of_the_iomap",
        "rsocket/stream/test_connecting.py::test_a_big_endian_side_says_so",
        "vectors/test_rsocket_vectors.py::test_connect_data_are_written_again_byte_for_byte",
    )),
    2: ("another version is refused both ways", (
        "rsocket/test_hostile_connects.py::test_a_request_that_is_no_rsockets_is_refused",
        "rsocket/test_hostile_connects.py::test_an_answer_that_is_no_rsockets_ends_the_connect",
    )),
    3: ("the first action is an update for the second half", (
        "rsocket/test_conformance_wire.py::test_the_first_word_publishes_the_second_half",
        "rsocket/stream/test_connecting.py::test_the_first_words_publish_the_second_half",
        "vectors/test_rsocket_vectors.py::"
        "test_the_first_message_of_each_side_publishes_the_second_half",
    )),
    4: ("sequences wrap at 65,536", (
        "rsocket/test_conformance_wire.py::test_message_numbers_wrap_over_a_device",
        "sim/test_rsocket_stream.py::test_message_numbers_wrap",
        "rsocket/stream/test_credits.py::test_sequences_wrap_at_65536",
        "rsocket/stream/test_credits.py::test_a_limit_is_judged_around_the_wrap",
    )),
    5: ("chunks end with the space; a sender stops exactly at the limit and goes on", (
        "rsocket/test_conformance_wire.py::test_a_sender_stops_exactly_at_the_limit",
        "rsocket/test_conformance_wire.py::"
        "test_a_sender_fills_each_entry_before_the_next_and_stops_at_the_last",
        "rsocket/test_socket_transfers.py::test_single_bytes_beyond_the_receive_queue",
        "sim/test_rsocket_stream.py::test_a_sender_stops_at_the_limit_and_goes_on_after_half_of_it",
        "rsocket/stream/test_window.py::test_a_write_to_an_original_ends_with_its_piece",
    )),
    6: ("both directions full", (
        "rsocket/test_socket_transfers.py::test_both_directions_full_and_then_read",
        "rsocket/test_conformance_wire.py::test_credits_are_given_while_none_are_left",
        "sim/test_rsocket_stream.py::test_two_full_directions_do_not_lock_each_other",
    )),
    7: ("four control messages are under way, a fifth waits", (
        "rsocket/test_conformance_wire.py::test_a_fifth_update_waits_over_a_device",
        "rsocket/stream/test_credits.py::test_a_fifth_control_message_waits",
    )),
    8: ("half a close; bytes before a DISCONNECT are readable", (
        "rsocket/test_conformance_wire.py::"
        "test_the_last_word_is_bare_and_comes_after_the_bytes",
        "rsocket/test_links.py::test_bytes_that_arrived_before_a_close_are_read_after_it",
        "rsocket/test_socket_transfers.py::test_half_close",
    )),
    9: ("connecting without waiting, to oneself, and without success", (
        "rsocket/test_socket_connecting.py::test_a_socket_connects_to_itself_in_one_thread",
        "rsocket/test_socket_connecting.py::test_connecting_without_waiting",
        "rsocket/test_socket_connecting.py::"
        "test_a_reject_without_waiting_comes_by_poll_and_so_error",
        "rsocket/test_polling.py::test_a_connect_that_goes_on",
    )),
    10: ("the peer's process is killed", (
        "rsocket/test_killed.py::test_what_arrived_is_read_and_then_the_connection_is_broken",
        "rsocket/test_killed.py::test_a_peer_is_killed_while_bytes_go_to_its_own_places",
        "rsocket/test_killed.py::test_a_peer_is_killed_while_others_connect_to_it",
        "rsocket/test_killed.py::test_a_peer_is_killed_before_what_it_sent_is_read",
        "rsocket/test_socket_processes.py::"
        "test_a_killed_peer_is_an_error_to_who_reads_and_who_writes",
        "rsocket/test_polling_processes.py::test_a_peer_that_is_killed_hangs_up",
    )),
    11: ("rpoll with mixed descriptors, two threads, time", (
        "rsocket/test_polling.py::test_rsockets_and_ordinary_descriptors",
        "rsocket/test_polling.py::test_two_threads_at_one_socket",
        "rsocket/test_polling.py::test_time_is_kept",
    )),
    12: ("mapped writes before a send, stale mappings, no credit lost", (
        "rsocket/test_socket_memory.py::test_a_mapped_write_arrives_before_what_is_sent_later",
        "rsocket/test_socket_memory.py::test_a_mapping_that_ended_takes_no_bytes",
        "rsocket/test_socket_memory.py::test_mapping_more_often_than_there_are_credits",
        "rsocket/stream/test_iomap.py::test_mappings_cost_no_credit_for_ever",
    )),
    13: ("datagrams: UDP first, EMSGSIZE, a new peer", (
        "rsocket/test_datagrams.py::test_the_first_goes_by_udp_and_later_ones_by_queue_pair",
        "rsocket/test_datagrams.py::"
        "test_a_datagram_has_as_many_bytes_as_fit_and_not_one_more",
        "rsocket/test_datagrams_processes.py::"
        "test_a_killed_peer_that_is_started_again_is_found_again",
    )),
    14: ("flags, and all buffers filled", (
        "rsocket/test_socket_transfers.py::test_peek_leaves_bytes_there",
        "rsocket/test_socket_transfers.py::test_sendall_and_waitall",
        "rsocket/test_socket_transfers.py::test_waitall_takes_less_at_the_end_and_at_the_timeout",
        "rsocket/test_socket_transfers.py::test_a_send_without_room_and_patience",
        "rsocket/test_socket_transfers.py::test_receiving_without_bytes",
        "rsocket/test_socket_transfers.py::test_all_buffers_are_sent_and_filled",
        "rsocket/test_calls.py::test_every_way_to_send_and_to_receive",
    )),
    15: ("many connections, an echo on each, nothing left", (
        "rsocket/test_conformance_many.py::test_many_connections_leave_nothing",
        "rsocket/test_conformance_many.py::test_memory_is_as_it_was",
        "rsocket/test_conformance_problems.py::"
        "test_an_idle_connection_costs_its_window_and_no_descriptor",
    )),
}  # fmt: skip


@cache
def names_in(path: str) -> frozenset[str]:
    """Return the names of the test functions of a file."""
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
    return frozenset(name for name in names if name.startswith("test_"))


def test_all_points_are_there() -> None:
    assert list(POINTS) == list(range(1, 16))


@pytest.mark.parametrize("point", POINTS)
def test_each_point_is_shown_over_devices_by_tests_that_exist(point: int) -> None:
    _, named = POINTS[point]
    for one in named:
        path, _, name = one.partition("::")
        assert name in names_in(path), f"no {name} in {path}"
    assert any(one.startswith("rsocket/") for one in named)
    assert len(set(named)) == len(named)
