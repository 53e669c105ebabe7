//! The descriptors that a plane waits for: streams, the kick, devices, and what the control plane
//! watches.
//!
//! All are in one epoll set, so that one thread can wait for everything, and so that an event loop
//! can wait for the plane by one descriptor. Changes of the set do not block: they are made under
//! the lock.

use std::collections::HashMap;
use std::io;

use crate::events::{Event, Interest};
use crate::state::{MailboxId, PathId, State};
use crate::sys::epoll::{self, Epoll};
use crate::sys::sockets;

/// The kick's number in the set; a path's is the path's own number.
pub(crate) const KICK: u64 = u64::MAX;
/// The number of the progress thread's doorbell, which is in the set of a node; for that thread alone.
pub(crate) const DOORBELL: u64 = u64::MAX - 1;
/// Marks a descriptor of the control plane; no path's number has this bit.
const WATCHED: u64 = 1 << 63;
/// Marks the control socket of an attached socket; the rest is the number of its mailbox.
pub(crate) const ATTACHED: u64 = 1 << 62;
/// Marks a device; the rest is its descriptor.
const DEVICE: u64 = 1 << 61;

/// Return the watched descriptor with this number.
pub(crate) fn watched_of(number: u64) -> Option<i32> {
    if number & WATCHED == 0 {
        None
    } else {
        i32::try_from(number & !WATCHED).ok()
    }
}

/// Return the descriptor of the device with this number.
pub(crate) fn device_of(number: u64) -> Option<i32> {
    let is_device = number & DEVICE != 0;
    is_device.then(|| i32::try_from(number & !DEVICE).ok())?
}

/// Return the number of a device in the set.
pub(crate) fn number_of_device(descriptor: i32) -> u64 {
    DEVICE | u64::from(descriptor.unsigned_abs())
}

/// Return the attached socket with this number.
pub(crate) fn attached_of(number: u64) -> Option<MailboxId> {
    (number & ATTACHED != 0).then(|| MailboxId::from_u64(number & !ATTACHED))
}

/// The watched descriptors; guarded by the plane's lock.
pub struct PollTables {
    pub(crate) set: Epoll,
    watched: HashMap<i32, Interest>,
}

impl PollTables {
    /// Make empty tables over a set.
    pub fn new(set: Epoll) -> Self {
        Self {
            set,
            watched: HashMap::new(),
        }
    }
}

impl State {
    /// Watch a path's new stream for reading; sets `polled`.
    ///
    /// # Errors
    /// Of the system, when no watches are left.
    pub fn watch_stream(&mut self, path: PathId) -> io::Result<()> {
        let Some(record) = self.paths.get_mut(path) else {
            return Ok(());
        };
        let Some(stream) = &record.stream else {
            return Ok(());
        };
        self.poll_set
            .set
            .add(stream.descriptor(), epoll::READABLE, path.to_u64())?;
        record.polled = true;
        Ok(())
    }

    /// Remove a path's stream; clears `polled`.
    pub fn unwatch_stream(&mut self, path: PathId) {
        let Some(record) = self.paths.get_mut(path) else {
            return;
        };
        if let Some(stream) = &record.stream
            && record.polled
        {
            let _ = self.poll_set.set.remove(stream.descriptor()); // closed by its peer's owner
        }
        record.polled = false;
    }

    /// Watch a path for what it waits for now: not `paused`, `blocked`.
    ///
    /// A path that waits for nothing leaves the set: a member reports errors whatever its mask, so
    /// a connection that is reset while it is not read would wake every poll.
    pub fn update_watch(&mut self, path: PathId) {
        let Some(record) = self.paths.get_mut(path) else {
            return;
        };
        let Some(stream) = &record.stream else { return };
        let mut mask = if record.paused { 0 } else { epoll::READABLE };
        if record.blocked {
            mask |= if stream.rings() {
                epoll::READABLE
            } else {
                epoll::WRITABLE
            };
        }
        if record.unheard && !record.paused {
            mask |= epoll::WRITABLE; // a doorbell is always writable: it would report at once
        }
        let (set, descriptor) = (&self.poll_set.set, stream.descriptor());
        let changed = match (mask != 0, record.polled) {
            (true, true) => set.modify(descriptor, mask, path.to_u64()),
            (true, false) => set.add(descriptor, mask, path.to_u64()),
            (false, true) => set.remove(descriptor),
            (false, false) => Ok(()),
        };
        if changed.is_ok() {
            record.polled = mask != 0;
        }
    }

    /// Watch a descriptor until it is ready once.
    pub(crate) fn watch(&mut self, descriptor: i32, interest: Interest) -> io::Result<()> {
        let mut mask = 0;
        if interest.0 & Interest::READ.0 != 0 {
            mask |= epoll::READABLE;
        }
        if interest.0 & Interest::WRITE.0 != 0 {
            mask |= epoll::WRITABLE;
        }
        let number = WATCHED | u64::from(descriptor.unsigned_abs());
        self.poll_set.set.add(descriptor, mask, number)?;
        self.poll_set.watched.insert(descriptor, interest);
        Ok(())
    }

    /// Stop watching.
    pub(crate) fn unwatch(&mut self, descriptor: i32) {
        if self.poll_set.watched.remove(&descriptor).is_some() {
            let _ = self.poll_set.set.remove(descriptor); // may be closed already
        }
    }

    /// End the watch of a ready descriptor and report it.
    ///
    /// It is polled again: since the set reported it, its number may have been reused.
    pub(crate) fn report_watched(&mut self, descriptor: i32) {
        let Some(&interest) = self.poll_set.watched.get(&descriptor) else {
            return;
        };
        let ready = sockets::poll_now(descriptor, i16::from(interest.0));
        if ready == 0 {
            return;
        }
        self.unwatch(descriptor);
        let is_readable = ready & !libc::POLLOUT != 0;
        let interest = if is_readable {
            Interest::READ
        } else {
            Interest::WRITE
        };
        self.emit(Event::Ready {
            descriptor,
            interest,
        });
    }
}
