//! Both sides against each other, in one process.

use std::cell::RefCell;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::layout::{
    self, RECORD_BYTES, ROUTE_FREED, ROUTE_GONE, WAIT_SLEEPERS, route_at, route_sent_at,
};
use super::model_tests::restarted;
use super::*;
use crate::journal;
use crate::sys::area::{Access, Area};
use crate::sys::raw;

/// A socket's memory with both sides, and what maps it again.
pub(super) struct Pair {
    pub client: ClientSide,
    pub node: NodeSide,
    pub memory: i32,
    pub journal: i32,
}

impl Drop for Pair {
    fn drop(&mut self) {
        raw::close(self.memory);
        raw::close(self.journal);
    }
}

const RESTARTS: usize = 1000;

pub(super) fn small() -> Sizes<'static> {
    Sizes {
        submissions: 16,
        send_bytes: 64 << 10,
        receive_bytes: 128 << 10,
        send_default: 8 << 10,
        receive_default: 8 << 10,
        place: b"/run/urds/node.sock",
        cookie: 7,
        ..Sizes::default()
    }
}

pub(super) fn pair(sizes: &Sizes<'_>) -> Pair {
    let (memory, area) = layout::make(sizes).expect("memory");
    let (journal, journal_area) = journal::make(sizes).expect("a journal");
    let node = NodeSide::new(area, journal_area).expect("a node's side");
    node.set_local(Some(Name::v4([10, 0, 0, 1], 4000)));
    let client = ClientSide::new(Area::map(memory).expect("a mapping")).expect("a client");
    let made = Pair {
        client,
        node,
        memory,
        journal,
    };
    for route in 0..3 {
        made.open_route(route);
    }
    made
}

/// The destination that `open_route` made.
pub(super) fn peer(route: u32) -> Name {
    Name::v4([10, 0, 1, u8::try_from(route).expect("few routes")], 5000)
}

impl Pair {
    /// Return the client's route of a destination, whatever its port.
    pub fn route(&self, to: &Name, tos: u8) -> Option<Route> {
        let _guard = self.client.lock_senders().ok()?;
        self.client.find_name(to, tos).ok()
    }

    pub fn open_route(&self, route: u32) {
        self.node.open_route(route, None);
        let generation = self.node.routes_generation();
        self.client
            .set_route(&peer(route), 0, route, generation)
            .expect("no thread has the lock");
    }

    pub fn send(&self, route: u32, payload: &[u8]) -> Result<Published, Rejected> {
        let message = Outgoing {
            to: peer(route),
            ..Outgoing::default()
        };
        let area = self.client.area();
        let fill = |at| area.copy_in(at, payload);
        self.client
            .send(&message, payload.len(), |_, _| false, fill)
    }

    /// Take a submission; return its slot, route and payload.
    pub fn take(&mut self) -> Option<(u32, u32, Vec<u8>)> {
        let taken = self.node.take().expect("no client error")?;
        let mut payload = vec![0; taken.length];
        self.node.area().copy_out(taken.at, &mut payload);
        Some((taken.slot, taken.route, payload))
    }

    pub fn free(&mut self, slot: u32) -> Freed {
        let freed = self.node.free(slot);
        self.node.after_freeing();
        freed
    }

    pub fn deliver(&mut self, payload: &[u8]) -> Option<bool> {
        let place = self.node.reserve(payload.len(), false)?;
        self.node.fill(&place, 0, payload);
        let arrival = Arrival {
            source: peer(1),
            ..Arrival::default()
        };
        self.node.publish(&place, &arrival);
        Some(self.node.must_show())
    }

    pub fn receive(&self, peek: bool) -> Result<(Received, Vec<u8>), Rejected> {
        let payload = RefCell::new(Vec::new());
        let received = self.client.receive(peek, |at, length| {
            let mut bytes = vec![0; length];
            self.client.area().copy_out(at, &mut bytes);
            payload.replace(bytes);
        })?;
        Ok((received, payload.into_inner()))
    }
}

