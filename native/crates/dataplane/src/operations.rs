//! How operations of RDMA end: notices for the application, and waits for their end.
//!
//! The transport that does an operation notes its end. Notices go ahead of messages and congestion
//! notices; a closed mailbox collects none. Source: linux v6.12 net/rds/recv.c
//! (`rds_notify_queue_get`); docs/reference/rds.md 3.5.

use crate::errors::Rejected;
use crate::plane::Plane;
use crate::state::{MailboxId, State};
use crate::waiting::WaitFor;

/// Notices of one mailbox: a program that never takes them costs no more.
const NOTICES_MAX: usize = 65_536;

/// How an operation ended, for an application that asked for a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationNotice {
    /// The application's own.
    pub token: u64,
    /// As in `urds.rds.constants.RdmaStatus`.
    pub status: i32,
}

impl Plane {
    /// Note the end of an operation: waiters look again, and its notice, if wanted, is kept.
    pub fn note_operation(&self, mailbox: MailboxId, notice: Option<OperationNotice>) {
        self.lock().note_operation(mailbox, notice);
    }

    /// Take the oldest notices, at most so many and at least one if there is any.
    pub fn take_notices(&self, mailbox: MailboxId, count: usize) -> Vec<OperationNotice> {
        let notices = {
            let mut state = self.lock();
            let Some(record) = state.mailboxes.get_mut(mailbox) else {
                return Vec::new();
            };
            let count = count.max(1).min(record.notices.len());
            let notices: Vec<_> = record.notices.drain(..count).collect();
            state.touched.insert(mailbox); // without a notice a take may be plain again
            notices
        };
        self.finish_pass();
        notices
    }

    /// Return how many operations of a mailbox have ended.
    ///
    /// # Errors
    /// `Closed` and the like.
    pub fn operations_ended(&self, mailbox: MailboxId) -> Result<u64, Rejected> {
        Ok(self.lock().open_mailbox(mailbox)?.operations_ended)
    }

    /// Wait until more than `seen` operations of a mailbox have ended; return whether they have.
    ///
    /// Without the interpreter.
    ///
    /// # Errors
    /// `Closed` and the like, `Interrupted`.
    pub fn wait_operation(
        &self,
        mailbox: MailboxId,
        seen: u64,
        wait_ns: Option<u64>,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Rejected> {
        let ended = self.wait(mailbox, WaitFor::Operation, wait_ns, interrupted, |state| {
            let ended = state.open_mailbox(mailbox)?.operations_ended;
            Ok((ended > seen).then_some(()))
        })?;
        Ok(ended.is_some())
    }
}

impl State {
    fn note_operation(&mut self, id: MailboxId, notice: Option<OperationNotice>) {
        let Some(mailbox) = self.mailboxes.get_mut(id) else {
            return;
        };
        mailbox.operations_ended += 1;
        mailbox.operation_waiters.tell_all(&mut self.wait_queue);
        let Some(notice) = notice.filter(|_| !mailbox.closed) else {
            return;
        };
        if mailbox.notices.len() >= NOTICES_MAX {
            self.counters.recv_drop_notices_full += 1;
            return;
        }
        mailbox.notices.push_back(notice);
        mailbox.special = true;
        self.note_arrival(id, 1);
    }
}
