"""Columns and lines of rds-stress from counts; the processors' use from /proc/stat."""

from urds.cli.rds.stress.run import (
    HEADING,
    TITLES,
    Usage,
    as_json,
    csv_heading,
    csv_line,
    histogram,
    line,
    parameter_lines,
    row,
)
from urds.cli.rds.stress.task import Counters, total
from urds.cli.rds.stress.wire import Parameters

PARAMETERS = Parameters(tasks=4, request_bytes=1024, ack_bytes=256, rdma_bytes=2048)
# As rds-stress printed it for one task, 64 bytes both ways.
PRINTED = (
    "tsks   tx/s   rx/s  tx+rx K/s    mbi K/s    mbo K/s tx us/c   rtt us cpu %",
    "   1    187    189      47.00       0.00       0.00 1520.42  4753.62 -1.00",
)


def counted() -> Counters:
    counted = Counters(
        requests_sent=100,
        requests_received=50,
        acks_sent=50,
        rdma_in=10,
        rdma_out=20,
        sending_ns=1_000_000,
    )
    for _ in range(80):
        counted.add_round_trip(500_000)
    return counted


def test_the_table_is_that_of_rds_stress() -> None:
    counted = Counters(
        requests_sent=187,
        requests_received=189,
        acks_sent=189,
        acks_received=187,
        sending_ns=187 * 1_520_420,
        round_trips_ns=187 * 4_753_620,
    )
    one = row(Parameters(request_bytes=64, ack_bytes=64), counted, 1.0, -1.0)
    assert (HEADING, line(one)) == PRINTED


def test_rates_are_per_second_and_times_are_averages() -> None:
    one = row(PARAMETERS, counted(), 2.0, 12.5)
    assert (one.requests_sent_per_s, one.requests_received_per_s) == (50, 25)
    assert one.kib_per_s == (150 * 1024 + 130 * 256) / 1024 / 2
    assert (one.rdma_in_kib_per_s, one.rdma_out_kib_per_s) == (10.0, 20.0)
    assert (one.send_usec, one.round_trip_usec, one.cpu_percent) == (10.0, 500.0, 12.5)
    assert row(PARAMETERS, Counters(), 1.0, -1.0).round_trip_usec == 0.0


def test_counts_add_and_subtract() -> None:
    both = total([counted(), counted()])
    assert (both.requests_sent, both.acks_received, both.buckets[8]) == (200, 160, 160)
    assert both.minus(counted()) == counted()
    assert total([]) == Counters()


def test_round_trips_fall_into_powers_of_two_and_the_last_has_the_rest() -> None:
    counted = Counters()
    for usec in (0, 1, 2, 3, 4, 1023, 1024, 65_535, 10_000_000):
        counted.add_round_trip(usec * 1000 + 999)
    assert counted.buckets == [2, 2, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 2]
    lines = histogram(counted.buckets)
    assert lines[3] == "[     1 -      2] \t\t        2 \t\t (22.22%)"
    assert lines[-1] == "[ 32768 -  65536] \t\t        2 \t\t (22.22%)"
    assert len(lines) == 19
    assert histogram([0] * 16)[3].endswith("(0.00%)")


def test_each_cell_of_perfdata_has_a_title() -> None:
    titles = csv_heading(["conn_reset", "copy_to_user_bytes"], TITLES)
    one = row(PARAMETERS, counted(), 1.0, -1.0)
    cells = csv_line(PARAMETERS, one, counted(), [0.5, 7.0, 1, 2, 3, 4, 5])
    assert titles.startswith("::nr_tasks:count,req_size:bytes,ack_size:bytes,rdma_size:bytes,")
    assert "conn_reset:count,copy_to_user_bytes:bytes,user:percent" in titles
    assert cells.startswith("::4,1024,256,2048,100,")
    assert cells.count(",") == titles.count(",")


def test_parameters_are_shown_as_rds_stress_shows_them() -> None:
    assert parameter_lines(Parameters(rdma_use_fence=False)) == [
        "Options:",
        "  Tasks      1      ",
        "  Req size   1024   ",
        "  ACK size   63     ",
        "  RDMA size  0      ",
        "  RDMA opts  (defaults)",
        "",
    ]
    shown = parameter_lines(Parameters(rdma_use_once=True, rdma_alignment=8))
    assert shown[5] == "  RDMA opts  use_once use_fence align=8"


def test_json_has_no_number_for_what_was_not_asked() -> None:
    assert as_json(row(PARAMETERS, counted(), 1.0, -1.0))["cpu_percent"] is None
    assert as_json(row(PARAMETERS, counted(), 1.0, 0.0))["cpu_percent"] == 0.0


def test_processors_are_busy_with_all_but_idle_and_waiting() -> None:
    before = Usage.parse("cpu  100 0 100 700 100 0 0 0 9 9\ncpu0 1\nintr 50 1 2\n")
    after = Usage.parse("cpu  130 10 130 760 140 10 20 0 9 9\ncpu0 1\nintr 80 1 2\n")
    assert before.times == (100, 0, 100, 700, 100, 0, 0, 0)
    assert after.busy_percent(before) == 50.0
    assert after.columns(before) == (20.0, 15.0, 50.0, 15.0, 30.0)
    assert after.busy_percent(after) == 0.0
