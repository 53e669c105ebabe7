//! What a path writes: order on a stream, retransmissions, holds, fences, bytes that TCP has.

mod common;

use common::{ME, Side, TARGET, acknowledgement, bytes_of, frames_of, map_message, message};
use urds_path::constants::{FLAG_CONG_BITMAP, FLAG_RETRANSMITTED};
use urds_path::extension::parse_handshake;
use urds_path::{AckMode, Hold, Limits};

const MAP_FRAME: usize = 8240;

#[test]
fn a_map_opens_every_stream() {
    let mut side = Side::new(AckMode::NotYet);
    side.map.set(0);
    side.send(b"a");
    for _ in 0..3 {
        side.attach();
        let frames = side.frames();
        assert_eq!(
            (frames[0].0.flags, frames[0].0.sequence),
            (FLAG_CONG_BITMAP, 0)
        );
        assert_eq!(frames[0].1, side.map.emit());
        assert_eq!(frames[1].1, b"a");
        side.detach();
    }
    assert_eq!(
        (side.counters.conn_reset, side.counters.cong_update_queued),
        (3, 3)
    );
}

#[test]
fn a_map_tells_the_generation_unless_to_a_kernel() {
    for ack_mode in [
        AckMode::NotYet,
        AckMode::PeerAcknowledged,
        AckMode::StreamAcknowledged,
    ] {
        let mut side = Side::with(Limits::default(), 1, Some(8), ack_mode);
        side.attach();
        let told = parse_handshake(&side.frames()[0].0.extension);
        let to_kernel = ack_mode == AckMode::StreamAcknowledged;
        assert_eq!(
            (told.generation, told.marked),
            ((!to_kernel).then_some(8), !to_kernel)
        );
    }
}

#[test]
fn what_was_handed_over_is_repeated_whole_before_anything_new() {
    let mut side = Side::begun(AckMode::NotYet);
    side.send_all(&[b"first", b"second", b"third"]);
    side.write(48 + 5 + 10); // the second breaks off within its header
    side.detach();
    side.send(b"new");
    side.begin(Hold::Nothing);
    side.detach(); // only the map was requested; the retransmissions were framed all the same
    side.attach();
    let frames = &side.frames()[1..];
    let payloads: Vec<_> = frames.iter().map(|frame| &frame.1[..]).collect();
    assert_eq!(payloads, [&b"first"[..], b"second", b"third", b"new"]);
    assert!(
        frames
            .iter()
            .all(|frame| frame.0.flags == FLAG_RETRANSMITTED)
    );
    assert_eq!(
        frames
            .iter()
            .map(|frame| frame.0.sequence)
            .collect::<Vec<_>>(),
        [1, 2, 3, 4]
    );
}

#[test]
fn three_breaks_within_the_retransmits_lose_and_reorder_nothing() {
    let mut side = Side::begun(AckMode::NotYet);
    let sent: Vec<Vec<u8>> = (0..100)
        .map(|number| format!("{number:04}").into_bytes())
        .collect();
    for payload in &sent {
        side.send(payload);
    }
    side.write_all();
    for bytes in [MAP_FRAME + 1000, MAP_FRAME + 52 * 30 + 1, MAP_FRAME] {
        side.detach();
        side.attach();
        side.write(bytes);
    }
    side.detach();
    side.attach();
    assert_eq!(side.payloads(), sent);
}

#[test]
fn the_rest_of_a_write_buffer_comes_first_in_the_next() {
    let mut side = Side::begun(AckMode::NotYet);
    side.send_all(&[&[1; 100], &[2; 9000]]);
    let write_buffer = side.poll().expect("two messages");
    let mut whole = bytes_of(&write_buffer);
    assert!(side.core.wants_to_write(), "it is out, not gone");
    side.core.transmitted(write_buffer, 0);
    for taken in [1, 147, 1, 50] {
        side.send(b"more");
        let write_buffer = side.poll().expect("the rest");
        let bytes = bytes_of(&write_buffer);
        assert!(bytes.starts_with(&whole));
        whole = bytes[taken..].to_vec();
        side.core.transmitted(write_buffer, taken);
    }
    assert_eq!(side.core.bytes_written, 8240 + 199);
    assert_eq!(side.write_all(), whole);
    assert!(!side.core.wants_to_write());
}

