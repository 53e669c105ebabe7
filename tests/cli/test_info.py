"""`urds info`: the tables of rds-info, of one process or of all, and how processes are found."""

import json
import os
import re
import socket
import threading
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest

from tests.cli.commands import EXTRAS, address, host, interrupt, urds
from tests.support import planes
from tests.support.clocks import give_time
from urds.cli.output import Exit, Output, UsageError
from urds.cli.rds import info, totals
from urds.cli.rds.info import TABLES
from urds.rds.plane.choose import NATIVE
from urds.rds.plane.contract import (
    Carrier,
    ConnectionFacts,
    MailboxRow,
    MessageRow,
    PathRow,
    RdmaRow,
    Snapshot,
)
from urds.rds.runtime import processes
from urds.rds.runtime.information_socket import InformationSocket
from urds.rds.runtime.processes import Report

HERE, THERE = ip_address("10.0.0.1"), ip_address("10.0.0.2")

MAILBOX = MailboxRow(
    local=HERE,
    port=4000,
    send_bytes_max=106496,
    receive_bytes_max=53248,
    send_queued_bytes=30,
    receive_queued_bytes=5,
    receive_queued_messages=1,
    congested=True,
    inode=77,
)
PATH = PathRow(
    local=HERE,
    peer=THERE,
    index=0,
    transport=Carrier.TCP,
    tos=0,
    up=True,
    sending=True,
    held=False,
    sequence_next=12,
    sequence_expected=9,
    unsent_messages=2,
    unacknowledged_messages=1,
    local_stream=("10.0.0.1", 16385),
    peer_stream=("10.0.0.2", 50123),
    header_remaining_bytes=48,
    data_remaining_bytes=0,
    stream_sent_bytes=(1 << 32) + 5,
    stream_expected_bytes=4,
    stream_acknowledged_bytes=3,
)
UP = ConnectionFacts(
    state="up",
    state_s=3600.04,
    attempts=0,
    next_attempt_s=None,
    last_error="Connection refused: nothing listens there",
    last_error_s=3601.0,
    last_received_s=0.25,
    oldest_unacknowledged_s=7.5,
)
SOUGHT = ConnectionFacts(
    state="connecting",
    state_s=12.0,
    attempts=38,
    next_attempt_s=0.8,
    last_error="",
    last_error_s=None,
    last_received_s=None,
    oldest_unacknowledged_s=None,
)
RDMA = RdmaRow(
    device="tcp0",
    service_level=3,
    local_gid=IPv6Address("::ffff:10.0.0.1"),
    peer_gid=IPv6Address("fe6f:5c5e::31a9"),
    send_requests_max=256,
    receive_requests_max=1024,
    send_segments_max=1,
    regions_max=65536,
    region_pages_max=257,
)
RDMA_PATH = replace(
    PATH,
    transport=Carrier.RDMA,
    tos=19,
    sequence_next=4,
    sequence_expected=5,
    local_stream=None,
    peer_stream=None,
    rdma=RDMA,
)
SNAPSHOT = Snapshot(
    counters={"conn_reset": 1},
    mailboxes=[MAILBOX, replace(MAILBOX, port=4001, congested=False, inode=0)],
    paths=[
        replace(PATH, connection=UP),
        replace(PATH, index=1, up=False, sending=False, local_stream=None, connection=SOUGHT),
        RDMA_PATH,
        replace(RDMA_PATH, up=False, sending=False, tos=0, rdma=RdmaRow()),
        replace(RDMA_PATH, peer=HERE, rdma=replace(RDMA, is_passive=True)),
    ],
    send_queue=[MessageRow(0, 30, HERE, 4000, THERE, 4001)],
    retransmit_queue=[MessageRow(11, 8, HERE, 4000, THERE, 4001, 19)],
    receive_queue=[MessageRow(0, 5, HERE, 4000, THERE, 4002)],
    rdma_in_use=True,
)
REPORT = Report(
    pid=4711,
    program="python3 server.py",
    plane="native",
    snapshot=SNAPSHOT,
    counters={"conn_reset": 1, "pings": 2},
    connected={(HERE, 4000): (THERE, 77)},
)

