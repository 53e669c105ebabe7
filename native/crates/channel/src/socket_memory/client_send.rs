//! Sending: a record is claimed, filled and published under the lock of senders.

use core::sync::atomic::Ordering;

use super::account::{Account, Room};
use super::client_side::{ClientSide, Rejected, Route};
use super::layout::{
    AT_CLAIM, AT_SENT_BYTES, AT_SUBMISSIONS_TAKEN, AT_SUBMITTED, RECORD_BYTES, SEND_EXTENSION,
    SEND_EXTENSION_BYTES, SEND_FLAGS, SEND_LENGTH, SEND_PORT, SEND_ROUTE, SEND_ROUTE_SENT_AFTER,
    SEND_SENT_AFTER, SEND_SUBMISSION, route_sent_at, soft_units, units_of,
};
use super::name::Name;
use super::options::Word;
use super::send_area::{Corrupt, SendArea};

impl From<Corrupt> for Rejected {
    fn from(_: Corrupt) -> Self {
        Self::Corrupt
    }
}

/// What is sent besides the payload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing {
    /// The destination.
    pub to: Name,
    /// For the node; none is defined yet.
    pub flags: u32,
    /// Extension headers as on the wire.
    pub extension: [u8; 16],
    /// How many bytes of them.
    pub extension_bytes: u8,
}

/// After so many messages that an awake node has not taken their sender notes how many it took. After as
/// many again, if it took none since, the sender looks whether it is there: one that was killed awake
/// asks for no doorbell any more.
const UNTAKEN_LOOK: u64 = 64;

/// What is due after a message was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Ring the node's doorbell.
    pub ring: bool,
    /// The account is full now: fill the control socket.
    pub is_full: bool,
    /// Look whether the node has ended.
    pub must_look: bool,
}

/// Where a message goes.
struct Claim {
    at: u32,
    needed: u32,
    submitted: u64,
    route: Route,
}

impl ClientSide {
    /// Return whether a message of this length may ever be sent.
    ///
    /// # Errors
    /// `TooLong`.
    #[inline]
    pub fn check_length(&self, length: usize) -> Result<(), Rejected> {
        let (of_socket, of_node) = self.lengths_max();
        if length > of_socket.min(of_node) {
            return Err(Rejected::TooLong);
        }
        Ok(())
    }

    /// Return how long a message may be by `SO_SNDBUF`, and by the node.
    #[inline]
    pub fn lengths_max(&self) -> (usize, usize) {
        let of_socket = self.options().get(Word::SendBytes);
        (of_socket as usize, self.layout.message_limit as usize)
    }

    /// Send a message: `fill` copies `length` bytes of payload to the place that it gets.
    /// `is_congested` looks at a port in the map of a slot.
    ///
    /// # Errors
    /// `Busy`, `TooLong`, `NoRoute`, `Failed`, `OverQuota`, `Congested`, `Full`, `FullBesideOthers`, `Corrupt`;
    /// then nothing was sent.
    pub fn send(
        &self,
        message: &Outgoing,
        length: usize,
        is_congested: impl FnOnce(u32, u16) -> bool,
        fill: impl FnOnce(usize),
    ) -> Result<Published, Rejected> {
        self.check_length(length)?;
        let guard = self.lock_senders()?;
        let found = self.find_name(&message.to, self.tos());
        let route = found.map_err(|_| Rejected::NoRoute)?;
        let failure = self.take_error(route);
        if failure != 0 {
            return Err(Rejected::Failed(failure));
        }
        if self.is_over_quota() {
            return Err(Rejected::OverQuota);
        }
        let slot = self.map_slot(route);
        if slot.is_some_and(|slot| is_congested(slot, message.to.port)) {
            return Err(Rejected::Congested);
        }
        let account = Account::read(&self.area);
        match account.check(route, length as u64) {
            Room::Yes => {}
            Room::Full => return Err(Rejected::Full),
            Room::FullBesideOthers => return Err(Rejected::FullBesideOthers),
        }
        let submitted = self.area.long(AT_SUBMITTED).load(Ordering::Relaxed);
        let taken = self.area.long(AT_SUBMISSIONS_TAKEN).load(Ordering::Acquire);
        if submitted.wrapping_sub(taken) >= u64::from(self.layout.submissions) {
            return Err(Rejected::Full);
        }
        let tiles = self.tiles();
        if account.queued() == 0 && !tiles.is_used(0)? {
            tiles.rewind(); // messages without payload are not in the account
        }
        let needed = units_of(length);
        let send_bytes = self.options().get(Word::SendBytes);
        let soft = soft_units(send_bytes, self.layout.send_units);
        let at = tiles.find(needed, soft)?.ok_or(Rejected::Full)?;
        let claim = Claim {
            at,
            needed,
            submitted,
            route,
        };
        self.publish(message, length, &claim, fill)?;
        drop(guard);
        let is_full =
            length as u64 + account.queued() >= u64::from(self.half_bytes()) && !self.is_writable();
        let untaken = submitted.wrapping_sub(taken) + 1;
        Ok(Published {
            ring: self.must_ring(),
            is_full,
            must_look: untaken.is_multiple_of(UNTAKEN_LOOK) && self.has_stood(taken),
        })
    }