#[test]
fn a_write_buffer_of_an_earlier_stream_is_not_taken_back() {
    let mut side = Side::begun(AckMode::NotYet);
    side.send(b"message");
    let write_buffer = side.poll().expect("a message");
    side.detach();
    side.attach();
    side.core.transmitted(write_buffer, 10);
    assert_eq!(side.core.bytes_written, 0);
    let bytes = side.write_all();
    assert_eq!(
        (bytes.len(), frames_of(&bytes)[1].0.flags),
        (8240 + 55, FLAG_RETRANSMITTED)
    );
}

#[test]
fn writes_of_long_messages_are_longer_and_have_few_slices() {
    let mut side = Side::begun(AckMode::NotYet);
    for _ in 0..5000 {
        side.send(b"short");
    }
    let write_buffer = side.poll().expect("many");
    assert!(write_buffer.single().is_some() && (65_536..65_600).contains(&write_buffer.len()));
    side.core.transmitted(write_buffer, usize::MAX >> 1);
    side.write_all();
    for _ in 0..100 {
        side.send(&[0; 8192]);
    }
    let write_buffer = side.poll().expect("many");
    assert!((524_288..524_288 + 8240).contains(&write_buffer.len()));
}

#[test]
fn a_hello_waits_for_the_first_frame_and_passes_a_hold() {
    let mut side = Side::new(AckMode::PeerAcknowledged);
    side.send(b"held");
    side.begin(Hold::Hello);
    side.control((1, 0), 4, true);
    side.control((0, 1), 6, true);
    side.control((1, 0), 5, true);
    side.core.receiver.sequence_expected = 78;
    let map = map_message(None);
    side.take(&map[..map.len() - 1]);
    assert!(!side.core.wants_to_write());
    assert_eq!(side.frames(), []);
    side.take(&map[map.len() - 1..]);
    assert!(side.core.wants_to_write());
    let hellos: Vec<_> = side
        .frames()
        .iter()
        .map(|one| (one.0.sequence, one.0.ack, one.0.extension[0]))
        .collect();
    assert_eq!(
        hellos,
        [(0, 77, 5), (0, 77, 6)],
        "the later one replaces what has not left"
    );
    assert!(side.core.is_held());
    side.core.end_hold(None);
    assert_eq!(side.numbers(), [1]);
    side.control((1, 0), 5, true);
    side.detach();
    side.begin(Hold::Hello);
    side.take(&map);
    assert_eq!(side.frames(), [], "it died with its stream");
}

#[test]
fn controls_go_behind_retransmits_and_ahead_of_new_messages() {
    let mut side = Side::begun(AckMode::NotYet);
    side.send(b"repeat");
    side.write_all();
    side.detach();
    side.send(b"new");
    side.attach();
    side.control((7, 0), 0, false);
    let sent: Vec<_> = side.frames()[1..]
        .iter()
        .map(|one| (one.0.target_port, one.0.sequence))
        .collect();
    assert_eq!(sent, [(TARGET, 1), (0, 2), (TARGET, 3)]);
    assert_eq!(side.counters.send_pong, 1);
}

#[test]
fn a_probe_takes_the_place_of_those_before_it() {
    let mut side = Side::new(AckMode::NotYet);
    for _ in 0..5 {
        side.attach();
        side.write_all();
        side.control((1, 0), 0, false);
        side.send(b"message");
        side.write_all();
        let probes = side.core.sender.sent().filter(|one| one.source_port == 1);
        assert_eq!(probes.count(), 1);
        side.control((1, 0), 0, false);
        side.detach();
    }
    let sender = &side.core.sender;
    assert_eq!(
        (
            sender.retransmits_len(),
            sender.unsent_len(),
            sender.pending_bytes
        ),
        (5, 1, 48)
    );
}

