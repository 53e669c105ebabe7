//! System calls of the tests, and their `unsafe`.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{mem, ptr};

use urds_client::sys::parts::{Readable, Writable};

pub fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

pub fn part_mut(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

pub fn readable(parts: &[libc::iovec]) -> Readable<'_> {
    // SAFETY: made by `part` of what the test keeps.
    unsafe { Readable::new(parts) }
}

pub fn writable(parts: &[libc::iovec]) -> Writable<'_> {
    // SAFETY: made by `part_mut` of what the test keeps.
    unsafe { Writable::new(parts) }
}

/// Return `SO_COOKIE` of a descriptor; 0 if it is no socket.
pub fn cookie_of(descriptor: i32) -> u64 {
    let mut cookie = 0u64;
    let mut length = mem::size_of::<u64>();
    // SAFETY: both places are writable and as long as they say.
    unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            &raw mut cookie,
            &raw mut length,
        )
    };
    cookie
}

fn owned(descriptor: i32) -> OwnedFd {
    assert!(descriptor >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it was just made.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

/// Listen at a path.
pub fn listen(path: &Path) -> OwnedFd {
    let _ = std::fs::remove_file(path);
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: the address is as long as it says.
    unsafe {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let listener = owned(libc::socket(libc::AF_UNIX, kind, 0));
        let mut address: libc::sockaddr_un = mem::zeroed();
        address.sun_family = 1;
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = from.cast_signed();
        }
        let length = u32::try_from(mem::size_of::<libc::sockaddr_un>()).expect("short");
        let address = (&raw const address).cast();
        assert_eq!(libc::bind(listener.as_raw_fd(), address, length), 0);
        assert_eq!(libc::listen(listener.as_raw_fd(), 64), 0);
        listener
    }
}

/// Accept a connection if there is one.
pub fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    let none = ptr::null_mut();
    // SAFETY: no memory is passed.
    let accepted = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            none,
            ptr::null_mut(),
            libc::SOCK_CLOEXEC,
        )
    };
    (accepted >= 0).then(|| owned(accepted))
}

#[repr(C, align(8))]
struct Room([u8; 64]);

/// Receive a record and the descriptors with it.
pub fn receive(connection: &OwnedFd, record: &mut [u8]) -> (usize, Vec<OwnedFd>) {
    let mut room = Room([0; 64]);
    let mut part = part_mut(record);
    let mut descriptors = Vec::new();
    // SAFETY: all that the message points to lives until the call returns.
    unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut room).cast();
        message.msg_controllen = mem::size_of::<Room>();
        let flags = libc::MSG_CMSG_CLOEXEC;
        let received = libc::recvmsg(connection.as_raw_fd(), &raw mut message, flags);
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS {
            let number = libc::CMSG_DATA(header).cast::<[u8; 4]>().read();
            descriptors.push(owned(i32::from_ne_bytes(number)));
        }
        (usize::try_from(received).unwrap_or(0), descriptors)
    }
}

/// Answer with a record and descriptors.
pub fn answer(connection: &OwnedFd, record: &[u8], descriptors: &[i32]) {
    let mut room = Room([0; 64]);
    let mut part = part(record);
    let bytes = u32::try_from(descriptors.len() * 4).expect("few");
    // SAFETY: all that the message points to lives until the call returns.
    unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if bytes > 0 {
            message.msg_control = (&raw mut room).cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            let data = libc::CMSG_DATA(header).cast::<[u8; 4]>();
            for (index, descriptor) in descriptors.iter().enumerate() {
                data.add(index).write(descriptor.to_ne_bytes());
            }
        }
        libc::sendmsg(
            connection.as_raw_fd(),
            &raw const message,
            libc::MSG_NOSIGNAL,
        );
    }
}

/// Make a control socket: the user end, which waits, and the node end, which does not.
pub fn control_socket(nonblock: bool) -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    let room = 8192; // the kernel doubles it
    // SAFETY: the places are writable and readable as long as they say.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        assert_eq!(
            libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()),
            0
        );
        libc::setsockopt(
            ends[0],
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&raw const room).cast(),
            4,
        );
        if nonblock {
            libc::fcntl(ends[0], libc::F_SETFL, libc::O_NONBLOCK);
        }
        libc::fcntl(ends[1], libc::F_SETFL, libc::O_NONBLOCK);
    }
    name(ends[0]);
    (owned(ends[0]), owned(ends[1]))
}

