//! Framing, limits before memory, control messages; bytes of Linux as its hosts sent them.

use crate::constants::*;
use crate::receiver_world::*;
use crate::{Body, DownReason, Header, Limits};

const LINUX: [&str; 3] = [
    include_str!("../../../../tests/vectors/linux_6_1_tcp.hex"),
    include_str!("../../../../tests/vectors/linux_6_12_tcp.hex"),
    include_str!("../../../../tests/vectors/linux_7_2_tcp.hex"),
];

/// Read a vector: groups of hexadecimal digits, `00*8192` repeats a byte.
fn vector(file: &str, name: &str) -> Vec<u8> {
    let line = file
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
    let mut bytes = Vec::new();
    for group in line.expect("a vector of that name").split_whitespace() {
        let (digits, count) = group.split_once('*').unwrap_or((group, "1"));
        let one: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|place| u8::from_str_radix(&digits[place..place + 2], 16).expect("digits"))
            .collect();
        bytes.extend(one.repeat(count.parse().expect("a count")));
    }
    bytes
}

#[test]
fn what_linux_sends_is_taken_as_it_means_it() {
    for file in LINUX {
        let mut side = Side::new(Limits::default());
        for name in ["probe_ping", "data", "pong", "probe_pong"] {
            side.receive(&vector(file, name)).expect("a healthy stream");
        }
        assert!(
            side.got()
                .iter()
                .any(|payload| payload.starts_with(b"hello from "))
        );
        let controls: Vec<_> = side
            .receiver
            .controls
            .iter()
            .map(|one| (one.source_port, one.target_port))
            .collect();
        assert_eq!(controls, [(1, 0), (0, 1)]);
        assert_eq!(
            side.counters.recv_drop_no_sock, 1,
            "a pong for an unbound port"
        );
        assert_eq!(side.receiver.frames, 4);
    }
}

#[test]
fn what_is_missing_is_told() {
    let mut side = Side::new(Limits::default());
    let bytes = frame(header(1), &[7; 10_000]);
    side.receive(&bytes[..20]).expect("well");
    assert_eq!(side.receiver.remaining(), (28, 0));
    side.receive(&bytes[20..50]).expect("well");
    assert_eq!(side.receiver.remaining(), (0, 9998));
    side.receive(&bytes[50..]).expect("well");
    assert_eq!(side.receiver.remaining(), (0, 0));
    let bytes = frame(header(2), &[7; 100]);
    side.receive(&bytes[..60]).expect("well");
    assert_eq!(side.receiver.remaining(), (0, 88));
}

#[test]
fn a_partial_message_dies_with_its_stream() {
    for payload_bytes in [100, 20_000] {
        for kept in [1, 47, 48, 49, 90, 147] {
            let mut side = Side::of_urds_node();
            side.receive(&frame(header(1), &vec![1; payload_bytes])[..kept])
                .expect("well");
            side.reconnect();
            assert_eq!(side.receiver.remaining(), (0, 0));
            let again = Header {
                flags: FLAG_RETRANSMITTED,
                ..header(1)
            };
            side.receive(&frame(again, &vec![2; payload_bytes]))
                .expect("well");
            assert_eq!(side.got(), [vec![2; payload_bytes]]);
        }
    }
}

#[test]
fn each_message_reaches_its_mailbox_or_is_counted() {
    let mut side = Side::of_urds_node();
    for number in 1..10_u16 {
        let target_port = if number % 3 == 0 { 9 } else { TARGET + number };
        let mut extension = [0; 16];
        extension[0] = 9;
        let sequence = number.into();
        let header = Header {
            target_port,
            source_port: number + 7,
            extension,
            ..header(sequence)
        };
        side.receive(&frame(header, &[0; 5])).expect("well");
    }
    let first = &side.mailboxes.got[0];
    assert_eq!(
        (first.target_port, first.source_port, first.extension[0]),
        (TARGET + 1, 8, 9)
    );
    assert_eq!(
        (
            side.counters.recv_queued,
            side.counters.recv_bytes_added_to_sock
        ),
        (6, 30)
    );
    assert_eq!(side.counters.recv_drop_no_sock, 3);
    assert_eq!(
        (
            side.receiver.ack_pending_messages,
            side.receiver.ack_pending_bytes
        ),
        (9, 45)
    );
    assert_eq!(side.receiver.sequence_expected, 10);
}

