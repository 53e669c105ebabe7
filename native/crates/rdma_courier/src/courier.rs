//! One courier: what it was given, and what it gives back.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use urds_dataplane::external::ExternalId;
use urds_dataplane::gathering::{Carrier, Gathered, GatheredMessage};
use urds_dataplane::plane::Plane;
use urds_path::constants::HEADER_BYTES;
use urds_path::packed_frames::Budget;
use urds_path::{Body, Header};
use urds_verbs::Engine;
use urds_verbs::consumer::{Taker, Taking};
use urds_verbs::memory::{Content, Memory};
use urds_verbs::numbers::QpState;
use urds_verbs::work::Completion;

/// What comes at most before an acknowledgement that is asked for.
const UNACKED_BYTES_MAX: usize = 256 << 10;
/// Messages that wait or are not acknowledged: with more the core counts them.
const MESSAGES_MAX: usize = 32_768;

/// What a courier needs to know once.
#[derive(Clone)]
pub struct Setup {
    /// The queue pair's and its queues' numbers in the engine.
    pub number: u32,
    pub qpn: u32,
    pub completions: u32,
    pub receives: u32,
    /// The memory of all receives, and its key. Those up to `long_slots` have room for long frames.
    pub memory: Arc<dyn Memory>,
    pub lkey: u32,
    pub long_slots: u64,
    pub long_bytes: usize,
    pub short_bytes: usize,
    /// Identifiers of receives are below it, those of frames are their number above it.
    pub receive_ring: u64,
    pub send_ring: usize,
    pub message_bytes_max: usize,
    /// What an acknowledgement waits for a message to ride on.
    pub ack_delay_ns: u64,
}

impl Setup {
    /// Return where the memory of a receive begins, and its length.
    pub fn place_of(&self, slot: u64) -> (u64, usize) {
        let long = slot.min(self.long_slots);
        let short = slot.saturating_sub(self.long_slots);
        let start = long * self.long_bytes as u64 + short * self.short_bytes as u64;
        let bytes = if slot < self.long_slots {
            self.long_bytes
        } else {
            self.short_bytes
        };
        (start, bytes)
    }
}

/// A long message whose fragments come.
pub struct Partial {
    pub header: Header,
    pub body: Body,
    pub filled: usize,
}

/// What the core gives, and takes back.
pub struct Numbers {
    pub sequence_next: u64,
    pub budget: Budget,
    pub wr_id_next: u64,
    /// Frames that are posted and not completed, and whether each acknowledges alone.
    pub posted: VecDeque<(u64, bool)>,
    pub sequence_expected: u64,
    /// The number that frames name, whether the peer waits for one, and which one was named last.
    pub acknowledgement: u64,
    pub acknowledgement_asked: bool,
    pub ack_sent: u64,
    /// The highest number that the peer acknowledged; 0 if it did not on this connection.
    pub acknowledged: u64,
    /// Receives in use, and how many there may be.
    pub slots: u64,
    pub slots_max: u64,
}

/// What a courier has counted under names of Linux.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub queued: u64,
    pub queued_bytes: u64,
    pub ack_required_sent: u64,
    pub ack_required_received: u64,
    pub fragments: u64,
    pub messages: u64,
    pub acks_sent: u64,
    pub acks_received: u64,
    pub acks_piggybacked: u64,
    pub acks_delayed: u64,
    pub ring_full: u64,
    pub maps_sent: u64,
}

/// What comes back.
pub struct Taken {
    pub numbers: Numbers,
    pub counts: Counts,
    /// Messages without acknowledgement; the last has the number before `sequence_next`.
    pub unacked: Gathered,
    /// Messages without a number.
    pub unsent: Gathered,
    /// The local congestion map is to be sent.
    pub is_map_due: bool,
    pub partial: Option<Partial>,
    /// Bytes of the frame that completes next which are done.
    pub done_bytes: usize,
    /// A mailbox is over its hard bound.
    pub pauses: bool,
    /// Then: the receive of its message, which was not posted again.
    pub paused_slot: Option<u64>,
}

/// What became of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completed {
    Done,
    /// It is the core's, as is all that follows.
    Left,
    /// It begins a message of so many bytes: come again with `give_body`.
    NeedsBody(usize),
}

