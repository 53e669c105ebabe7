//! The inbox compared with a plain queue, and the rule of its congestion bit.

use std::net::Ipv4Addr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::address::Address;

fn source(port: u16) -> SocketAddress {
    SocketAddress::new(Address::from(Ipv4Addr::LOCALHOST), port)
}

fn put(inbox: &mut Inbox, bytes: usize) {
    let payload = vec![0; bytes];
    inbox.push(
        source(2),
        NO_EXTENSION,
        ArrivingPayload::Borrowed(&payload),
        0,
        0,
    );
}

fn bits(inbox: &mut Inbox, looks: &[u64]) -> Vec<Option<bool>> {
    looks
        .iter()
        .map(|&now_ns| inbox.check_congestion(now_ns))
        .collect()
}

#[test]
fn a_queue_over_its_buffer_at_two_looks_is_congested() {
    let mut inbox = Inbox::new(100);
    put(&mut inbox, 101);
    assert_eq!(bits(&mut inbox, &[5, LOOK_AGAIN_NS]), [None, None]);
    assert_eq!(inbox.look_again_ns(), Some(5 + LOOK_AGAIN_NS));
    assert_eq!(
        bits(&mut inbox, &[5 + LOOK_AGAIN_NS, u64::MAX]),
        [Some(true), None]
    );
    assert_eq!((inbox.look_again_ns(), inbox.clear_below_bytes), (None, 50));
}

#[test]
fn a_queue_that_shrank_between_two_looks_is_not() {
    let mut inbox = Inbox::new(100);
    put(&mut inbox, 60);
    put(&mut inbox, 60);
    assert_eq!(inbox.check_congestion(0), None);
    inbox.pop();
    assert_eq!(bits(&mut inbox, &[1]), [None]);
    assert_eq!(inbox.look_again_ns(), None);
    put(&mut inbox, 60);
    assert_eq!(bits(&mut inbox, &[LOOK_AGAIN_NS]), [None]);
}

#[test]
fn four_times_over_is_congested_at_once_and_below_half_is_not() {
    let mut inbox = Inbox::new(100);
    put(&mut inbox, 401);
    put(&mut inbox, 50);
    assert_eq!(bits(&mut inbox, &[0]), [Some(true)]);
    inbox.pop();
    assert_eq!(bits(&mut inbox, &[0]), [None]);
    inbox.pop();
    assert_eq!(bits(&mut inbox, &[0, 0]), [Some(false), None]);
}

#[test]
fn a_buffer_of_nothing_clears_when_empty() {
    let mut inbox = Inbox::new(0);
    put(&mut inbox, 1);
    assert_eq!(inbox.check_congestion(0), Some(true));
    assert_eq!(
        (inbox.clear_below_bytes, inbox.check_congestion(0)),
        (1, None)
    );
    inbox.pop();
    assert_eq!(inbox.check_congestion(0), Some(false));
}

#[test]
fn many_messages_weigh_without_bytes() {
    let mut inbox = Inbox::new(100);
    for _ in 0..=MANY_MESSAGES {
        assert!(!inbox.may_be_too_full());
        put(&mut inbox, 0);
    }
    assert!(inbox.may_be_too_full());
    assert_eq!(inbox.hard_bytes(), OVERHEAD_BYTES * (MANY_MESSAGES + 1));
    put(&mut inbox, 1);
    assert_eq!(inbox.hard_bytes(), 1 + OVERHEAD_BYTES * (MANY_MESSAGES + 2));
}

#[test]
fn details_weigh_beside_their_message() {
    let mut inbox = Inbox::new(100);
    inbox.push(source(2), [1; 16], ArrivingPayload::Borrowed(b"x"), 0, 0);
    inbox.push(
        source(2),
        NO_EXTENSION,
        ArrivingPayload::Borrowed(b"x"),
        0,
        1,
    );
    put(&mut inbox, 1);
    assert_eq!(
        inbox.hard_bytes(),
        3 + 3 * OVERHEAD_BYTES + 2 * DETAIL_BYTES
    );
    inbox.pop();
    assert_eq!(inbox.hard_bytes(), 2 + 2 * OVERHEAD_BYTES + DETAIL_BYTES);
}

