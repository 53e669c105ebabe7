//! Duplicates, gaps and restarts: a peer's restart is detected before its messages can pass for old
//! retransmissions.

use crate::Header;
use crate::Limits;
use crate::constants::*;
use crate::receiver_world::*;

/// A side that received those numbers from a kernel, whose connection then broke.
fn kernel(numbers: &[u64]) -> Side {
    let mut side = Side::new(Limits::default());
    side.receive(&numbered(numbers.iter().copied(), 0))
        .expect("well");
    side.got();
    side.reconnect();
    side
}

fn retransmits(numbers: impl IntoIterator<Item = u64>) -> Vec<u8> {
    numbered(numbers, FLAG_RETRANSMITTED)
}

/// A side whose peer of generation 7 sent 100 and 101 on a stream that broke.
fn urds_node() -> Side {
    let mut side = Side::of_urds_node();
    side.receive(&map_frame(Some(7), &[0; CONGESTION_MAP_BYTES]))
        .expect("well");
    side.receive(&numbered([100, 101], 0)).expect("well");
    side.got();
    side.reconnect();
    side
}

impl Side {
    fn hears(&mut self, bytes: &[u8]) -> Vec<u64> {
        self.receive(bytes).expect("a healthy stream");
        self.numbers()
    }

    fn hears_generation(&mut self, generation: Option<u32>) {
        let bytes = map_frame(generation, &[0; CONGESTION_MAP_BYTES]);
        assert!(self.hears(&bytes).is_empty());
    }
}

#[test]
fn gaps_are_no_error_and_the_last_number_is_none() {
    let mut side = Side::of_urds_node();
    assert_eq!(
        side.hears(&numbered([1, 5, 1 << 62, u64::MAX], 0)),
        [1, 5, 1 << 62, u64::MAX]
    );
    assert_eq!(side.receiver.sequence_expected, u64::MAX);
    assert_eq!(side.hears(&numbered([2], 0)), [2]);
    assert_eq!(side.receiver.sequence_expected, 3);
}

#[test]
fn retransmits_of_received_messages_are_dropped_and_counted() {
    let mut side = Side::of_urds_node();
    assert_eq!(side.hears(&numbered(1..6, 0)), [1, 2, 3, 4, 5]);
    side.reconnect();
    assert_eq!(side.hears(&retransmits(1..8)), [6, 7]);
    assert_eq!(side.counters.recv_drop_old_seq, 5);
    let long = frame(
        Header {
            flags: FLAG_RETRANSMITTED,
            ..header(3)
        },
        &vec![0; 20_000],
    );
    assert!(side.hears(&long[..1000]).is_empty());
    assert!(side.hears(&long[1000..]).is_empty());
    assert_eq!(side.counters.recv_drop_old_seq, 6);
}

#[test]
fn a_lower_number_without_the_flag_is_taken_and_followed() {
    let mut side = kernel(&[100, 101]);
    assert_eq!(side.hears(&numbered([1, 2, 3], 0)), [1, 2, 3]);
    assert_eq!(side.receiver.sequence_expected, 4);
}

#[test]
fn a_retransmit_below_the_whole_last_stream_is_a_restart() {
    let mut side = kernel(&[100, 101]);
    assert_eq!(side.hears(&retransmits([1, 2])), [1, 2]);
    assert!(side.receiver.restarted);
    side.reconnect();
    assert_eq!(side.hears(&retransmits([1, 2, 3])), [3]);
}

#[test]
fn retransmits_within_the_last_stream_are_old() {
    let mut side = kernel(&[100, 101, 102]);
    assert_eq!(side.hears(&retransmits([101, 102, 103])), [103]);
    assert!(!side.receiver.restarted);
}

#[test]
fn a_stream_without_traffic_does_not_forget_the_one_before() {
    let mut side = kernel(&[100, 101]);
    side.reconnect();
    assert_eq!(side.hears(&retransmits([1])), [1]);
}

#[test]
fn dropped_retransmits_count_as_traffic_of_their_stream() {
    let mut side = kernel(&[100, 101, 102]);
    assert!(side.hears(&retransmits([100, 101])).is_empty());
    assert_eq!(side.hears(&numbered([103], 0)), [103]);
    side.reconnect();
    assert_eq!(side.hears(&retransmits([101, 102, 103, 104])), [104]);
    assert!(!side.receiver.restarted);
}

#[test]
fn each_stream_with_traffic_has_a_floor_of_its_own() {
    let mut side = kernel(&[100, 101]);
    assert_eq!(side.receiver.received().floor, Some(100));
    assert_eq!(side.hears(&numbered([103, 104], 0)), [103, 104]);
    assert_eq!(side.receiver.received().floor, Some(103));
}

