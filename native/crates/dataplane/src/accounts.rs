//! How the destinations of a socket share its send account, so that none of them holds the socket.
//!
//! The theory stands at the top of `urds.rds.plane.python.accounts`, the specification: a first
//! account for one destination, a second one for all others by dynamic threshold, a third one for
//! what is queued to absent peers. The caller passes the bytes of the whole queue.

use std::collections::HashMap;

use urds_path::Address;

use crate::quick_hash::QuickHash;
use crate::waiting::{WaitQueue, Waiters};

/// Messages wait this long for a connection before their peer is absent.
pub const ABSENT_NS: u64 = 30_000_000_000;
const ACCOUNTS: usize = 3;
/// More than any destination has queued.
const UNKNOWN_BYTES: usize = usize::MAX;

/// Number of a destination of one socket, valid until the socket forgets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DestinationId(usize);

/// Addresses of this process: nothing is queued to them.
pub const HERE: DestinationId = DestinationId(0);

/// What a socket has queued to one peer, and the senders that wait for room there.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct Destination {
    pub peer: Option<Address>,
    pub queued_bytes: usize,
    /// With less in the whole queue there is nothing to check.
    pub open_bytes: usize,
    /// With this much queued, look for acknowledgements.
    pub look_at_bytes: usize,
    pub absent: bool,
    /// Counted in the third account.
    aside: bool,
    /// Rejected because its path is full, which notifies by itself.
    pub path_full: bool,
    /// The shortest message that found no room.
    pub refused_bytes: Option<usize>,
    /// Port groups of such messages.
    pub refused_groups: u64,
    pub waiters: Waiters,
}

/// The three accounts of one socket.
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct SendAccounts {
    pub bytes_max: usize,
    pub half_bytes: usize,
    pub quarter_bytes: usize,
    /// One account for all, as Linux has it.
    is_single: bool,
    /// Several destinations are in use.
    several: bool,
    /// A message that leaves concerns more than its destination.
    watching: bool,
    /// A refused destination may have room.
    pub look_due: bool,
    /// The same for one that the second account does not concern.
    look_apart: bool,
    first: Option<DestinationId>,
    /// The longest absent first.
    aside: Vec<DestinationId>,
    aside_bytes: usize,
    rows: Vec<Destination>,
    spare: Vec<DestinationId>,
    by_peer: HashMap<Address, DestinationId, QuickHash>,
    /// The last destination that was looked up.
    last: Option<(Address, DestinationId)>,
    refused: Vec<DestinationId>,
    /// Refused destinations that the second account does not concern.
    refused_apart: Vec<DestinationId>,
    /// With this much free in the second account, one of `refused` continues.
    enough_bytes: usize,
}

impl Default for SendAccounts {
    fn default() -> Self {
        Self {
            bytes_max: 0,
            half_bytes: 0,
            quarter_bytes: 0,
            is_single: false,
            several: false,
            watching: false,
            look_due: false,
            look_apart: false,
            first: None,
            aside: Vec::new(),
            aside_bytes: 0,
            rows: vec![Destination::default()],
            spare: Vec::new(),
            by_peer: HashMap::default(),
            last: None,
            refused: Vec::new(),
            refused_apart: Vec::new(),
            enough_bytes: UNKNOWN_BYTES,
        }
    }
}

impl SendAccounts {
    /// Set the size of an account, and whether there is only one.
    pub fn resize(&mut self, bytes_max: usize, is_single: bool) {
        self.bytes_max = bytes_max;
        self.is_single = is_single;
        self.half_bytes = bytes_max.div_ceil(2);
        self.quarter_bytes = bytes_max / 4;
        for index in 0..self.rows.len() {
            self.rows[index].look_at_bytes = self.quarter_bytes;
            self.open(DestinationId(index));
        }
        self.look_due = true;
        self.look_apart = true;
    }

    #[inline]
    pub fn at(&self, id: DestinationId) -> &Destination {
        &self.rows[id.0]
    }

    #[inline]
    pub fn at_mut(&mut self, id: DestinationId) -> &mut Destination {
        &mut self.rows[id.0]
    }

    /// Return what is queued to a peer, made on the first call.
    pub fn destination(&mut self, peer: Address, absent: bool) -> DestinationId {
        if let Some(known) = self.known(&peer) {
            return known;
        }
        let made = Destination {
            peer: Some(peer),
            absent,
            look_at_bytes: self.quarter_bytes,
            ..Destination::default()
        };
        let id = if let Some(id) = self.spare.pop() {
            self.rows[id.0] = made;
            id
        } else {
            self.rows.push(made);
            DestinationId(self.rows.len() - 1)
        };
        self.open(id);
        self.by_peer.insert(peer, id);
        id
    }

