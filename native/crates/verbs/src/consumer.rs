//! Layers above a queue pair whose work per message is compiled too.
//!
//! A consumer takes the place of receives and completions: messages and words are given to it where
//! they are executed, and it is asked for posts while the queue pair can send. The engine's lock is
//! held in each call, so a consumer calls nothing back, waits for nothing and makes nothing of Python.

use std::any::Any;
use std::fmt::Debug;

use crate::memory::{Content, Payload};
use crate::numbers::Status;

/// One packet of a SEND. Those of a message follow each other, none is missing.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub content: Content<'a>,
    /// Of its first byte in the message.
    pub offset: u32,
    pub is_last: bool,
    pub is_solicited: bool,
    /// With the last packet.
    pub immediate: Option<u32>,
}

/// The peer broke the rules of the layer: the queue pair ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused(pub &'static str);

/// How a queue pair ended, with what its oldest failed request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// `None`: the peer, the connection or the owner ended it.
    pub status: Option<Status>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostKind {
    Send,
    Write,
}

/// A request of a consumer.
#[derive(Clone, Copy, Debug)]
pub struct Post<'a> {
    pub kind: PostKind,
    /// Immediate data.
    pub word: Option<u32>,
    pub payload: Payload<'a>,
    /// Of a write.
    pub address: u64,
    pub rkey: u32,
    /// No request under way touches the same memory of the peer.
    pub is_apart: bool,
}

/// What stands behind one queue pair.
pub trait Consumer: Any + Debug + Send {
    /// Take the next packet of a SEND.
    ///
    /// # Errors
    /// The packet is none that may come.
    fn message(&mut self, part: Part<'_>) -> Result<(), Refused>;

    /// Take the word of a WRITE whose `placed` bytes lie in memory.
    ///
    /// # Errors
    /// The word is none that may come.
    fn word(&mut self, word: u32, placed: u64) -> Result<(), Refused>;

    /// Return what to post next; asked while a request would leave at once.
    fn next(&mut self) -> Option<Post<'_>>;

    /// So many of its oldest requests are done: the peer has them.
    fn sent(&mut self, count: u32);

    /// Nothing comes and nothing leaves any more.
    fn ended(&mut self, end: End);
}

/// What became of a message for which a taker was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    Taken,
    /// It goes to a receive, as without a taker.
    Left,
    /// The taker is to be asked again, soon: nothing behind it is read until then.
    Later,
}

/// What takes whole messages of a queue pair out of their packets where it can.
///
/// To the queue pair such a message is one whose receive was posted again at once. The taker is asked while no
/// receive of an earlier one is taken, or completed and not polled. The engine's lock is held.
pub trait Taker: Debug + Send + Sync {
    /// Take a message, if it can now; `Later` only if it may wait.
    fn take(&self, message: Content<'_>, may_wait: bool) -> Taking;
}

impl dyn Consumer {
    /// Return the consumer as what it is, if it is a `T`.
    pub fn as_mut<T: Consumer>(&mut self) -> Option<&mut T> {
        let any: &mut dyn Any = self;
        any.downcast_mut()
    }
}
