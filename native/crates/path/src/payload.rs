//! Octets of messages: what is sent, and what has arrived.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Octets that somebody else owns, such as an object of Python.
///
/// What has arrived is mutable for its one owner; what is sent is shared and only read.
pub trait Memory: Send + Sync {
    fn octets(&self) -> &[u8];
    fn octets_mut(&mut self) -> &mut [u8];
    /// Give the thing itself back, for whoever knows what it is.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// The longest payload that is sent without memory of its own.
pub const INLINE_BYTES: usize = 78;

/// The payload of a message that is sent; a clone is cheap.
#[derive(Clone)]
pub enum Payload {
    Inline { len: u8, octets: [u8; INLINE_BYTES] },
    Owned(Arc<[u8]>),
    Foreign(Arc<dyn Memory>),
}

impl Payload {
    /// Copy a payload of any length.
    pub fn copy_of(octets: &[u8]) -> Self {
        match u8::try_from(octets.len()) {
            Ok(len) if octets.len() <= INLINE_BYTES => {
                let mut inline = [0; INLINE_BYTES];
                inline[..octets.len()].copy_from_slice(octets);
                Self::Inline {
                    len,
                    octets: inline,
                }
            }
            _ => Self::Owned(octets.into()),
        }
    }

    /// Return a payload without octets.
    pub const fn empty() -> Self {
        Self::Inline {
            len: 0,
            octets: [0; INLINE_BYTES],
        }
    }

    pub fn octets(&self) -> &[u8] {
        match self {
            Self::Inline { len, octets } => &octets[..usize::from(*len)],
            Self::Owned(octets) => octets,
            Self::Foreign(memory) => memory.octets(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Inline { len, .. } => usize::from(*len),
            _ => self.octets().len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Payload({} octets)", self.len())
    }
}

/// The whole octets of a long message that arrived, in memory of its own.
pub enum Body {
    Owned(Box<[u8]>),
    Foreign(Box<dyn Memory>),
}

impl Body {
    /// Take memory for so many octets, all zero.
    pub fn zeroed(octets: usize) -> Self {
        Self::Owned(vec![0; octets].into_boxed_slice())
    }

    pub fn octets(&self) -> &[u8] {
        match self {
            Self::Owned(octets) => octets,
            Self::Foreign(memory) => memory.octets(),
        }
    }

    pub fn octets_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Owned(octets) => octets,
            Self::Foreign(memory) => memory.octets_mut(),
        }
    }

    pub fn len(&self) -> usize {
        self.octets().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Body({} octets)", self.len())
    }
}

/// The payload of a message on its way to an inbox.
#[derive(Debug)]
pub enum ArrivingPayload<'a> {
    /// Still in the memory that was read into.
    Borrowed(&'a [u8]),
    /// In memory of its own, which goes along.
    Whole(Body),
}

impl ArrivingPayload<'_> {
    pub fn octets(&self) -> &[u8] {
        match self {
            Self::Borrowed(octets) => octets,
            Self::Whole(body) => body.octets(),
        }
    }

    pub fn len(&self) -> usize {
        self.octets().len()
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
            let octets = vec![7; length];
            let payload = Payload::copy_of(&octets);
            assert_eq!((payload.octets(), payload.len()), (&octets[..], length));
            assert_eq!(
                matches!(payload, Payload::Inline { .. }),
                length <= INLINE_BYTES
            );
        }
        assert!(size_of::<Payload>() <= 80);
    }

    #[test]
    fn a_body_is_filled_in_place() {
        let mut body = Body::zeroed(3);
        body.octets_mut()[1] = 5;
        assert_eq!(ArrivingPayload::Whole(body).octets(), [0, 5, 0]);
    }
}