    /// Return the same if there is one.
    #[inline]
    pub fn known(&mut self, peer: &Address) -> Option<DestinationId> {
        match &self.last {
            Some((last, id)) if last == peer => Some(*id),
            _ => {
                let id = *self.by_peer.get(peer)?;
                self.last = Some((*peer, id));
                Some(id)
            }
        }
    }

    /// Forget a destination with nothing queued and no waiters.
    pub fn forget(&mut self, peer: &Address) {
        let Some(id) = self.known(peer) else {
            return;
        };
        let known = self.at(id);
        if known.queued_bytes > 0 || known.refused_bytes.is_some() || !known.waiters.is_empty() {
            return;
        }
        self.by_peer.remove(peer);
        self.last = None;
        self.spare.push(id);
        if self.first == Some(id) {
            self.first = None;
        }
    }

    // -- queueing

    /// Return whether a message may be queued, with `queued_bytes` in the whole queue.
    pub fn has_room(&self, id: DestinationId, payload_bytes: usize, queued_bytes: usize) -> bool {
        let (size, destination) = (self.bytes_max, self.at(id));
        if queued_bytes < destination.open_bytes {
            return true;
        }
        if self.is_single {
            return queued_bytes < size;
        }
        if queued_bytes + payload_bytes > ACCOUNTS * size {
            return false;
        }
        let mut held_bytes = destination.queued_bytes;
        if self.may_have_first(id, queued_bytes) {
            return held_bytes < size;
        }
        if self.goes_aside(id, queued_bytes) {
            let moved_bytes = if destination.aside { 0 } else { held_bytes };
            let taken_bytes = self.aside_bytes + moved_bytes;
            return held_bytes + taken_bytes <= size && payload_bytes + taken_bytes <= size;
        }
        if destination.aside {
            held_bytes *= 2; // it returns to the second account, so that one has less
        }
        held_bytes + self.second_bytes(queued_bytes) <= size
    }

    /// Return whether a destination has nothing queued and a message needs no check.
    ///
    /// From a quarter of the account on there is more to do: look for room, show there is none.
    #[inline]
    pub fn is_light(&self, id: DestinationId, payload_bytes: usize, queued_bytes: usize) -> bool {
        let destination = self.at(id);
        destination.queued_bytes == 0
            && queued_bytes < destination.open_bytes
            && payload_bytes < self.quarter_bytes
    }

    /// Count a message that has room in its account: the caller queues it now.
    #[inline]
    pub fn admit(&mut self, id: DestinationId, payload_bytes: usize, queued_bytes: usize) {
        if queued_bytes >= self.at(id).open_bytes && !self.is_single {
            self.enter(id, payload_bytes, queued_bytes);
        }
    }

    #[cold]
    fn enter(&mut self, id: DestinationId, payload_bytes: usize, queued_bytes: usize) {
        if self.may_have_first(id, queued_bytes) {
            if self.first != Some(id) {
                self.give_first(id);
            }
        } else if self.goes_aside(id, queued_bytes) {
            self.put_aside(id);
        } else if self.at(id).aside {
            self.bring_back(id);
        }
        if self.at(id).aside {
            self.aside_bytes += payload_bytes;
        }
    }

    /// Note that a message was queued, both counts with it; return whether to request an
    /// acknowledgement.
    ///
    /// Below half of an account there is nothing to note.
    pub fn note_queued(&mut self, id: DestinationId, queued_bytes: usize) -> bool {
        if self.is_single {
            return true;
        }
        if queued_bytes != self.at(id).queued_bytes {
            self.several = true;
            self.watching = true;
        }
        if self.is_first_vacant() {
            self.give_first(id);
        }
        let held_bytes = if self.first == Some(id) || self.at(id).aside {
            self.at(id).queued_bytes
        } else {
            self.second_bytes(queued_bytes)
        };
        held_bytes >= self.half_bytes
    }

    /// Note that a message found no room; `take_roomy` returns the destination once it has.
    pub fn refuse(&mut self, id: DestinationId, payload_bytes: usize, groups: u64) {
        let destination = self.at_mut(id);
        let known_bytes = destination.refused_bytes.unwrap_or(UNKNOWN_BYTES);
        destination.refused_bytes = Some(payload_bytes.min(known_bytes));
        destination.refused_groups |= groups;
        let held_bytes = destination.queued_bytes;
        if destination.absent || destination.aside || destination.path_full {
            self.refused.retain(|&other| other != id);
            if !self.refused_apart.contains(&id) {
                self.refused_apart.push(id);
            }
        } else {
            if !self.refused.contains(&id) {
                self.refused.push(id);
            }
            self.enough_bytes = self.enough_bytes.min(held_bytes);
        }
        self.several = true;
        self.watching = true;
    }

