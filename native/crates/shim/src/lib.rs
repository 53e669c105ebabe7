//! The socket calls of C over the sockets of a node.
//!
//! A socket is an ordinary descriptor, one end of a pair whose other end the node has. Poll, dup,
//! fork, exec and close are the kernel's affair; what moves messages is in `calls`. The hooks of
//! `liburds_preload.so` and the functions of `liburds.so` are one line each over it.
//!
//! This code lies in programs of other people: it starts no thread, allocates nothing after the
//! call that makes a socket, takes no lock, prints nothing, keeps errno of calls that succeed, and
//! works before the constructors of the program have run. It needs libc alone.

#![cfg_attr(all(panic = "abort", not(test)), no_std)]

pub mod addresses;
pub mod calls;
mod control;
mod options;
mod place;
pub mod sys;
mod table;

/// What a call failed with, a value of errno.
pub type Errno = i32;

/// The result of a call before it becomes -1 and errno.
pub type Answer<T = usize> = Result<T, Errno>;

#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panicked(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::stop()
}