PLAIN = """
Processes:
Program           Addresses       Plane  Sockets Paths     Pid
python3 server.py 10.0.0.1        native       2     5    4711

RDS Sockets:
      BoundAddr BPort        ConnAddr CPort     SndBuf     RcvBuf    Inode     Pid
       10.0.0.1  4000        10.0.0.2    77     106496      53248       77    4711
       10.0.0.1  4001         0.0.0.0     0     106496      53248        0    4711

RDS Connections:
      LocalAddr      RemoteAddr  Tos               NextTX               NextRX Flgs     Pid
       10.0.0.1        10.0.0.2    0                   12                    9 s-C-    4711
       10.0.0.1        10.0.0.2   19                    4                    5 s-C-    4711
       10.0.0.1        10.0.0.2    0                    4                    5 -c--    4711

Receive Message Queue:
      LocalAddr LPort      RemoteAddr RPort Tos                  Seq      Bytes     Pid
       10.0.0.1  4000        10.0.0.2  4002   0                    0          5    4711

Send Message Queue:
      LocalAddr LPort      RemoteAddr RPort Tos                  Seq      Bytes     Pid
       10.0.0.1  4000        10.0.0.2  4001   0                    0         30    4711

Retransmit Message Queue:
      LocalAddr LPort      RemoteAddr RPort Tos                  Seq      Bytes     Pid
       10.0.0.1  4000        10.0.0.2  4001  19                   11          8    4711

TCP Connections:
      LocalAddr LPort      RemoteAddr RPort  HdrRemain DataRemain    SentNxt  ExpectUna    SeenUna     Pid
       10.0.0.1 16385        10.0.0.2 50123         48          0          5          4          3    4711

RDS IB Connections:
      LocalAddr      RemoteAddr  Tos  SL                         LocalDev                        RemoteDev     Pid
       10.0.0.1        10.0.0.2   19   3                  ::ffff:10.0.0.1                  fe6f:5c5e::31a9    4711
       10.0.0.1        10.0.0.2    0   0                               ::                               ::    4711
"""  # noqa: E501 - as wide as the tables of rds-info

VERBOSE_SOCKETS = """
RDS Sockets:
      BoundAddr BPort        ConnAddr CPort     SndBuf     RcvBuf    Inode SndQueue RcvQueue RcvMsgs Congested     Pid
       10.0.0.1  4000        10.0.0.2    77     106496      53248       77       30        5       1       yes    4711
       10.0.0.1  4001         0.0.0.0     0     106496      53248        0       30        5       1        no    4711
"""  # noqa: E501 - as wide as the tables of rds-info

VERBOSE_CONNECTIONS = """
RDS Connections:
      LocalAddr      RemoteAddr  Tos               NextTX               NextRX Flgs Path      Trans Unsent Unacked Held      State   Since Tries  Next LastRecv  Oldest LastError                                                   Pid
       10.0.0.1        10.0.0.2    0                   12                    9 s-C-    0        tcp      2       1   no         up  3600.0     0     -      0.2     7.5 3601.0 s ago: Connection refused: nothing listens there    4711
       10.0.0.1        10.0.0.2    0                   12                    9 -c--    1        tcp      2       1   no connecting    12.0    38   0.8        -       - -                                                          4711
       10.0.0.1        10.0.0.2   19                    4                    5 s-C-    0 infiniband      2       1   no          -       -     -     -        -       - -                                                          4711
       10.0.0.1        10.0.0.2    0                    4                    5 -c--    0 infiniband      2       1   no          -       -     -     -        -       - -                                                          4711
       10.0.0.1        10.0.0.1   19                    4                    5 s-C-    0 infiniband      2       1   no          -       -     -     -        -       - -                                                          4711
"""  # noqa: E501 - as wide as the tables of rds-info

VERBOSE_RDMA = """
RDS IB Connections:
      LocalAddr      RemoteAddr  Tos  SL                         LocalDev                        RemoteDev send_wr recv_wr send_sge rdma_mr_max rdma_mr_size cache_allocs Device     Pid
       10.0.0.1        10.0.0.2   19   3                  ::ffff:10.0.0.1                  fe6f:5c5e::31a9     256    1024        1       65536          257            0   tcp0    4711
       10.0.0.1        10.0.0.2    0   0                               ::                               ::       0       0        0           0            0            0      -    4711
       10.0.0.1        10.0.0.1   19   3                  ::ffff:10.0.0.1                  fe6f:5c5e::31a9     256    1024        1       65536          257            0   tcp0    4711
"""  # noqa: E501 - as wide as the tables of rds-info


