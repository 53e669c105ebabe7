//! Requests to the node socket: one record there, one record back. See docs/protocol/node.md.

use crate::sys::{self, DESCRIPTORS, Owned};

/// Bytes of a record, whatever is in it.
pub const RECORD_BYTES: usize = 256;
/// First word of each: `URDN`.
pub const MAGIC: u32 = 0x4e44_5255;
/// Of this format.
pub const VERSION: u16 = 1;
/// Where the fields of an operation begin.
pub const FIELDS_AT: usize = 24;

/// How often a request is made whose worker dies.
const TRIES: u32 = 3;

const AT_VERSION: usize = 4;
const AT_OPERATION: usize = 6;
const AT_LENGTH: usize = 8;
const AT_STATUS: usize = 12;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Operation {
    /// Make a socket.
    Open = 1,
    /// Tell whose a descriptor is.
    Find = 2,
    /// Bind a socket to a name.
    Bind = 3,
    /// Tell the route of a peer.
    Route = 4,
    /// Set an option that concerns others.
    SetOption = 5,
    /// Take back what is sent to a name.
    Cancel = 6,
    /// One list of `RDS_INFO`.
    Info = 7,
    /// All of the node's state as JSON.
    Status = 8,
    /// Make a socket that is bound to a name.
    OpenAndBind = 11,
}

/// One record, being written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    bytes: [u8; RECORD_BYTES],
    end: usize,
}

impl Record {
    /// Begin a request.
    pub fn new(operation: Operation) -> Self {
        let mut record = Self {
            bytes: [0; RECORD_BYTES],
            end: FIELDS_AT,
        };
        record.bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        record.bytes[AT_VERSION..AT_OPERATION].copy_from_slice(&VERSION.to_le_bytes());
        record.bytes[AT_OPERATION..AT_LENGTH].copy_from_slice(&(operation as u16).to_le_bytes());
        record
    }

    /// Append bytes of a field; what does not fit is left out.
    #[must_use]
    pub fn with(mut self, bytes: &[u8]) -> Self {
        let end = self.end + bytes.len();
        if end <= RECORD_BYTES {
            self.bytes[self.end..end].copy_from_slice(bytes);
            self.end = end;
        }
        self
    }

    /// Return all of its bytes.
    pub fn bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = self.bytes;
        let length = u32::try_from(self.end).unwrap_or(0);
        bytes[AT_LENGTH..AT_STATUS].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Read an answer.
    ///
    /// # Errors
    /// The answer's status; EPROTO for what is no answer to `operation`.
    pub fn answer(bytes: &[u8; RECORD_BYTES], operation: Operation) -> Result<Self, i32> {
        let record = Self {
            bytes: *bytes,
            end: RECORD_BYTES,
        };
        let is_ours = record.word(0) == MAGIC
            && record.half(AT_VERSION) == VERSION
            && record.half(AT_OPERATION) == operation as u16;
        let status = record.word(AT_STATUS).cast_signed();
        match status {
            _ if !is_ours => Err(libc::EPROTO),
            0 => Ok(record),
            1..4096 => Err(status),
            _ => Err(libc::EPROTO),
        }
    }

    fn half(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Return a field of four bytes.
    ///
    /// # Panics
    /// Beyond the record.
    pub fn word(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.bytes[at..at + 4]);
        u32::from_le_bytes(bytes)
    }

    /// Return a field of eight bytes.
    ///
    /// # Panics
    /// Beyond the record.
    pub fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at + 4)) << 32 | u64::from(self.word(at))
    }

    /// Return the field of a name.
    ///
    /// # Panics
    /// Beyond the record.
    pub fn name(&self, at: usize) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes.copy_from_slice(&self.bytes[at..at + 24]);
        bytes
    }
}

/// Descriptors of an answer.
pub type Descriptors = [Option<Owned>; DESCRIPTORS];

/// Ask the node at a path; return its answer and the descriptors with it.
///
/// A worker that dies answers nothing; the next one is asked again.
///
/// # Errors
/// The node's answer; ENOENT or ECONNREFUSED without a node; EPROTO for what is no answer; EIO if
/// the node closed several times instead of answering; EMFILE without descriptors to take.
pub fn call(
    path: &[u8],
    request: &Record,
    operation: Operation,
    descriptor: Option<i32>,
) -> Result<(Record, Descriptors), i32> {
    let mut tries = 0;
    loop {
        tries += 1;
        match call_once(path, request, operation, descriptor) {
            Err(libc::EIO | libc::ECONNRESET | libc::EPIPE) if tries < TRIES => {}
            Err(libc::ECONNRESET | libc::EPIPE) => return Err(libc::EIO),
            result => return result,
        }
    }
}

fn call_once(
    path: &[u8],
    request: &Record,
    operation: Operation,
    descriptor: Option<i32>,
) -> Result<(Record, Descriptors), i32> {
    let connection = sys::connect(path)?;
    let mut bytes = request.bytes();
    sys::send_with(&connection, &bytes, descriptor)?;
    let mut descriptors = [const { None }; DESCRIPTORS];
    let received = sys::receive_with(&connection, &mut bytes, &mut descriptors)?;
    match received {
        0 => Err(libc::EIO),
        RECORD_BYTES => Ok((Record::answer(&bytes, operation)?, descriptors)),
        _ => Err(libc::EPROTO),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