#[test]
fn a_held_stream_carries_nothing_but_maps() {
    for hold in [Hold::FirstFrame, Hold::Hello] {
        let mut side = Side::new(AckMode::NotYet);
        side.send(b"a");
        side.begin(hold);
        side.control((7, 0), 0, false);
        assert!(side.core.is_held() && !side.core.wants_to_write());
        assert_eq!(side.frames(), []);
        side.core.map_due = true;
        assert_eq!(side.frames()[0].0.flags, FLAG_CONG_BITMAP);
        side.take(&map_message(None));
        assert_eq!(side.core.is_held(), hold == Hold::Hello);
        assert_eq!(side.numbers().len(), usize::from(hold == Hold::FirstFrame));
    }
}

#[test]
fn release_forgets_what_the_peer_has_and_believes_no_more_than_was_handed_over() {
    for (told, left) in [
        (Some(2), vec![3]),
        (Some(99), vec![1, 2, 3]),
        (None, vec![1, 2, 3]),
    ] {
        let mut side = Side::begun(AckMode::PeerAcknowledged);
        side.send_all(&[b"1", b"2", b"3"]);
        side.write_all();
        side.detach();
        side.begin(Hold::Hello);
        side.core.end_hold(told);
        assert_eq!(side.account(), left.len());
        assert_eq!(side.numbers(), left);
    }
}

#[test]
fn a_cancelled_message_goes_to_its_end_and_leaves_a_hole() {
    let mut side = Side::begun(AckMode::NotYet);
    side.send_all(&[b"a", b"bb", b"c"]);
    side.write(48 + 1 + 48);
    assert_eq!(side.core.sender.cancel(ME, None), 3);
    assert_eq!(side.account(), 0);
    assert_eq!(
        side.write_all(),
        [b"bb", &message(3, 0, 0, b"c")[..]].concat()
    );
    side.send(b"d");
    side.detach();
    side.attach();
    assert_eq!(side.numbers(), [4]);
}

#[test]
fn a_restart_of_the_peer_takes_only_what_it_was_handed_before() {
    let mut side = Side::begun(AckMode::PeerAcknowledged);
    side.send(b"handed");
    side.write_all();
    side.detach();
    side.send(b"kept");
    assert_eq!(side.core.restart_peer(), 1);
    assert_eq!((side.account(), side.given_up), (4, 1));
    side.attach();
    let frames = side.frames();
    assert_eq!((frames[1].0.sequence, &frames[1].1[..]), (2, &b"kept"[..]));
}

#[test]
fn a_message_is_free_with_its_last_byte_once_the_peer_sent_a_frame() {
    let mut side = Side::begun(AckMode::StreamAcknowledged);
    side.send_all(&[&[1; 10], &[2; 10]]);
    side.write_all();
    side.core.handle_stream_acknowledged(1 << 30);
    assert_eq!(side.account(), 20, "the peer may never have read anything");
    side.take(&map_message(None));
    let start = MAP_FRAME as u64;
    for (bytes, left) in [(57, 20), (58, 10), (115, 10), (116, 0)] {
        side.core.handle_stream_acknowledged(start + bytes);
        assert_eq!(side.account(), left);
    }
}

#[test]
fn a_new_stream_counts_bytes_from_its_own_beginning() {
    let mut side = Side::begun(AckMode::StreamAcknowledged);
    side.send(&[1; 10]);
    side.write_all();
    side.detach();
    side.attach();
    side.take(&map_message(None));
    side.write_all();
    side.core.handle_stream_acknowledged(MAP_FRAME as u64 + 57);
    assert_eq!(side.account(), 10);
    side.core.handle_stream_acknowledged(MAP_FRAME as u64 + 58);
    assert_eq!(side.account(), 0);
}

#[test]
fn other_peers_are_not_believed_by_bytes() {
    for ack_mode in [AckMode::NotYet, AckMode::PeerAcknowledged] {
        let mut side = Side::begun(ack_mode);
        side.send(b"a");
        side.write_all();
        side.take(&map_message(None));
        side.core.handle_stream_acknowledged(1 << 30);
        assert_eq!(side.account(), 1);
    }
}