OVER_ANY = """
import sys, urds
sock = urds.Socket()
sock.settimeout(20)
sock.bind((sys.argv[1], 4000))
sock.sendto(b"", (sys.argv[2], 0))
sock.recv(1)
print("ready", flush=True)
sys.stdin.read()
"""

OVER_RDMA = """
import sys, urds
sock = urds.Socket()
sock.settimeout(20)
sock.setsockopt(urds.SOL_RDS, urds.SO_RDS_TRANSPORT, urds.RDS_TRANS_IB)
sock.bind((sys.argv[1], 4000))
sock.ioctl(urds.SIOCRDSSETTOS, 19)
for peer in sys.argv[2:]:
    sock.sendto(bytes(5000), (peer, 4000))
    sock.sendto(b"", (peer, 0))
    sock.recv(1)  # who answers the second message has the first one
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the sockets of processes in a folder of this test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    at = tmp_path / "urds"
    at.mkdir(mode=0o700)
    monkeypatch.setattr(processes, "named_directory", lambda: str(at))
    return at


def printed(capsys: pytest.CaptureFixture[str], letters: str, *, verbose: bool = False) -> str:
    for table in TABLES:
        if table.letter in letters:
            info.print_table(Output(), table, [REPORT], info.InfoOptions(verbose=verbose))
    return capsys.readouterr().out


def test_the_tables_are_those_of_rds_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "pknrstTI") == PLAIN


def test_verbose_adds_columns_and_all_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "k", verbose=True) == VERBOSE_SOCKETS
    assert printed(capsys, "n", verbose=True) == VERBOSE_CONNECTIONS
    assert printed(capsys, "I", verbose=True) == VERBOSE_RDMA


@pytest.mark.parametrize(
    ("program", "shown"),
    [("a\x1b[2Jb\n", "a?[2Jb?"), ("x" * 60, "x" * 60), ("x" * 61, "x" * 57 + "...")],
)
def test_a_program_neither_steers_the_terminal_nor_fills_it(
    program: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = next(one for one in TABLES if one.letter == "p")
    info.print_table(Output(), table, [replace(REPORT, program=program)], info.InfoOptions())
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == shown


def test_of_many_addresses_a_table_has_the_lowest_and_their_number(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mailboxes = [
        replace(REPORT.snapshot.mailboxes[0], local=IPv4Address("127.0.0.1") + number)
        for number in reversed(range(12))
    ]
    many = replace(REPORT, snapshot=replace(REPORT.snapshot, mailboxes=mailboxes))
    table = next(one for one in TABLES if one.letter == "p")
    info.print_table(Output(), table, [many], info.InfoOptions())
    row = capsys.readouterr().out.splitlines()[-1]
    assert " 127.0.0.1,127.0.0.2,127.0.0.3,+9 " in row


def test_json_has_the_sums_and_all_rows_with_their_process() -> None:
    other = replace(REPORT, pid=4712, counters={"conn_reset": 5, "pings": 0})
    found = json.loads(
        json.dumps(info.document([REPORT, other], info.InfoOptions(all=True)), default=str)
    )
    assert found["counters"] == {"conn_reset": 6, "pings": 2}
    assert [row["pid"] for row in found["sockets"]] == [4711, 4711, 4712, 4712]
    assert found["connections"][1]["index"] == 1
    assert found["connections"][1]["connection"]["attempts"] == 38
    assert [row["device"] for row in found["ib_connections"][:3]] == ["tcp0", "", "tcp0"]
    assert found["send_queue"][0] == {
        "sequence": 0,
        "payload_bytes": 30,
        "local": "10.0.0.1",
        "local_port": 4000,
        "peer": "10.0.0.2",
        "peer_port": 4001,
        "tos": 0,
        "pid": 4711,
    }


def report(monkeypatch: pytest.MonkeyPatch, *reports: Report) -> None:
    """Have these reports found."""
    monkeypatch.setattr(processes, "find", lambda **_: [one.pid for one in reports])
    monkeypatch.setattr(processes, "ask_all", lambda pids, **_: list(reports))


def test_without_a_letter_there_is_a_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report(monkeypatch, replace(REPORT, counters={"conn_reset": 0, "pings": 2}))
    assert info.run(info.InfoOptions()) is Exit.OK
    out = capsys.readouterr().out
    assert out.startswith(
        "processes 1, sockets 2, connections 3, of them up 2\n"
        "messages to be received 1 (5 bytes), to be sent 1 (30 bytes), to be acknowledged 1"
    )
    titles = [line for line in out.splitlines() if line.endswith(":")]
    assert titles == ["Processes:", "RDS Connections:"]
    assert "pings" in out
    assert "conn_reset" not in out


def test_the_summary_is_json_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report(monkeypatch, REPORT)
    assert info.run(info.InfoOptions(json_wanted=True)) is Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["totals", "counters", "processes", "connections"]
    assert (found["totals"]["connections"], found["totals"]["connections_up"]) == (3, 2)
    assert found["totals"]["send_queue"] == {"messages": 1, "bytes": 30}


def test_all_shows_every_table_and_nonzero_leaves_out_the_empty_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report(monkeypatch, replace(REPORT, snapshot=replace(SNAPSHOT, send_queue=[])))
    assert info.run(info.InfoOptions(all=True)) is Exit.OK
    out = capsys.readouterr().out
    assert all(f"{table.title}:\n" in out for table in TABLES)
    assert "processes 1," not in out
    info.run(info.InfoOptions(all=True, nonzero=True))
    out = capsys.readouterr().out
    assert [one.key for one in TABLES if f"{one.title}:\n" not in out] == ["send_queue"]


def test_a_peer_leaves_the_others_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = replace(PATH, peer=HERE)
    queue = [MessageRow(0, 30, HERE, 4000, THERE, 4001), MessageRow(0, 7, HERE, 4000, HERE, 1)]
    report(
        monkeypatch,
        replace(REPORT, snapshot=replace(SNAPSHOT, paths=[PATH, mine], retransmit_queue=queue)),
    )
    info.run(info.InfoOptions(tables="nt", peer=str(HERE), json_wanted=True))
    found = json.loads(capsys.readouterr().out)
    assert [row["peer"] for row in found["connections"]] == [str(HERE)]
    assert [row["payload_bytes"] for row in found["retransmit_queue"]] == [7]


def test_a_peer_without_an_address_is_refused_before_any_process_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    report(monkeypatch)
    asked: list[object] = []
    monkeypatch.setattr(processes, "ask_all", lambda pids, **_: asked)
    monkeypatch.setattr(processes, "ask_nodes", asked.append)
    with pytest.raises(UsageError, match="no such host: "):
        info.run(info.InfoOptions(peer="no such host"))
    assert asked == []
    done = urds("info", "--peer", "no such host")
    assert (done.code, done.out) == (Exit.USAGE, "")


def test_top_takes_the_largest_counters_and_the_rows_of_which_most_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = replace(PATH, tos=7, unacknowledged_messages=90)
    other = replace(REPORT, pid=9, snapshot=replace(SNAPSHOT, paths=[busy]), counters={"a": 9})
    report(monkeypatch, REPORT, other)
    info.run(info.InfoOptions(tables="cn", top=1, json_wanted=True))
    found = json.loads(capsys.readouterr().out)
    assert found["counters"] == {"a": 9}
    assert [(row["tos"], row["pid"]) for row in found["connections"]] == [(7, 9)]


def counted(value: int, pid: int = 4711) -> Report:
    return replace(REPORT, pid=pid, counters={"still": 5, "sent": value, "queued": 2 * value})


def test_a_watch_prints_rates_and_at_ctrl_c_those_since_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that comes counts from 0, one that is gone not at all."""
    answers = iter([[counted(10), counted(7, pid=1)], [counted(30)], [counted(30), counted(8, 2)]])
    times = iter([0.0, 2.0, 4.0, 6.0])
    give_time(monkeypatch, totals, sleep=lambda _: None, monotonic=lambda: next(times))

    def ask() -> list[Report]:
        try:
            return next(answers)
        except StopIteration:
            raise KeyboardInterrupt from None

    assert totals.watch(ask, Output(json_wanted=True), 2.0, None) is Exit.INTERRUPTED
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["per_second"] for one in found] == [
        {"sent": 10.0, "queued": 20.0},
        {"still": 2.5, "sent": 4.0, "queued": 8.0},
        {"still": 1.2, "sent": 7.0, "queued": 14.0},
    ]
    assert [(one["seconds"], one["average"]) for one in found] == [
        (2.0, False), (2.0, False), (4.0, True),
    ]  # fmt: skip


