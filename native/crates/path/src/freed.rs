//! What left a path, by the sockets whose accounts get the room back.

use crate::kinds::Owner;

/// The change to a socket's account when messages left a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    pub owner: Owner,
    /// Payload bytes to take off the account.
    pub bytes: usize,
    /// Of the messages, those that the peer will never get.
    pub given_up: u64,
}

/// The freed messages of a path: as a rule of one socket, which takes no memory beside it.
#[derive(Debug, Default)]
pub(crate) struct FreedList {
    earlier: Vec<Freed>,
    last: Option<Freed>,
}

impl FreedList {
    /// Add freed bytes; neighbours of one owner are merged.
    #[inline]
    pub(crate) fn note(&mut self, owner: Owner, bytes: usize, given_up: u64) {
        match &mut self.last {
            Some(last) if last.owner == owner => {
                last.bytes += bytes;
                last.given_up += given_up;
            }
            last => {
                let freed = Freed {
                    owner,
                    bytes,
                    given_up,
                };
                self.earlier.extend(last.replace(freed));
            }
        }
    }

    /// Whether nothing was freed since the last `take_into`.
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Move all to `freed`, which is emptied first.
    pub(crate) fn take_into(&mut self, freed: &mut Vec<Freed>) {
        freed.clear();
        freed.append(&mut self.earlier);
        freed.extend(self.last.take());
    }

    /// Free the memory that an idle path does not need.
    pub(crate) fn rest(&mut self) {
        self.earlier.shrink_to(0);
    }
}
