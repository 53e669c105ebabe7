//! Short waits for a caller that holds what other threads want, such as the interpreter.
//!
//! They make progress for all threads like any wait. A short wait that ends empty does not count as
//! given up: the caller goes on to wait, without what it held.

use crate::errors::Rejected;
use crate::plane::Plane;
use crate::send_side::{Message, Sent};
use crate::state::MailboxId;
use crate::waits::WaitFor;

impl Plane {
    /// Wait at most `wait_ns` until there is something to take; return whether there is.
    ///
    /// # Errors
    /// `Closed` and the other reasons of a closed mailbox, `Interrupted`.
    pub fn look_for_arrival(
        &self,
        mailbox: MailboxId,
        wait_ns: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Rejected> {
        let arrival = WaitFor::Arrival;
        let came = self.wait_reading(mailbox, arrival, Some(wait_ns), interrupted, |state| {
            let has_something = state.open_mailbox(mailbox)?.has_something();
            Ok(has_something.then_some(()))
        })?;
        Ok(came.is_some())
    }

    /// Queue a message if there is room within `wait_ns`, else return it as `Sent::Waits`.
    ///
    /// # Errors
    /// As [`Plane::send_waiting`], without `TimedOut`.
    pub fn send_shortly(
        &self,
        message: Message,
        wait_ns: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<Sent, Rejected> {
        let mut message = Some(message);
        if let Some(sent) = self.send_until(&mut message, Some(wait_ns), interrupted)? {
            return Ok(sent);
        }
        Ok(message.map_or(Sent::Done, Sent::Waits))
    }
}
