//! The client's side: what every process with the descriptor may do.

use core::sync::atomic::{AtomicU64, Ordering};

use super::account::Account;
use super::layout::{
    AT_COOKIE, AT_LOCAL, AT_MESSAGE_LIMIT, AT_NAMES, AT_NODE_ASLEEP, AT_NOTIFY, AT_OVER_QUOTA,
    AT_PEER, AT_PLACE, AT_PLACE_BYTES, AT_PUBLISHED, AT_READER_ASLEEP, AT_RECEIVE_LIMIT,
    AT_RECEIVERS, AT_ROOM_EVENT, AT_ROUTES_GENERATION, AT_RULES, AT_SEND_LIMIT, AT_SENDER_WAITS,
    AT_SENDERS, AT_TAKEN, AT_WAIT_FLAGS, AT_WAIT_GROUPS, Layout, NAME_BYTES, NAMES,
    PLACE_BYTES_MAX, ROUTE_ERROR, ROUTE_FLAGS, ROUTE_GONE, ROUTE_SLOT, ROUTES, RULE_STRICT_LINUX,
    route_at,
};
use super::name::{self, Name};
use super::options::Options;
use crate::lock::{self, Deadlock, Guard};
use crate::sleep;
use crate::sys::area::Area;
use crate::sys::{Errno, futex};

/// Looks at the table of names before it counts as full.
const PROBES: usize = 32;

/// Why a message was not sent, or none received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// A signal handler interrupted the same call of its own thread.
    Busy,
    /// The account or the area has no room; POLLOUT tells when.
    Full,
    /// The destination has no room beside others.
    FullBesideOthers,
    /// Longer than the node takes, or than `SO_SNDBUF`.
    TooLong,
    /// The destination has no route, or it is over: ask the node for one.
    NoRoute,
    /// The error that the node left for the next send to this destination, once.
    Failed(i32),
    /// The destination's port is congested.
    Congested,
    /// The user of the socket is over its quota at the node.
    OverQuota,
    /// Nothing to receive.
    Empty,
    /// A process wrote nonsense into the memory.
    Corrupt,
}

impl From<Deadlock> for Rejected {
    fn from(_: Deadlock) -> Self {
        Self::Busy
    }
}

/// Number of a destination, as the node gave it.
pub type Route = u32;

/// A mapped socket memory, for its client. Every call may be made by any thread.
#[derive(Debug)]
pub struct ClientSide {
    pub(super) area: Area,
    pub(super) layout: Layout,
    /// How many submissions the node had taken when this process last asked whether it is there.
    pub(super) taken_before: AtomicU64,
}

impl ClientSide {
    /// Take a mapped memory.
    ///
    /// # Errors
    /// EINVAL for what is no memory of a socket, EPROTO for one of another version.
    pub fn new(area: Area) -> Result<Self, Errno> {
        let layout = Layout::read(&area)?;
        Ok(Self {
            area,
            layout,
            taken_before: AtomicU64::new(0),
        })
    }

    /// Return the memory.
    pub fn area(&self) -> &Area {
        &self.area
    }

    #[inline]
    pub(super) fn word(&self, at: usize) -> u32 {
        self.area.word(at).load(Ordering::Relaxed)
    }

    /// Return `SO_COOKIE` of the socket's user end, which identifies the socket.
    pub fn cookie(&self) -> u64 {
        self.area.long(AT_COOKIE).load(Ordering::Relaxed)
    }