#[test]
fn a_message_is_sent_taken_and_freed() {
    let mut pair = pair(&small());
    let published = pair.send(2, b"hello").expect("room");
    assert!(published.ring, "the node slept");
    assert!(!published.is_full);
    assert!(!pair.send(1, b"").expect("room").ring, "it was rung");
    assert_eq!(pair.node.submissions(), Ok(2));
    let (slot, route, payload) = pair.take().expect("a message");
    assert_eq!((route, payload.as_slice()), (2, b"hello".as_slice()));
    assert_eq!(pair.client.queued_bytes(), 5);
    assert_eq!(pair.client.unacknowledged(), Ok(2));
    assert_eq!(pair.free(slot), Freed { bytes: 5, route: 2 });
    assert_eq!(pair.client.queued_bytes(), 0);
    assert_eq!(pair.client.unacknowledged(), Ok(1), "an empty one counts");
    assert_eq!(pair.take().expect("a message").2, b"");
    assert_eq!(pair.take(), None);
}

#[test]
fn a_header_arrives_as_it_was_sent() {
    let mut pair = pair(&small());
    let message = Outgoing {
        to: peer(1),
        flags: 9,
        extension: *b"0123456789abcdef",
        extension_bytes: 12,
    };
    let sent = pair.client.send(&message, 0, |_, _| false, |_| ());
    assert!(sent.is_ok());
    let taken = pair
        .node
        .take()
        .expect("no client error")
        .expect("a message");
    assert_eq!((taken.port, taken.route, taken.flags), (5000, 1, 9));
    assert_eq!(
        (taken.extension, taken.extension_bytes),
        (message.extension, 12)
    );
    let place = pair.node.reserve(3, true).expect("room");
    pair.node.fill(&place, 0, b"abc");
    let arrival = Arrival {
        source: Name {
            address: [3; 16],
            port: 6000,
            scope: 4,
        },
        extension: [5; 16],
        extension_bytes: 8,
        wall_ns: u64::MAX - 1,
        trace: Trace {
            count: 2,
            positions: [0, 2, 0],
            ns: [11, 1 << 40, 0],
        },
    };
    pair.node.publish(&place, &arrival);
    assert!(pair.node.must_show(), "a new reader sleeps");
    let (received, payload) = pair.receive(false).expect("a message");
    assert_eq!(payload, b"abc");
    assert_eq!(
        (received.source, received.trace),
        (arrival.source, arrival.trace)
    );
    assert_eq!(
        (received.wall_ns, received.extension_bytes),
        (u64::MAX - 1, 8)
    );
    assert!(received.is_last);
}

#[test]
fn a_full_account_refuses_and_tells_when_it_is_half_free() {
    let mut pair = pair(&small());
    let mut slots = Vec::new();
    for count in 0..8 {
        let published = pair.send(1, &[0; 1024]).expect("room");
        assert_eq!(published.is_full, count == 7, "message {count}");
        slots.push(pair.take().expect("a message").0);
    }
    assert_eq!(pair.send(1, b"x"), Err(Rejected::Full));
    pair.client.wait_for_room(1024);
    assert!(pair.node.is_filled() && !pair.node.must_empty());
    for (count, slot) in slots.into_iter().enumerate() {
        assert_eq!(pair.node.is_filled(), count <= 4, "{count} freed");
        pair.free(slot);
        assert_eq!(pair.node.must_empty(), count == 3, "{count} freed before");
        if count == 3 {
            assert!(pair.client.is_writable() && !pair.client.waits_for_room());
            break;
        }
    }
}

#[test]
fn a_filled_account_is_not_half_free_with_its_first_message() {
    let mut pair = pair(&small());
    let mut slots = Vec::new();
    while !pair.send(1, &[0; 256]).expect("room").is_full {
        slots.push(pair.take().expect("a message").0);
    }
    pair.client.wait_for_room(256);
    pair.node.free(slots[0]);
    assert!(!pair.node.must_empty(), "before the client is told");
    pair.free(slots[1]);
    assert!(!pair.node.must_empty());
}

#[test]
fn a_sender_asks_for_its_node_if_that_takes_nothing() {
    let mut pair = pair(&Sizes {
        submissions: 256,
        ..small()
    });
    let must_look = |pair: &Pair| pair.send(1, b"").expect("room").must_look;
    assert_eq!((0..64).filter(|_| must_look(&pair)).count(), 1);
    for _ in 0..20 {
        pair.take().expect("a message");
        assert!(!must_look(&pair), "it is behind, and takes");
    }
    assert_eq!((0..64).filter(|_| must_look(&pair)).count(), 1);
}

