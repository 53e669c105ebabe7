//! A set of descriptors to wait for.

use std::io;
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::descriptor::Descriptor;
use super::{borrowed, check};

pub const READABLE: u32 = libc::EPOLLIN as u32;
pub const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// Error or hang-up: reported whatever the mask.
pub const BROKEN: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Reported once for each change.
pub const EDGE: u32 = libc::EPOLLET.cast_unsigned();
pub const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// Most members reported at once.
pub const READY_MAX: usize = 64;
const ROOM: libc::c_int = 64;

/// Result of `wait`: the mask, and the number given to `add`.
pub type Ready = [libc::epoll_event; READY_MAX];

/// An empty `Ready`.
pub const NOTHING: Ready = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX];

/// Handles to one set; closed on exec.
#[derive(Clone, Debug)]
pub struct Epoll(Arc<Descriptor>);

/// Set when the kernel knows no `epoll_pwait2` (before Linux 5.11).
static MILLISECONDS_ONLY: AtomicBool = AtomicBool::new(false);

impl Epoll {
    /// Make an empty set.
    ///
    /// # Errors
    /// Of the system, when no descriptors are left.
    pub fn new() -> io::Result<Self> {
        let made = epoll::create(CreateFlags::CLOEXEC)?;
        Ok(Self(Arc::new(Descriptor::new(made.into_raw_fd()))))
    }

    /// Return a set that is closed: every call with it fails.
    pub fn closed() -> Self {
        Self(Arc::new(Descriptor::new(-1)))
    }

    /// Return the number of the set itself: readable while a member is ready.
    pub fn descriptor(&self) -> i32 {
        self.0.get()
    }

    /// Add a member, reported as `number`.
    ///
    /// # Errors
    /// Of the system.
    pub fn add(&self, descriptor: i32, mask: u32, number: u64) -> io::Result<()> {
        let (data, mask) = (
            EventData::new_u64(number),
            EventFlags::from_bits_retain(mask),
        );
        Ok(epoll::add(
            borrowed(self.0.get())?,
            borrowed(descriptor)?,
            data,
            mask,
        )?)
    }

    /// Change the mask of a member.
    ///
    /// # Errors
    /// Of the system.
    pub fn modify(&self, descriptor: i32, mask: u32, number: u64) -> io::Result<()> {
        let (data, mask) = (
            EventData::new_u64(number),
            EventFlags::from_bits_retain(mask),
        );
        Ok(epoll::modify(
            borrowed(self.0.get())?,
            borrowed(descriptor)?,
            data,
            mask,
        )?)
    }

    /// Remove a member.
    ///
    /// # Errors
    /// Of the system.
    pub fn remove(&self, descriptor: i32) -> io::Result<()> {
        Ok(epoll::delete(
            borrowed(self.0.get())?,
            borrowed(descriptor)?,
        )?)
    }

    /// Wait for members, `None` for ever; return how many of `ready` are filled.
    ///
    /// # Errors
    /// Of the system: `Interrupted` by a signal.
    pub fn wait(&self, ready: &mut Ready, timeout_ns: Option<u64>) -> io::Result<usize> {
        wait_in(self.0.get(), ready, timeout_ns)
    }

    /// Close the set for all of its handles; its members stay open.
    pub fn close(&self) {
        self.0.close();
    }
}

/// As `Epoll::wait`, in a set of the caller's.
///
/// # Errors
/// Of the system: `Interrupted` by a signal.
pub fn wait_in(set: i32, ready: &mut Ready, timeout_ns: Option<u64>) -> io::Result<usize> {
    if timeout_ns.is_some_and(|ns| ns > 0) && !MILLISECONDS_ONLY.load(Ordering::Relaxed) {
        let told = wait_exactly(set, ready, timeout_ns.unwrap_or(0));
        match told {
            Err(failure) if failure.raw_os_error() == Some(libc::ENOSYS) => {
                MILLISECONDS_ONLY.store(true, Ordering::Relaxed);
            }
            told => return told,
        }
    }
    let milliseconds = match timeout_ns {
        None => -1,
        Some(ns) => i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX),
    };
    // SAFETY: room for `READY_MAX` events.
    let told = unsafe { libc::epoll_wait(set, ready.as_mut_ptr(), ROOM, milliseconds) };
    check(told).map(|count| usize::try_from(count).unwrap_or(0))
}

fn wait_exactly(set: i32, ready: &mut Ready, timeout_ns: u64) -> io::Result<usize> {
    let time = super::timespec(timeout_ns);
    // SAFETY: room for `READY_MAX` events; `time` lives through the call; no signal mask.
    let told = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            libc::c_long::from(set),
            ready.as_mut_ptr(),
            libc::c_long::from(ROOM),
            &raw const time,
            std::ptr::null::<libc::sigset_t>(),
            0usize,
        )
    };
    usize::try_from(told).map_err(|_| io::Error::last_os_error())
}
