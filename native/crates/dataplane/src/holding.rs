//! Waits of a moment, for a caller who keeps what others want, as the interpreter.
//!
//! They read for everybody like any wait, but tell nothing of a caller who gave up: he goes on to
//! wait, without what he kept.

use crate::plane::Plane;
use crate::refusal::Refused;
use crate::sending::{Message, Sent};
use crate::state::MailboxId;
use crate::waits::WaitFor;

impl Plane {
    /// Wait at most `wait_ns` until there is something to take; return whether there is.
    ///
    /// # Errors
    /// `Closed` and its like, `Interrupted`.
    pub fn look_for_arrival(
        &self,
        mailbox: MailboxId,
        wait_ns: u64,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Refused> {
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
    ) -> Result<Sent, Refused> {
        let mut message = Some(message);
        if let Some(sent) = self.send_until(&mut message, Some(wait_ns), interrupted)? {
            return Ok(sent);
        }
        Ok(message.map_or(Sent::Done, Sent::Waits))
    }
}