#[test]
fn no_destination_holds_the_socket() {
    let pair = pair(&small());
    while pair.send(1, &[0; 1024]).is_ok() {}
    assert_eq!(pair.send(1, b"x"), Err(Rejected::Full), "alone");
    assert!(pair.send(2, &[0; 1024]).is_ok(), "beside it");
    assert_eq!(pair.send(1, b"x"), Err(Rejected::FullBesideOthers));
    assert_eq!(pair.send(1, &[0; 9000]), Err(Rejected::TooLong));
}

#[test]
fn one_file_is_mapped_for_two_owners() {
    let pair = pair(&small());
    let (mine, to_read) = Area::map_twice(pair.memory, Access::Reads).expect("two mappings");
    let (_, to_write) = Area::map_twice(pair.memory, Access::Writes).expect("two mappings");
    assert_eq!(mine.length(), to_read.length());
    mine.word(layout::AT_OPTIONS).store(7, Ordering::Relaxed);
    to_write
        .word(layout::AT_OPTIONS + 4)
        .store(8, Ordering::Relaxed);
    drop(mine);
    let seen = [0, 4].map(|at| {
        to_read
            .word(layout::AT_OPTIONS + at)
            .load(Ordering::Relaxed)
    });
    assert_eq!(seen, [7, 8]);
    assert!(Area::map_twice(-1, Access::Writes).is_err());
}

#[test]
fn routes_are_asked_for_again_once_they_are_over() {
    let pair = pair(&small());
    let other = Name::v4([9, 9, 9, 9], 1);
    assert_eq!(pair.route(&other, 0), None);
    assert_eq!(pair.route(&peer(1), 3), None, "another service");
    assert_eq!(pair.route(&peer(1), 0), Some(1));
    pair.node.set_route_flags(1, ROUTE_GONE);
    assert_eq!(pair.route(&peer(1), 0), None);
    assert_eq!(pair.send(1, b"x"), Err(Rejected::NoRoute));
    pair.node.set_route_error(2, libc::EHOSTUNREACH);
    assert_eq!(pair.send(2, b""), Err(Rejected::Failed(libc::EHOSTUNREACH)));
    assert!(pair.send(2, b"").is_ok(), "an error is told once");
    pair.node.set_routes_generation(2);
    assert_eq!(pair.route(&peer(2), 0), None);
    pair.open_route(2);
    assert_eq!(pair.route(&peer(2), 0), Some(2));
}

#[test]
fn received_in_order_peeked_and_told_when_it_was_the_last() {
    let mut pair = pair(&small());
    assert_eq!(pair.receive(false).err(), Some(Rejected::Empty));
    assert_eq!(pair.deliver(b"one"), Some(true), "shown");
    assert_eq!(pair.deliver(b"two"), Some(false), "shown once");
    assert_eq!(pair.receive(true).expect("a message").1, b"one");
    let (received, payload) = pair.receive(false).expect("a message");
    assert_eq!(
        (payload.as_slice(), received.is_last),
        (b"one".as_slice(), false)
    );
    let (received, payload) = pair.receive(false).expect("a message");
    assert_eq!(
        (payload.as_slice(), received.is_last),
        (b"two".as_slice(), true)
    );
    let mut lengths = Vec::new();
    assert_eq!(
        pair.node.look_taken(|length| lengths.push(length)),
        Ok(true)
    );
    assert_eq!(lengths, [3, 3]);
    let mut forgot = false;
    assert_eq!(pair.client.sleep(|| forgot = true), Ok(false));
    assert!(forgot);
    assert_eq!(pair.deliver(b"three"), Some(true));
    assert_eq!(
        pair.client.sleep(|| panic!("something is there")),
        Ok(false)
    );
}

#[test]
fn a_short_queue_stays_in_the_same_pages() {
    let mut pair = pair(&small());
    let mut places = std::collections::HashSet::new();
    for count in 0..2000u32 {
        let place = pair.node.reserve(64, false).expect("room");
        places.insert(place.at);
        pair.node.publish(&place, &Arrival::default());
        pair.node.must_show();
        pair.receive(false).expect("a message");
        pair.node.look_taken(|_| ()).expect("no client error");
        assert!(places.len() <= 4, "message {count}");
    }
}

