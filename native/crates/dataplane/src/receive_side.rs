//! How a message is taken: in one critical section, straight into the caller's object.

use urds_path::{ArrivingPayload, Extension, SocketAddress};

use crate::errors::{ErrorReason, Rejected};
use crate::mailbox::Mailbox;
use crate::plane::Plane;
use crate::state::{MailboxId, State};
use crate::waits::WaitFor;

/// A message with all of its details.
#[derive(Debug)]
pub struct Received<'a> {
    /// In memory of its own if it was long and is taken, else in the queue's.
    pub payload: ArrivingPayload<'a>,
    pub source: SocketAddress,
    /// All zero if it has none.
    pub extension: Extension,
    /// The wall clock at its queueing, in nanoseconds; 0 unless timestamps are wanted.
    pub time_ns: u64,
    /// How long it was queued, in nanoseconds; `None` if no times were taken.
    pub queued_ns: Option<u64>,
}

/// The next thing in a mailbox.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<T> {
    Message(T),
    /// Port groups that a congestion map update concerned.
    Congestion(u64),
    Nothing,
}

impl Plane {
    /// Take what is next, or peek at it; never waits.
    ///
    /// `make` turns a message into the caller's, under the plane's lock: it may allocate, but not
    /// run anything that may call back in here. A congestion notice goes first, and a peek takes it
    /// as well.
    ///
    /// # Errors
    /// `Closed` and the like.
    pub fn take<T>(
        &self,
        mailbox: MailboxId,
        peek: bool,
        make: impl FnOnce(Received<'_>) -> T,
    ) -> Result<Taken<T>, Rejected> {
        let (taken, finish_pass, sync) = {
            let mut state = self.lock();
            state.driven = true;
            let taken = state.take_next(mailbox, peek, make)?;
            let record = state.mailboxes.get(mailbox);
            let sync = record.is_some_and(|record| record.descriptor.is_some());
            (taken, !state.touched.is_empty(), sync)
        };
        if finish_pass {
            self.finish_pass();
        }
        if sync {
            self.sync(mailbox); // a taken message no longer makes it readable
        }
        Ok(taken)
    }

    /// Wait until there is something to take; return whether there is.
    ///
    /// `wait_ns` `None` waits for ever, 0 makes one pass. Another thread may take it first: then
    /// wait again. Without the interpreter.
    ///
    /// # Errors
    /// `Closed` and the like, `Interrupted`.
    pub fn wait_arrival(
        &self,
        mailbox: MailboxId,
        wait_ns: Option<u64>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Rejected> {
        let came = self.wait(mailbox, WaitFor::Arrival, wait_ns, interrupted, |state| {
            let has_something = state.open_mailbox(mailbox)?.has_something();
            Ok(has_something.then_some(()))
        })?;
        if came.is_none() {
            self.give_up_receiving(mailbox);
        }
        Ok(came.is_some())
    }

    /// Leave with nothing; a pending report of a new map is cleared.
    pub fn give_up_receiving(&self, mailbox: MailboxId) {
        {
            let mut state = self.lock();
            state.driven = true;
            let Some(record) = state.mailboxes.get_mut(mailbox) else {
                return;
            };
            record.map_news = false;
        }
        self.finish_pass();
        self.sync(mailbox);
    }

    /// Take what is next, waiting at most `wait_ns`; `Nothing` when the time is over.
    ///
    /// # Errors
    /// As `take` and `wait_arrival`.
    pub fn receive<T>(
        &self,
        mailbox: MailboxId,
        wait_ns: Option<u64>,
        peek: bool,
        interrupted: &mut dyn FnMut() -> bool,
        mut make: impl FnMut(Received<'_>) -> T,
    ) -> Result<Taken<T>, Rejected> {
        let deadline_ns = wait_ns.map(|wait_ns| self.now_ns().saturating_add(wait_ns));
        loop {
            let taken = self.take(mailbox, peek, &mut make)?;
            if !matches!(taken, Taken::Nothing) {
                return Ok(taken);
            }
            let left_ns = deadline_ns.map(|at_ns| at_ns.saturating_sub(self.now_ns()));
            if !self.wait_arrival(mailbox, left_ns, interrupted)? {
                return Ok(Taken::Nothing);
            }
        }
    }
}

impl Mailbox {
    /// Return whether there is a message or a notice.
    pub fn has_something(&self) -> bool {
        !self.inbox.is_empty() || self.has_notice()
    }
}

impl State {
    /// Return a mailbox that is open.
    ///
    /// # Errors
    /// The error reason of a closed mailbox.
    pub(crate) fn open_mailbox(&mut self, id: MailboxId) -> Result<&mut Mailbox, Rejected> {
        let reason: ErrorReason = self.closed_reason;
        let mailbox = self.mailboxes.get_mut(id).filter(|mailbox| !mailbox.closed);
        mailbox.ok_or_else(|| reason.into())
    }

    fn take_next<T>(
        &mut self,
        id: MailboxId,
        peek: bool,
        make: impl FnOnce(Received<'_>) -> T,
    ) -> Result<Taken<T>, Rejected> {
        let mailbox = self.open_mailbox(id)?;
        let groups = std::mem::take(&mut mailbox.notice_groups);
        if groups != 0 {
            return Ok(Taken::Congestion(groups));
        }
        let Some(arrived_ns) = mailbox.inbox.front().map(|front| front.arrived_ns) else {
            return Ok(Taken::Nothing);
        };
        let queued_ns = (arrived_ns != 0).then(|| self.now_ns().saturating_sub(arrived_ns));
        let mailbox = self.open_mailbox(id)?;
        let handed = mailbox.hand_over(peek, queued_ns, make);
        if peek {
            // This thread was notified of a message and leaves it: another waiter may want it.
            self.counters.recv_delivered += 1; // Linux counts peeks as well
            if let Some(mailbox) = self.mailboxes.get_mut(id) {
                mailbox.receive_waiters.tell(1, &mut self.wait_queue);
            }
        } else if mailbox.special
            || mailbox.inbox.receive_queued_bytes < mailbox.inbox.clear_below_bytes
        {
            self.touched.insert(id);
        }
        Ok(handed.map_or(Taken::Nothing, Taken::Message))
    }
}

impl Mailbox {
    /// Pass the front of the queue to `make`, and remove it unless this is a peek.
    fn hand_over<T>(
        &mut self,
        peek: bool,
        queued_ns: Option<u64>,
        make: impl FnOnce(Received<'_>) -> T,
    ) -> Option<T> {
        let front = self.inbox.front()?;
        let (source, extension) = (front.source, front.extension);
        let time_ns = if self.settings.timestamps {
            front.wall_ns
        } else {
            0
        };
        if !peek && let Some(body) = self.inbox.take_body() {
            let payload = ArrivingPayload::Whole(body);
            return Some(make(Received {
                payload,
                source,
                extension,
                time_ns,
                queued_ns,
            }));
        }
        let payload = ArrivingPayload::Borrowed(self.inbox.front()?.payload);
        let message = make(Received {
            payload,
            source,
            extension,
            time_ns,
            queued_ns,
        });
        if !peek {
            self.inbox.pop();
        }
        Some(message)
    }
}
