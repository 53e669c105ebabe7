//! Couriers of RDS over RDMA in a `shm` engine, and the class by which a connection gives and takes them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use urds_dataplane::devices::Device;
use urds_dataplane::gathering::{Carrier, Gathered, GatheredMessage};
use urds_dataplane::held_wakes;
use urds_dataplane::plane::Plane;
use urds_dataplane::sys::epoll;
use urds_dataplane::sys::eventfd::EventFd;
use urds_path::packed_frames::Budget;
use urds_rdma_courier::{Completed, Courier, Numbers, Setup};
use urds_verbs::Engine as Machine;
use urds_verbs::queue_pair::Takers;
use urds_verbs::time::Now;
use urds_verbs_shm::{Channels, Looked};

use crate::deferred;
use crate::errors::{EINVAL, os_error};
use crate::external::ExternalPath;
use crate::gathered::GatheredMessages;
use crate::mailbox::Mailbox;
use crate::memory::payload_referring_to;
use crate::verbs::engine::{Core, time_of};
use crate::verbs::memory::Buffer;
use crate::verbs::queue_pair::QueuePair;
use crate::verbs::queues::{CompletionQueue, SharedReceiveQueue};
use crate::verbs::shm::ShmEngine;
use crate::verbs::waiting::Waits;

/// What comes of a peer before the application is to take it: its buffer may be no larger.
const LOOK_BYTES_MAX: usize = 128 << 10;
/// Long messages that one call brings into memory of their own.
const MESSAGES_MAX: usize = 64;
/// Rounds of one pass: what a peer sends meanwhile does not keep the engine's lock.
const ROUNDS_MAX: usize = 16;

/// The couriers of one engine, all of one plane.
pub struct Couriers {
    has_any: AtomicBool,
    of: Mutex<Vec<Arc<Courier>>>,
    /// When one of them has something to do by itself, `u64::MAX` for never.
    due_ns: Arc<AtomicU64>,
    /// The plane that serves the engine, from the first courier on.
    served: Mutex<Option<(Arc<Plane>, Arc<Served>)>>,
}

impl Default for Couriers {
    fn default() -> Self {
        Self {
            has_any: AtomicBool::new(false),
            of: Mutex::default(),
            due_ns: Arc::new(AtomicU64::new(u64::MAX)),
            served: Mutex::default(),
        }
    }
}

