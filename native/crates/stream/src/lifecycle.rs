//! The life of a stream: which directions are open, what control message is due, how it ended; and
//! when a keepalive is sent.
//!
//! | call or message              | then |
//! |------------------------------|------|
//! | `shut_down(WR)`              | SHUTDOWN while we read, else DISCONNECT; both behind all bytes |
//! | `shut_down(RD)`              | nothing while we write, else DISCONNECT |
//! | `shut_down(RDWR)`            | DISCONNECT |
//! | SHUTDOWN comes               | reading ends; over, if our own last data are out already |
//! | DISCONNECT comes             | over |
//! | DISCONNECT of ours completes | over |

use crate::records::{ECONNRESET, ENOTCONN, EPIPE, ProtocolError, Refused};
use crate::wire::Control;

/// Which direction to end. The numbers are those of `shutdown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shut {
    Rd = 0,
    Wr = 1,
    RdWr = 2,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamState {
    /// Not both sides' connect data are known.
    #[default]
    New,
    Open,
    /// DISCONNECT leaves as the last message.
    Closing,
    /// No message goes or comes; what arrived is readable.
    Over,
    /// The same, and not in order.
    Failed,
    /// Memory is given back.
    Closed,
}

impl StreamState {
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Open => "OPEN",
            Self::Closing => "CLOSING",
            Self::Over => "OVER",
            Self::Failed => "FAILED",
            Self::Closed => "CLOSED",
        }
    }
}

/// State, directions and error of one stream.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct StreamLifecycle {
    pub state: StreamState,
    /// Both sides' private data are known; stays so at the end.
    pub is_connected: bool,
    /// Messages may go to the peer.
    pub is_sending: bool,
    /// More may come.
    pub can_read: bool,
    pub can_write: bool,
    /// `errno` of what broke the stream, until it is taken.
    pub error: i32,
    /// Of the end, for people.
    pub reason: String,
    /// Leaves behind all bytes.
    pub due: Option<Control>,
    is_shutdown_out: bool,
    is_peer_shut: bool,
    is_own_end: bool, // the application itself ended writing
}

impl StreamLifecycle {
    /// Be connected.
    pub(crate) fn open(&mut self) {
        self.state = StreamState::Open;
        self.is_connected = true;
        self.is_sending = true;
        self.can_read = true;
        self.can_write = true;
    }

    /// Return `error` and forget it.
    pub fn take_error(&mut self) -> i32 {
        std::mem::take(&mut self.error)
    }

    /// # Errors
    /// ENOTCONN before the connection; EPIPE after an own shutdown; ECONNRESET when the peer ended it.
    pub fn check_writable(&self) -> Result<(), Refused> {
        if self.can_write {
            Ok(())
        } else if self.state == StreamState::New {
            Err(Refused::new(ENOTCONN, "the stream is not connected"))
        } else if self.is_own_end {
            Err(Refused::new(EPIPE, "writing was shut down"))
        } else if self.reason.is_empty() {
            Err(Refused::new(ECONNRESET, "the connection is over"))
        } else {
            Err(Refused::new(ECONNRESET, self.reason.clone()))
        }
    }

    /// End one direction or both; what was accepted leaves first. Poll afterwards.
    ///
    /// Ending what has ended changes nothing.
    pub fn shut_down(&mut self, how: Shut) {
        if self.state != StreamState::Open {
            return;
        }
        if how != Shut::Wr {
            self.can_read = false;
        }
        if how != Shut::Rd {
            self.can_write = false;
            self.is_own_end = true;
        }
        if !self.can_write {
            if !self.can_read {
                self.due = Some(Control::Disconnect);
            } else if !self.is_shutdown_out {
                self.due = Some(Control::Shutdown);
            }
        }
    }

    /// Return the control message that is due; the caller has sent all bytes before it.
    pub(crate) fn next_control(&mut self) -> Option<Control> {
        let due = self.due.take();
        match due {
            Some(Control::Shutdown) => self.is_shutdown_out = true,
            Some(Control::Disconnect) => self.state = StreamState::Closing,
            _ => (),
        }
        due
    }

    /// End reading; return whether nothing is left of the stream, as we have written all.
    pub(crate) fn take_shutdown(&mut self) -> bool {
        self.is_peer_shut = true;
        self.can_read = false;
        if !self.can_write && !self.is_shutdown_out && self.state == StreamState::Open {
            self.due = Some(Control::Disconnect); // instead of the SHUTDOWN that has not left yet
        }
        self.is_shutdown_out
    }

    /// # Errors
    /// Data behind a SHUTDOWN.
    pub(crate) fn check_data(&self) -> Result<(), ProtocolError> {
        if self.is_peer_shut {
            return Err(ProtocolError("data after SHUTDOWN".into()));
        }
        Ok(())
    }

    /// Be over, in order if there is no error. What is over already stays as it is.
    pub(crate) fn end(&mut self, reason: &str, error: i32) {
        if matches!(
            self.state,
            StreamState::Over | StreamState::Failed | StreamState::Closed
        ) {
            return;
        }
        // A side that disconnects does not care how that is confirmed.
        if error != 0 && self.state != StreamState::Closing {
            self.state = StreamState::Failed;
            self.error = error;
        } else {
            self.state = StreamState::Over;
        }
        self.reason.clear();
        self.reason.push_str(reason);
        self.can_read = false;
        self.can_write = false;
        self.is_sending = false;
        self.due = None;
    }

    /// Be gone.
    pub(crate) fn close(&mut self) {
        self.end("closed", 0);
        self.state = StreamState::Closed;
    }
}

/// When a keepalive is sent: at most one is under way.
#[derive(Debug)]
pub struct Keepalive {
    interval_ns: Option<i64>,
    deadline_ns: Option<i64>,
    pub is_due: bool,
    pub is_out: bool,
}

impl Keepalive {
    pub(crate) fn new(interval_ns: Option<i64>) -> Self {
        Self {
            interval_ns,
            deadline_ns: None,
            is_due: false,
            is_out: false,
        }
    }

    /// Ask every `interval_ns`, or not at all; counted from the next `handle_timeout`.
    pub fn set_interval(&mut self, interval_ns: Option<i64>) {
        self.interval_ns = interval_ns;
        self.deadline_ns = None;
        self.is_due = false;
    }

    /// Return the next deadline; 0 if there is none yet, `None` if none is wanted.
    pub fn poll_timeout(&self) -> Option<i64> {
        self.interval_ns?;
        Some(self.deadline_ns.unwrap_or(0))
    }

    /// Make a keepalive due if it is time, and begin to count.
    pub fn handle_timeout(&mut self, now_ns: i64) {
        let Some(interval_ns) = self.interval_ns else {
            return;
        };
        if let Some(deadline_ns) = self.deadline_ns {
            if now_ns < deadline_ns {
                return;
            }
            self.is_due = !self.is_out;
        }
        self.deadline_ns = Some(now_ns.saturating_add(interval_ns));
    }
}
