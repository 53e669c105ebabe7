//! Which acknowledgements a path sends, when, and how it handles those of its peer.

mod common;

use common::{MS, Side, acknowledgement, frames_of, map_message, message};
use urds_path::constants::{FLAG_ACK_REQUIRED, FLAG_RETRANSMITTED};
use urds_path::{AckMode, DownReason, Hold, Limits};

/// A side towards a urds node whose first frame has arrived.
fn side() -> Side {
    let mut side = Side::begun(AckMode::PeerAcknowledged);
    side.take(&map_message(None));
    side
}

#[test]
fn one_is_due_the_delay_after_the_first_message() {
    let mut side = side();
    let due_ns = 5 * MS + Limits::default().acknowledge_delay_ns;
    assert_eq!(side.core.poll_timeout(), None);
    for (number, now_ns) in [(1, 5 * MS), (2, 5 * MS + 700)] {
        side.now_ns = now_ns;
        side.take(&message(number, 0, 0, b"x"));
    }
    assert_eq!(side.core.poll_timeout(), Some(due_ns));
    side.core.handle_timeout(due_ns - 1);
    assert!(!side.core.wants_to_write());
    side.core.handle_timeout(due_ns);
    let bytes = side.write_all();
    assert_eq!(bytes, acknowledgement(2));
    assert_eq!(
        (side.core.poll_timeout(), side.counters.ack_sent),
        (None, 1)
    );
    assert!(!side.core.wants_to_write());
}

#[test]
fn one_is_due_at_the_most_messages_or_bytes() {
    let limits = Limits::default();
    let fourth = limits.acknowledge_bytes.div_ceil(4);
    for (count, bytes) in [(limits.acknowledge_messages as u64, 1), (4, fourth)] {
        let mut side = side();
        for number in 1..=count {
            assert!(!side.core.wants_to_write(), "before {number}");
            side.take(&message(number, 0, 0, &vec![0; bytes]));
        }
        assert_eq!(side.write_all(), acknowledgement(count));
    }
}

#[test]
fn one_is_due_when_required_also_for_a_retransmit() {
    let mut side = side();
    side.take(&message(1, 0, FLAG_ACK_REQUIRED, b"x"));
    assert_eq!(side.write_all(), acknowledgement(1));
    side.take(&message(1, 0, FLAG_ACK_REQUIRED | FLAG_RETRANSMITTED, b"x"));
    side.take(&message(1, 0, FLAG_ACK_REQUIRED | FLAG_RETRANSMITTED, b"x"));
    assert_eq!(
        side.write_all(),
        acknowledgement(1),
        "at most one for any number of requests"
    );
    assert_eq!(side.mailbox.got.len(), 1);
}

#[test]
fn a_message_carries_it_and_resets_every_counter() {
    let mut side = side();
    side.take(&message(1, 0, FLAG_ACK_REQUIRED, b"x"));
    side.send(b"reply");
    let frames = side.frames();
    assert_eq!((frames.len(), frames[0].0.ack), (1, 1));
    let receiver = &side.core.receiver;
    assert_eq!(
        (receiver.ack_pending_messages, receiver.ack_pending_bytes),
        (0, 0)
    );
    assert_eq!(
        (side.core.poll_timeout(), side.counters.ack_sent),
        (None, 0)
    );
}

#[test]
fn it_stays_due_until_it_is_bytes() {
    let mut side = side();
    let long = vec![0; 70_000];
    side.send(&long);
    side.send(&long);
    let write_buffer = side.poll().expect("both");
    side.core.transmitted(write_buffer, 100);
    side.take(&message(1, 0, FLAG_ACK_REQUIRED, b"x"));
    let write_buffer = side.poll().expect("the rest of both");
    let taken = write_buffer.len() - 10;
    side.core.transmitted(write_buffer, taken);
    assert_eq!(side.counters.ack_sent, 0, "enough was offered without it");
    assert!(side.core.wants_to_write());
    let rest = side.write_all();
    assert_eq!(rest[10..], acknowledgement(1));
}

#[test]
fn only_whole_messages_are_acknowledged() {
    let mut side = side();
    let bytes = [
        message(1, 0, 0, b"whole"),
        message(2, 0, FLAG_ACK_REQUIRED, b"cut"),
    ]
    .concat();
    side.take(&bytes[..bytes.len() - 1]);
    side.core.acknowledge();
    assert_eq!(side.write_all(), acknowledgement(1));
    side.core.acknowledge();
    assert!(!side.core.wants_to_write(), "nothing is owed");
}

#[test]
fn linux_and_unknown_peers_get_none() {
    for ack_mode in [AckMode::NotYet, AckMode::StreamAcknowledged] {
        let mut side = Side::begun(ack_mode);
        side.take(&map_message(None));
        side.take(&message(1, 0, FLAG_ACK_REQUIRED, b"x"));
        assert_eq!(side.core.poll_timeout(), None);
        assert_eq!(side.write_all(), b"");
        assert!(!side.core.wants_to_write(), "it is settled");
        side.send(b"reply");
        assert_eq!(side.frames()[0].0.ack, 0);
    }
}

#[test]
fn an_agreement_tells_what_came_before_it() {
    let mut side = Side::begun(AckMode::NotYet);
    side.core.agree(AckMode::PeerAcknowledged, false);
    assert!(
        !side.core.wants_to_write(),
        "whose numbers would it be about?"
    );
    side.core.agree(AckMode::NotYet, false);
    side.send(b"mine");
    side.write_all();
    side.take(&map_message(None));
    side.take(&message(5, 1, 0, b"x"));
    assert_eq!(side.account(), 4, "its kind is not known");
    side.core.agree(AckMode::PeerAcknowledged, true);
    assert_eq!(side.account(), 0);
    let frames = frames_of(&side.write_all());
    assert_eq!((frames[0].0.ack, frames.len()), (5, 1));
    assert!(frames[0].0.checksum != 0);
}

#[test]
fn what_is_acknowledged_is_freed() {
    let mut side = side();
    side.send_all(&[b"1", b"22", b"333"]);
    side.write_all();
    side.take(&acknowledgement(2));
    assert_eq!((side.account(), side.counters.ack_received), (3, 1));
    side.take(&message(1, 3, 0, b"a reply tells it too"));
    assert_eq!(side.account(), 0);
}

#[test]
fn more_than_was_handed_over_is_a_protocol_error() {
    let mut side = side();
    side.send(b"1");
    assert_eq!(
        side.receive(&acknowledgement(1)),
        Err(DownReason::BadAcknowledgement)
    );
    assert_eq!(side.account(), 1);
}

#[test]
fn a_fault_of_the_bytes_is_told_before_one_of_their_acknowledgement() {
    let mut side = side();
    let mut bytes = acknowledgement(9);
    bytes.extend_from_slice(&message(1, 0, 1, b"a map of another length"));
    assert_eq!(side.receive(&bytes), Err(DownReason::BadMap));
}

#[test]
fn pending_acks_end_with_the_stream() {
    let mut side = side();
    side.take(&message(1, 0, FLAG_ACK_REQUIRED, b"x"));
    side.detach();
    assert_eq!(side.core.poll_timeout(), None);
    side.core.acknowledge();
    assert!(!side.core.wants_to_write());
    side.begin(Hold::Nothing);
    assert_eq!(side.write_all(), b"");
}
