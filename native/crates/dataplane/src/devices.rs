//! Devices whose messages end in the plane without a stream: engines with couriers of RDS over RDMA.
//!
//! The descriptor of a device is a member of the plane's set, so what reads streams hears the device as
//! well: the thread that waits, else an event loop or the progress thread. Changes are reported once
//! (edge-triggered), for what is left ready there may be its owner's.
//!
//! A peer rings if it was asked to, and once. So a device is *armed* before each sleep in the set, which
//! looks at it once more. A thread that was woken leaves it unarmed: its answer comes first, and the next
//! one to sleep in the set arms it.
//!
//! A device has a lock of its own, which comes before the plane's: it is called without that.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::plane::Plane;
use crate::poll_set::number_of_device;
use crate::sys::epoll;

/// Looks of one call at a device that is never quiet.
const LOOKS_MAX: usize = 16;

/// A device as the plane sees it: any thread makes any call, without a lock of the plane, and without
/// waiting for the interpreter.
pub trait Device: Send + Sync {
    /// Note that its descriptor was ready; `serve` and `arm` follow.
    fn hear(&self);

    /// Do what is there, up to a limit: messages arrive, and frames leave.
    fn serve(&self);

    /// Have peers ring from now on; false: there is something to do instead.
    fn arm(&self) -> bool;

    /// Return when `serve` has something to do though no peer rings; the plane's lock may be held.
    fn due_ns(&self) -> Option<u64>;
}

type Listed = (i32, Arc<dyn Device>);

/// The devices of a plane, by descriptor.
#[derive(Default)]
pub(crate) struct Devices {
    has_any: AtomicBool,
    list: Mutex<Arc<[Listed]>>,
}

impl Devices {
    fn change(&self, change: impl FnOnce(&mut Vec<Listed>)) {
        let mut list = self.list.lock();
        let mut changed = list.to_vec();
        change(&mut changed);
        self.has_any.store(!changed.is_empty(), Relaxed);
        *list = changed.into();
    }

    fn all(&self) -> Option<Arc<[Listed]>> {
        let has_any = self.has_any.load(Relaxed);
        has_any.then(|| Arc::clone(&*self.list.lock()))
    }

    /// Return whether every device is armed.
    #[inline]
    pub(crate) fn arm(&self) -> bool {
        let Some(all) = self.all() else {
            return true;
        };
        // Each, also behind one that is not: the thread may sleep on the others' rings.
        all.iter().fold(true, |armed, (_, one)| one.arm() && armed)
    }

    /// Do what is there.
    #[inline]
    pub(crate) fn serve(&self) {
        for (_, device) in self.all().iter().flat_map(|all| all.iter()) {
            device.serve();
        }
    }

    /// Do what is due.
    pub(crate) fn serve_due(&self, now_ns: u64) {
        for (_, device) in self.all().iter().flat_map(|all| all.iter()) {
            if device.due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
                device.serve();
            }
        }
    }

    /// Return when one of them is due, or that which is due before.
    #[inline]
    pub(crate) fn next_due_ns(&self, before: Option<u64>) -> Option<u64> {
        let all = self.all();
        let dues = all.iter().flat_map(|all| all.iter());
        let dues = dues.filter_map(|(_, device)| device.due_ns());
        dues.chain(before).min()
    }

    /// Do what a descriptor reported.
    pub(crate) fn serve_ready(&self, descriptor: i32) {
        for (of, device) in self.all().iter().flat_map(|all| all.iter()) {
            if *of == descriptor {
                device.hear();
                device.serve();
            }
        }
    }
}

impl Plane {
    /// Have threads of the plane serve a device. Its descriptor stays the caller's, and open until
    /// `remove_device`.
    ///
    /// # Errors
    /// Of the system, when no watches are left.
    pub fn add_device(&self, descriptor: i32, device: Arc<dyn Device>) -> io::Result<()> {
        self.devices.change(|list| list.push((descriptor, device)));
        let mask = epoll::READABLE | epoll::EDGE;
        let number = number_of_device(descriptor);
        let added = self.poll_set.add(descriptor, mask, number);
        if added.is_err() {
            self.devices
                .change(|list| list.retain(|(of, _)| *of != descriptor));
            return added;
        }
        {
            let mut state = self.lock();
            state.progress_thread.has_devices = true;
            state.progress_thread.want_now();
        }
        self.kick.ring(); // a thread that sleeps has not armed it
        Ok(())
    }

    /// Serve a device no more; a last call to it may be under way.
    pub fn remove_device(&self, descriptor: i32) {
        let mut is_known = false;
        self.devices.change(|list| {
            let before = list.len();
            list.retain(|(of, _)| *of != descriptor);
            is_known = list.len() < before;
        });
        if is_known {
            self.lock().progress_thread.has_devices = self.devices.has_any.load(Relaxed);
            let _ = self.poll_set.remove(descriptor); // the plane's may be closed
        }
    }

    /// Note that a device has something due sooner than it had.
    pub fn note_due_soon(&self) {
        self.lock().want_progress_thread_if_unread();
    }

    /// Arm all devices for a sleep elsewhere, in an event loop; what is never quiet is left to its next
    /// pass.
    pub(crate) fn arm_devices(&self) {
        for _ in 0..LOOKS_MAX {
            if self.devices.arm() {
                return;
            }
            self.devices.serve();
        }
        self.kick.ring();
    }
}

#[cfg(test)]
#[path = "devices_tests.rs"]
mod tests;