impl Couriers {
    /// Return whether there are any.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.has_any.load(Relaxed)
    }

    /// Do work that takes the engine's lock: threads of the plane are woken after it.
    pub fn held<T>(&self, work: impl FnOnce() -> T) -> T {
        if !self.has_any() {
            return work();
        }
        let Some(plane) = self
            .of
            .lock()
            .first()
            .map(|courier| Arc::clone(courier.plane()))
        else {
            return work();
        };
        let result = held_wakes::hold(&plane, work);
        plane.finish_pass();
        result
    }

    /// Have couriers take what completed and post what may leave. The engine's lock is held.
    #[inline]
    pub fn serve(&self, machine: &mut Machine, channels: &mut Channels, now: Now) {
        if self.has_any() {
            self.serve_all(machine, channels, now, None);
        }
    }

    fn serve_all(
        &self,
        machine: &mut Machine,
        channels: &mut Channels,
        now: Now,
        mut needed: Option<&mut Option<Needed>>,
    ) {
        let couriers = self.of.lock();
        if let Some(needed) = needed.as_deref_mut() {
            let waiting = |one: &Arc<Courier>| Some((Arc::clone(one), one.take_needed()?));
            *needed = couriers.iter().find_map(waiting);
        }
        for _ in 0..ROUNDS_MAX {
            let is_waiting = needed.as_deref().is_some_and(Option::is_some);
            let has_completed = !is_waiting && complete(&couriers, machine, needed.as_deref_mut());
            let mut has_posted = false;
            for courier in &*couriers {
                has_posted |= courier.transmit(machine, channels.has_more());
            }
            if has_posted {
                channels.flush(machine, now);
            }
            if has_completed && channels.is_paused {
                channels.progress(machine, now); // its receives are there again
            } else if !has_posted && !has_completed {
                break;
            }
        }
        let dues = couriers.iter().filter_map(|courier| courier.due_ns());
        let due_ns = dues.min().unwrap_or(u64::MAX);
        let before_ns = self.due_ns.swap(due_ns, Relaxed);
        if due_ns < before_ns
            && let Some(courier) = couriers.first()
        {
            courier.plane().note_due_soon();
        }
    }

    fn add(&self, courier: &Arc<Courier>) -> bool {
        let mut couriers = self.of.lock();
        let is_same = |one: &Arc<Courier>| {
            Arc::ptr_eq(one.plane(), courier.plane())
                && one.setup.completions == courier.setup.completions
        };
        if !couriers.iter().all(is_same) {
            return false;
        }
        couriers.push(Arc::clone(courier));
        self.has_any.store(true, Relaxed);
        true
    }

    fn remove(&self, courier: &Arc<Courier>) {
        let mut couriers = self.of.lock();
        couriers.retain(|one| !Arc::ptr_eq(one, courier));
        self.has_any.store(!couriers.is_empty(), Relaxed);
        if couriers.is_empty() {
            self.forget_dues();
        }
    }

    /// Have nothing due: none would do it.
    fn forget_dues(&self) {
        self.due_ns.store(u64::MAX, Relaxed);
    }

    /// Have a plane serve the engine, if it does not yet; `doorbell` is rung for the adapter.
    fn serve_in(
        &self,
        core: &Arc<Core>,
        plane: &Arc<Plane>,
        doorbell: i32,
    ) -> PyResult<Arc<Served>> {
        let mut served = self.served.lock();
        if let Some((_, found)) = &*served {
            return Ok(Arc::clone(found));
        }
        let made = Arc::new(Served {
            core: Arc::downgrade(core),
            due_ns: Arc::clone(&self.due_ns),
            set: core.waits.as_ref().map_or(-1, Waits::set),
            doorbell: EventFd::duplicate(doorbell)?,
            is_heard: AtomicBool::new(false),
        });
        plane.add_device(made.set, made.clone())?;
        *served = Some((Arc::clone(plane), Arc::clone(&made)));
        Ok(made)
    }

    /// Have the plane serve it no more: the set is about to be closed.
    pub fn leave_plane(&self) {
        let served = self.served.lock().take();
        if let Some((plane, served)) = served {
            plane.remove_device(served.set);
        }
    }
}

/// A courier whose next message has so many bytes, for which it has no memory.
type Needed = (Arc<Courier>, usize);

/// Have couriers take the completions that are theirs; return whether there were any.
///
/// With `needed` it ends before a long message without memory, and says so there.
fn complete(
    couriers: &[Arc<Courier>],
    machine: &mut Machine,
    mut needed: Option<&mut Option<Needed>>,
) -> bool {
    let Some(number) = couriers.first().map(|courier| courier.setup.completions) else {
        return false;
    };
    let mut at = 0;
    let mut has_completed = false;
    loop {
        let Some(queue) = machine.shared.completions.get_mut(number) else {
            return has_completed;
        };
        let mut courier = None;
        let found = queue.find(at, |completion| {
            courier = couriers.iter().find(|courier| courier.takes(completion));
            courier.is_some()
        });
        let (Some((place, completion)), Some(courier)) = (found, courier) else {
            if queue.is_empty() {
                machine.shared.outbox.fed.retain(|fed| *fed != number);
            }
            return has_completed;
        };
        at = place;
        match courier.complete(&completion, machine, needed.is_some()) {
            Completed::Done => {
                has_completed = true;
                if let Some(queue) = machine.shared.completions.get_mut(number) {
                    queue.remove(place);
                }
            }
            Completed::Left => {}
            Completed::NeedsBody(bytes) => {
                if let Some(needed) = needed.as_deref_mut() {
                    *needed = Some((Arc::clone(courier), bytes));
                }
                return has_completed;
            }
        }
    }
}