#[test]
fn only_exactly_the_map_flag_makes_a_map() {
    for flags in [0x02, 0x03, 0x05, 0x08, 0x09, 0x81] {
        let mut side = Side::new(Limits::default());
        side.receive(&frame(Header { flags, ..header(1) }, b"data"))
            .expect("well");
        assert_eq!(side.got(), [b"data"]);
        assert!(side.receiver.peer_map.is_none());
    }
}

#[test]
fn a_length_beyond_the_bound_ends_the_stream_before_memory_is_taken() {
    for bytes in [1001, 1 << 31, u32::MAX as usize] {
        let mut side = Side::new(Limits {
            frame_bytes_max: 1000,
            ..Limits::default()
        });
        let first = numbered([1, 2], 0);
        let bad = Header {
            payload_bytes: bytes,
            ..header(3)
        }
        .emit(false);
        let result = side.receive(&[&first[..], &bad].concat());
        assert_eq!(result, Err(DownReason::TooLong));
        assert_eq!(side.numbers(), [1, 2]);
        assert_eq!(
            (side.receiver.frames, side.receiver.remaining()),
            (2, (0, 0))
        );
    }
    let mut side = Side::new(Limits {
        frame_bytes_max: 1000,
        ..Limits::default()
    });
    assert_eq!(side.receive(&frame(header(1), &[0; 1000])), Ok(()));
}

#[test]
fn a_header_alone_reserves_nothing() {
    let mut side = Side::new(Limits::default());
    side.receive(
        &Header {
            payload_bytes: 1 << 20,
            ..header(1)
        }
        .emit(false),
    )
    .expect("well");
    side.receive(&[0; LONG_BYTES - 1]).expect("well");
    assert!(side.receiver.take_body().is_none());
    side.receive(&[0; 1]).expect("well");
    let body = side.receiver.take_body().expect("a body worth lending");
    assert_eq!(
        (body.total, body.filled, body.missing()),
        (1 << 20, LONG_BYTES, 1_040_384)
    );
    assert!(body.memory.is_none());
    assert_eq!(side.receiver.remaining(), (0, 1_040_384));
}

#[test]
fn a_map_of_another_length_is_a_protocol_error() {
    for bytes in [0, 8191, 8193, 16_384] {
        let mut side = Side::new(Limits::default());
        let stream = map_frame(None, &vec![0; bytes]);
        let results: Vec<_> = stream
            .chunks(4096)
            .map(|piece| side.receive(piece))
            .collect();
        assert_eq!(results.last(), Some(&Err(DownReason::BadMap)));
        assert!(side.receiver.peer_map.is_none());
        assert_eq!(side.receiver.frames, 1);
    }
}

#[test]
fn a_map_is_kept_and_takes_no_number() {
    let mut side = Side::new(Limits::default());
    let mut bytes = vec![0; CONGESTION_MAP_BYTES];
    bytes[0] = 0x10;
    side.receive(&numbered([1], 0)).expect("well");
    side.receive(&map_frame(None, &[0xFF; CONGESTION_MAP_BYTES]))
        .expect("well");
    side.receive(&map_frame(None, &bytes)).expect("well");
    side.receive(&numbered([2], 0)).expect("well");
    assert_eq!(
        side.receiver.peer_map.as_deref().map(|map| map.to_vec()),
        Some(bytes)
    );
    assert_eq!(side.numbers(), [1, 2]);
}

