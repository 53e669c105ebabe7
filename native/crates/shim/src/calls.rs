//! The calls of C, each with Linux's answers. What is not ours goes to libc, untouched.
//!
//! Names and numbers (socket, bind, close, ...) are in `names` and `numbers`, messages in `send` and
//! `receive`, options and ioctls in `values`. Each returns what libc's function returns, with errno.

pub mod names;
pub mod numbers;
pub mod receive;
pub mod send;
pub mod values;

use core::ffi::c_int;

use crate::sys::errno;
use crate::table::{self, Held};

/// What a call found behind a descriptor.
enum Whose {
    Theirs,
    Ours(Held),
    /// It has our name, and the node did not answer: errno is set.
    Lost,
}

/// Look a descriptor up; errno stays unless it is lost.
#[inline]
fn whose(fd: c_int) -> Whose {
    if !table::may_be_ours(fd) {
        return Whose::Theirs;
    }
    looked_up(fd)
}

fn looked_up(fd: c_int) -> Whose {
    let before = errno::get();
    match table::look_up(fd) {
        Ok(found) => {
            errno::set(before);
            found.map_or(Whose::Theirs, Whose::Ours)
        }
        Err(errno) => {
            errno::set(errno);
            Whose::Lost
        }
    }
}

/// Return an integer of C from what `errno::kept` returned.
fn narrow(value: isize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

/// Call ours or libc's: `either!(fd, held => ours, theirs)`. The first is an `Answer`.
macro_rules! either {
    ($fd:expr, $held:ident => $ours:expr, $theirs:expr) => {
        match $crate::calls::whose($fd) {
            $crate::calls::Whose::Theirs => $theirs,
            $crate::calls::Whose::Ours($held) => $crate::sys::errno::kept(|| $ours),
            $crate::calls::Whose::Lost => -1,
        }
    };
}
use either;
