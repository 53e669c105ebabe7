//! Calls of a client that take memory by its address.

use urds_client::sys::parts::{Readable, Writable};
use urds_client::{Flags, Message, Outgoing, Socket};

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

pub fn send(
    socket: &Socket,
    descriptor: i32,
    message: &Outgoing,
    bytes: &[u8],
    dontwait: bool,
) -> Result<usize, i32> {
    let parts = [part(bytes)];
    // SAFETY: the bytes live through the call.
    let parts = unsafe { Readable::new(&parts) };
    socket.send(descriptor, b"", message, parts, dontwait)
}

pub fn receive(
    socket: &Socket,
    descriptor: i32,
    bytes: &mut [u8],
    dontwait: bool,
) -> Result<Message, i32> {
    let parts = [part(bytes)];
    // SAFETY: the bytes are writable and live through the call, and nothing else uses them.
    let parts = unsafe { Writable::new(&parts) };
    let flags = Flags {
        dontwait,
        peek: false,
        polls: false,
    };
    socket.receive(descriptor, parts, flags)
}