def test_a_watch_ends_with_ctrl_c_and_its_summary(tmp_path: Path) -> None:
    changes = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with host(address(2), changes):
        done = interrupt("info", "--watch", "0.1", after="processes 1", changes=changes)
    assert (done.code, done.err) == (130, "")
    assert "since the start, " in done.out


def test_a_watch_has_no_tables() -> None:
    done = urds("info", "--watch", "-k")
    assert (done.code, done.out) == (2, "")
    assert done.err == "urds info: --watch shows totals and rates, no tables\n"


def test_counters_that_one_process_lacks_keep_their_place() -> None:
    """A process without RDMA that is asked first does not push them to the end."""
    other = replace(REPORT, counters={"conn_reset": 1, "ib_connect_raced": 3, "pings": 1})
    found = info.document([REPORT, other], info.InfoOptions(tables="c"))
    assert json.dumps(found["counters"]) == '{"conn_reset": 2, "ib_connect_raced": 3, "pings": 3}'


def test_a_report_survives_the_way_between_processes() -> None:
    """The counters travel once, those of the control core among them."""
    snapshot = replace(SNAPSHOT, counters=REPORT.counters)
    assert processes.parse(processes.emit(REPORT)) == replace(REPORT, snapshot=snapshot)


_ROW_OF_A_LIST = b"""{"pid": 7, "program": "a", "counters": {}, "mailboxes": [], "paths": [],
    "send_queue": [[4001]]}"""


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"pid": 1}', b"\xff", b"[" * 100_000, _ROW_OF_A_LIST]
)
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no report of this release"):
        processes.parse(data)