#[test]
fn beyond_many_messages_a_run_without_payload_weighs_as_one() {
    let mut inbox = Inbox::new(100);
    for _ in 0..1_000_000 {
        put(&mut inbox, 0);
    }
    assert_eq!(inbox.len(), 1_000_000);
    assert_eq!(inbox.hard_bytes(), OVERHEAD_BYTES * (MANY_MESSAGES + 1));
    assert_eq!(inbox.rows().count(), 1_000_000);
    // Another source, a payload, a detail: each ends the run.
    inbox.push(
        source(3),
        NO_EXTENSION,
        ArrivingPayload::Borrowed(b""),
        0,
        0,
    );
    put(&mut inbox, 0);
    put(&mut inbox, 1);
    put(&mut inbox, 0);
    inbox.push(
        source(2),
        NO_EXTENSION,
        ArrivingPayload::Borrowed(b""),
        0,
        1,
    );
    put(&mut inbox, 0);
    put(&mut inbox, 0);
    assert_eq!(inbox.items.len(), MANY_MESSAGES + 7);
    let mut ports = Vec::new();
    while let Some(front) = inbox.front() {
        ports.push((front.source.port, front.payload.len(), front.arrived_ns));
        inbox.pop();
    }
    assert_eq!(ports.len(), 1_000_007);
    let end = [
        (3, 0, 0),
        (2, 0, 0),
        (2, 1, 0),
        (2, 0, 0),
        (2, 0, 1),
        (2, 0, 0),
        (2, 0, 0),
    ];
    assert_eq!(ports[1_000_000..], end);
    assert_eq!((inbox.len(), inbox.hard_bytes()), (0, 0));
}

#[test]
fn only_a_long_message_is_taken_as_a_body() {
    let mut inbox = Inbox::new(100);
    put(&mut inbox, LONG_BYTES - 1);
    put(&mut inbox, LONG_BYTES);
    assert!(inbox.take_body().is_none());
    inbox.pop();
    assert_eq!(inbox.take_body().map(|body| body.len()), Some(LONG_BYTES));
    assert_eq!((inbox.len(), inbox.receive_queued_bytes), (0, 0));
}

#[test]
fn the_last_body_of_a_long_queue_is_not_lost() {
    let mut inbox = Inbox::new(1 << 20);
    for _ in 0..=KEPT_MESSAGES {
        put(&mut inbox, 1);
    }
    put(&mut inbox, LONG_BYTES);
    while inbox.len() > 1 {
        inbox.pop();
    }
    assert_eq!(inbox.take_body().map(|body| body.len()), Some(LONG_BYTES));
    assert_eq!((inbox.len(), inbox.receive_queued_bytes), (0, 0));
}

#[test]
fn an_idle_inbox_keeps_little() {
    let mut inbox = Inbox::new(100);
    for _ in 0..10_000 {
        put(&mut inbox, 64);
    }
    while !inbox.is_empty() {
        inbox.pop();
    }
    let items_bytes = inbox.items.capacity() * size_of::<Item>();
    assert!(
        items_bytes + inbox.chunks.held_bytes() <= 4096,
        "{items_bytes}"
    );
}

#[test]
fn a_cleared_inbox_still_knows_of_its_bit() {
    let mut inbox = Inbox::new(100);
    put(&mut inbox, 500);
    inbox.check_congestion(0);
    inbox.clear();
    assert_eq!(
        (inbox.len(), inbox.receive_queued_bytes, inbox.congested),
        (0, 0, true)
    );
    assert_eq!(inbox.check_congestion(0), Some(false));
}

/// Payload, source, extension, wall clock, whether it has memory of its own.
type Message = (Vec<u8>, SocketAddress, Extension, u64, bool);