/// An engine with couriers, as threads of the plane serve it: those that send, and those that wait.
struct Served {
    core: Weak<Core>,
    /// The couriers'; with the plane's lock held no thread may be the last to have the engine.
    due_ns: Arc<AtomicU64>,
    /// The set of the adapter's loop, in which peers ring: a member of the plane's set.
    set: i32,
    /// Rung for the adapter, which does what is not the engine's.
    doorbell: EventFd,
    /// The set has something that is not noted yet.
    is_heard: AtomicBool,
}

impl Served {
    /// Note what is ready in the set; return whether the adapter has to look.
    fn note_ready(&self, channels: &mut Channels) -> bool {
        let mut ready = epoll::NOTHING;
        let count = epoll::wait_in(self.set, &mut ready, Some(0)).unwrap_or(0);
        let mut has_other = false;
        for event in &ready[..count] {
            // Python keeps the number of a descriptor in the lower half.
            let socket = i32::try_from(event.u64 & 0xffff_ffff).unwrap_or(-1);
            has_other |= !channels.note_rung(socket);
        }
        has_other
    }

    /// Have couriers work, after a look at so many bytes: what comes meanwhile may wait for the application
    /// to take what is here.
    fn serve_up_to(&self, mut bytes_max: usize) {
        let Some(core) = self.core.upgrade() else {
            return;
        };
        let mut is_left = None;
        for round in 0..MESSAGES_MAX {
            let mut needed = None;
            let served = core.couriers.held(|| {
                let needed = (round < MESSAGES_MAX - 1).then_some(&mut needed);
                core.outside(|machine, channels| core.serve(machine, channels, bytes_max, needed))
            });
            is_left = served.map(|(is_left, _)| is_left);
            bytes_max = served.map_or(0, |(_, bytes_left)| bytes_left);
            let Some((courier, bytes)) = needed else {
                break;
            };
            // Without locks: memory is Python's where it can be, for which the thread may wait.
            courier.give_body(courier.plane().allocate_body(bytes));
        }
        if is_left.is_none() {
            core.couriers.forget_dues(); // the engine has panicked
        }
        if is_left != Some(false) {
            self.doorbell.ring();
        }
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Served")
    }
}

impl Carrier for Served {
    fn push(&self) {
        self.serve();
    }

    fn push_map(&self) {
        self.serve_up_to(0);
    }
}

impl Core {
    /// Read so much of the channels and have couriers work; return whether there is something for the
    /// adapter, and how much is still to be read before this look is over.
    fn serve(
        &self,
        machine: &mut Machine,
        channels: &mut Channels,
        bytes_max: usize,
        needed: Option<&mut Option<Needed>>,
    ) -> (bool, usize) {
        let now = time_of(machine);
        let pushed = machine.shared.outbox.pushed;
        let mut looked = Looked::default();
        if bytes_max > 0 {
            let may_wait = needed.is_some();
            let takers = if may_wait {
                Takers::NowOrLater
            } else {
                Takers::Now
            };
            looked = channels.look(machine, now, bytes_max, takers);
        }
        if self.couriers.has_any() {
            self.couriers.serve_all(machine, channels, now, needed);
        }
        let is_due = self.left(machine, channels, pushed).is_due;
        let bytes_left = bytes_max.saturating_sub(looked.bytes).max(1);
        (is_due, if looked.has_left { bytes_left } else { 0 })
    }
}

impl Device for Served {
    fn hear(&self) {
        self.is_heard.store(true, Relaxed);
    }

    fn serve(&self) {
        self.serve_up_to(LOOK_BYTES_MAX);
    }

    fn arm(&self) -> bool {
        let Some(core) = self.core.upgrade() else {
            return true;
        };
        let armed = core.outside(|_, channels| {
            let mut has_other = false;
            if self.is_heard.swap(false, Relaxed) {
                has_other = self.note_ready(channels) | channels.take_rings();
            }
            let is_planned = |waits: &Waits| waits.is_trim_planned.load(Relaxed);
            has_other |= channels.is_stirred() && !core.waits.as_ref().is_some_and(is_planned);
            (channels.sleep(), has_other)
        });
        let (is_armed, has_other) = armed.unwrap_or((true, false));
        if has_other {
            self.doorbell.ring();
        }
        is_armed
    }