def serve(data: bytes) -> InformationSocket:
    served = InformationSocket.open(lambda: data, processes.named_directory())
    assert served is not None
    return served


def test_a_socket_is_for_this_user_only_and_leaves_with_the_process(folder: Path) -> None:
    served = serve(b"")
    place = folder / f"{os.getpid()}.sock"
    assert place.stat().st_mode & 0o777 == 0o600
    served.close()
    assert not place.exists()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o777])
def test_a_folder_that_others_may_enter_is_not_used(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    assert InformationSocket.open(lambda: b"", processes.named_directory()) is None
    assert processes.find() == []


def test_a_link_to_a_folder_is_not_used(folder: Path, tmp_path: Path) -> None:
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    assert InformationSocket.open(lambda: b"", processes.named_directory()) is None


def test_a_place_that_is_too_long_for_a_socket_is_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "named_directory", lambda: str(folder / ("x" * 120)))
    assert InformationSocket.open(lambda: b"", processes.named_directory()) is None


def leave(folder: Path, *pids: int) -> None:
    """Make the files of processes that ended without a word."""
    for pid in pids:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(folder / f"{pid}.sock"))


def test_a_stale_socket_is_replaced_by_its_owner_and_removed_by_a_reader(folder: Path) -> None:
    leave(folder, os.getpid())
    served = serve(b"")
    leave(folder, 999_999)
    assert processes.find() == [os.getpid(), 999_999]
    assert processes.ask(999_999) is None
    assert processes.find() == [os.getpid()]
    served.close()


def test_a_process_that_starts_removes_what_ended_ones_left(folder: Path) -> None:
    leave(folder, 999_999, 999_998, os.getppid())
    (folder / "node-1.sock").touch()
    with socket.socket(socket.AF_UNIX) as other:  # of a container that shares the folder
        other.bind(str(folder / "999997.sock"))
        other.listen()
        served = serve(b"")
        there = {one.name for one in folder.iterdir()}
        served.close()
    kept = {"999997.sock", f"{os.getppid()}.sock", f"{os.getpid()}.sock", "node-1.sock"}
    assert there == kept