    /// Return the options.
    #[inline]
    pub fn options(&self) -> Options<'_> {
        Options(&self.area)
    }

    /// Return the greatest `SO_SNDBUF` and `SO_RCVBUF`, and the longest message.
    pub fn limits(&self) -> (u32, u32, u32) {
        (
            self.word(AT_SEND_LIMIT),
            self.word(AT_RECEIVE_LIMIT),
            self.word(AT_MESSAGE_LIMIT),
        )
    }

    /// Return whether the node's setting `strict_linux` is on.
    pub fn is_strict(&self) -> bool {
        self.word(AT_RULES) & RULE_STRICT_LINUX != 0
    }

    /// Return whether the node refuses sends: the socket's user is over its quota.
    pub fn is_over_quota(&self) -> bool {
        self.word(AT_OVER_QUOTA) != 0
    }

    /// Copy out the path of the node socket; return its length, 0 if there is none.
    pub fn place(&self, path: &mut [u8; PLACE_BYTES_MAX]) -> usize {
        let length = (self.word(AT_PLACE_BYTES) as usize).min(PLACE_BYTES_MAX);
        self.area.copy_out(AT_PLACE, &mut path[..length]);
        length
    }

    /// Return the name that the socket is bound to.
    pub fn local(&self) -> Option<Name> {
        name::load(&self.area, AT_LOCAL)
    }

    /// Return the connected name.
    pub fn peer(&self) -> Option<Name> {
        name::load(&self.area, AT_PEER)
    }

    /// Set the connected name.
    ///
    /// # Errors
    /// `Busy`.
    pub fn set_peer(&self, peer: Option<Name>) -> Result<(), Rejected> {
        let _guard = self.lock_senders()?;
        name::store(&self.area, AT_PEER, peer);
        Ok(())
    }

    #[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
    #[inline(always)]
    pub(super) fn lock_senders(&self) -> Result<Guard<'_>, Rejected> {
        let guard = lock::lock(self.area.word(AT_SENDERS))?;
        if guard.is_inherited {
            self.mend()?;
        }
        Ok(guard)
    }

    #[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
    #[inline(always)]
    pub(super) fn lock_receivers(&self) -> Result<Guard<'_>, Rejected> {
        // A receiver's only store of consequence is its last one: there is nothing to mend.
        Ok(lock::lock(self.area.word(AT_RECEIVERS))?)
    }

    // -- routes

    /// Remember the route of a destination, with the generation that the node gave with it.
    ///
    /// # Errors
    /// `Busy`.
    pub fn set_route(
        &self,
        to: &Name,
        tos: u8,
        route: Route,
        generation: u32,
    ) -> Result<(), Rejected> {
        let _guard = self.lock_senders()?;
        let Err(at) = self.find_name(to, tos) else {
            return Ok(());
        };
        let entry = |word| self.area.word(at + word);
        entry(24).store(0, Ordering::Relaxed); // no route until all of it is there
        self.area.copy_in(at, &to.address);
        entry(16).store(to.scope, Ordering::Relaxed);
        entry(20).store(u32::from(tos), Ordering::Relaxed);
        entry(28).store(generation, Ordering::Relaxed);
        entry(24).store(route + 1, Ordering::Release);
        Ok(())
    }

    /// Return the route of a name, or where its entry may be. Lock of senders held.
    pub(super) fn find_name(&self, to: &Name, tos: u8) -> Result<Route, usize> {
        let generation = self.area.word(AT_ROUTES_GENERATION).load(Ordering::Acquire);
        let first = hash(to, tos);
        let mut free = None;
        for probe in 0..PROBES {
            let at = AT_NAMES + ((first + probe) % NAMES) * NAME_BYTES;
            let entry = |word| self.area.word(at + word).load(Ordering::Relaxed);
            let Some(route) = entry(24).checked_sub(1) else {
                return Err(free.unwrap_or(at));
            };
            let is_over = entry(28) != generation || self.is_gone(route);
            if is_over {
                free = free.or(Some(at));
                continue;
            }
            if entry(16) == to.scope && entry(20) == u32::from(tos) {
                let mut address = [0; 16];
                self.area.copy_out(at, &mut address);
                if address == to.address {
                    return Ok(route);
                }
            }
        }
        Err(free.unwrap_or(AT_NAMES + first * NAME_BYTES))
    }

    pub(super) fn is_gone(&self, route: Route) -> bool {
        let at = route_at(route) + ROUTE_FLAGS;
        route as usize >= ROUTES || self.area.word(at).load(Ordering::Relaxed) & ROUTE_GONE != 0
    }

    /// Take the error that the node left for the next send to a route, once; 0 without one.
    #[inline]
    pub fn take_error(&self, route: Route) -> i32 {
        let word = self.area.word(route_at(route) + ROUTE_ERROR);
        if word.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        word.swap(0, Ordering::Relaxed).cast_signed()
    }

    /// Return the slot of a route's map in the congestion memory, None without one.
    #[inline]
    pub fn map_slot(&self, route: Route) -> Option<u32> {
        self.word(route_at(route) + ROUTE_SLOT).checked_sub(1)
    }

    // -- waiting

    /// Return whether a doorbell to the node is due, after something was published.
    #[inline]
    pub fn must_ring(&self) -> bool {
        sleep::must_ring(self.area.word(AT_NODE_ASLEEP))
    }

    /// Note that the node has ended: every send is to ring, and so to find that out, from now on.
    #[cold]
    pub fn note_end(&self) {
        sleep::set_asleep(self.area.word(AT_NODE_ASLEEP));
    }

    /// Return whether POLLOUT is right.
    pub fn is_writable(&self) -> bool {
        Account::read(&self.area).is_writable()
    }

    /// Return how many bytes are sent and not acknowledged.
    pub fn queued_bytes(&self) -> u64 {
        Account::read(&self.area).queued()
    }

    /// Note that the control socket is being filled, for messages of about this length: the node
    /// empties it when there is room.
    pub fn wait_for_room(&self, length: usize) {
        let word = u32::try_from(length).unwrap_or(u32::MAX).saturating_add(1);
        sleep::set_waiting(self.area.word(AT_SENDER_WAITS), word);
    }

    /// Return whether the node has not answered `wait_for_room` yet.
    pub fn waits_for_room(&self) -> bool {
        self.area.word(AT_SENDER_WAITS).load(Ordering::Acquire) != 0
    }

    /// Note the port groups and flags (`layout::WAIT_*`) that the node shall tell of; then look again.
    pub fn wait_for(&self, groups: u64, flags: u32) {
        self.area
            .long(AT_WAIT_GROUPS)
            .fetch_or(groups, Ordering::Relaxed);
        self.area
            .word(AT_WAIT_FLAGS)
            .fetch_or(flags, Ordering::Relaxed);
        core::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Forget all of it: the monitor was turned off.
    pub fn forget_groups(&self) {
        self.area.long(AT_WAIT_GROUPS).store(0, Ordering::Relaxed);
        self.area.long(AT_NOTIFY).store(0, Ordering::Relaxed);
    }

    /// Return the count of events that a refused sender waits for; read it before `wait_for`.
    pub fn room_event(&self) -> u32 {
        self.area.word(AT_ROOM_EVENT).load(Ordering::Acquire)
    }

    /// Sleep until the node counts another event.
    ///
    /// # Errors
    /// EINTR; ETIMEDOUT after `timeout_ns`.
    pub fn sleep_for_room(&self, event: u32, timeout_ns: Option<u64>) -> Result<(), Errno> {
        futex::wait(self.area.word(AT_ROOM_EVENT), event, timeout_ns)
    }

    /// Return whether a receive finds something.
    pub fn has_something(&self) -> bool {
        let published = self.area.long(AT_PUBLISHED).load(Ordering::Acquire);
        let taken = self.area.long(AT_TAKEN).load(Ordering::Relaxed) >> 32;
        published & 0xffff_ffff != taken || self.area.long(AT_NOTIFY).load(Ordering::Relaxed) != 0
    }

    /// Return whether this side counts as asleep already: what is published from now on rings.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.word(AT_READER_ASLEEP) != 0 && !self.has_something()
    }

    /// After a receive found nothing: `forget` takes the bytes that show POLLIN, then this side
    /// counts as asleep. Return whether the node must be rung, because something came meanwhile.
    ///
    /// # Errors
    /// `Busy`.
    pub fn sleep(&self, forget: impl FnOnce()) -> Result<bool, Rejected> {
        let _guard = self.lock_receivers()?;
        if self.has_something() {
            return Ok(false); // still shown, or about to be
        }
        forget();
        let asleep = self.area.word(AT_READER_ASLEEP);
        sleep::set_asleep(asleep);
        Ok(self.has_something() && asleep.load(Ordering::Relaxed) != 0)
    }
}

fn hash(to: &Name, tos: u8) -> usize {
    let half = |from: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&to.address[from..from + 8]);
        u64::from_le_bytes(bytes)
    };
    let mixed = half(0)
        .rotate_left(29)
        .wrapping_add(half(8))
        .wrapping_add(u64::from(to.scope) << 8 | u64::from(tos))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(mixed >> 51).unwrap_or(0) % NAMES
}