    fn due_ns(&self) -> Option<u64> {
        let due_ns = self.due_ns.load(Relaxed);
        (due_ns != u64::MAX).then_some(due_ns)
    }
}

/// See the stub.
#[pyclass(frozen, weakref, module = "urds_native")]
pub struct RdmaCourier {
    core: Arc<Core>,
    courier: Arc<Courier>,
    served: Arc<Served>,
    is_closed: AtomicBool,
}

/// Numbers of messages sent: the next one; packets and bytes left of the budget, of a whole one; of
/// frames: the next one, those under way; of messages received: the next one, acknowledged, whether that
/// is asked for, acknowledgement sent last; receives in use and at most.
type Given = (
    u64,
    (usize, usize, usize, usize),
    u64,
    Vec<(u64, bool)>,
    (u64, u64, bool, u64),
    (u64, u64),
);

/// `Given` as it is now, without budgets' sizes; what was acknowledged; counts; messages without
/// acknowledgement, and without number; header and bytes of a message in parts; bytes that are done of the
/// frame that completes next; whether the path pauses, and for which receive.
type Back<'py> = (
    (
        u64,
        (usize, usize),
        u64,
        Vec<(u64, bool)>,
        (u64, u64, bool, u64),
        u64,
    ),
    u64,
    [u64; 12],
    Option<GatheredMessages>,
    Option<GatheredMessages>,
    Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>,
    usize,
    (bool, bool, Option<u64>),
);

