//! What touches the system: libc's functions behind the hooks, memory, errno, the clock.

pub mod arguments;
pub mod clock;
pub mod errno;
mod lookup;
pub mod memory;
pub mod originals;
pub mod process;
pub mod sockets;

/// End the process: this library found itself in a state that cannot be.
pub fn stop() -> ! {
    // SAFETY: it takes nothing and does not return.
    unsafe { libc::abort() }
}
