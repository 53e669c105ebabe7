"""Conformance: which test shows which opcode, status and asynchronous event.

The table is for readers and is checked: it holds every number that the engine can produce, each
test that it names declares the number with `shows`, and the fixture `world` fails a test that
declares what did not happen. So each line below did happen, on every provider that states the
capability, in the last run that was green.
"""

import ast
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.verbs.conformance import name_of
from urds.verbs import AsyncEventType, WCStatus, WROpcode

SOURCE = Path(__file__).resolve().parents[2] / "src" / "urds" / "verbs"

# Rows, and no dict: members of different families are equal when their numbers are.
TABLE: tuple[tuple[Enum, str, str], ...] = (
    # opcodes
    (WROpcode.RDMA_WRITE, "transfer",
     "test_a_write_of_any_size_lands_where_it_should_and_nowhere_else"),
    (WROpcode.RDMA_WRITE_WITH_IMM, "transfer",
     "test_a_write_with_immediate_data_takes_a_receive_and_not_its_memory"),
    (WROpcode.SEND, "transfer",
     "test_a_message_of_any_size_arrives"),
    (WROpcode.SEND_WITH_IMM, "transfer",
     "test_a_message_with_immediate_data"),
    (WROpcode.RDMA_READ, "transfer",
     "test_a_read_of_any_size_fetches"),
    (WROpcode.ATOMIC_CMP_AND_SWP, "atomics",
     "test_an_atomic_operation_returns_the_value_before"),
    (WROpcode.ATOMIC_FETCH_AND_ADD, "atomics",
     "test_an_atomic_operation_returns_the_value_before"),
    (WROpcode.MASKED_ATOMIC_CMP_AND_SWP, "masked_atomics",
     "test_a_masked_operation_returns_the_value_before"),
    (WROpcode.MASKED_ATOMIC_FETCH_AND_ADD, "masked_atomics",
     "test_a_masked_operation_returns_the_value_before"),
    (WROpcode.LOCAL_INV, "memory",
     "test_a_window_is_invalidated_here"),
    (WROpcode.BIND_MW, "memory",
     "test_a_window_shows_its_part_and_no_more"),
    (WROpcode.SEND_WITH_INV, "memory",
     "test_a_window_is_invalidated_by_the_peer"),
    # statuses
    (WCStatus.SUCCESS, "transfer",
     "test_a_message_of_any_size_arrives"),
    (WCStatus.LOC_LEN_ERR, "errors",
     "test_a_receive_that_is_too_small_fails_on_both_sides"),
    (WCStatus.LOC_QP_OP_ERR, "memory",
     "test_a_window_is_invalidated_here"),
    (WCStatus.LOC_PROT_ERR, "errors",
     "test_local_memory_that_cannot_be_used_fails_the_request"),
    (WCStatus.WR_FLUSH_ERR, "errors",
     "test_everything_posted_is_flushed_in_order_once"),
    (WCStatus.MW_BIND_ERR, "memory",
     "test_bindings_that_cannot_be"),
    (WCStatus.BAD_RESP_ERR, "errors",
     "test_an_answer_that_cannot_be_one_fails_the_read"),
    (WCStatus.REM_INV_REQ_ERR, "errors",
     "test_what_the_queue_pair_does_not_allow_is_no_valid_request"),
    (WCStatus.REM_ACCESS_ERR, "errors",
     "test_memory_that_a_key_does_not_open_is_refused"),
    (WCStatus.REM_OP_ERR, "errors",
     "test_a_receive_whose_memory_cannot_be_used_is_the_receivers_fault"),
    (WCStatus.RETRY_EXC_ERR, "errors",
     "test_a_silent_peer_is_given_up_after_the_agreed_retries"),
    (WCStatus.RNR_RETRY_EXC_ERR, "errors",
     "test_a_message_does_not_wait_for_ever_where_that_was_agreed"),
    # asynchronous events
    (AsyncEventType.CQ_ERR, "queues",
     "test_an_overflow_is_told_and_breaks_the_queue_pairs"),
    (AsyncEventType.QP_REQ_ERR, "errors",
     "test_what_the_queue_pair_does_not_allow_is_no_valid_request"),
    (AsyncEventType.QP_ACCESS_ERR, "errors",
     "test_memory_that_a_key_does_not_open_is_refused"),
    (AsyncEventType.COMM_EST, "states",
     "test_the_first_message_in_rtr_is_told"),
    (AsyncEventType.SQ_DRAINED, "states",
     "test_draining_holds_new_requests_back_until_the_queue_pair_goes_on"),
    (AsyncEventType.SRQ_LIMIT_REACHED, "shared_queues",
     "test_the_limit_is_told_once_per_arming"),
    (AsyncEventType.QP_LAST_WQE_REACHED, "shared_queues",
     "test_a_failed_queue_pair_leaves_the_shared_receives_to_the_others"),
    (AsyncEventType.QP_RECV_SOFT_WATERMARK, "shared_queues",
     "test_marks_of_held_receive_buffers"),
    (AsyncEventType.QP_RECV_HARD_WATERMARK, "shared_queues",
     "test_marks_of_held_receive_buffers"),
)  # fmt: skip


def named_in_source(family: type[Enum]) -> set[str]:
    """Return the members of a family that the sources of `urds.verbs` name."""
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == family.__name__
            ):
                found.add(node.attr)
    return found


def in_table(family: type[Enum]) -> set[str]:
    return {member.name for member, _, _ in TABLE if isinstance(member, family)}


def test_every_opcode_is_shown() -> None:
    assert in_table(WROpcode) == set(WROpcode.__members__)


@pytest.mark.parametrize("family", [WCStatus, AsyncEventType])
def test_every_number_that_can_come_is_shown_and_no_other(family: type[Enum]) -> None:
    """What the sources never name cannot come; what they name has a line."""
    assert in_table(family) == named_in_source(family)


@pytest.mark.parametrize(("member", "theme", "name"), TABLE, ids=[name_of(row[0]) for row in TABLE])
def test_the_test_of_a_line_declares_it(member: Enum, theme: str, name: str) -> None:
    function: Any = getattr(import_module(f"tests.verbs.test_conformance_{theme}"), name)
    declared = {name_of(one) for one in getattr(function, "shows", ())}
    assert name_of(member) in declared


def test_what_is_declared_and_did_not_happen_is_found() -> None:
    """The fixture asks this at the end of each test."""
    from tests.verbs.conformance import World

    world = World("sim", Path())
    world.note(WROpcode.SEND)  # its number is a status as well
    assert world.not_seen(WROpcode.SEND, WCStatus.LOC_QP_OP_ERR) == ["WCStatus.LOC_QP_OP_ERR"]
