//! Signals of the progress thread: none is delivered to it, and its timers are exact.

use std::cell::Cell;

thread_local! {
    static IS_MAIN: bool = {
        // SAFETY: both calls take nothing and cannot fail.
        unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) }
    };
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Raised by the thread's own instructions: a fault handler must see them.
const OWN: [libc::c_int; 7] = [
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGSEGV,
    libc::SIGSYS,
    libc::SIGTRAP,
];

/// Return whether this is the process's main thread: its signals are the application's.
pub fn is_main_thread() -> bool {
    IS_MAIN.with(|&is_main| is_main)
}

/// Block the process's signals in the calling thread, for the rest of its life, and give it exact
/// timers; a process's main thread stays as it is.
///
/// A thread without the block would take a signal meant for the main thread, whose system call
/// would go on: Python runs handlers in the main thread only, once that call is over.
pub fn keep_out() {
    if is_main_thread() || IS_QUIET.replace(true) {
        return;
    }
    let mut process = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises `process`; no call fails with these arguments. `prctl` and
    // `pthread_sigmask` change the calling thread only.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
        libc::sigfillset(process.as_mut_ptr());
        for signal in OWN {
            libc::sigdelset(process.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, process.as_ptr(), std::ptr::null_mut());
    }
}