/// Give a user end the name by which a process that did not make it knows what it is.
fn name(user_end: i32) {
    let text = format!("\0urds-fd/1/{:x}", cookie_of(user_end));
    // SAFETY: the address is as long as it says.
    unsafe {
        let mut address: libc::sockaddr_un = mem::zeroed();
        address.sun_family = 1;
        for (to, from) in address.sun_path.iter_mut().zip(text.bytes()) {
            *to = from.cast_signed();
        }
        let length = u32::try_from(2 + text.len()).expect("short");
        let address = (&raw const address).cast();
        assert_eq!(libc::bind(user_end, address, length), 0);
    }
}

/// Poll descriptors; return which have which events.
pub fn poll(polled: &mut [libc::pollfd], timeout_ms: i32) {
    let count = polled.len() as libc::nfds_t;
    // SAFETY: all of `polled` is writable.
    unsafe { libc::poll(polled.as_mut_ptr(), count, timeout_ms) };
}

/// Return the events of one descriptor now.
pub fn events(descriptor: i32) -> i16 {
    let mut polled = [libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN | libc::POLLOUT,
        revents: 0,
    }];
    poll(&mut polled, 0);
    polled[0].revents
}

/// Set `SO_RCVTIMEO` or `SO_SNDTIMEO`.
pub fn set_timeout(descriptor: i32, option: i32, ms: i64) {
    let time = libc::timeval {
        tv_sec: 0,
        tv_usec: ms * 1000,
    };
    // SAFETY: the value is readable.
    unsafe {
        libc::setsockopt(
            descriptor,
            libc::SOL_SOCKET,
            option,
            (&raw const time).cast(),
            16,
        )
    };
}

/// Run `child` in a child of a fork, which then ends; return its process number.
pub fn fork(child: impl FnOnce()) -> i32 {
    // SAFETY: the child makes calls of this crate only, which take no lock of its parent's threads.
    let process = unsafe { libc::fork() };
    if process == 0 {
        child();
        // SAFETY: ends the child without the parent's handlers.
        unsafe { libc::_exit(0) };
    }
    assert!(process > 0);
    process
}

/// Kill a child, and wait for its end.
pub fn kill(process: i32) {
    // SAFETY: the number is a child's.
    unsafe { libc::kill(process, libc::SIGKILL) };
    wait(process);
}

/// Wait for the end of a child; return its status.
pub fn wait(process: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the number is a child's.
    unsafe { libc::waitpid(process, &raw mut status, 0) };
    status
}

/// Copy a payload from one memory to another.
pub fn copy_between(
    sender: &urds_channel::socket_memory::NodeSide,
    taken: &urds_channel::socket_memory::Submission,
    receiver: &urds_channel::socket_memory::NodeSide,
    place: &urds_channel::socket_memory::Place,
) {
    let from = sender.area().pointer(taken.at, taken.length);
    // SAFETY: the range is within the sender's memory, which is another mapping than the receiver's
    // unless a socket sends to itself; then the two areas do not overlap.
    unsafe { receiver.area().copy_from(place.at, from, taken.length) };
}

/// Return the processor time of this process in nanoseconds.
pub fn cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Make a pair that carries whole messages.
pub fn packet_pair() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the place is writable.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
    assert_eq!(made, 0);
    (owned(ends[0]), owned(ends[1]))
}

/// Send one message on such a pair.
pub fn send(descriptor: i32, payload: &[u8]) {
    // SAFETY: the payload is readable.
    let sent = unsafe { libc::send(descriptor, payload.as_ptr().cast(), payload.len(), 0) };
    assert_eq!(usize::try_from(sent), Ok(payload.len()));
}

/// Receive one.
pub fn receive_bytes(descriptor: i32, room: &mut [u8]) -> usize {
    // SAFETY: the room is writable.
    let received = unsafe { libc::recv(descriptor, room.as_mut_ptr().cast(), room.len(), 0) };
    usize::try_from(received).expect("a message")
}

extern "C" fn nothing(_: i32) {}

/// Have SIGUSR1 do nothing but end calls, or begin them again with `SA_RESTART`.
pub fn handle_signal(flags: i32) {
    // SAFETY: the handler does nothing; zeros are an action.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        let handler: extern "C" fn(i32) = nothing;
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut());
    }
}

/// Return the calling thread, for `interrupt`.
pub fn this_thread() -> usize {
    // SAFETY: no memory is passed.
    usize::try_from(unsafe { libc::pthread_self() }).expect("as wide")
}

/// Send SIGUSR1 to a thread that has not been joined.
pub fn interrupt(thread: usize) {
    // SAFETY: the thread has not been joined.
    unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR1) };
}