    /// Return whether a destination with nothing queued could queue; the only one, if one is.
    pub fn is_writable(&self, queued_bytes: usize) -> bool {
        let size = self.bytes_max;
        if self.is_single {
            return queued_bytes < size;
        }
        if queued_bytes < self.half_bytes {
            return true;
        }
        if !self.several && self.first_bytes() == queued_bytes {
            return queued_bytes < size;
        }
        if self.is_first_free() {
            return true;
        }
        self.second_bytes(queued_bytes) <= size && queued_bytes < ACCOUNTS * size
    }

    /// Return whether a destination without room is the only one in use: then rds(7) holds for it.
    pub fn is_alone(&self, id: DestinationId, queued_bytes: usize) -> bool {
        self.is_single || (!self.several && self.at(id).queued_bytes == queued_bytes)
    }

    /// Return whether all destinations share one account, as Linux has it.
    pub fn is_single(&self) -> bool {
        self.is_single
    }

    // -- what leaves the queue

    /// Take a destination's messages off its account; `queued_bytes` is without them.
    #[inline]
    pub fn give_back(&mut self, id: DestinationId, freed_bytes: usize, queued_bytes: usize) {
        let quarter_bytes = self.quarter_bytes;
        let destination = self.at_mut(id);
        destination.queued_bytes = destination.queued_bytes.saturating_sub(freed_bytes);
        destination.look_at_bytes = quarter_bytes;
        if self.watching {
            self.give_back_watched(id, freed_bytes, queued_bytes);
        }
    }

    #[cold]
    fn give_back_watched(&mut self, id: DestinationId, freed_bytes: usize, queued_bytes: usize) {
        let is_aside = self.at(id).aside;
        if is_aside {
            self.aside_bytes = self.aside_bytes.saturating_sub(freed_bytes);
            if self.at(id).queued_bytes == 0 {
                self.bring_back(id);
            }
        }
        if queued_bytes < self.half_bytes {
            self.several = false;
        }
        self.check_refused(id, is_aside, queued_bytes);
        self.finish_watch();
    }

    /// Set whether to look for refused destinations with room, without checking them all.
    fn check_refused(&mut self, id: DestinationId, is_aside: bool, queued_bytes: usize) {
        let (is_vacant, destination) = (self.is_first_vacant(), self.at(id));
        let (was_refused, held_bytes) = (
            destination.refused_bytes.is_some(),
            destination.queued_bytes,
        );
        if !self.refused.is_empty() {
            if was_refused {
                self.enough_bytes = self.enough_bytes.min(held_bytes);
            }
            let taken_bytes = self.second_bytes(queued_bytes);
            let is_enough = taken_bytes.saturating_add(self.enough_bytes) <= self.bytes_max;
            self.look_due |= was_refused || is_vacant || is_enough;
        }
        if !self.refused_apart.is_empty()
            && (is_aside || was_refused || (is_vacant && queued_bytes >= self.half_bytes))
        {
            self.look_due = true;
            self.look_apart = true;
        }
    }

    /// Return the refused destinations that have room now, and forget that they were refused.
    pub fn take_roomy(&mut self, queued_bytes: usize) -> Vec<DestinationId> {
        let mut roomy = self.refused.clone();
        if self.look_apart {
            roomy.extend(&self.refused_apart);
        }
        self.look_due = false;
        self.look_apart = false;
        roomy.retain(|&id| {
            let destination = self.at(id);
            let payload_bytes = destination.refused_bytes.unwrap_or(0);
            !destination.path_full && self.has_room(id, payload_bytes, queued_bytes)
        });
        for &id in &roomy {
            self.forget_rejection(id);
        }
        let held = self.refused.iter().map(|&id| self.at(id).queued_bytes);
        self.enough_bytes = held.min().unwrap_or(UNKNOWN_BYTES);
        self.finish_watch();
        roomy
    }

    /// Forget that a destination was refused, as its path is no longer full; return whether it was.
    pub fn take_unblocked(&mut self, id: DestinationId) -> bool {
        let was_refused = self.at(id).refused_bytes.is_some();
        self.forget_rejection(id);
        self.finish_watch();
        was_refused
    }

    /// Have the senders that wait for room at a refused destination look again.
    pub fn tell_refused(&mut self, wait_queue: &mut WaitQueue) {
        for id in self.refused.iter().chain(&self.refused_apart) {
            self.rows[id.0].waiters.tell_all(wait_queue);
        }
    }

