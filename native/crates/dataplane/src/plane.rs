//! All of a process's data plane: its constructors, the control plane's calls, one pass.
//!
//! The one short lock is never held across a system call that may block, nor while waiting for the
//! interpreter. Dropping the guard of [`Plane::lock`] wakes the notified threads, after the lock is
//! released; so no call has to be followed by a "deliver".

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
use urds_path::{Address, Body, Limits};

use crate::attached::steps;
use crate::background::ProgressThread;
use crate::clock::{Clock, ClockFn};
use crate::devices::Devices;
use crate::errors::Rejected;
use crate::events::{Event, Interest};
use crate::held_wakes;
use crate::mailbox::{Mailbox, MailboxSettings};
use crate::path::StreamPath;
use crate::poll_set::{DOORBELL, KICK};
use crate::rules::{self, Rule};
use crate::state::{MailboxId, PathId, State};
use crate::stream::Stream;
use crate::stream_reader::keep_freed;
use crate::sys::epoll::{self, Epoll};
use crate::sys::eventfd::EventFd;

/// Allocates memory for a long payload that a thread is about to read; called without the lock.
pub type AllocateFn = Arc<dyn Fn(usize) -> Body + Send + Sync>;

/// See `urds.rds.plane.contract.Plane`. Any thread may make any call at any time; `help` belongs to
/// one.
pub struct Plane {
    state: Mutex<State>,
    /// Replaces `state` in the child of a fork, where its lock may never be released.
    pub(crate) after_fork: OnceLock<Mutex<State>>,
    pub(crate) clock: Clock,
    pub(crate) poll_set: Epoll,
    pub(crate) kick: EventFd,
    pub(crate) progress_thread: ProgressThread,
    pub(crate) devices: Devices,
    /// Event loops that call `progress`.
    pub(crate) loops: AtomicUsize,
    /// A socket of another process was attached: passes look for what is due for such.
    pub(crate) has_attached: AtomicBool,
    allocate: AllocateFn,
}

/// The plane's lock, held. Dropping it releases the lock and then wakes the notified threads.
pub struct Locked<'a> {
    plane: &'a Plane,
    guard: Option<MutexGuard<'a, State>>,
}

impl Plane {
    /// Make an empty plane; with a virtual clock nothing ever waits. `allocate` makes memory for
    /// long payloads, by default our own.
    ///
    /// # Errors
    /// Of the system, when no descriptors are left.
    pub fn new(
        limits: Limits,
        clock: Option<ClockFn>,
        generation: Option<u32>,
        allocate: Option<AllocateFn>,
    ) -> Result<Arc<Self>, Rejected> {
        keep_freed();
        let clock = clock.map_or(Clock::Monotonic, Clock::Injected);
        let poll_set = Epoll::new()?;
        let kick = EventFd::new()?;
        poll_set.add(kick.descriptor(), epoll::READABLE, KICK)?;
        let progress_thread = ProgressThread::new(&poll_set)?;
        let state = State::new(limits, clock.clone(), generation, poll_set.clone());
        Ok(Arc::new(Self {
            state: Mutex::new(state),
            after_fork: OnceLock::new(),
            clock,
            poll_set,
            kick,
            progress_thread,
            devices: Devices::default(),
            loops: AtomicUsize::new(0),
            has_attached: AtomicBool::new(false),
            allocate: allocate.unwrap_or_else(|| Arc::new(Body::zeroed)),
        }))
    }