#[test]
fn a_kernel_with_generation_numbers_restarts_by_them() {
    for (generation, sequence, heard) in [(8, 2, &[3][..]), (7, 50, &[])] {
        let mut side = Side::new(Limits::default());
        side.receiver.remember_generation(Some(7));
        side.hears(&probe(1, Some(7), 0));
        side.hears(&numbered(2..50, 0));
        side.reconnect();
        side.hears(&retransmits([49]));
        side.hears(&probe(sequence, Some(generation), FLAG_RETRANSMITTED));
        assert_eq!(side.hears(&retransmits([3])), heard);
        assert_eq!(side.receiver.restarted, generation == 8);
    }
}

#[test]
fn an_older_kernel_begins_one_with_a_second_probe() {
    for (sequence, heard) in [(2, &[3][..]), (1, &[])] {
        let mut side = Side::new(Limits::default());
        side.hears(&probe(1, None, 0));
        side.hears(&numbered(2..50, 0));
        side.reconnect();
        side.hears(&probe(sequence, None, FLAG_RETRANSMITTED));
        assert_eq!(side.hears(&retransmits([3])), heard);
        assert_eq!(side.receiver.restarted, sequence == 2);
    }
}

#[test]
fn old_retransmits_of_a_urds_node_stay_old_however_low() {
    for numbers in [[1, 2], [50, 51]] {
        let mut side = urds_node();
        assert!(side.hears(&retransmits(numbers)).is_empty());
        assert!(!side.receiver.restarted);
    }
}

#[test]
fn another_generation_of_a_urds_node_counts_afresh() {
    for generation in [6, 8] {
        for numbers in [[1, 2], [99, 100], [101, 102], [500, 501]] {
            let mut side = urds_node();
            side.hears_generation(Some(generation));
            assert_eq!(side.hears(&retransmits(numbers)), numbers);
            side.reconnect();
            side.hears_generation(Some(generation));
            assert!(side.hears(&retransmits(numbers)).is_empty());
        }
    }
}

#[test]
fn the_same_generation_goes_on_and_a_first_hello_is_no_restart() {
    for generation in [Some(7), None] {
        let mut side = urds_node();
        side.hears_generation(generation);
        assert_eq!(side.hears(&retransmits([100, 101, 102])), [102]);
        side.hears_generation(generation);
        assert!(side.hears(&retransmits([102])).is_empty());
    }
    let mut side = Side::of_urds_node();
    side.hears_generation(None);
    side.hears(&numbered([100, 101], 0));
    side.reconnect();
    side.hears_generation(Some(7));
    assert_eq!(side.hears(&retransmits([100, 101, 102])), [102]);
}

#[test]
fn what_came_before_a_urds_node_said_hello_stays_received() {
    let mut side = urds_node();
    assert_eq!(side.hears(&numbered([500], 0)), [500]);
    side.reconnect();
    side.receiver.restart_peer();
    assert_eq!(side.hears(&retransmits([500, 501])), [501]);
}

#[test]
fn hellos_leave_the_numbers_alone_and_numbered_pings_do_not() {
    let mut side = Side::of_urds_node();
    side.hears(&numbered([100], 0));
    let ports = |source_port, target_port| Header {
        source_port,
        target_port,
        ..header(0)
    };
    side.hears(&frame(ports(1, 0), &[]));
    side.hears(&frame(ports(0, 1), &[]));
    assert_eq!(
        (
            side.receiver.sequence_expected,
            side.receiver.controls.len()
        ),
        (101, 2)
    );
    let ping = Header {
        sequence: 105,
        ..ports(9, 0)
    };
    side.hears(&frame(ping, &[]));
    side.hears(&frame(
        Header {
            flags: FLAG_RETRANSMITTED,
            ..ping
        },
        &[],
    ));
    assert_eq!(
        (
            side.receiver.sequence_expected,
            side.receiver.controls.len()
        ),
        (106, 3)
    );
    assert_eq!(
        side.receiver.ack_pending_messages, 1,
        "only what goes to a mailbox is owed"
    );
}

#[test]
fn the_numbers_outlive_a_path() {
    let mut before = kernel(&[100, 101, 102]);
    before.hears(&probe(103, Some(7), 0));
    let received = before.receiver.received();
    assert_eq!(
        (received.sequence_expected, received.floor),
        (104, Some(103))
    );
    assert_eq!(
        (received.probe_sequence, received.generation),
        (Some(103), Some(7))
    );
    let mut after = Side::new(Limits::default());
    after.receiver.expect(received);
    assert_eq!(after.receiver.received(), received);
    assert_eq!(after.hears(&retransmits([103, 104])), [104]);
    assert!(!after.receiver.restarted);
    assert_eq!(urds_node().receiver.received().map_generation, Some(7));
}