#[derive(Clone, Debug)]
enum Step {
    Push {
        bytes: usize,
        whole: bool,
        extension: u8,
        wall_ns: u64,
    },
    PushEmpty {
        port: u16,
    },
    Pop,
    TakePlain {
        count_max: usize,
    },
    TakeBody,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![4 => 0_usize..200, 1 => 0_usize..9000];
    prop_oneof![
        4 => (0_u16..2).prop_map(|port| Step::PushEmpty { port }),
        3 => (bytes, any::<bool>(), 0_u8..2, 0_u64..2).prop_map(
            |(bytes, whole, extension, wall_ns)| {
                Step::Push { bytes, whole, extension, wall_ns }
            }
        ),
        2 => Just(Step::Pop),
        1 => (1_usize..70).prop_map(|count_max| Step::TakePlain { count_max }),
        1 => Just(Step::TakeBody),
    ]
}

fn take_plain(
    inbox: &mut Inbox,
    model: &mut VecDeque<Message>,
    count_max: usize,
) -> Result<(), TestCaseError> {
    let has_run = inbox.items.front().is_some_and(|item| item.kind.is_run);
    let mut taken = Vec::new();
    let count = inbox.take_plain(count_max, |source, payload| {
        taken.push((payload.to_vec(), source, NO_EXTENSION, 0, false));
    });
    let is_plain = |one: &Message| !one.4 && (one.2, one.3) == (NO_EXTENSION, 0);
    let has_plain = !has_run && model.front().is_some_and(is_plain);
    prop_assert_eq!((count > 0, count <= count_max), (has_plain, true));
    prop_assert_eq!(taken, model.drain(..count).collect::<Vec<_>>());
    Ok(())
}

proptest! {
    /// Compare with a plain queue of whole messages.
    #[test]
    fn messages_come_out_as_they_went_in(before in prop_oneof![Just(0), Just(MANY_MESSAGES)], steps in vec(step(), 0..300)) {
        let mut inbox = Inbox::new(100);
        let mut model = VecDeque::new();
        for _ in 0..before {
            put(&mut inbox, 0);
            model.push_back((Vec::new(), source(2), NO_EXTENSION, 0, false));
        }
        for (number, step) in (0_u16..).zip(steps) {
            match step {
                Step::Push { bytes, whole, extension, wall_ns } => {
                    let payload: Vec<u8> = number.to_be_bytes().repeat(bytes / 2);
                    let arriving = if whole {
                        ArrivingPayload::Whole(Body::Owned(payload.clone().into()))
                    } else {
                        ArrivingPayload::Borrowed(&payload)
                    };
                    let whole = whole || payload.len() >= LONG_BYTES;
                    inbox.push(source(number), [extension; 16], arriving, wall_ns, 0);
                    model.push_back((payload, source(number), [extension; 16], wall_ns, whole));
                }
                Step::PushEmpty { port } => {
                    let empty = ArrivingPayload::Borrowed(b"");
                    inbox.push(source(port), NO_EXTENSION, empty, 0, 0);
                    model.push_back((Vec::new(), source(port), NO_EXTENSION, 0, false));
                }
                Step::Pop => {
                    inbox.pop();
                    model.pop_front();
                }
                Step::TakePlain { count_max } => take_plain(&mut inbox, &mut model, count_max)?,
                Step::TakeBody => {
                    let body = inbox.take_body();
                    let wanted = model.front().filter(|message| message.4);
                    prop_assert_eq!(
                        body.as_ref().map(Body::bytes),
                        wanted.map(|message| &message.0[..])
                    );
                    if body.is_some() {
                        model.pop_front();
                    }
                }
            }
            let front = inbox.front().map(|front| {
                (front.payload.to_vec(), front.source, front.extension, front.wall_ns)
            });
            let wanted = model.front().map(|m| (m.0.clone(), m.1, m.2, m.3));
            prop_assert_eq!(front, wanted);
            prop_assert_eq!(inbox.len(), model.len());
            let bytes: usize = model.iter().map(|message| message.0.len()).sum();
            prop_assert_eq!(inbox.receive_queued_bytes, bytes);
        }
        for message in model {
            let front = inbox.front().map(|front| (front.payload.len(), front.source));
            prop_assert_eq!(front, Some((message.0.len(), message.1)));
            inbox.pop();
        }
        prop_assert!(inbox.is_empty() && inbox.runs.is_empty() && inbox.repeated == 0);
    }
}