#[test]
fn the_receive_area_goes_on_behind_its_soft_end_and_comes_back() {
    let mut pair = pair(&small());
    let mut sent = 0;
    while pair.deliver(&[0; 4000]).is_some() {
        sent += 1;
    }
    assert!(sent > 28, "{sent} of 32 places of 4,064 bytes");
    for _ in 0..sent {
        pair.receive(false).expect("a message");
    }
    pair.node.look_taken(|_| ()).expect("no client error");
    let place = pair.node.reserve(4000, false).expect("room");
    let first = pair.node.layout.receive_at;
    assert!(place.at < first + (16 << 10), "from the start again");
}

#[test]
fn pages_behind_the_soft_end_are_given_back_when_asked_for() {
    let mut pair = pair(&small());
    let filled = |pair: &Pair| {
        let mut late = vec![0; 32 << 10];
        let at = pair.node.layout.receive_at + (96 << 10);
        pair.node.area.copy_out(at, &mut late);
        late.contains(&7)
    };
    let mut sent = 0;
    while pair.deliver(&[7; 4000]).is_some() {
        sent += 1;
    }
    assert!(!pair.node.has_late(), "they are in use");
    for _ in 0..sent {
        pair.receive(false).expect("a message");
    }
    pair.node.look_taken(|_| ()).expect("no client error");
    assert!(pair.node.has_late());
    assert!(filled(&pair), "not at once: they may be needed again");
    pair.deliver(&[1; 100]).expect("room");
    pair.node.give_back_late();
    assert!(filled(&pair), "a message is there");
    pair.receive(false).expect("a message");
    pair.node.look_taken(|_| ()).expect("no client error");
    pair.node.give_back_late();
    assert!(!pair.node.has_late());
    assert!(!filled(&pair));
}

/// The pages of the receive area from one on that are not all zero.
fn filled_pages(pair: &Pair, from: usize) -> Vec<usize> {
    let mut bytes = vec![0; pair.node.area_bytes().1];
    let at = pair.node.layout.receive_at;
    pair.node.area.copy_out(at, &mut bytes);
    let is_filled = |page: &usize| bytes[page * 4096..][..4096].iter().any(|&byte| byte != 0);
    (from..bytes.len() / 4096).filter(is_filled).collect()
}

#[test]
fn pages_of_a_long_last_message_are_given_back_too() {
    let mut pair = pair(&small());
    for (is_over, last, soft) in [(false, 8000, 16), (true, 8000, 0), (true, 0, 0)] {
        pair.node.set_over_quota(is_over);
        while pair.deliver(&[7; 8000]).is_some() {}
        if last == 0 {
            pair.deliver(b"").expect("room");
        }
        for is_first in [true, false] {
            while pair.receive(false).is_ok() {}
            pair.node.look_taken(|_| ()).expect("no client error");
            pair.node.give_back_late();
            assert!(!pair.node.has_late());
            let filled = filled_pages(&pair, soft);
            assert!(filled.len() <= 1, "pages {filled:?}"); // that of the last header
            assert!(is_first || filled.is_empty() || filled == [0]);
            pair.deliver(b"").expect("room"); // then not even that
        }
        pair.receive(false).expect("a message");
        pair.node.look_taken(|_| ()).expect("no client error");
    }
}

/// Whether any byte of the send area from one on is not zero.
fn is_sent_area_filled(pair: &Pair, from: usize) -> bool {
    let mut bytes = vec![0; pair.node.area_bytes().0 - from];
    let at = pair.node.layout.send_at + from;
    pair.node.area.copy_out(at, &mut bytes);
    bytes.iter().any(|&byte| byte != 0)
}

