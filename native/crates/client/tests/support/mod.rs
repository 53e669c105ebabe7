//! A node that does nothing but carry messages between the sockets of one host, for tests.

#![allow(dead_code, clippy::missing_panics_doc)] // each test uses its part, and panics to fail

pub mod node;
pub mod sys;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use urds_channel::socket_memory::{Name, Outgoing, Sizes};
use urds_client::socket::TRANSPORT_NONE;
use urds_client::sys::parts::{Readable, Writable};
use urds_client::{Flags, Message, Socket};

/// A node that runs in a thread until it is dropped.
pub struct Running {
    pub path: PathBuf,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

pub fn small() -> Sizes<'static> {
    Sizes {
        submissions: 1024,
        send_bytes: 8 << 20,
        receive_bytes: 8 << 20,
        send_default: 106_496,
        receive_default: 106_496,
        ..Sizes::default()
    }
}

/// Start a node of its own for one test.
pub fn start(name: &str, sizes: Sizes<'static>) -> Running {
    let folder = std::env::temp_dir();
    let path = folder.join(format!("urds-test-{}-{name}.sock", std::process::id()));
    let listener = sys::listen(&path);
    let stopped = Arc::new(AtomicBool::new(false));
    let (stop, place) = (Arc::clone(&stopped), path.clone());
    let thread = thread::spawn(move || node::Node::new(listener, &place, sizes).run(&stop));
    Running {
        path,
        stopped,
        thread: Some(thread),
    }
}

impl Running {
    pub fn place(&self) -> &[u8] {
        self.path.as_os_str().as_encoded_bytes()
    }

    /// Make a socket, bound to a port of one address.
    pub fn bound(&self, port: u16) -> End {
        let (descriptor, socket) = Socket::open(self.place(), 0).expect("a socket");
        let name = Name::v4([127, 0, 0, 1], port);
        socket
            .bind(descriptor, b"", &name, TRANSPORT_NONE)
            .expect("a free port");
        End { descriptor, socket }
    }
}

/// A socket with one descriptor.
pub struct End {
    pub descriptor: i32,
    pub socket: Socket,
}

impl Drop for End {
    fn drop(&mut self) {
        urds_channel::sys::raw::close(self.descriptor);
    }
}

pub fn to(port: u16) -> Outgoing {
    Outgoing {
        to: Name::v4([127, 0, 0, 1], port),
        ..Outgoing::default()
    }
}

impl End {
    pub fn send(&self, port: u16, payload: &[u8], dontwait: bool) -> Result<usize, i32> {
        let parts = [sys::part(payload)];
        let parts: Readable<'_> = sys::readable(&parts);
        self.socket
            .send(self.descriptor, b"", &to(port), parts, dontwait)
    }

    pub fn receive_into(&self, room: &mut [u8], flags: Flags) -> Result<Message, i32> {
        let parts = [sys::part_mut(room)];
        let parts: Writable<'_> = sys::writable(&parts);
        self.socket.receive(self.descriptor, parts, flags)
    }

    pub fn receive(&self, flags: Flags) -> Result<Vec<u8>, i32> {
        let mut room = vec![0; 1 << 20];
        let message = self.receive_into(&mut room, flags)?;
        room.truncate(message.bytes);
        Ok(room)
    }
}

pub const NOW: Flags = Flags {
    dontwait: true,
    peek: false,
    polls: false,
};
pub const WAIT: Flags = Flags {
    dontwait: false,
    peek: false,
    polls: false,
};