#[test]
fn a_path_behind_a_fence_waits_for_what_is_before_it() {
    let mut front = Side::begun(AckMode::PeerAcknowledged);
    let mut behind = Side::begun(AckMode::NotYet);
    front.send(&vec![1; 70_000]);
    behind.core.hold_behind(front.core.sender.fence());
    front.send(&vec![3; 70_000]);
    behind.send(b"behind");
    front.write_all();
    front.take(&map_message(None));
    front.detach();
    front.attach();
    front.poll().expect("the map and the first"); // the second is still to be retransmitted
    front.take(&acknowledgement(0));
    assert!(behind.core.is_gated() && !behind.core.wants_to_write());
    assert_eq!(behind.frames(), []);
    front.take(&acknowledgement(1));
    assert!(!behind.core.is_gated() && behind.core.wants_to_write());
    assert_eq!(behind.payloads(), [b"behind"]);
    assert_eq!(behind.counters.mprds_catchup_tx0_retries, 1);
}

#[test]
fn what_was_never_sent_goes_on_over_another_path() {
    let mut closing = Side::begun(AckMode::PeerAcknowledged);
    let mut staying = Side::new(AckMode::NotYet);
    let mut behind = Side::begun(AckMode::NotYet);
    closing.send(b"sent");
    closing.write_all();
    closing.send_all(&[b"1", b"22"]);
    behind.core.hold_behind(closing.core.sender.fence());
    behind.send(b"behind");
    let ping = (1, 0, [0; 16], false);
    let counters = &mut closing.counters;
    closing
        .core
        .control(ping.0, ping.1, ping.2, ping.3, counters);
    staying.send(b"before");
    let moved = closing.core.sender.take_unsent();
    assert!(closing.core.sender.take_unsent().is_empty());
    assert_eq!(closing.core.sender.pending_bytes, 48, "the ping's");
    staying.core.sender.take_over(moved);
    assert_eq!(staying.core.sender.pending_bytes, 3 * 48 + 9);
    staying.send(b"after");
    staying.attach();
    let frames: Vec<_> = staying.frames().into_iter().skip(1).collect();
    let sent: Vec<_> = frames
        .iter()
        .map(|(header, payload)| (header.sequence, payload.as_slice()))
        .collect();
    assert_eq!(
        sent,
        [(1, &b"before"[..]), (2, b"1"), (3, b"22"), (4, b"after")]
    );
    let left: Vec<_> = closing.core.sender.sent().map(|one| one.sequence).collect();
    assert_eq!(left, [1]);
    assert_eq!(closing.frames()[0].0.target_port, 0);
    assert!(behind.core.is_gated(), "the ping has to be there");
    closing.take(&map_message(None));
    closing.take(&acknowledgement(2));
    assert_eq!(behind.payloads(), [b"behind"]);
}

#[test]
fn positions_agree_with_what_is_written() {
    let mut side = Side::new(AckMode::NotYet);
    side.attach();
    side.send_all(&[b"a", &[0; 10_000], b""]);
    assert_eq!(side.core.sender.pending_bytes, 3 * 48 + 10_001);
    let bytes = side.write_all();
    let sender = &side.core.sender;
    assert_eq!(sender.pending_bytes, 0);
    assert_eq!(sender.position, bytes.len() as u64);
    assert_eq!(side.core.bytes_written, bytes.len() as u64);
    let ends: Vec<_> = sender.sent().map(|one| one.end).collect();
    assert_eq!(ends, [8289, 18_337, 18_385]);
}

#[test]
fn only_a_path_with_nothing_before_a_message_is_plain() {
    let mut side = Side::new(AckMode::PeerAcknowledged);
    assert!(!side.core.is_plain());
    side.attach();
    assert!(!side.core.is_plain(), "the map is due");
    side.write_all();
    assert!(side.core.is_plain());
    side.send(b"x");
    side.write_all();
    assert!(
        side.core.is_plain(),
        "what is unacknowledged is the caller's question"
    );
    side.core.sender.fence();
    assert!(!side.core.is_plain());
    assert_eq!(side.core.sender.cancel(ME, None), 1);
    assert!(side.core.is_plain());
    side.core.sender.acknowledgement_wanted = true;
    assert!(!side.core.is_plain());
}