#[test]
fn a_send_queue_that_was_long_gives_its_pages_back() {
    let sizes = Sizes {
        submissions: 1024,
        send_bytes: 128 << 10,
        ..small()
    };
    let mut pair = pair(&sizes);
    for _ in 0..1000 {
        pair.send(0, &[7]).expect("room"); // 128 bytes each, behind the soft end
    }
    let slots: Vec<u32> = (0..1000).filter_map(|_| Some(pair.take()?.0)).collect();
    for &slot in &slots {
        assert!(!pair.node.has_late(), "one is in use");
        pair.free(slot);
    }
    assert!(pair.node.has_late());
    pair.send(0, &[7]).expect("room");
    pair.node.give_back_late();
    assert!(is_sent_area_filled(&pair, 64 << 10), "a message is there");
    let (slot, ..) = pair.take().expect("it was submitted");
    pair.free(slot);
    pair.node.give_back_late();
    assert!(!pair.node.has_late());
    assert!(!is_sent_area_filled(&pair, 64 << 10));
    assert!(is_sent_area_filled(&pair, 0), "the next messages go there");
    assert_eq!(pair.client.tiles().tiles(), [(0, 2048, false)]);
    let long = vec![8; 8 << 10];
    pair.send(0, &long).expect("room");
    assert_eq!(pair.take().expect("it was submitted").2, long);
}

#[test]
fn over_quota_an_empty_send_queue_keeps_no_page() {
    let mut pair = pair(&small());
    for _ in 0..4 {
        pair.send(0, &[7; 1000]).expect("room");
    }
    let slots: Vec<u32> = (0..4).filter_map(|_| Some(pair.take()?.0)).collect();
    pair.node.set_over_quota(true);
    assert!(is_sent_area_filled(&pair, 0), "messages are there");
    for slot in slots {
        pair.free(slot);
    }
    assert!(pair.node.has_late());
    let word = pair.node.area.word(layout::AT_SENDERS);
    word.store(1, Ordering::Relaxed); // a sender is about to write there
    pair.node.give_back_late();
    assert!(pair.node.has_late() && is_sent_area_filled(&pair, 0));
    pair.node
        .area
        .word(layout::AT_SENDERS)
        .store(0, Ordering::Relaxed);
    pair.node.give_back_late();
    assert!(!pair.node.has_late() && !is_sent_area_filled(&pair, 0));
    pair.node.set_over_quota(false);
    pair.send(0, &[8; 5000]).expect("room");
    assert_eq!(pair.take().expect("it was submitted").2, [8; 5000]);
}

#[test]
fn a_client_may_change_its_buffer_while_pages_are_given_back() {
    let sizes = Sizes {
        send_bytes: 256 << 10,
        ..small()
    };
    let mut pair = pair(&sizes);
    let client = ClientSide::new(Area::map(pair.memory).expect("a mapping")).expect("a client");
    thread::scope(|scope| {
        let giving = scope.spawn(|| {
            let (mut changes, mut was_late) = (0, false);
            for _ in 0..10_000_000 {
                if changes == 2000 {
                    break;
                }
                pair.node.sent_touched = 2048; // between the two ends that it may choose
                changes += usize::from(pair.node.has_late() != was_late);
                was_late = pair.node.has_late();
                pair.node.give_back_late();
            }
        });
        while !giving.is_finished() {
            client.options().set(Word::SendBytes, 1 << 20);
            client.options().set(Word::SendBytes, 0);
        }
    });
}

#[test]
fn congestion_is_told_to_who_waits_for_it() {
    let pair = pair(&small());
    assert!(!pair.node.congestion_changed(u64::MAX));
    pair.client.wait_for(1 << 5 | 1 << 6, WAIT_SLEEPERS);
    let event = pair.client.room_event();
    assert!(pair.node.congestion_changed(1 << 6 | 1 << 7), "shown");
    assert!(pair.client.sleep_for_room(event, None).is_ok(), "at once");
    let (received, _) = pair.receive(false).expect("a notification");
    assert_eq!(received.kind, ReceivedKind::CongestionUpdate(1 << 6));
    assert!(received.is_last);
    assert_eq!(pair.receive(false).err(), Some(Rejected::Empty));
}

#[test]
fn a_node_sleeps_only_when_nothing_is_there() {
    let mut pair = pair(&small());
    assert_eq!(pair.node.sleep(), Ok(true));
    assert!(pair.send(1, b"x").expect("room").ring);
    assert_eq!(pair.node.sleep(), Ok(false));
    assert!(!pair.send(1, b"x").expect("room").ring, "it is awake");
    while pair.take().is_some() {}
    assert_eq!(pair.node.sleep(), Ok(true));
}

