//! The node's side: it waits for no thread and believes nothing that the client can write.
//!
//! One thread at a time (the plane's lock). A value that no client writes is a [`ClientError`]: the
//! caller ends that socket, and no other.

use core::sync::atomic::Ordering;

use super::account::Account;
use super::layout::{
    AT_ABSENT_BYTES, AT_LOCAL, AT_NODE_ASLEEP, AT_NOTIFY, AT_OVER_QUOTA, AT_READER_ASLEEP,
    AT_ROOM_EVENT, AT_ROUTES_GENERATION, AT_SENDER_WAITS, AT_WAIT_FLAGS, AT_WAIT_GROUPS, Layout,
    ROUTE_ERROR, ROUTE_FLAGS, ROUTE_FREED, ROUTE_SLOT, UNIT_BYTES, WAIT_ANY, WAIT_ROOM,
    WAIT_SLEEPERS, route_at, route_sent_at,
};
use super::name::{self, Name};
use super::node_receive::Segments;
use super::options::Options;
use crate::journal::{self, Journal};
use crate::sleep;
use crate::sys::area::Area;
use crate::sys::{Errno, futex};

/// The client wrote what no client writes; the text is for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientError(pub &'static str);

/// A mapped socket memory with its journal, for the node.
#[derive(Debug)]
pub struct NodeSide {
    pub(super) area: Area,
    pub(super) layout: Layout,
    pub(super) journal: Journal,
    pub(super) segments: Segments,
    /// Submissions that there were when all before them had been taken.
    pub(super) submitted: u64,
    /// Slots that hold a message.
    pub(super) held_slots: u32,
    /// Behind the last unit of the send area that was used since pages were given back.
    pub(super) sent_touched: u32,
    /// The route of the last message that was freed, and bytes that the client is not told of yet.
    pub(super) untold_freed: (u32, u64),
    was_filled: bool,
    pub(super) is_over_quota: bool,
}

impl NodeSide {
    /// Take a mapped memory and its journal; what the journal says goes on.
    ///
    /// # Errors
    /// EINVAL for what is none of both, EPROTO for another version.
    pub fn new(area: Area, journal: Area) -> Result<Self, Errno> {
        let layout = Layout::read(&area)?;
        let journal = Journal::new(journal)?;
        let segments = Segments::read(&journal, &layout);
        let submitted = journal.long(journal::AT_TAKEN);
        let mut side = Self {
            area,
            layout,
            journal,
            segments,
            submitted,
            held_slots: 0,
            sent_touched: if submitted == 0 { 0 } else { layout.send_units },
            untold_freed: (0, 0),
            was_filled: false,
            is_over_quota: false,
        };
        side.recover();
        let mut held_slots = 0;
        side.held_messages(|_| held_slots += 1);
        side.held_slots = held_slots;
        Ok(side)
    }

    /// Return the memory.
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// Return the bytes of the send area and of the receive area.
    pub fn area_bytes(&self) -> (usize, usize) {
        let bytes = |units| units as usize * UNIT_BYTES;
        (
            bytes(self.layout.send_units),
            bytes(self.layout.receive_units),
        )
    }