def test_a_process_that_hangs_is_silent_not_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "ANSWER_S", 0.05)
    served = serve(b"")  # no call of handle_ready
    answer = processes.ask(os.getpid())
    served.close()
    assert answer == processes.Silent(os.getpid(), "no answer within 0.05 s")


def test_a_process_that_hangs_up_gave_no_report(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "123.sock"))
        other.listen()

        def hang_up() -> None:
            connection, _ = other.accept()
            connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        answer = processes.ask(123)
        thread.join()
    assert answer == processes.Silent(123, "the connection ended without a report")


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_process_is_found_and_shown(extra: str, tmp_path: Path) -> None:
    changes = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with host(address(2), changes) as child:
        done = urds("info", "-k", "-p", extra=extra, changes=changes)
        counters = urds("info", "-c", "--json", extra=extra, changes=changes)
        chosen = urds("info", "-k", "--pid", str(child.pid), extra=extra, changes=changes)
    assert (done.code, done.err) == (0, "")
    row = [line.split() for line in done.out.splitlines() if address(2) in line][-1]
    assert row == [address(2), "4000", "0.0.0.0", "0", "1048576", "106496", "0", str(child.pid)]
    assert "Processes:" in done.out
    names = list(json.loads(counters.out)["counters"])
    assert names[0] == "conn_reset"
    assert {"recv_drop_no_sock", "refused_not_allowed", "pongs_kept_back"} <= set(names)
    assert address(2) in chosen.out
    assert not (tmp_path / "urds" / f"{child.pid}.sock").exists()


def test_a_process_tells_its_plane_and_what_carries(tmp_path: Path) -> None:
    """Shared memory between two with the compiled plane, which both see; TCP between others."""
    here, there = address(5), address(6)
    changes = {"XDG_RUNTIME_DIR": str(tmp_path), "URDS_IMPL": planes.in_use()}
    with host(here, changes), host(there, changes, here, script=OVER_ANY):
        found = json.loads(urds("info", "-n", "-p", "--json", changes=changes).out)
        verbose = urds("info", "-n", "-v", changes=changes).out
    carrier = "shm" if planes.in_use() == NATIVE else "tcp"
    assert [row["plane"] for row in found["processes"]] == [planes.in_use()] * 2
    assert [row["transport"] for row in found["connections"]] == [carrier] * 2
    assert len(re.findall(rf" 0 +{carrier} ", verbose)) == 2


def test_connections_over_rdma_are_found_and_shown(tmp_path: Path) -> None:
    """In real processes over shared memory: the device, both its names, the counters."""
    here, there = address(3), address(4)
    changes = {"XDG_RUNTIME_DIR": str(tmp_path), "URDS_RDMA_DEVICES": "shm0"}
    with (
        host(here, changes, script=OVER_RDMA),
        host(there, changes, here, script=OVER_RDMA) as child,
    ):
        found = json.loads(urds("info", "-n", "-I", "-r", "-c", "--json", changes=changes).out)
        verbose = urds("info", "-I", "-v", "--pid", str(child.pid), changes=changes).out
    for row in found["connections"]:
        assert (row["transport"], row["tos"], row["up"]) == ("infiniband", 19, True)
    one, other = found["ib_connections"]
    assert {one["local"], other["local"]} == {here, there}
    for row, peer in ((one, other), (other, one)):
        assert (row["peer"], row["peer_gid"]) == (peer["local"], peer["local_gid"])
        assert (row["device"], row["tos"], row["service_level"]) == ("shm0", 19, 3)
        assert (row["send_requests_max"], row["region_pages_max"]) == (256, 257)
    (message,) = found["receive_queue"]
    assert (message["local"], message["payload_bytes"], message["tos"]) == (here, 5000, 19)
    counters = found["counters"]
    assert counters["ib_rx_total_frags"] >= 2  # of the message alone
    assert (counters["rdma_ups"], counters["rdma_accepts"]) == (2, 1)
    assert verbose.splitlines()[-1].split() == [
        *(there, here, "19", "3"),
        *(row["local_gid"] for row in (one, other) if row["local"] == there),
        *(row["local_gid"] for row in (one, other) if row["local"] == here),
        *("256", "256", "1", "65536", "257", "0", "shm0", str(child.pid)),
    ]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_no_process_to_ask_is_exit_code_1(options: tuple[str, ...], tmp_path: Path) -> None:
    done = urds("info", *options, changes={"XDG_RUNTIME_DIR": str(tmp_path)})
    assert done.code == 1
    assert json.loads(done.out)["processes"] == [] if options else done.out == ""
    assert done.err == (
        "urds info: no urds socket is bound in any process of this user,"
        f" by what is in {tmp_path}/urds (info_directory)\n"
    )