#[test]
fn controls_are_kept_up_to_their_bound() {
    let mut side = Side::new(Limits {
        control_events_max: 3,
        ..Limits::default()
    });
    for number in 1..6 {
        let ping = Header {
            target_port: 0,
            ack: 4,
            ..header(number)
        };
        side.receive(&frame(ping, &[3; 100])).expect("well");
    }
    let told: Vec<_> = side
        .receiver
        .controls
        .iter()
        .map(|one| one.sequence)
        .collect();
    assert_eq!(told, [1, 2, 3]);
    assert!(
        side.receiver
            .controls
            .iter()
            .all(|one| one.payload == [3; 64])
    );
    assert_eq!(
        (
            side.counters.recv_drop_control_full,
            side.receiver.acknowledged
        ),
        (2, 4)
    );
}

#[test]
fn a_damaged_header_is_refused_and_zero_is_not_checked() {
    for payload_bytes in [3, 20_000] {
        let whole = checked_frame(header(300), &vec![0; payload_bytes]);
        let mut side = Side::of_urds_node();
        side.receiver.checksum = true;
        assert_eq!(side.receive(&whole), Ok(()));
        assert_eq!(side.receive(&frame(header(301), b"not checked")), Ok(()));
        for place in [0, 7, 15, 19, 21, 23, 30, 31, 32, 47] {
            let mut bytes = whole.clone();
            bytes[place] ^= 1;
            let mut side = Side::of_urds_node();
            side.receiver.checksum = true;
            assert_eq!(side.receive(&bytes), Err(DownReason::BadChecksum));
            assert!(side.got().is_empty());
            side = Side::of_urds_node();
            assert_ne!(side.receive(&bytes), Err(DownReason::BadChecksum));
        }
    }
}

#[test]
fn an_acknowledgement_is_due_at_its_bounds_and_when_asked_for() {
    let bounds = [
        (255, 0, false),
        (256, 0, true),
        (63, 4096, false),
        (64, 4096, true),
        (1, 262_144, true),
    ];
    for (count, payload_bytes, due) in bounds {
        let mut side = Side::of_urds_node();
        for number in 1..=count {
            side.receive(&frame(header(number), &vec![0; payload_bytes]))
                .expect("well");
        }
        assert_eq!(
            side.receiver.acknowledgement_due, due,
            "{count} of {payload_bytes}"
        );
    }
    for flags in [FLAG_ACK_REQUIRED, FLAG_ACK_REQUIRED | FLAG_RETRANSMITTED] {
        for payload_bytes in [3, 20_000] {
            let mut side = Side::of_urds_node();
            let bytes = frame(Header { flags, ..header(9) }, &vec![0; payload_bytes]);
            side.receive(&bytes[..50]).expect("well");
            assert!(!side.receiver.acknowledgement_due);
            side.receive(&bytes[50..]).expect("well");
            assert!(side.receiver.acknowledgement_due);
            assert_eq!(side.counters.recv_ack_required, 1);
            side.receiver.reset_ack_pending();
            assert_eq!(
                (
                    side.receiver.ack_pending_messages,
                    side.receiver.ack_pending_bytes
                ),
                (0, 0)
            );
        }
    }
}

#[test]
fn an_unknown_peer_gets_no_ack() {
    let mut side = Side::new(Limits::default());
    side.receive(&numbered(1..600, 0)).expect("well");
    assert!(!side.receiver.acknowledgement_due);
    assert_eq!(side.receiver.ack_pending_messages, 0);
}

#[test]
fn the_acknowledgement_in_a_header_is_kept_at_its_highest() {
    let mut side = Side::of_urds_node();
    for (sequence, ack) in [(1, 5), (2, 9), (3, 7)] {
        side.receive(&frame(
            Header {
                ack,
                ..header(sequence)
            },
            b"",
        ))
        .expect("well");
    }
    assert_eq!(side.receiver.acknowledged, 9);
    side.receive(&frame(
        Header {
            ack: 12,
            ..Header::default()
        },
        b"",
    ))
    .expect("well");
    assert_eq!(
        (side.receiver.acknowledged, side.counters.ack_received),
        (12, 1)
    );
    assert!(side.receiver.controls.is_empty());
    side.receiver.end_stream();
    assert_eq!(
        (side.receiver.acknowledged, side.receiver.sequence_expected),
        (12, 4)
    );
    side.receiver.begin_stream();
    assert_eq!(side.receiver.acknowledged, 0);
}

