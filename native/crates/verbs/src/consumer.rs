//! Layers above a queue pair whose work per message is compiled too.
//!
//! A consumer takes the place of receives and completions: words are given to it where they are executed,
//! and it is asked for writes while the queue pair can send. The engine's lock is held in each call, so a
//! consumer calls nothing back, waits for nothing and makes nothing of Python.

use std::fmt::Debug;

use crate::memory::{Content, Payload};
use crate::numbers::Status;

/// A WRITE of a consumer.
#[derive(Clone, Copy, Debug)]
pub struct Post<'a> {
    /// Immediate data.
    pub word: Option<u32>,
    pub payload: Payload<'a>,
    pub address: u64,
    pub rkey: u32,
    /// No request under way touches the same memory of the peer.
    pub is_apart: bool,
}

/// What stands behind one queue pair.
pub trait Consumer: Debug + Send {
    /// A SEND has come; none of it is kept.
    fn message(&mut self);

    /// Take the word of a WRITE whose bytes lie in memory.
    fn word(&mut self, word: u32);

    /// Return what to post next; asked while a request would leave at once.
    fn next(&mut self) -> Option<Post<'_>>;

    /// The oldest of its requests is done: the peer has it.
    fn sent(&mut self);

    /// Nothing comes and nothing leaves any more. `None`: the peer, the connection or the owner ended it, else
    /// how its oldest failed request did.
    fn ended(&mut self, status: Option<Status>);
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
