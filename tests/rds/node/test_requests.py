"""What a node answers to requests, over its socket."""

import errno
import os
import select
import signal
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.rds.node.conftest import WAIT_S, Node, StartNode, wait_until
from tests.rds.node.stand_in import CONGESTION_BYTES, MEMORY_BYTES, RESTRICTED_AT
from urds.rds.constants import SOL_RDS, SockOpt
from urds.rds.wire import node as wire
from urds.rds.wire.node import NO_NAME, Name, Request, RequestOp

UNCHOSEN = 0xFFFF_FFFF


def cookie_of(descriptor: int) -> int:
    """Return SO_COOKIE."""
    with socket.socket(fileno=os.dup(descriptor)) as one:
        return int.from_bytes(one.getsockopt(socket.SOL_SOCKET, 57, 8), "little")


def name(host: str, port: int) -> Name:
    return Name(ip_address(host), port)


def refused(node: Node, operation: RequestOp, *descriptors: int, **values: object) -> int:
    """Return the errno of a request that is refused."""
    with pytest.raises(OSError) as error:
        node.ask(operation, *descriptors, **values)
    assert error.value.errno is not None
    return error.value.errno


def test_a_new_socket_comes_with_its_memory(node: Node) -> None:
    answer, (user_end, memory, congestion) = node.ask(RequestOp.OPEN, flags=0)
    assert answer.socket == cookie_of(user_end)
    assert (answer.memory_bytes, answer.congestion_bytes) == (MEMORY_BYTES, CONGESTION_BYTES)
    assert (os.fstat(memory).st_size, os.fstat(congestion).st_size) == (
        MEMORY_BYTES, CONGESTION_BYTES,
    )  # fmt: skip
    assert os.get_blocking(user_end)
    assert not os.get_inheritable(user_end)


def test_a_new_socket_is_non_blocking_if_asked(node: Node) -> None:
    _, (user_end, *_) = node.ask(RequestOp.OPEN, flags=0o4000)
    assert not os.get_blocking(user_end)


def test_unknown_flags_are_refused(node: Node) -> None:
    assert refused(node, RequestOp.OPEN, flags=1) == errno.EINVAL


def test_a_descriptor_is_found_wherever_it_came_from(node: Node) -> None:
    opened, (user_end, *_) = node.ask(RequestOp.OPEN, flags=0)
    copy = os.dup(user_end)
    found, descriptors = node.ask(RequestOp.FIND, copy)
    os.close(copy)
    assert found.socket == opened.socket
    assert len(descriptors) == 2


def test_a_descriptor_of_anything_else_is_no_socket_of_the_node(node: Node) -> None:
    left, right = socket.socketpair()
    with left, right, socket.socket() as tcp, open("/dev/null") as null:
        for one in (left, tcp, null):
            assert refused(node, RequestOp.FIND, one.fileno()) == errno.ENOTSOCK
    assert refused(node, RequestOp.FIND) == errno.ENOTSOCK
    ends = [node.open(), node.open()]
    assert refused(node, RequestOp.FIND, *ends) == errno.ENOTSOCK


def test_bind_chooses_a_port_and_refuses_a_second_time(node: Node) -> None:
    end = node.open()
    assert node.bind(end, "127.0.0.1") > 0
    with pytest.raises(OSError) as error:
        node.bind(end, "127.0.0.2")
    assert error.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("host", "port", "transport", "code"),
    [
        ("0.0.0.0", 0, UNCHOSEN, errno.EINVAL),
        ("224.0.0.1", 0, UNCHOSEN, errno.EINVAL),
        ("fe80::1", 0, UNCHOSEN, errno.EINVAL),
        ("192.0.2.1", 0, UNCHOSEN, errno.EADDRNOTAVAIL),
        ("127.0.0.1", 0, 0, errno.ENOPROTOOPT),  # over RDMA
    ],
)
def test_bind_checks_as_a_program_does(
    node: Node, host: str, port: int, transport: int, code: int
) -> None:
    end = node.open()
    values = {"name": name(host, port), "transport": transport}
    assert refused(node, RequestOp.BIND, end, **values) == code
    assert node.bind(end)  # it is as before


def test_a_port_is_bound_once(node: Node) -> None:
    first, second = node.open(), node.open()
    port = node.bind(first)
    values = {"name": name("127.0.0.1", port), "transport": UNCHOSEN}
    assert refused(node, RequestOp.BIND, second, **values) == errno.EADDRINUSE
    node.close(first)
    wait_until(lambda: node.status()["sockets"] == 1)
    assert node.bind(second, port=port) == port  # of the same user, at once


def bound_at_once(node: Node, host: str = "127.0.0.1", port: int = 0, **more: object) -> int:
    """Make a socket that is bound; return its descriptor."""
    values = {"flags": 0, "name": name(host, port), "transport": UNCHOSEN, "data": b"", **more}
    return node.ask(RequestOp.OPEN_AND_BIND, **values)[1][0]


