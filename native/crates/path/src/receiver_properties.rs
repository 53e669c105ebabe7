//! The bytes of a stream give the same messages in any reads, and wherever a reader takes a body;
//! no bytes cause a panic, or memory growth without limit.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::constants::*;
use crate::receiver_world::*;
use crate::{ControlMessage, Counters, DownReason, Header, Limits, Received};

/// The results of a receiver.
#[derive(Debug, PartialEq)]
struct Learnt {
    result: Result<(), DownReason>,
    got: Vec<Got>,
    controls: Vec<ControlMessage>,
    received: Received,
    ack_pending: (usize, usize, bool, u64),
    frames: u64,
    remaining: Option<(usize, usize)>,
    map: Option<Vec<u8>>,
    restarted: bool,
    counters: Counters,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    acknowledging: bool,
    checksum: bool,
}

fn any_peer() -> impl Strategy<Value = Peer> {
    (any::<bool>(), any::<bool>()).prop_map(|(acknowledging, checksum)| Peer {
        acknowledging,
        checksum,
    })
}

/// Receive bytes, cut at those places; bodies are read into their memory if `with_reader`.
fn learnt(peer: Peer, bytes: &[u8], cuts: &[usize], with_reader: bool) -> Learnt {
    let mut side = Side::new(Limits {
        frame_bytes_max: 200_000,
        control_events_max: 4,
        ..Limits::default()
    });
    side.receiver.acknowledging = peer.acknowledging;
    side.receiver.watch_restarts = !peer.acknowledging;
    side.receiver.checksum = peer.checksum;
    let mut places: Vec<_> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    let mut result = Ok(());
    for piece in places.windows(2).map(|ends| &bytes[ends[0]..ends[1]]) {
        result = if with_reader {
            side.receive_by_body(piece)
        } else {
            side.receive(piece)
        };
        if result.is_err() {
            break;
        }
    }
    let receiver = &side.receiver;
    Learnt {
        result,
        got: side.mailboxes.got,
        controls: receiver.controls.iter().cloned().collect(),
        received: receiver.received(),
        ack_pending: (
            receiver.ack_pending_messages,
            receiver.ack_pending_bytes,
            receiver.acknowledgement_due,
            receiver.acknowledged,
        ),
        frames: receiver.frames,
        remaining: result.is_ok().then(|| receiver.remaining()),
        map: receiver.peer_map.as_deref().map(|map| map.to_vec()),
        restarted: receiver.restarted,
        counters: side.counters,
    }
}

fn any_size() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0_usize..200,
        2 => 8000_usize..8400,
        1 => Just(CONGESTION_MAP_BYTES),
        1 => 60_000_usize..140_000,
    ]
}

fn any_flags() -> impl Strategy<Value = u8> {
    prop_oneof![
        8 => Just(0),
        2 => Just(FLAG_ACK_REQUIRED),
        2 => Just(FLAG_RETRANSMITTED),
        1 => Just(FLAG_CONG_BITMAP),
        1 => any::<u8>(),
    ]
}

fn any_ports() -> impl Strategy<Value = (u16, u16)> {
    prop_oneof![
        6 => Just((SOURCE, TARGET)),
        2 => Just((SOURCE + 1, TARGET)),
        1 => Just((SOURCE, TARGET - 1)),
        1 => (0_u16..3, 0_u16..3),
    ]
}

/// A message with a number near its place. One in forty has a wrong checksum.
fn any_frame() -> impl Strategy<Value = (Header, usize, bool)> {
    let fields = (
        any_flags(),
        any_ports(),
        0_u64..9,
        any_size(),
        0_u8..40,
        any::<u32>(),
    );
    fields.prop_map(
        |(flags, (source_port, target_port), step, payload_bytes, luck, word)| {
            let mut extension = [0; EXTENSION_BYTES];
            if word % 3 == 0 {
                extension[0] = 6;
                extension[1..5].copy_from_slice(&(word % 4).to_be_bytes());
            }
            let header = Header {
                sequence: step,
                ack: u64::from(word % 50),
                payload_bytes,
                source_port,
                target_port,
                flags,
                extension,
                ..Header::default()
            };
            (header, payload_bytes, luck == 0)
        },
    )
}

/// The bytes of a stream; numbers rise by one and sometimes stay or jump back.
fn stream_of(frames: &[(Header, usize, bool)], kept: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (place, (header, payload_bytes, is_wrong)) in frames.iter().enumerate() {
        let step = header.sequence;
        let sequence = if step < 7 { place as u64 + 1 } else { step - 7 };
        let fill = u8::try_from(place).unwrap_or(0);
        let header = Header {
            sequence,
            ..*header
        };
        let mut one = checked_frame(header, &vec![fill; *payload_bytes]);
        one[31] ^= u8::from(*is_wrong);
        bytes.extend(one);
    }
    let last = checked_frame(header(99), &vec![3; 60_000]);
    bytes.extend(&last[..kept]);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_split_gives_the_same_result(
        peer in any_peer(),
        frames in vec(any_frame(), 0..9),
        kept in 0_usize..60_000,
        cuts in vec(any::<usize>(), 0..12),
    ) {
        let bytes = stream_of(&frames, kept);
        let whole = learnt(peer, &bytes, &[], false);
        prop_assert_eq!(&learnt(peer, &bytes, &cuts, false), &whole);
        prop_assert_eq!(&learnt(peer, &bytes, &cuts, true), &whole);
    }

    #[test]
    fn byte_by_byte_gives_the_same_result(
        peer in any_peer(),
        frames in vec(any_frame(), 1..3),
    ) {
        let frames: Vec<_> = frames.into_iter().map(|(header, bytes, is_wrong)| {
            (header, bytes % 9000, is_wrong)
        }).collect();
        let bytes = stream_of(&frames, 20);
        let cuts: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(learnt(peer, &bytes, &cuts, false), learnt(peer, &bytes, &[], true));
    }

    #[test]
    fn no_bytes_make_it_panic(
        peer in any_peer(),
        bytes in vec(any::<u8>(), 0..400),
        cuts in vec(any::<usize>(), 0..6),
        with_reader: bool,
    ) {
        let whole = learnt(peer, &bytes, &[], false);
        prop_assert_eq!(learnt(peer, &bytes, &cuts, with_reader), whole);
    }

    /// The payload length is small, so that the message is whole and gets checked.
    #[test]
    fn any_header_is_checked(
        peer in any_peer(),
        headers in vec(any::<[[u8; 16]; 3]>(), 1..20),
        cuts in vec(any::<usize>(), 0..6),
    ) {
        let mut bytes = Vec::new();
        for header in headers {
            let mut header: Vec<u8> = header.concat();
            let small = header[19] & 15;
            header[16..20].copy_from_slice(&[0, 0, 0, small]);
            if peer.checksum {
                header[30..32].copy_from_slice(&[0, 0]);
            }
            bytes.extend(&header);
            bytes.resize(bytes.len() + usize::from(header[19]), 1);
        }
        let whole = learnt(peer, &bytes, &[], false);
        prop_assert_eq!(learnt(peer, &bytes, &cuts, false), whole);
    }
}
