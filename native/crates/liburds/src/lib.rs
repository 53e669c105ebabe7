//! The C interface, `urds.h`: `liburds.so` and `liburds.a`, for programs that are not preloaded.
//!
//! POSIX's signatures with `urds_` before their names, each one line over `urds-shim`. A descriptor
//! that is not ours goes to libc, as under the hooks.

#![cfg_attr(panic = "abort", no_std)]

use core::ffi::{c_int, c_uint, c_ulong, c_void};

use libc::{iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t, timespec};

use urds_shim::calls::{names, numbers, receive, send, values};

/// Export a function under a name of C: one line over the call.
macro_rules! exports {
    ($($call:ident => fn $name:ident($($argument:ident: $kind:ty),* $(,)?) -> $back:ty;)*) => {$(
        /// As the function of POSIX whose name follows `urds_`.
        ///
        /// # Safety
        /// As that function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $back {
            #[allow(unused_unsafe)] // some of these calls are safe
            // SAFETY: the caller's promise.
            unsafe { exported::$call($($argument),*) }
        }
    )*};
}

/// The calls under one roof, for the macro.
mod exported {
    pub use super::names::*;
    pub use super::numbers::*;
    pub use super::receive::*;
    pub use super::send::*;
    pub use super::values::*;
}

type Length = *mut socklen_t;

exports! {
    socket => fn urds_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind => fn urds_bind(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int;
    connect => fn urds_connect(fd: c_int, name: *const sockaddr, length: socklen_t) -> c_int;
    getsockname => fn urds_getsockname(fd: c_int, name: *mut sockaddr, length: Length) -> c_int;
    getpeername => fn urds_getpeername(fd: c_int, name: *mut sockaddr, length: Length) -> c_int;
    send => fn urds_send(fd: c_int, first: *const c_void, count: size_t, flags: c_int) -> ssize_t;
    sendto => fn urds_sendto(fd: c_int, first: *const c_void, count: size_t, flags: c_int,
        name: *const sockaddr, length: socklen_t) -> ssize_t;
    sendmsg => fn urds_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg => fn urds_sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int)
        -> c_int;
    write => fn urds_write(fd: c_int, first: *const c_void, count: size_t) -> ssize_t;
    writev => fn urds_writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    recv => fn urds_recv(fd: c_int, first: *mut c_void, count: size_t, flags: c_int) -> ssize_t;
    recvfrom => fn urds_recvfrom(fd: c_int, first: *mut c_void, count: size_t, flags: c_int,
        name: *mut sockaddr, length: Length) -> ssize_t;
    recvmsg => fn urds_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg => fn urds_recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
        patience: *mut timespec) -> c_int;
    read => fn urds_read(fd: c_int, first: *mut c_void, count: size_t) -> ssize_t;
    readv => fn urds_readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t;
    getsockopt => fn urds_getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void,
        length: Length) -> c_int;
    setsockopt => fn urds_setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void,
        length: socklen_t) -> c_int;
    ioctl => fn urds_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    close => fn urds_close(fd: c_int) -> c_int;
}