    fn forget_rejection(&mut self, id: DestinationId) {
        self.refused.retain(|&other| other != id);
        self.refused_apart.retain(|&other| other != id);
        self.at_mut(id).refused_bytes = None;
    }

    fn finish_watch(&mut self) {
        self.watching = self.several
            || !self.aside.is_empty()
            || !self.refused.is_empty()
            || !self.refused_apart.is_empty();
    }

    // -- absent peers

    /// Return the bytes that are queued to absent peers.
    pub fn aside_bytes(&self) -> usize {
        self.aside_bytes
    }

    /// Count what is queued to an absent peer in the third account; return the peers given up.
    pub fn note_absent(&mut self, id: DestinationId) -> Vec<Address> {
        self.at_mut(id).absent = true;
        self.look_due = true;
        self.look_apart = true;
        if self.is_single {
            return Vec::new();
        }
        if self.refused.contains(&id) {
            self.refused.retain(|&other| other != id);
            self.refused_apart.push(id);
        }
        if self.first != Some(id) && self.at(id).queued_bytes > 0 {
            self.put_aside(id);
        }
        self.open(id);
        let (mut given_up, mut left_bytes) = (Vec::new(), self.aside_bytes);
        let others = self.aside.len().saturating_sub(1);
        for &longest in &self.aside[..others] {
            if left_bytes <= self.bytes_max {
                break;
            }
            left_bytes = left_bytes.saturating_sub(self.at(longest).queued_bytes);
            given_up.extend(self.at(longest).peer);
        }
        given_up
    }

    /// Note that a peer is connected again; its account changes back with its next message.
    pub fn note_present(&mut self, id: DestinationId) {
        self.at_mut(id).absent = false;
        self.look_due = true;
        self.look_apart = true;
        self.open(id);
        let destination = self.at(id);
        let may_join = !destination.aside && !destination.path_full;
        if may_join && self.refused_apart.contains(&id) {
            self.refused_apart.retain(|&other| other != id);
            self.refused.push(id);
        }
    }

    // -- which account

    fn first_bytes(&self) -> usize {
        self.first.map_or(0, |id| self.at(id).queued_bytes)
    }

    fn second_bytes(&self, queued_bytes: usize) -> usize {
        queued_bytes.saturating_sub(self.first_bytes() + self.aside_bytes)
    }

    fn is_first_vacant(&self) -> bool {
        self.first_bytes() == 0
    }

    /// Return whether the first account is free, or its destination is absent and can leave it.
    fn is_first_free(&self) -> bool {
        let first = self.first.map(|id| self.at(id));
        first.is_none_or(|first| {
            let is_absent = first.absent;
            first.queued_bytes == 0
                || (is_absent && self.aside_bytes + first.queued_bytes <= self.bytes_max)
        })
    }

    fn may_have_first(&self, id: DestinationId, queued_bytes: usize) -> bool {
        if self.first == Some(id) {
            return true;
        }
        let destination = self.at(id);
        let is_alone = destination.queued_bytes == queued_bytes;
        if queued_bytes < self.half_bytes
            && !(is_alone && (destination.absent || destination.aside))
        {
            return false;
        }
        self.is_first_free()
    }

    fn goes_aside(&self, id: DestinationId, queued_bytes: usize) -> bool {
        let destination = self.at(id);
        destination.absent
            || (destination.aside
                && self.second_bytes(queued_bytes) + destination.queued_bytes > self.bytes_max)
    }

    /// Give the first account to a destination; the one before is absent, or has nothing queued.
    fn give_first(&mut self, id: DestinationId) {
        let before = self.first.replace(id);
        if self.at(id).aside {
            self.bring_back(id);
        }
        if let Some(before) = before {
            if self.at(before).queued_bytes > 0 && before != id {
                self.put_aside(before);
            }
            self.open(before);
        }
        self.open(id);
    }

    fn put_aside(&mut self, id: DestinationId) {
        if !self.at(id).aside {
            self.at_mut(id).aside = true;
            self.watching = true;
            self.aside.push(id);
            self.aside_bytes += self.at(id).queued_bytes;
            self.open(id);
        }
    }

    fn bring_back(&mut self, id: DestinationId) {
        self.at_mut(id).aside = false;
        self.aside.retain(|&other| other != id);
        self.aside_bytes = self.aside_bytes.saturating_sub(self.at(id).queued_bytes);
        self.open(id);
    }

    fn open(&mut self, id: DestinationId) {
        let destination = self.at(id);
        let open_bytes = if self.is_single || self.first == Some(id) {
            self.bytes_max
        } else if destination.absent || destination.aside {
            0
        } else {
            self.half_bytes
        };
        self.at_mut(id).open_bytes = open_bytes;
    }
}