/// A courier that is on.
#[allow(clippy::struct_excessive_bools)] // each may hold beside each other
pub(crate) struct State {
    pub numbers: Numbers,
    pub counts: Counts,
    /// Those without acknowledgement first, then those without a number. One queue: to move a message
    /// costs as much as to copy it.
    pub messages: VecDeque<GatheredMessage>,
    /// How many of them have a number.
    pub unacked: usize,
    pub unsent_bytes: usize,
    pub frames_under_way: usize,
    pub acks_under_way: usize,
    pub is_map_due: bool,
    pub partial: Option<Partial>,
    /// Memory for the long message that comes next, if it has the length.
    pub spare: Option<Body>,
    /// The length of the message that waits in its packet for such memory.
    pub needed: Option<usize>,
    pub done_bytes: usize,
    pub pauses: bool,
    pub paused_slot: Option<u64>,
    /// Something came that is the core's: nothing is done until it takes the numbers.
    pub is_stopped: bool,
    /// Payload that came since the last acknowledgement left.
    pub unacked_bytes: usize,
    /// An acknowledgement that is asked for waits for more.
    pub puts_ack_off: bool,
    /// When an acknowledgement leaves that has found no message to ride on.
    pub ack_due_ns: Option<u64>,
}

impl Taker for Courier {
    /// Take a frame out of its packet.
    fn take(&self, frame: Content<'_>, may_wait: bool) -> Taking {
        let mut guard = self.state.lock();
        let Some(state) = guard.as_mut().filter(|state| !state.is_stopped) else {
            return Taking::Left;
        };
        if may_wait && let Some(bytes) = self.needed_body(state, frame) {
            state.needed = Some(bytes);
            return Taking::Later;
        }
        let is_done = self.take_bytes(state, frame).is_some();
        if !is_done || state.pauses {
            state.is_stopped = true;
        }
        if !is_done {
            return Taking::Left; // and from `done_bytes` on it is the core's
        }
        if state.pauses {
            (self.tell)();
        }
        Taking::Taken
    }
}

/// Called when the owner has to do something; any thread, the engine's lock held.
pub type Tell = Box<dyn Fn() + Send + Sync>;

/// The courier of one connection. All calls but `new` are made with the engine's lock held.
pub struct Courier {
    pub setup: Setup,
    pub(crate) plane: Arc<Plane>,
    pub(crate) path: ExternalId,
    pub(crate) state: Mutex<Option<State>>,
    pub(crate) scratch: Mutex<Vec<u8>>,
    tell: Tell,
}

impl fmt::Debug for Courier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Courier({})", self.setup.qpn)
    }
}

impl Courier {
    pub fn new(setup: Setup, plane: Arc<Plane>, path: ExternalId, tell: Tell) -> Self {
        Self {
            setup,
            plane,
            path,
            state: Mutex::new(None),
            scratch: Mutex::new(Vec::new()),
            tell,
        }
    }

    pub fn plane(&self) -> &Arc<Plane> {
        &self.plane
    }

    pub fn is_on(&self) -> bool {
        self.state.lock().is_some()
    }

    /// Go on from the core's numbers.
    pub fn give(
        &self,
        numbers: Numbers,
        unacked: Vec<GatheredMessage>,
        unsent: Vec<GatheredMessage>,
        carrier: Arc<dyn Carrier>,
    ) {
        let unsent = Gathered::of(unsent);
        let unsent_bytes = unsent.frame_bytes();
        let unacked_messages = unacked.len();
        let mut messages = VecDeque::from(unacked);
        messages.extend(unsent.messages);
        let acks = numbers.posted.iter().filter(|(_, is_ack)| *is_ack).count();
        *self.state.lock() = Some(State {
            frames_under_way: numbers.posted.len() - acks,
            acks_under_way: acks,
            is_map_due: false,
            numbers,
            counts: Counts::default(),
            messages,
            unacked: unacked_messages,
            unsent_bytes,
            partial: None,
            spare: None,
            needed: None,
            done_bytes: 0,
            pauses: false,
            paused_slot: None,
            is_stopped: false,
            unacked_bytes: 0,
            puts_ack_off: false,
            ack_due_ns: None,
        });
        // One that changed before has been reported to the core.
        self.plane.set_carrier(self.path, Some(carrier));
    }

    /// Stop, and return the numbers; what has gathered and was not taken stays with the plane.
    pub fn take(&self) -> Option<Taken> {
        let mut state = self.state.lock().take()?;
        let unsent = state.messages.split_off(state.unacked);
        let is_map_due = self.plane.set_carrier(self.path, None);
        Some(Taken {
            numbers: state.numbers,
            counts: state.counts,
            unacked: Gathered::of(state.messages.into()),
            unsent: Gathered::of(unsent.into()),
            is_map_due: state.is_map_due | is_map_due,
            partial: state.partial,
            done_bytes: state.done_bytes,
            pauses: state.pauses,
            paused_slot: state.paused_slot,
        })
    }

