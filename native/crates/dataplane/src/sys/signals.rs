//! The helper's thread: no signal is delivered to it, and its timers are exact.

/// Signals as they were; dropped, it puts them back.
pub struct Blocked(libc::sigset_t);

thread_local! {
    static IS_MAIN: bool = {
        // SAFETY: both calls take nothing and cannot fail.
        unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) }
    };
}

/// Tell whether this is the process's main thread: its signals are the application's.
pub fn is_main_thread() -> bool {
    IS_MAIN.with(|&is_main| is_main)
}

/// Block all signals in the calling thread and give it exact timers; not in a process's main
/// thread: `None`.
pub fn block_all() -> Option<Blocked> {
    if is_main_thread() {
        return None;
    }
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises `all`, `pthread_sigmask` initialises `before`; neither
    // fails with these arguments. `prctl` changes the calling thread only.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        Some(Blocked(before.assume_init()))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is one that `pthread_sigmask` gave.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut())
        };
    }
}