    /// Return the journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Return the client's options: words that it may set to anything.
    pub fn options(&self) -> Options<'_> {
        Options(&self.area)
    }

    // -- names and routes

    /// Set the name that the socket is bound to.
    pub fn set_local(&self, local: Option<Name>) {
        name::store(&self.area, AT_LOCAL, local);
    }

    /// Begin to use a route: nothing is sent to it, nothing freed. `slot` is that of its map in the
    /// congestion memory.
    pub fn open_route(&self, route: u32, slot: Option<u32>) {
        let at = route_at(route);
        let word = |offset, value| self.area.word(at + offset).store(value, Ordering::Relaxed);
        word(ROUTE_ERROR, 0);
        word(ROUTE_SLOT, slot.map_or(0, |slot| slot + 1));
        let sent = self.area.long(route_sent_at(route)).load(Ordering::Relaxed);
        self.area
            .long(at + ROUTE_FREED)
            .store(sent, Ordering::Relaxed);
        self.area.word(at + ROUTE_FLAGS).store(0, Ordering::Release);
    }

    /// Set the flags of a route: `layout::ROUTE_ABSENT`, `layout::ROUTE_GONE`.
    pub fn set_route_flags(&self, route: u32, flags: u32) {
        self.area
            .word(route_at(route) + ROUTE_FLAGS)
            .store(flags, Ordering::Release);
    }

    /// Set the slot of a route's map, None without one.
    pub fn set_route_slot(&self, route: u32, slot: Option<u32>) {
        self.area
            .word(route_at(route) + ROUTE_SLOT)
            .store(slot.map_or(0, |slot| slot + 1), Ordering::Release);
    }

    /// Leave an error number for the next send to a route.
    pub fn set_route_error(&self, route: u32, number: i32) {
        self.area
            .word(route_at(route) + ROUTE_ERROR)
            .store(number.cast_unsigned(), Ordering::Release);
    }

    /// Return the generation of routes: what the client knows of an earlier one is over.
    pub fn routes_generation(&self) -> u32 {
        self.area.word(AT_ROUTES_GENERATION).load(Ordering::Relaxed)
    }

    /// Begin another one, as a node of a later release may.
    #[cfg(test)]
    pub fn set_routes_generation(&self, generation: u32) {
        self.area
            .word(AT_ROUTES_GENERATION)
            .store(generation, Ordering::Release);
    }

    /// Tell how many bytes are queued to absent peers.
    pub fn set_absent_bytes(&self, bytes: u64) {
        let there = self.area.long(AT_ABSENT_BYTES);
        if there.load(Ordering::Relaxed) != bytes {
            there.store(bytes, Ordering::Release); // senders read its line with each message
        }
    }

    /// Return whether a queue is empty and has pages to give back; `give_back_late` then, after a
    /// while: who fills them again at once pays for a fault of each.
    #[inline]
    pub fn has_late(&self) -> bool {
        self.late_received().is_some() || self.late_sent().is_some()
    }

    /// Give back the pages of empty queues behind their soft ends, and over quota all.
    pub fn give_back_late(&mut self) {
        self.give_back_received();
        self.give_back_sent();
    }

    /// Tell whether sends are refused: the socket's user is over its quota. An empty queue keeps no
    /// pages then.
    pub fn set_over_quota(&mut self, is_over: bool) {
        self.is_over_quota = is_over;
        self.area
            .word(AT_OVER_QUOTA)
            .store(u32::from(is_over), Ordering::Release);
        if is_over {
            self.give_back_late();
        }
    }

    // -- waking the client

    /// Tell the client of all that was published; return whether to show POLLIN, as the reader slept.
    #[inline]
    pub fn must_show(&self) -> bool {
        self.tell_published(self.published());
        sleep::must_ring(self.area.word(AT_READER_ASLEEP))
    }

    /// Tell of port groups whose congestion changed, as far as the client waits for them. Return
    /// whether to show POLLIN.
    pub fn congestion_changed(&self, groups: u64) -> bool {
        core::sync::atomic::fence(Ordering::SeqCst);
        let waited = self.area.long(AT_WAIT_GROUPS);
        let due = waited.load(Ordering::Relaxed) & groups;
        if due != 0 {
            waited.fetch_and(!due, Ordering::Relaxed);
            self.area.long(AT_NOTIFY).fetch_or(due, Ordering::Release);
        }
        let flags = self.area.word(AT_WAIT_FLAGS).load(Ordering::Relaxed);
        let is_any = flags & WAIT_ANY != 0;
        if flags & (WAIT_ANY | WAIT_SLEEPERS) != 0 {
            self.wake_senders(WAIT_ANY | WAIT_SLEEPERS);
        }
        is_any || (due != 0 && self.must_show())
    }

    /// Return what is due after messages were freed.
    pub(super) fn room_changed(&self) -> bool {
        core::sync::atomic::fence(Ordering::SeqCst);
        let flags = self.area.word(AT_WAIT_FLAGS).load(Ordering::Relaxed);
        if flags & WAIT_ROOM == 0 || !Account::read(&self.area).is_half_free(0) {
            return false;
        }
        self.wake_senders(WAIT_ROOM | WAIT_SLEEPERS);
        let groups = self.area.long(AT_WAIT_GROUPS).swap(0, Ordering::Relaxed);
        self.area
            .long(AT_NOTIFY)
            .fetch_or(groups, Ordering::Release);
        groups != 0 && self.must_show()
    }

    fn wake_senders(&self, flags: u32) {
        self.area
            .word(AT_WAIT_FLAGS)
            .fetch_and(!flags, Ordering::Relaxed);
        let event = self.area.word(AT_ROOM_EVENT);
        event.fetch_add(1, Ordering::Release);
        futex::wake(event, i32::MAX);
    }

    /// Return whether the client filled the control socket: it waits for POLLOUT.
    #[inline]
    pub fn is_filled(&self) -> bool {
        self.area.word(AT_SENDER_WAITS).load(Ordering::Acquire) != 0
    }

    fn has_room_for_sender(&self) -> bool {
        let waits = self.area.word(AT_SENDER_WAITS).load(Ordering::Acquire);
        waits.checked_sub(1).is_some_and(|length| {
            let account = Account::read(&self.area);
            account.is_half_free(u64::from(length))
        })
    }

    /// Return whether the last `sleep` found the control socket filled: bytes on it are no news then,
    /// so do not poll for them. As `is_filled`, but what came after that look is heard as bytes.
    pub fn was_filled(&self) -> bool {
        self.was_filled
    }

    /// Return whether to empty the control socket, because the client waits and there is room.
    ///
    /// Ask in each pass, after messages were freed and after bytes came on it, and every millisecond
    /// while `was_filled`: no doorbell passes then.
    pub fn must_empty(&self) -> bool {
        if !self.has_room_for_sender() {
            return false;
        }
        self.area.word(AT_SENDER_WAITS).store(0, Ordering::Release);
        true
    }

    /// Note that the node looks at this socket by itself: no doorbell until it sleeps.
    #[inline]
    pub fn wake(&self) {
        sleep::awake(self.area.word(AT_NODE_ASLEEP));
    }

    /// Look whether the client waits for room: what `sleep` does for a node that stays awake.
    pub fn note_filled(&mut self) {
        self.was_filled = self.is_filled();
    }

    /// Set this socket's word of a sleeping node, and look again; false if there is work: to take, to
    /// show (`must_show_again`), or to empty the control socket (`must_empty`).
    ///
    /// # Errors
    /// `ClientError`.
    pub fn sleep(&mut self) -> Result<bool, ClientError> {
        sleep::set_asleep(self.area.word(AT_NODE_ASLEEP));
        let has_work = self.submissions()? > 0;
        let reader = self.area.word(AT_READER_ASLEEP);
        let may_show = self.has_unread() && reader.load(Ordering::Relaxed) != 0;
        // One look at the word: it decides whether to empty, and whether bytes are news.
        self.note_filled();
        let may_empty = self.was_filled && self.has_room_for_sender();
        if has_work || may_show || may_empty {
            self.wake();
            return Ok(false);
        }
        Ok(true)
    }

    /// Return whether to show POLLIN, when the client rang: it may have found something after it
    /// counted as asleep.
    pub fn must_show_again(&self) -> bool {
        self.has_unread() && self.must_show()
    }
}
