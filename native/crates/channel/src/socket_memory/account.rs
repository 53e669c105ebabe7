//! The send account: how much of `SO_SNDBUF` is taken, and that no destination holds the socket.
//!
//! As `urds.rds.plane.python.accounts` has it: below half of `SO_SNDBUF` every message is taken; above
//! it there is a first account for one destination, a second one for all others by dynamic
//! threshold, and a third one for absent peers, whose sum the node tells.

use core::sync::atomic::Ordering;

use super::layout::{
    AT_ABSENT_BYTES, AT_FIRST_ROUTE, AT_FREED_BYTES, AT_RULES, AT_SENT_BYTES, ROUTE_ABSENT,
    ROUTE_FLAGS, ROUTE_FREED, RULE_STRICT_LINUX, route_at, route_sent_at,
};
use super::options::{Options, Word};
use crate::sys::area::Area;

const ACCOUNTS: u64 = 3;

/// Whether a message has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It has.
    Yes,
    /// It has none, and its destination is the only one in use: EAGAIN, or wait for POLLOUT.
    Full,
    /// Its destination has none beside others: ENOBUFS, or wait for that destination.
    FullBesideOthers,
}

/// The account of one socket, read when it is made.
pub struct Account<'a> {
    area: &'a Area,
    size: u64,
    is_single: bool,
    queued: u64,
}

impl<'a> Account<'a> {
    /// Read the account.
    pub fn read(area: &'a Area) -> Self {
        let sent = area.long(AT_SENT_BYTES).load(Ordering::Relaxed);
        let freed = area.long(AT_FREED_BYTES).load(Ordering::Acquire);
        Self {
            area,
            size: u64::from(Options(area).get(Word::SendBytes)),
            is_single: area.word(AT_RULES).load(Ordering::Relaxed) & RULE_STRICT_LINUX != 0,
            queued: behind(sent, freed),
        }
    }

    /// Return how many bytes are queued.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    fn held(&self, route: u32) -> u64 {
        let sent = self.area.long(route_sent_at(route)).load(Ordering::Relaxed);
        let at = route_at(route) + ROUTE_FREED;
        behind(sent, self.area.long(at).load(Ordering::Relaxed))
    }

    fn is_absent(&self, route: u32) -> bool {
        let at = route_at(route) + ROUTE_FLAGS;
        self.area.word(at).load(Ordering::Relaxed) & ROUTE_ABSENT != 0
    }

    /// Return the route that has the first account, and what it holds.
    fn first(&self) -> (Option<u32>, u64) {
        let first = self.area.word(AT_FIRST_ROUTE).load(Ordering::Relaxed);
        let first = first.checked_sub(1);
        (first, first.map_or(0, |route| self.held(route)))
    }

    fn aside(&self) -> u64 {
        self.area.long(AT_ABSENT_BYTES).load(Ordering::Relaxed)
    }

    fn second(&self, first_held: u64) -> u64 {
        let others = first_held.saturating_add(self.aside());
        self.queued.saturating_sub(others)
    }

    /// Return whether a message has room; it then counts in the account that it has.
    pub fn check(&self, route: u32, bytes: u64) -> Room {
        if self.is_single {
            let has_room = self.queued < self.size;
            return if has_room { Room::Yes } else { Room::Full };
        }
        if self.queued < self.size.div_ceil(2) {
            return Room::Yes;
        }
        let held = self.held(route);
        if self.has_room(route, bytes, held) {
            return Room::Yes;
        }
        if held >= self.queued {
            Room::Full
        } else {
            Room::FullBesideOthers
        }
    }

    #[cold]
    fn has_room(&self, route: u32, bytes: u64, held: u64) -> bool {
        if self.queued + bytes > ACCOUNTS * self.size {
            return false;
        }
        let (first, first_held) = self.first();
        if first == Some(route) || first_held == 0 {
            self.area
                .word(AT_FIRST_ROUTE)
                .store(route + 1, Ordering::Relaxed);
            return held < self.size;
        }
        if self.is_absent(route) {
            let taken = self.aside().max(held);
            return taken.saturating_add(bytes) <= self.size;
        }
        held + self.second(first_held) <= self.size
    }

    /// Return whether a destination with nothing queued has room; the only one, if one is in use.
    pub fn is_writable(&self) -> bool {
        if self.is_single {
            return self.queued < self.size;
        }
        if self.queued < self.size.div_ceil(2) {
            return true;
        }
        let (_, first_held) = self.first();
        if first_held == self.queued {
            return self.queued < self.size;
        }
        first_held == 0
            || (self.second(first_held) <= self.size && self.queued < ACCOUNTS * self.size)
    }

    /// Return whether so much has left that a sender of messages of some length is worth waking: half
    /// of the account, but of few long messages each.
    pub fn is_half_free(&self, length: u64) -> bool {
        if self.queued <= self.size / 2 {
            return true;
        }
        if length >= self.size / 4 {
            return self.is_writable();
        }
        let (_, first_held) = self.first();
        !self.is_single && first_held != self.queued && self.is_writable()
    }
}

/// Return how far a count is behind another; 0 for what cannot be.
fn behind(ahead: u64, count: u64) -> u64 {
    let distance = ahead.wrapping_sub(count);
    if distance > u64::MAX / 2 { 0 } else { distance }
}