/// Return messages that a core has had.
fn plain(given: &[Bound<'_, PyAny>]) -> PyResult<Vec<GatheredMessage>> {
    let mut messages = Vec::new();
    for one in given {
        if let Ok(gathered) = one.cast::<GatheredMessages>() {
            messages.extend_from_slice(&gathered.get().0.messages);
            continue;
        }
        let (owner, source_port, target_port, payload, asks): (
            Bound<'_, Mailbox>,
            u16,
            u16,
            Bound<'_, PyAny>,
            bool,
        ) = one.extract()?;
        messages.push(GatheredMessage {
            mailbox: owner.get().id,
            source_port,
            target_port,
            payload: payload_referring_to(&payload)?,
            asks,
        });
    }
    Ok(messages)
}

#[pymethods]
impl RdmaCourier {
    /// `places`: long slots, bytes of a long and of a short one; `limits`: receive and send ring, bytes of a
    /// message, delay of an acknowledgement.
    #[new]
    #[pyo3(signature = (engine, path, queues, memory, lkey, places, limits, doorbell, /))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // as Python gives them, once
    fn new(
        engine: &Bound<'_, ShmEngine>,
        path: &Bound<'_, ExternalPath>,
        queues: (
            Bound<'_, QueuePair>,
            Bound<'_, CompletionQueue>,
            Bound<'_, SharedReceiveQueue>,
        ),
        memory: &Bound<'_, PyAny>,
        lkey: u32,
        places: (u64, usize, usize),
        limits: (u64, usize, usize, u64),
        doorbell: i32,
    ) -> PyResult<Self> {
        let core = engine.get().core();
        let qpn = queues.0.get().qpn();
        let setup = Setup {
            number: queues.0.get().number(),
            qpn,
            completions: queues.1.get().number,
            receives: queues.2.get().number,
            memory: Arc::new(Buffer::of(memory)?),
            lkey,
            long_slots: places.0,
            long_bytes: places.1,
            short_bytes: places.2,
            receive_ring: limits.0,
            send_ring: limits.1,
            message_bytes_max: limits.2,
            ack_delay_ns: limits.3,
        };
        let news = Arc::clone(&core.news);
        let courier = Courier::new(
            setup,
            Arc::clone(path.get().plane()),
            path.get().id,
            Box::new(move || news.add(qpn)),
        );
        let courier = Arc::new(courier);
        if !core.couriers.add(&courier) {
            return Err(os_error(EINVAL, "an engine has couriers of one plane"));
        }
        core.guarded.lock().channels.look_bytes_max = LOOK_BYTES_MAX;
        let served = core.couriers.serve_in(&core, courier.plane(), doorbell);
        let served = served.inspect_err(|_| core.couriers.remove(&courier))?;
        Ok(Self {
            core,
            courier,
            served,
            is_closed: AtomicBool::new(false),
        })
    }

    #[getter]
    fn is_on(&self) -> bool {
        self.courier.is_on()
    }

    /// Make and take frames from here on.
    ///
    /// `messages`: without acknowledgement, and without number; see `Gathered.compiled`.
    #[pyo3(signature = (messages, given, /))]
    #[allow(clippy::needless_pass_by_value)] // as pyo3 calls it
    fn give(
        &self,
        py: Python<'_>,
        messages: (Vec<Bound<'_, PyAny>>, Vec<Bound<'_, PyAny>>),
        given: Given,
    ) -> PyResult<()> {
        let (unacked, unsent) = (plain(&messages.0)?, plain(&messages.1)?);
        let (sequence_next, budget, wr_id_next, posted, received, slots) = given;
        let numbers = Numbers {
            sequence_next,
            budget: Budget {
                packets_left: budget.0,
                bytes_left: budget.1,
                packets_max: budget.2,
                bytes_max: budget.3,
            },
            wr_id_next,
            posted: VecDeque::from(posted),
            sequence_expected: received.0,
            acknowledgement: received.1,
            acknowledgement_asked: received.2,
            ack_sent: received.3,
            acknowledged: 0,
            slots: slots.0,
            slots_max: slots.1,
        };
        if self.is_closed.load(Relaxed) {
            return Ok(());
        }
        let carrier: Arc<dyn Carrier> = self.served.clone();
        self.core.through(py, |machine, _, _| {
            self.courier.give(numbers, unacked, unsent, carrier);
            machine.set_taker(self.courier.setup.number, Some(self.courier.clone()));
        })
    }

    /// Do nothing any more, and return the numbers; `None`: it did nothing.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Back<'py>>> {
        let taken = self.core.call(py, |_| self.courier.take())?;
        let Some(taken) = taken else {
            return Ok(None);
        };
        let (numbers, counts) = (taken.numbers, taken.counts);
        let messages = |gathered: Gathered| {
            (!gathered.messages.is_empty()).then_some(GatheredMessages(gathered))
        };
        let partial = taken.partial.map(|partial| {
            let header = PyBytes::new(py, &partial.header.emit(false));
            (
                header,
                PyBytes::new(py, &partial.body.bytes()[..partial.filled]),
            )
        });
        Ok(Some((
            (
                numbers.sequence_next,
                (numbers.budget.packets_left, numbers.budget.bytes_left),
                numbers.wr_id_next,
                numbers.posted.into(),
                (
                    numbers.sequence_expected,
                    numbers.acknowledgement,
                    numbers.acknowledgement_asked,
                    numbers.ack_sent,
                ),
                numbers.slots,
            ),
            numbers.acknowledged,
            [
                counts.queued,
                counts.queued_bytes,
                counts.ack_required_sent,
                counts.ack_required_received,
                counts.fragments,
                counts.messages,
                counts.acks_sent,
                counts.acks_received,
                counts.acks_piggybacked,
                counts.acks_delayed,
                counts.ring_full,
                counts.maps_sent,
            ],
            messages(taken.unacked),
            messages(taken.unsent),
            partial,
            taken.done_bytes,
            (taken.is_map_due, taken.pauses, taken.paused_slot),
        )))
    }

    /// Send the local congestion map; false: the courier does nothing, its owner does.
    fn send_map(&self, py: Python<'_>) -> PyResult<bool> {
        self.core.through(py, |_, _, _| self.courier.send_map())
    }

    /// Serve the queue pair no more; its owner has taken the numbers.
    fn close(&self, py: Python<'_>) {
        if !self.is_closed.swap(true, Relaxed) {
            self.core.couriers.remove(&self.courier);
            let number = self.courier.setup.number;
            let taker = self
                .core
                .call(py, |machine| machine.set_taker(number, None));
            drop(taker); // without the engine's lock
        }
        deferred::drain(py);
    }
}
