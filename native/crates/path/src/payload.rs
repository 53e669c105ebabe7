//! Bytes of messages, sent and received.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Bytes with an owner outside this crate, such as a Python object.
///
/// A received payload is mutable for its one owner; a sent one is shared and only read.
pub trait Memory: Send + Sync {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Note the number that the message got on its path, before its first byte leaves.
    fn note_number(&self, _sequence: u64) {}
    /// Note that the message goes over another path, which has that place in the journal of paths.
    fn note_path(&self, _place: u32) {}

    /// Return the owner itself, for a caller that knows its type.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// The longest payload that is sent without memory of its own: a message with it is 128 bytes, which
/// compilers move without a call.
pub const INLINE_BYTES: usize = 70;

/// The payload of a message that is sent; a clone is cheap.
#[derive(Clone)]
pub enum Payload {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Owned(Arc<[u8]>),
    Foreign(Arc<dyn Memory>),
}

impl Payload {
    /// Copy a payload of any length.
    pub fn copy_of(bytes: &[u8]) -> Self {
        match u8::try_from(bytes.len()) {
            Ok(len) if bytes.len() <= INLINE_BYTES => {
                let mut inline = [0; INLINE_BYTES];
                inline[..bytes.len()].copy_from_slice(bytes);
                Self::Inline { len, bytes: inline }
            }
            _ => Self::Owned(bytes.into()),
        }
    }

    /// Copy bytes, as many as need no memory of their own, over an inline payload.
    #[inline]
    pub(crate) fn set_inline(&mut self, from: &[u8]) {
        if let Self::Inline { len, bytes } = self {
            *len = u8::try_from(from.len()).unwrap_or(u8::MAX);
            bytes[..from.len()].copy_from_slice(from);
        }
    }

    /// Return a payload without bytes.
    pub const fn empty() -> Self {
        Self::Inline {
            len: 0,
            bytes: [0; INLINE_BYTES],
        }
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Self::Owned(bytes) => bytes,
            Self::Foreign(memory) => memory.bytes(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Inline { len, .. } => usize::from(*len),
            _ => self.bytes().len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Payload({} bytes)", self.len())
    }
}

/// The whole bytes of a received long message, in memory of its own.
pub enum Body {
    Owned(Box<[u8]>),
    Foreign(Box<dyn Memory>),
}

impl Body {
    /// Allocate so many bytes, all zero.
    pub fn zeroed(bytes: usize) -> Self {
        Self::Owned(vec![0; bytes].into_boxed_slice())
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Foreign(memory) => memory.bytes(),
        }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Foreign(memory) => memory.bytes_mut(),
        }
    }

    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Body({} bytes)", self.len())
    }
}

/// The payload of a message for an inbox.
#[derive(Debug)]
pub enum ArrivingPayload<'a> {
    /// Still in the read buffer.
    Borrowed(&'a [u8]),
    /// In memory of its own, which is handed over.
    Whole(Body),
}

impl ArrivingPayload<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Whole(body) => body.bytes(),
        }
    }

    pub fn len(&self) -> usize {
        self.bytes().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_payloads_need_no_memory_of_their_own() {
        for length in [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 300] {
            let bytes = vec![7; length];
            let payload = Payload::copy_of(&bytes);
            assert_eq!((payload.bytes(), payload.len()), (&bytes[..], length));
            assert_eq!(
                matches!(payload, Payload::Inline { .. }),
                length <= INLINE_BYTES
            );
        }
        assert!(size_of::<Payload>() <= 72);
    }

    #[test]
    fn a_body_is_filled_in_place() {
        let mut body = Body::zeroed(3);
        body.bytes_mut()[1] = 5;
        assert_eq!(ArrivingPayload::Whole(body).bytes(), [0, 5, 0]);
    }
}