def test_a_process_is_found_wherever_its_environment_has_its_socket(tmp_path: Path) -> None:
    """As a service without the variables of a login, or with a TMPDIR of its own."""
    here, there = address(7), address(8)
    first, second = ({"XDG_RUNTIME_DIR": str(tmp_path / name)} for name in ("one", "two"))
    nowhere = {"XDG_RUNTIME_DIR": str(tmp_path / "three"), "URDS_INFO_DIRECTORY": "auto"}
    for changes in (first, second):
        Path(changes["XDG_RUNTIME_DIR"]).mkdir()
        changes["URDS_INFO_DIRECTORY"] = "auto"
    with host(here, first) as one, host(there, second) as other:
        found = json.loads(urds("info", "-p", "--json", changes=nowhere).out)
        chosen = urds("info", "-k", "--pid", str(other.pid), changes=nowhere)
        only = {"URDS_INFO_DIRECTORY": str(tmp_path / "one" / "urds")}
        named = json.loads(urds("info", "-p", "--json", changes=only).out)
    assert {one.pid, other.pid} <= {row["pid"] for row in found["processes"]}
    assert there in chosen.out
    assert [row["pid"] for row in named["processes"]] == [one.pid]


def test_a_socket_in_a_folder_that_others_may_enter_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user who may write there could answer as the process."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(processes, "named_directory", lambda: "auto")
    at = tmp_path / "urds"
    at.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(at / "999999.sock"))
        listener.listen()
        assert 999_999 in processes.find()
        at.chmod(0o770)
        assert 999_999 not in processes.find()


def test_other_users_are_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(UsageError, match="--all-users: only root"):
        info.run(info.InfoOptions(all_users=True))


@pytest.mark.skipif(os.getuid() != 0, reason="root may make a file another user's")
def test_root_sees_the_processes_of_all_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(processes, "named_directory", lambda: "auto")
    at = tmp_path / "urds-4242"
    at.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(at / "999998.sock"))
        listener.listen()
        os.chown(at, 4242, 4242)
        assert 999_998 not in processes.find()
        assert 999_998 in processes.find(all_users=True)


def test_a_silent_process_is_named_and_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "find", lambda **_: [7])
    monkeypatch.setattr(processes, "ask_all", lambda pids, **_: [processes.Silent(7, "no answer")])
    assert info.run(info.InfoOptions()) is Exit.FAILED
    assert capsys.readouterr().err == "urds info: process 7: no answer\n"


def test_a_process_may_keep_to_itself(tmp_path: Path) -> None:
    changes = {"XDG_RUNTIME_DIR": str(tmp_path), "URDS_INFO_SOCKET": "false"}
    with host(address(2), changes):
        done = urds("info", "-k", changes=changes)
    assert done.code == 1


@pytest.mark.parametrize("number", ["0", "-4"])
def test_a_process_number_that_cannot_be_is_wrong_usage(number: str) -> None:
    done = urds("info", f"--pid={number}")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"urds info: --pid {number}: must be 1 or more\n"


def test_rates_of_a_process_that_began_anew_are_not_below_zero() -> None:
    """Its counters began anew, with the bind after a while without a socket."""
    before = replace(REPORT, counters={"send_queued": 50, "connects": 3, "connected_peers": 1})
    after = replace(REPORT, counters={"send_queued": 10, "connects": 4, "connected_peers": 2})
    rates = totals._Moment(2.0, [after]).rates(totals._Moment(0.0, [before]))
    assert rates == {"send_queued": 5.0, "connects": 2.0}
