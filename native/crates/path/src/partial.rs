//! A message that is not wholly here: what a read leaves over for the next one.
//!
//! A header and a short message are collected as octets. A payload of 8 KiB up gets memory of its
//! own length, but only once 8 KiB of it are here: a header alone reserves nothing. From then on it
//! can be lent to the reader, who reads into it without any lock.

use std::fmt;

use crate::constants::LONG_BYTES;
use crate::header::Header;
use crate::payload::Body;

/// What is begun on the stream.
#[derive(Debug, Default)]
pub(crate) enum Partial {
    /// Nothing: a header comes next.
    #[default]
    Nothing,
    /// A header, or a short message with its header; fewer than `HEADER_BYTES + LONG_BYTES` octets.
    Short(Vec<u8>),
    /// A long payload.
    Long(BodyReading),
    /// The same, while the reader has it; so many octets were missing.
    Lent { missing: usize },
}

/// A long payload under way. The reader takes it, reads behind what is filled, and gives it back.
///
/// ```text
/// if let Some(mut body) = incoming.take_body() {          // with the lock
///     if body.memory.is_none() { body.carry_over(allocated(body.total)); }
///     let octets = read_into(body.rest_mut());            // without
///     body.filled += octets;
///     incoming.resume_body(body, ground, counters)?;      // with the lock
/// }
/// ```
pub struct BodyReading {
    /// Memory for the whole payload. `None`: nobody has allocated it; what came until now is kept
    /// apart until [`BodyReading::carry_over`].
    pub memory: Option<Body>,
    /// Octets of the whole payload.
    pub total: usize,
    /// Octets that are here. The reader adds what it read, never beyond `total`.
    pub filled: usize,
    pub(crate) header: Header,
    /// The stream it belongs to; a later one has no use for it.
    pub(crate) stream: u64,
    head: Vec<u8>,
}

impl BodyReading {
    /// Begin a payload of which `head` is here, less than the whole. Copies it.
    pub(crate) fn new(header: Header, total: usize, head: &[u8], stream: u64) -> Self {
        Self {
            memory: None,
            total,
            filled: head.len(),
            header,
            stream,
            head: head.to_vec(),
        }
    }

    /// Use `memory` for the payload; copies what is here. `memory` comes back if it has not
    /// exactly `total` octets.
    ///
    /// # Errors
    /// The memory, if its length is wrong.
    pub fn carry_over(&mut self, memory: Body) -> Result<(), Body> {
        if memory.octets().len() != self.total {
            return Err(memory);
        }
        self.memory = Some(memory);
        self.settle_head();
        Ok(())
    }

    /// The octets that are to be read into; none before there is memory.
    pub fn rest_mut(&mut self) -> &mut [u8] {
        let filled = self.filled;
        let octets = self.memory.as_mut().map(Body::octets_mut);
        octets
            .and_then(|octets| octets.get_mut(filled..))
            .unwrap_or_default()
    }

    /// Octets that are still to come.
    pub fn missing(&self) -> usize {
        self.total.saturating_sub(self.filled)
    }

    /// Take octets that were read elsewhere, as many as are missing; return how many. Copies.
    pub(crate) fn append(&mut self, data: &[u8]) -> usize {
        let taken = data.len().min(self.missing());
        let octets = &data[..taken];
        if self.memory.is_some() {
            let rest = self.rest_mut();
            let taken = taken.min(rest.len()); // equal, unless the memory is too short
            rest[..taken].copy_from_slice(&octets[..taken]);
        } else {
            if self.filled + taken >= LONG_BYTES {
                self.head.reserve_exact(self.total - self.head.len());
            }
            self.head.extend_from_slice(octets);
        }
        self.filled += taken;
        taken
    }

    /// Make the account true after the reader had it: without memory only the head is here.
    /// Returns whether memory, if any, and length agree.
    pub(crate) fn settle(&mut self) -> bool {
        self.settle_head();
        match &self.memory {
            None => {
                self.filled = self.head.len();
                true
            }
            Some(memory) => memory.octets().len() == self.total && self.filled <= self.total,
        }
    }

    /// The whole payload.
    pub(crate) fn into_body(self) -> Body {
        self.memory
            .unwrap_or_else(|| Body::Owned(self.head.into_boxed_slice()))
    }

    /// Copy what was kept apart into the memory, if there is any.
    fn settle_head(&mut self) {
        let Some(memory) = self.memory.as_mut() else {
            return;
        };
        let head = std::mem::take(&mut self.head);
        if let Some(place) = memory.octets_mut().get_mut(..head.len()) {
            place.copy_from_slice(&head);
        }
    }
}

impl fmt::Debug for BodyReading {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "BodyReading({} of {} octets)",
            self.filled, self.total
        )
    }
}