#[test]
fn a_body_of_an_ended_stream_is_not_wanted() {
    let mut side = Side::of_urds_node();
    side.receive(&frame(header(1), &vec![0; 30_000])[..20_000])
        .expect("well");
    let mut body = side.receiver.take_body().expect("a body");
    assert_eq!(
        side.receive(b"bytes of it"),
        Err(DownReason::Error),
        "the reader has it"
    );
    side.reconnect();
    body.carry_over(Body::zeroed(30_000))
        .expect("the right length");
    body.filled = 30_000;
    assert_eq!(side.resume(body), Ok(()));
    assert!(side.got().is_empty());
    assert_eq!(side.receiver.remaining(), (0, 0));
}

#[test]
fn a_body_of_an_earlier_stream_is_not_taken_for_the_next_one() {
    let mut side = Side::of_urds_node();
    let begun = frame(header(1), &vec![1; 30_000]);
    side.receive(&begun[..20_000]).expect("well");
    let mut old = side.receiver.take_body().expect("a body");
    old.carry_over(Body::zeroed(30_000))
        .expect("the right length");
    old.filled = 30_000;
    side.reconnect();
    side.receive(&frame(header(1), &vec![2; 30_000])[..20_000])
        .expect("well");
    let body = side.receiver.take_body().expect("the next body");
    assert_eq!(side.resume(old), Ok(()));
    assert!(side.got().is_empty());
    assert_eq!(side.receiver.remaining(), (0, 10_048));
    assert_eq!(side.resume(body), Ok(()));
    side.receive(&[2; 10_048]).expect("well");
    assert_eq!(side.got(), [vec![2; 30_000]]);
}

#[test]
fn a_body_without_memory_goes_on() {
    let mut side = Side::of_urds_node();
    let bytes = frame(header(1), &vec![9; 30_000]);
    side.receive(&bytes[..20_000]).expect("well");
    let mut body = side.receiver.take_body().expect("a body");
    assert!(body.rest_mut().is_empty());
    assert!(body.carry_over(Body::zeroed(29_999)).is_err());
    body.filled = 25_000; // an error of the reader
    assert_eq!(side.resume(body), Ok(()));
    side.receive(&bytes[20_000..]).expect("well");
    assert_eq!(side.got(), [vec![9; 30_000]]);
}

#[test]
fn memory_of_another_length_ends_the_stream() {
    for bytes in [0, 29_999, 30_001] {
        let mut side = Side::of_urds_node();
        side.receive(&frame(header(1), &vec![9; 30_000])[..20_000])
            .expect("well");
        let mut body = side.receiver.take_body().expect("a body");
        body.memory = Some(Body::zeroed(bytes));
        body.filled = 30_000;
        assert_eq!(side.resume(body), Err(DownReason::Error));
    }
}

#[test]
fn maps_and_retransmits_of_linux_are_read() {
    let mut side = Side::new(Limits::default());
    side.receive(&vector(LINUX[0], "empty_map")).expect("well");
    assert_eq!(
        side.receiver.peer_map.as_deref(),
        Some(&[0; CONGESTION_MAP_BYTES])
    );
    side.receive(&vector(LINUX[0], "map_port_5000"))
        .expect("well");
    assert_eq!(
        side.receiver.peer_map.as_deref().map(|map| map[625]),
        Some(1)
    );
    side.receive(&vector(LINUX[0], "repeated")).expect("well");
    side.receive(&vector(LINUX[0], "repeated")).expect("well");
    assert_eq!(side.got(), [b"m0"]);
    assert_eq!(side.counters.recv_drop_old_seq, 1);
}
