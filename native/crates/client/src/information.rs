//! `RDS_INFO`_* and the node's status: lists that the node writes into memory of their own.

use crate::request::{self, FIELDS_AT, Operation, Record};
use crate::sys::{self, Owned};

/// A list of the node.
#[derive(Debug)]
pub struct Information {
    /// Bytes of one element, which getsockopt returns.
    pub element_bytes: i32,
    /// Bytes of the list.
    pub bytes: usize,
    memory: Option<Owned>,
}

impl Information {
    /// Ask for one list of `RDS_INFO`, of the node of a path; with the descriptor of a socket, the
    /// node gives the two calls for it within 100 ms the same list.
    ///
    /// # Errors
    /// ENOPROTOOPT for another name; as [`request::call`].
    pub fn ask(place: &[u8], name: u32, descriptor: Option<i32>) -> Result<Self, i32> {
        let asked = Record::new(Operation::Info).with(&name.to_le_bytes());
        let answer = request::call(place, &asked, Operation::Info, descriptor)?;
        let (answer, [memory, _, _]) = answer;
        Ok(Self {
            element_bytes: answer.word(FIELDS_AT).cast_signed(),
            bytes: length_of(answer.long(FIELDS_AT + 4)),
            memory,
        })
    }

    /// Ask for the node's whole status: one element, JSON.
    ///
    /// # Errors
    /// As [`request::call`].
    pub fn status(place: &[u8]) -> Result<Self, i32> {
        let asked = Record::new(Operation::Status);
        let (answer, [memory, _, _]) = request::call(place, &asked, Operation::Status, None)?;
        Ok(Self {
            element_bytes: 1,
            bytes: length_of(answer.long(FIELDS_AT)),
            memory,
        })
    }

    /// Copy the list from an offset on; return how many bytes, fewer only at its end.
    ///
    /// # Errors
    /// EPROTO if the node sent no memory; of the system.
    pub fn copy(&self, bytes: &mut [u8], from: usize) -> Result<usize, i32> {
        let left = self.bytes.saturating_sub(from).min(bytes.len());
        let mut copied = 0;
        while copied < left {
            let memory = self.memory.as_ref().ok_or(libc::EPROTO)?;
            match sys::read_at(memory.0, &mut bytes[copied..left], from + copied) {
                Ok(0) => break,
                Ok(count) => copied += count,
                Err(libc::EINTR) => {}
                Err(number) => return Err(number),
            }
        }
        Ok(copied)
    }
}

fn length_of(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