    /// Take the lock for a short section: no blocking call, no wait for the interpreter within.
    #[inline]
    pub fn lock(&self) -> Locked<'_> {
        let state = self.after_fork.get().unwrap_or(&self.state);
        Locked {
            plane: self,
            guard: Some(state.lock()),
        }
    }

    /// Return whether the clock is virtual: then nothing waits.
    pub fn is_virtual(&self) -> bool {
        self.clock.is_virtual()
    }

    /// Return the time on the plane's clock.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Allocate memory for a long payload. No lock held.
    pub fn allocate_body(&self, payload_bytes: usize) -> Body {
        (self.allocate)(payload_bytes)
    }

    // -- constructors

    /// Bind a mailbox; the caller has checked that the port is free.
    pub fn mailbox(&self, local: Address, port: u16, settings: MailboxSettings) -> MailboxId {
        let mut guard = self.lock();
        let state = &mut *guard;
        let host = state.host(local);
        let record = Mailbox::new(host, local, port, settings, &state.limits);
        let id = state.mailboxes.insert(record);
        if let Some(host) = state.hosts.get_mut(host) {
            host.inboxes.insert(port, id);
        }
        id
    }

    /// Make a path without a stream; its first message gets `sequence_first`.
    pub fn path(&self, local: Address, peer: Address, index: u32, sequence_first: u64) -> PathId {
        let mut guard = self.lock();
        let state = &mut *guard;
        let host = state.host(local);
        let (limits, generation) = (state.limits, state.generation);
        let record = StreamPath::new(host, local, peer, index, limits, sequence_first, generation);
        let id = state.paths.insert(record);
        if let Some(host) = state.hosts.get_mut(host) {
            host.paths.push(id);
        }
        state.note_path(id);
        id
    }

    // -- arrivals

    /// Poll the set once and progress what is ready; return how many descriptors were.
    pub(crate) fn serve_ready(&self, timeout_ns: Option<u64>) -> usize {
        let mut ready = epoll::NOTHING;
        let told = self.poll_set.wait(&mut ready, timeout_ns).unwrap_or(0);
        self.serve(&ready[..told], false)
    }

    /// Progress what is ready; return how many descriptors were.
    pub(crate) fn serve(&self, ready: &[libc::epoll_event], leading: bool) -> usize {
        for &libc::epoll_event {
            events,
            u64: number,
        } in ready
        {
            if number == KICK {
                self.read_kick(leading);
            } else if number == DOORBELL {
                // The progress thread has read it, or does so soon.
            } else if let Some(descriptor) = crate::poll_set::watched_of(number) {
                self.lock().report_watched(descriptor);
            } else if let Some(mailbox) = crate::poll_set::attached_of(number) {
                self.serve_control_socket(mailbox, events);
            } else if let Some(device) = crate::poll_set::device_of(number) {
                self.devices.serve_ready(device);
            } else {
                self.serve_path_ready(PathId::from_u64(number), events, ready.len() > 1);
            }
        }
        self.serve_attached();
        self.finish_pass();
        ready.len()
    }

    fn serve_path_ready(&self, path: PathId, events: u32, others: bool) {
        let mut state = self.lock();
        let Some(record) = state.paths.get(path) else {
            return;
        };
        let is_paused = record.paused;
        let doorbell = record.stream.as_ref().filter(|stream| stream.rings());
        let doorbell = doorbell.map(Arc::clone);
        let is_readable = events & !epoll::WRITABLE != 0;
        state.counters.tcp_data_ready_calls += u64::from(is_readable);
        drop(state);
        if is_paused && events & epoll::BROKEN != 0 {
            self.resume(path); // errors cannot be masked; little is left to read
        }
        if let Some(stream) = doorbell {
            self.serve_doorbell(path, &*stream, others);
            return;
        }
        if is_readable {
            self.read_beside(path, others);
        }
        if events & epoll::WRITABLE != 0 {
            self.unblock(path);
        }
    }

    /// Progress a stream whose descriptor reports only that there is something to look at.
    fn serve_doorbell(&self, path: PathId, stream: &dyn Stream, others: bool) {
        stream.hear();
        self.read_beside(path, others);
        let is_blocked = |record: &StreamPath| record.blocked;
        if stream.has_room() && self.lock().paths.get(path).is_some_and(is_blocked) {
            self.unblock(path);
        }
    }

    /// Read the kick if this thread leads, or if none does.
    ///
    /// Under the lock, because a thread that becomes the leader between the check and the read
    /// would lose its kick.
    fn read_kick(&self, leading: bool) {
        let state = self.lock();
        let is_ours = leading || !rules::holds(Rule::OnlyLeaderReadsKick);
        if is_ours || !state.wait_queue.has_leader() {
            self.kick.silence();
        }
    }

    // -- the control plane's calls

    /// Do the work of the progress thread; return events, or none at the deadline.
    ///
    /// The deadline is on the plane's clock; one in the past makes one pass and never blocks. For
    /// one thread only, without the interpreter.
    pub fn help(&self, deadline_ns: Option<u64>) -> Vec<Event> {
        if deadline_ns.is_some_and(|deadline_ns| deadline_ns <= self.now_ns()) {
            self.progress();
            return self.lock().take_events();
        }
        self.run_progress_thread(deadline_ns)
    }

    /// Make `help` return early.
    pub fn wake(&self) {
        let mut state = self.lock();
        state.progress_thread.want_now();
        state.progress_thread.interrupted = true;
    }

    /// Note an event loop that calls `progress` whenever `descriptor` is readable. Takes no lock.
    pub fn adopt(&self) {
        self.loops.fetch_add(1, Ordering::Relaxed);
    }

    /// Undo one `adopt`; takes no lock, for a loop may end in a finaliser.
    pub fn abandon(&self) {
        self.loops.fetch_sub(1, Ordering::Relaxed);
        self.progress_thread.ring();
    }

    /// Make one pass without blocking; return how many descriptors were ready.
    pub fn progress(&self) -> usize {
        let has_batches = {
            let mut state = self.lock();
            state.driven = true;
            state.batches
        };
        if has_batches {
            self.flush_batches();
        }
        let served = self.serve_ready(Some(0));
        self.devices.serve();
        self.serve_due();
        if self.loops.load(Ordering::Relaxed) > 0 {
            self.arm_devices();
        }
        served
    }

    /// Return whether a message may wait to be sent in a batch.
    pub fn has_batches(&self) -> bool {
        self.lock().batches
    }

    /// Return a descriptor that is readable when `progress` would read something.
    pub fn descriptor(&self) -> i32 {
        self.poll_set.descriptor()
    }

    /// Report `Ready` once for a listener or a connecting socket.
    ///
    /// # Errors
    /// Of the system, for a descriptor that cannot be watched.
    pub fn watch(&self, descriptor: i32, interest: Interest) -> Result<(), Rejected> {
        Ok(self.lock().watch(descriptor, interest)?)
    }

    /// Stop watching; the descriptor may then be closed.
    pub fn unwatch(&self, descriptor: i32) {
        self.lock().unwatch(descriptor);
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    #[inline]
    fn deref(&self) -> &State {
        self.guard
            .as_deref()
            .expect("the guard is taken by drop only")
    }
}

impl DerefMut for Locked<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        self.guard
            .as_deref_mut()
            .expect("the guard is taken by drop only")
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut state) = self.guard.take() else {
            return;
        };
        if !state.has_wakes() || steps::is_killed() {
            return;
        }
        let after = state.take_after();
        drop(state);
        held_wakes::deliver(self.plane, after);
    }
}