def test_a_socket_is_made_and_bound_by_one_request(node: Node) -> None:
    words = bytes(range(72))
    values = {"flags": 0o4000, "name": name("127.0.0.1", 0), "transport": UNCHOSEN, "data": words}
    answer, (user_end, memory, _) = node.ask(RequestOp.OPEN_AND_BIND, **values)
    assert (answer.socket, answer.memory_bytes) == (cookie_of(user_end), MEMORY_BYTES)
    assert os.pread(memory, 72, 0) == words
    assert not os.get_blocking(user_end)
    assert node.status()["bound"] == 1
    again = {"name": name("127.0.0.1", 0), "transport": UNCHOSEN}
    assert refused(node, RequestOp.BIND, user_end, **again) == errno.EINVAL
    node.close(user_end)
    wait_until(lambda: node.status()["sockets"] == 0)


@pytest.mark.parametrize(
    ("host", "flags", "transport", "code"),
    [
        ("0.0.0.0", 0, UNCHOSEN, errno.EINVAL),
        ("192.0.2.1", 0, UNCHOSEN, errno.EADDRNOTAVAIL),
        ("127.0.0.1", 0, 0, errno.ENOPROTOOPT),
        ("127.0.0.1", 1, UNCHOSEN, errno.EINVAL),
    ],
)
def test_of_a_socket_that_cannot_be_bound_at_once_nothing_stays(
    node: Node, host: str, flags: int, transport: int, code: int
) -> None:
    values = {"flags": flags, "name": name(host, 0), "transport": transport, "data": b""}
    wait_until(lambda: node.status()["closing"] == 0)  # of tests before this one
    folder = f"/proc/{node.status()['worker']}/fd"
    descriptors = len(os.listdir(folder))
    for _ in range(5):
        assert refused(node, RequestOp.OPEN_AND_BIND, **values) == code
    status = node.status()
    assert (status["sockets"], status["closing"]) == (0, 0)
    assert [user["sockets"] for user in status["users"]] == [0] * len(status["users"])
    wait_until(lambda: len(os.listdir(folder)) <= descriptors)  # those of `status` close late


def test_a_port_that_is_taken_is_refused_at_once_too(node: Node) -> None:
    end = node.open()
    port = node.bind(end)
    values = {"flags": 0, "name": name("127.0.0.1", port), "transport": UNCHOSEN, "data": b""}
    assert refused(node, RequestOp.OPEN_AND_BIND, **values) == errno.EADDRINUSE
    node.close(end)
    bound_at_once(node, port=port)


def test_routes_are_numbered(node: Node) -> None:
    end = node.open()
    values = {"name": name("127.0.0.2", 5), "tos": 0}
    assert refused(node, RequestOp.ROUTE, end, **values) == errno.ENOTCONN
    node.bind(end)
    numbers = [
        node.ask(RequestOp.ROUTE, end, name=name(host, 5), tos=0)[0].route
        for host in ("127.0.0.2", "127.0.0.3", "127.0.0.2")
    ]
    assert numbers == [0, 1, 0]
    other = {"name": name("::1", 5), "tos": 0}
    assert refused(node, RequestOp.ROUTE, end, **other) == errno.EOPNOTSUPP


def test_options_and_cancelling(node: Node) -> None:
    end = node.open()
    option = {"level": socket.SOL_SOCKET, "option": socket.SO_RCVBUF}
    node.ask(RequestOp.SET_OPTION, end, **option, data=(4096).to_bytes(4, "little"))
    assert refused(node, RequestOp.SET_OPTION, end, **option, data=b"\0") == errno.EINVAL
    cancel = {"level": SOL_RDS, "option": int(SockOpt.CANCEL_SENT_TO), "data": b""}
    assert refused(node, RequestOp.SET_OPTION, end, **cancel) == errno.ENOPROTOOPT
    assert refused(node, RequestOp.CANCEL, end, name=NO_NAME) == errno.ENOTCONN
    node.bind(end)
    assert node.ask(RequestOp.CANCEL, end, name=NO_NAME)[0].count == 7
    assert node.ask(RequestOp.CANCEL, end, name=name("127.0.0.2", 5))[0].count == 1


def test_both_calls_of_a_list_get_the_same_one(node: Node) -> None:
    end = node.open()
    lists = []
    for _ in range(2):
        answer, (memory,) = node.ask(RequestOp.INFO, end, info=10_000)
        assert (answer.element_bytes, answer.total_bytes) == (40, 80)
        lists.append(os.pread(memory, 80, 0))
        with pytest.raises(PermissionError):
            os.pwrite(memory, b"x", 0)
    assert lists[0] == lists[1]
    assert refused(node, RequestOp.INFO, end, info=9) == errno.ENOPROTOOPT


def test_a_closed_socket_is_forgotten(node: Node) -> None:
    unbound, bound = node.open(), node.open()
    node.bind(bound)
    status = node.status()
    assert (status["sockets"], status["bound"]) == (2, 1)
    node.close(unbound)
    wait_until(lambda: node.status()["sockets"] == 1)
    node.close(bound)
    wait_until(lambda: node.status()["sockets"] == 0)
    wait_until(lambda: node.status()["closing"] == 0)


