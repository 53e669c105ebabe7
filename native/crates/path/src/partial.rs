//! An incomplete message: the bytes that a read leaves for the next one.
//!
//! A header and a short message are collected as bytes. A payload of 8 KiB up gets memory of its
//! own length, but only once 8 KiB of it are here: a header alone reserves nothing. From then on
//! the reader can take it, to read into it without any lock.

use std::fmt;

use crate::constants::LONG_BYTES;
use crate::header::Header;
use crate::payload::Body;

/// The state of the message begun on the stream.
#[derive(Debug, Default)]
pub(crate) enum Partial {
    /// Nothing: a header comes next.
    #[default]
    Nothing,
    /// A header, or a short message with its header; fewer than `HEADER_BYTES + LONG_BYTES` bytes.
    Short(Vec<u8>),
    /// A long payload.
    Long(BodyReading),
    /// The same, taken by the reader; so many bytes were missing.
    WithReader { missing: usize },
}

/// An incomplete long payload. The reader takes it, reads behind `filled`, and returns it.
///
/// ```text
/// if let Some(mut body) = incoming.take_body() {          // with the lock
///     if body.memory.is_none() { body.carry_over(allocated(body.total)); }
///     let bytes = read_into(body.rest_mut());            // without
///     body.filled += bytes;
///     incoming.resume_body(body, sink, counters)?;        // with the lock
/// }
/// ```
pub struct BodyReading {
    /// Memory for the whole payload. `None`: none is allocated yet; bytes received until then are
    /// kept apart until [`BodyReading::carry_over`].
    pub memory: Option<Body>,
    /// Bytes of the whole payload.
    pub total: usize,
    /// Bytes received. The reader adds the bytes it read, never beyond `total`.
    pub filled: usize,
    pub(crate) header: Header,
    /// The stream of the payload; a later one drops it.
    pub(crate) stream: u64,
    head: Vec<u8>,
}

impl BodyReading {
    /// Begin a payload of which `head`, less than the whole, is here. Copies it.
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

    /// Use `memory` for the payload; copies the bytes received so far.
    ///
    /// # Errors
    /// `memory` itself, if it has not exactly `total` bytes.
    pub fn carry_over(&mut self, memory: Body) -> Result<(), Body> {
        if memory.bytes().len() != self.total {
            return Err(memory);
        }
        self.memory = Some(memory);
        self.finish_head();
        Ok(())
    }

    /// The bytes to read into; none without memory.
    pub fn rest_mut(&mut self) -> &mut [u8] {
        let filled = self.filled;
        let bytes = self.memory.as_mut().map(Body::bytes_mut);
        bytes
            .and_then(|bytes| bytes.get_mut(filled..))
            .unwrap_or_default()
    }

    /// Bytes that are still to come.
    pub fn missing(&self) -> usize {
        self.total.saturating_sub(self.filled)
    }

    /// Append bytes read elsewhere, as many as are missing; return how many. Copies.
    pub(crate) fn append(&mut self, data: &[u8]) -> usize {
        let taken = data.len().min(self.missing());
        let bytes = &data[..taken];
        if self.memory.is_some() {
            let rest = self.rest_mut();
            let taken = taken.min(rest.len()); // equal, unless the memory is too short
            rest[..taken].copy_from_slice(&bytes[..taken]);
        } else {
            if self.filled + taken >= LONG_BYTES {
                self.head.reserve_exact(self.total - self.head.len());
            }
            self.head.extend_from_slice(bytes);
        }
        self.filled += taken;
        taken
    }

    /// Correct `filled` after the reader: without memory only the head is here. Return whether
    /// memory, if any, and length agree.
    pub(crate) fn finish_read(&mut self) -> bool {
        self.finish_head();
        match &self.memory {
            None => {
                self.filled = self.head.len();
                true
            }
            Some(memory) => memory.bytes().len() == self.total && self.filled <= self.total,
        }
    }

    /// The whole payload.
    pub(crate) fn into_body(self) -> Body {
        self.memory
            .unwrap_or_else(|| Body::Owned(self.head.into_boxed_slice()))
    }

    /// Copy the bytes kept apart into the memory, if there is any.
    fn finish_head(&mut self) {
        let Some(memory) = self.memory.as_mut() else {
            return;
        };
        let head = std::mem::take(&mut self.head);
        if let Some(place) = memory.bytes_mut().get_mut(..head.len()) {
            place.copy_from_slice(&head);
        }
    }
}

impl fmt::Debug for BodyReading {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "BodyReading({} of {} bytes)",
            self.filled, self.total
        )
    }
}
