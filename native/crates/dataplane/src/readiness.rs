//! A descriptor whose readiness is that of the socket, for select, poll, epoll and event loops.
//!
//! An `AF_UNIX` stream pair, the user's end with the smallest send buffer. Readable: one byte from
//! the far end. Not writable: the user's end is filled until it would block; writable again: the
//! far end reads it all. So all four combinations can be shown, level-triggered. An `AF_UNIX`
//! descriptor shows POLLWRBAND together with POLLOUT (docs/differences.md).

use std::io::{self, IoSlice, IoSliceMut};

use parking_lot::Mutex;

use crate::sys::descriptor::Descriptor;
use crate::sys::sockets;

const FILL: [u8; 512] = [0; 512];

/// The pair; `sync` makes it show the state of the socket.
pub struct ReadinessDescriptor {
    user: Descriptor,
    far: Descriptor,
    /// Readable, writable.
    shown: Mutex<(bool, bool)>,
}

impl ReadinessDescriptor {
    /// Make the pair: not readable, writable; call `sync` after it.
    ///
    /// # Errors
    /// Of the system, when no descriptors are left.
    pub fn new() -> io::Result<Self> {
        let (user, far) = sockets::unix_pair()?;
        Ok(Self {
            user,
            far,
            shown: Mutex::new((false, true)),
        })
    }

    /// Return the user's end, -1 once closed.
    pub fn descriptor(&self) -> i32 {
        self.user.get()
    }

    /// Show the state that `wanted` returns: readable, writable.
    ///
    /// Called after every change and without the plane's lock, which `wanted` takes. The last
    /// caller reads the last state, and a change in between is seen by the next comparison.
    pub fn sync(&self, mut wanted: impl FnMut() -> (bool, bool)) {
        let mut shown = self.shown.lock();
        loop {
            let (readable, writable) = wanted();
            if (readable, writable) == *shown || self.user.get() < 0 {
                return;
            }
            if readable != shown.0 {
                let done = if readable {
                    self.signal()
                } else {
                    self.silence()
                };
                if done.is_err() {
                    return;
                }
            }
            if writable != shown.1 {
                if writable { self.empty() } else { self.fill() }
            }
            *shown = (readable, writable);
        }
    }

    fn signal(&self) -> io::Result<usize> {
        sockets::send(self.far.get(), &[IoSlice::new(&[0])])
    }

    fn silence(&self) -> io::Result<usize> {
        sockets::receive(self.user.get(), &mut [IoSliceMut::new(&mut [0])])
    }

    fn fill(&self) {
        while sockets::send(self.user.get(), &[IoSlice::new(&FILL)]).is_ok() {}
    }

    fn empty(&self) {
        let mut bytes = [0; 16384];
        while sockets::receive(self.far.get(), &mut [IoSliceMut::new(&mut bytes)])
            .is_ok_and(|count| count > 0)
        {}
    }

    /// Close both ends, once; a poller of the user's end sees it as any closed one.
    pub fn close(&self) {
        let _shown = self.shown.lock();
        self.user.close();
        self.far.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shows(pair: &ReadinessDescriptor) -> (bool, bool) {
        let mask = libc::POLLIN | libc::POLLOUT;
        let now = sockets::poll_now(pair.descriptor(), mask);
        (now & libc::POLLIN != 0, now & libc::POLLOUT != 0)
    }

    #[test]
    fn all_four_states_can_be_shown_from_each_other() {
        let pair = ReadinessDescriptor::new().expect("two descriptors");
        let states = [(false, false), (false, true), (true, false), (true, true)];
        for first in states {
            for second in states {
                pair.sync(|| first);
                assert_eq!(shows(&pair), first);
                pair.sync(|| second);
                assert_eq!(shows(&pair), second);
            }
        }
    }

    #[test]
    fn a_closed_pair_is_left_alone() {
        let pair = ReadinessDescriptor::new().expect("two descriptors");
        pair.close();
        pair.sync(|| (true, false));
        pair.close();
        assert_eq!(pair.descriptor(), -1);
    }
}