    /// Return whether a completion is this courier's, which then takes it with `complete`.
    pub fn takes(&self, completion: &Completion) -> bool {
        let state = self.state.lock();
        completion.qpn == self.setup.qpn && state.as_ref().is_some_and(|state| !state.is_stopped)
    }

    /// Return the length of the message that waits in its packet until `give_body`.
    pub fn take_needed(&self) -> Option<usize> {
        self.state.lock().as_mut()?.needed.take()
    }

    /// Do what a completion stands for. `may_need_body`: long messages come into memory that was given.
    pub fn complete(
        &self,
        completion: &Completion,
        engine: &mut Engine,
        may_need_body: bool,
    ) -> Completed {
        let mut guard = self.state.lock();
        let Some(state) = guard.as_mut() else {
            return Completed::Left;
        };
        if may_need_body
            && let Some(frame) = self.frame_of(completion)
            && let Some(bytes) = self.needed_body(state, frame)
        {
            return Completed::NeedsBody(bytes);
        }
        let is_done = if completion.wr_id >= self.setup.receive_ring {
            state.take_sent(completion, self.setup.receive_ring)
        } else {
            self.take_frame(state, completion, engine)
        };
        if !is_done {
            state.is_stopped = true;
        }
        if state.paused_slot.is_some() {
            state.is_stopped = true;
            (self.tell)();
        }
        if is_done {
            Completed::Done
        } else {
            Completed::Left
        }
    }

    /// Keep memory for a long message; it is needless if another call took the message meanwhile.
    pub fn give_body(&self, body: Body) {
        let mut guard = self.state.lock();
        let before = guard.as_mut().and_then(|state| state.spare.replace(body));
        drop(guard);
        drop(before);
    }

    /// Post what may leave; return whether anything was posted.
    ///
    /// `has_more`: frames are here that the engine has not seen. An acknowledgement wakes the peer, so that
    /// which is asked for waits for them, up to a limit.
    pub fn transmit(&self, engine: &mut Engine, has_more: bool) -> bool {
        let mut guard = self.state.lock();
        let Some(state) = guard.as_mut().filter(|state| !state.is_stopped) else {
            return false;
        };
        let sends = |qp: &urds_verbs::queue_pair::QueuePair| qp.state == QpState::Rts;
        if !engine.get(self.setup.number).is_some_and(sends) {
            return false;
        }
        self.gather(state);
        // On the plane's clock, whose threads come when one is due.
        let is_due = state
            .ack_due_ns
            .is_some_and(|due_ns| due_ns <= self.plane.now_ns());
        state.numbers.acknowledgement_asked |= is_due && state.has_ack_pending();
        state.puts_ack_off = has_more && state.unacked_bytes < UNACKED_BYTES_MAX;
        let mut has_posted = false;
        while self.post_next(state, engine) {
            has_posted = true;
        }
        // The peer, an urds node, waits for the acknowledgement of what it sent last, which asks for
        // none. One that is asked for leaves behind that which is under way.
        let waits = state.has_ack_pending() && !state.numbers.acknowledgement_asked;
        let due_ns = || self.plane.now_ns() + self.setup.ack_delay_ns;
        state.ack_due_ns = waits.then(|| state.ack_due_ns.unwrap_or_else(due_ns));
        has_posted
    }

    /// Return when `transmit` has something to do by itself.
    pub fn due_ns(&self) -> Option<u64> {
        let guard = self.state.lock();
        let state = guard.as_ref().filter(|state| !state.is_stopped);
        state.and_then(|state| state.ack_due_ns)
    }

    /// Take what has gathered in the plane.
    fn gather(&self, state: &mut State) {
        let before = state.messages.len();
        let room = MESSAGES_MAX.saturating_sub(before);
        let is_idle = state.frames_under_way == 0 && state.unacked == before;
        let queue = &mut state.messages;
        let (payload_bytes, is_map_due) =
            self.plane.take_for_carrier(self.path, is_idle, room, queue);
        let taken = queue.len() - before;
        // The map goes before the acknowledgement, which lets the peer send once more.
        state.is_map_due |= is_map_due;
        state.counts.queued += taken as u64;
        state.counts.queued_bytes += payload_bytes as u64;
        state.unsent_bytes += taken * HEADER_BYTES + payload_bytes;
    }

    /// Have the local congestion map sent; false if the courier is off.
    pub fn send_map(&self) -> bool {
        let mut guard = self.state.lock();
        let state = guard.as_mut().filter(|state| !state.is_stopped);
        state.is_some_and(|state| {
            state.is_map_due = true;
            true
        })
    }
}

impl State {
    /// Return whether something came that no acknowledgement has named yet.
    fn has_ack_pending(&self) -> bool {
        self.numbers.acknowledgement != self.numbers.ack_sent
    }
}