#[test]
fn names_and_sizes_are_what_was_made() {
    let pair = pair(&small());
    assert_eq!(pair.client.local(), Some(Name::v4([10, 0, 0, 1], 4000)));
    assert_eq!(pair.client.peer(), None);
    pair.client.set_peer(Some(peer(1))).expect("no lock");
    assert_eq!(pair.client.peer(), Some(peer(1)));
    let mut place = [0; layout::PLACE_BYTES_MAX];
    let length = pair.client.place(&mut place);
    assert_eq!(&place[..length], b"/run/urds/node.sock");
    assert_eq!(pair.client.cookie(), 7);
    assert_eq!(pair.client.options().get(Word::SendBytes), 8 << 10);
    assert!(peer(1).is_v4() && Name::from_bytes(&peer(1).bytes()) == peer(1));
}

#[test]
fn what_is_no_memory_of_a_socket_is_refused() {
    let bad = Sizes {
        submissions: 17,
        ..small()
    };
    assert!(layout::make(&bad).is_err());
    let (file, area) = layout::make(&small()).expect("memory");
    area.word(layout::AT_VERSION)
        .store(9, std::sync::atomic::Ordering::Relaxed);
    let failure = ClientSide::new(Area::map(file).expect("a mapping")).err();
    assert_eq!(failure.map(|failure| failure.0), Some(libc::EPROTO));
    area.word(layout::AT_VERSION)
        .store(1, std::sync::atomic::Ordering::Relaxed);
    area.word(layout::AT_SEND_UNITS)
        .store(9, std::sync::atomic::Ordering::Relaxed);
    let failure = ClientSide::new(Area::map(file).expect("a mapping")).err();
    assert_eq!(failure.map(|failure| failure.0), Some(libc::EINVAL));
    raw::close(file);
    assert_eq!(RECORD_BYTES, layout::UNIT_BYTES);
}

#[test]
fn a_socket_that_sends_nothing_takes_few_pages() {
    let pair = pair(&small());
    let again = NodeSide::new(
        Area::map(pair.memory).expect("a mapping"),
        Area::map(pair.journal).expect("a mapping"),
    );
    drop(again.expect("a node's side"));
    let link = format!("/proc/self/fd/{}", pair.memory);
    let blocks = std::fs::metadata(link).expect("a file").blocks();
    assert!(blocks * 512 <= 24 << 10, "{} KiB", blocks / 2);
}

#[test]
fn a_run_of_short_messages_is_told_in_parts_and_whole_at_its_end() {
    let mut pair = pair(&small());
    let publish = |pair: &mut Pair, length| {
        let place = pair.node.reserve(length, false).expect("room");
        pair.node.publish(&place, &Arrival::default());
    };
    for _ in 0..20 {
        publish(&mut pair, 8);
    }
    let count = |pair: &Pair| std::iter::from_fn(|| pair.receive(false).ok()).count();
    assert_eq!(count(&pair), 16);
    assert!(pair.node.must_show(), "it has not been shown any");
    assert_eq!(count(&pair), 4);
    publish(&mut pair, 8);
    publish(&mut pair, 2000);
    assert_eq!(count(&pair), 2, "a long one does not wait");
    publish(&mut pair, 8);
    super::model_tests::restarted(&mut pair);
    assert_eq!(
        count(&pair),
        1,
        "by the worker that comes after a killed one"
    );
}

#[test]
fn a_worker_that_takes_over_while_a_client_sends_counts_all_of_it() {
    let mut pair = pair(&small());
    let client = ClientSide::new(Area::map(pair.memory).expect("a mapping")).expect("a client");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let area = client.area();
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let message = Outgoing {
                    to: peer(number % 3),
                    ..Outgoing::default()
                };
                let fill = |at| area.copy_in(at, &[7; 100]);
                let _full = client.send(&message, 100, |_, _| false, fill);
            }
        });
        for _ in 0..RESTARTS {
            for _ in 0..20 {
                if let Some((slot, ..)) = pair.take() {
                    pair.free(slot);
                }
            }
            restarted(&mut pair);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    while let Some((slot, ..)) = pair.take() {
        pair.free(slot);
    }
    assert_eq!(pair.client.queued_bytes(), 0);
    for route in 0..3 {
        let word = |at| pair.client.area().long(at).load(Ordering::Relaxed);
        let (sent, freed) = (route_sent_at(route), route_at(route) + ROUTE_FREED);
        assert_eq!(word(sent), word(freed), "of route {route}");
    }
}