    /// Return whether the node has taken nothing since the last call: one that is only behind takes.
    fn has_stood(&self, taken: u64) -> bool {
        let before = self.taken_before.load(Ordering::Relaxed);
        self.taken_before.store(taken, Ordering::Relaxed);
        before == taken
    }

    /// Return the type of service of what is sent: a peer has one route for each.
    #[inline]
    pub fn tos(&self) -> u8 {
        self.options().get(Word::Tos).to_le_bytes()[0]
    }

    /// Count the messages that were sent and not freed, which takes the longer the more there are.
    ///
    /// # Errors
    /// `Busy`, `Corrupt`.
    pub fn unacknowledged(&self) -> Result<usize, Rejected> {
        let _guard = self.lock_senders()?;
        Ok(self.tiles().used()?)
    }

    fn half_bytes(&self) -> u32 {
        self.options().get(Word::SendBytes) / 2
    }

    pub(super) fn tiles(&self) -> SendArea<'_> {
        SendArea {
            area: &self.area,
            layout: &self.layout,
        }
    }

    /// Fill a free tile and publish it. Every store leaves what `mend` understands.
    fn publish(
        &self,
        message: &Outgoing,
        length: usize,
        claim: &Claim,
        fill: impl FnOnce(usize),
    ) -> Result<(), Rejected> {
        let &Claim {
            at,
            needed,
            submitted,
            route,
        } = claim;
        let place = self.layout.send_unit(at);
        let sent = self.area.long(AT_SENT_BYTES);
        let of_route = self.area.long(route_sent_at(route));
        let sent_after = sent.load(Ordering::Relaxed).wrapping_add(length as u64);
        let route_after = of_route.load(Ordering::Relaxed).wrapping_add(length as u64);
        // Into the tile while it is free: its first word stays as it is.
        let word = |offset, value| {
            self.area
                .word(place + offset)
                .store(value, Ordering::Relaxed);
        };
        word(SEND_LENGTH, u32::try_from(length).unwrap_or(u32::MAX));
        word(SEND_ROUTE, route);
        word(
            SEND_PORT,
            u32::from(message.to.port) | u32::from(message.extension_bytes) << 16,
        );
        word(SEND_FLAGS, message.flags);
        self.area
            .copy_in(place + SEND_EXTENSION, &message.extension);
        let long = |offset, value| {
            self.area
                .long(place + offset)
                .store(value, Ordering::Relaxed);
        };
        long(SEND_SENT_AFTER, sent_after);
        long(SEND_ROUTE_SENT_AFTER, route_after);
        long(SEND_SUBMISSION, submitted);
        let claim = submitted << 32 | u64::from(at + 1);
        self.area.long(AT_CLAIM).store(claim, Ordering::Release);
        self.tiles().claim(at, needed)?;
        fill(place + RECORD_BYTES);
        of_route.store(route_after, Ordering::Release);
        sent.store(sent_after, Ordering::Release);
        let entry = self.area.word(self.layout.ring_entry(submitted));
        entry.store(at, Ordering::Relaxed);
        let next = submitted.wrapping_add(1);
        self.area.long(AT_SUBMITTED).store(next, Ordering::Release);
        self.area.long(AT_CLAIM).store(0, Ordering::Release);
        Ok(())
    }

    /// Undo what a killed sender began and did not publish. Lock of senders held.
    #[cold]
    pub(super) fn mend(&self) -> Result<(), Rejected> {
        let claim = self.area.long(AT_CLAIM).load(Ordering::Acquire);
        let Some(at) = u32::try_from(claim & 0xffff_ffff)
            .unwrap_or(0)
            .checked_sub(1)
        else {
            return Ok(());
        };
        let submitted = self.area.long(AT_SUBMITTED).load(Ordering::Acquire);
        if at >= self.layout.send_units {
            return Err(Rejected::Corrupt);
        }
        let is_published = submitted & 0xffff_ffff != claim >> 32;
        if !is_published && self.tiles().is_used(at)? {
            let place = self.layout.send_unit(at);
            let word = |offset| self.area.word(place + offset).load(Ordering::Relaxed);
            let long = |offset| self.area.long(place + offset).load(Ordering::Relaxed);
            let length = u64::from(word(SEND_LENGTH));
            let sent_before = long(SEND_SENT_AFTER).wrapping_sub(length);
            let route_before = long(SEND_ROUTE_SENT_AFTER).wrapping_sub(length);
            self.area
                .long(route_sent_at(word(SEND_ROUTE)))
                .store(route_before, Ordering::Relaxed);
            self.area
                .long(AT_SENT_BYTES)
                .store(sent_before, Ordering::Release);
            self.tiles().unclaim(at)?;
        }
        self.area.long(AT_CLAIM).store(0, Ordering::Release);
        Ok(())
    }
}

const _: () = assert!(SEND_EXTENSION_BYTES == SEND_PORT + 2);