def test_the_end_of_a_socket_does_not_end_the_next_one_of_its_number(node: Node) -> None:
    """Of one pass of the worker: a list ends a closed socket, a second request opens another."""
    worker = node.status()["worker"]
    for _ in range(5):
        closed = node.open()
        with connected(node) as asking, connected(node) as opening:
            node.status()  # both were accepted before it
            stop(worker)
            try:
                asking.send(wire.emit_request(Request(operation=RequestOp.STATUS)))
                opening.send(wire.emit_request(Request(operation=RequestOp.OPEN, flags=0)))
                node.close(closed)
            finally:
                os.kill(worker, signal.SIGCONT)
            node.opened += answered(asking)
            user_end, *others = answered(opening)
        node.status()  # the pass is over
        poll = select.poll()
        poll.register(user_end, 0)
        assert poll.poll(0) == []
        node.opened += [user_end, *others]
        node.close_opened()
        wait_until(lambda: node.status()["sockets"] == 0)


def connected(node: Node) -> socket.socket:
    """Connect to a node."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    end.settimeout(WAIT_S)
    end.connect(node.place)
    return end


def answered(end: socket.socket) -> list[int]:
    """Return the descriptors of an answer."""
    data, found, _, _ = socket.recv_fds(end, wire.RECORD_BYTES, 8)
    assert not wire.parse_answer(data).status
    return found


def stop(process: int) -> None:
    """Have a process stand still."""
    os.kill(process, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{process}/stat").read_text().rpartition(")")[2][1] == "T")


def test_a_socket_whose_program_breaks_the_protocol_ends_alone(node: Node) -> None:
    bad, good = node.open(), node.open()
    node.bind(bad)
    node.bind(good)
    os.write(bad, b"!")
    wait_until(lambda: node.status()["sockets"] == 1)
    with socket.socket(fileno=os.dup(bad)) as end:
        end.settimeout(30)
        assert end.recv(1) == b""
    assert node.ask(RequestOp.FIND, good)
    assert wait_until(lambda: node.has_told("socket-broken"))["what"] == "it wrote `!`"


def test_a_fault_of_the_node_is_one_answer_and_one_line(node: Node) -> None:
    end = node.open()
    node.bind(end)
    values = {"name": name("192.0.2.2", 5), "tos": 0}
    assert refused(node, RequestOp.ROUTE, end, **values) == errno.EIO
    line = wait_until(lambda: node.has_told("request-fault"))
    assert "ZeroDivisionError" in line["traceback"]
    assert node.ask(RequestOp.FIND, end)


def test_quotas_have_their_errno(start_node: StartNode) -> None:
    node = start_node("[quota]\nsockets = 1\nroutes = 2\npeers = 1\nmemory = '1MiB'\n")
    double = 2 if not os.getuid() else 1  # root has twice as much
    ends = [node.open() for _ in range(double)]
    assert refused(node, RequestOp.OPEN, flags=0) == errno.EMFILE
    node.bind(ends[0])
    failing = {"name": name("192.0.2.2", 5), "tos": 0}
    assert refused(node, RequestOp.ROUTE, ends[0], **failing) == errno.EIO  # and counts not
    peers = [f"127.0.0.{2 + number}" for number in range(double + 1)]
    for host in peers[:double]:
        node.ask(RequestOp.ROUTE, ends[0], name=name(host, 5), tos=0)
    values = {"name": name(peers[double], 5), "tos": 0}
    assert refused(node, RequestOp.ROUTE, ends[0], **values) == errno.EUSERS
    node.close(ends.pop())
    wait_until(lambda: node.status()["sockets"] == double - 1)
    wait_until(lambda: len(node.events("quota-reached")) == 2)
    reasons = [one["reason"].rpartition("(")[2] for one in node.events("quota-reached")]
    assert reasons == ["quota.sockets)", "quota.peers)" if os.getuid() else "quota.routes)"]
    # One that was bound counts until its messages have left.
    wait_until(lambda: not node.status()["closing"])
    node.open()


def test_a_socket_that_is_bound_over_the_quota_is_refused_sends_too(start_node: StartNode) -> None:
    node = start_node("[quota]\nmemory = '1MiB'\n")
    (user_end, memory, _), *full = [node.ask(RequestOp.OPEN, flags=0)[1] for _ in range(4)]
    for _, filled, _ in full:
        os.pwrite(filled, bytes(MEMORY_BYTES), 0)  # root may have twice the quota
    wait_until(lambda: node.has_told("quota-reached"))
    node.bind(user_end)
    assert os.pread(memory, 1, RESTRICTED_AT) == b"\1"


def test_a_port_is_free_at_once_after_its_last_close(node: Node) -> None:
    """The plane may tell of the close later: the next bind sees for itself."""
    port = node.bind(node.open(), "127.0.0.6")
    for _ in range(20):
        node.close_opened()
        end = node.open()
        assert node.bind(end, "127.0.0.6", port) == port
