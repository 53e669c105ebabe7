//! The node itself: requests, and messages from one memory to another.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use urds_channel::congestion::{self, CongestionMemory};
use urds_channel::journal;
use urds_channel::socket_memory::{Arrival, Name, NodeSide, Sizes, Submission, layout};
use urds_channel::sys::doorbell::{self, Heard};
use urds_client::request::{FIELDS_AT, RECORD_BYTES};
use urds_client::sys::Owned;

use super::sys::{self, cookie_of};

/// A socket as its node has it.
struct Attached {
    cookie: u64,
    node_end: OwnedFd,
    side: NodeSide,
    memory: Owned,
    _journal: Owned,
    local: Option<Name>,
    routes: Vec<Name>,
    /// Taken, and without room at its destination.
    held: Option<Submission>,
    is_shown: bool,
    /// Delivered and not taken.
    unread_bytes: usize,
}

impl Attached {
    fn look_taken(&mut self) {
        let unread = &mut self.unread_bytes;
        let _ = self.side.look_taken(|length| *unread -= length);
    }
}

/// A node of one host.
pub struct Node {
    listener: OwnedFd,
    place: Vec<u8>,
    sizes: Sizes<'static>,
    congestion_file: Owned,
    _congestion: CongestionMemory,
    sockets: Vec<Attached>,
    by_name: HashMap<Name, usize>,
    next_port: u16,
}

/// Submissions of one socket in one pass.
const PASS: usize = 1024;

impl Node {
    pub fn new(listener: OwnedFd, place: &Path, sizes: Sizes<'static>) -> Self {
        let (file, congestion) = congestion::make(4).expect("congestion memory");
        Self {
            listener,
            place: place.as_os_str().as_encoded_bytes().to_vec(),
            sizes,
            congestion_file: Owned(file),
            _congestion: congestion,
            sockets: Vec::new(),
            by_name: HashMap::new(),
            next_port: 40_000,
        }
    }

    pub fn run(mut self, stopped: &AtomicBool) {
        while !stopped.load(Ordering::Relaxed) {
            if !self.pass() && self.all_asleep() {
                self.wait();
            }
        }
    }

    /// Carry what is there; return whether there was any.
    fn pass(&mut self) -> bool {
        let mut has_worked = false;
        for index in 0..self.sockets.len() {
            self.sockets[index].side.wake();
            self.sockets[index].look_taken();
            let mut freed = false;
            for _ in 0..PASS {
                let held = self.sockets[index].held.take();
                let next = held.or_else(|| self.sockets[index].side.take().ok().flatten());
                let Some(taken) = next else {
                    break;
                };
                if !self.deliver(index, &taken) {
                    self.sockets[index].held = Some(taken);
                    break;
                }
                self.sockets[index].side.free(taken.slot);
                freed = true;
            }
            has_worked |= freed;
            if freed || self.sockets[index].side.is_filled() {
                self.after_freeing(index);
            }
            let socket = &mut self.sockets[index];
            socket.is_shown |= socket.side.must_show_again();
        }
        for socket in &mut self.sockets {
            if std::mem::take(&mut socket.is_shown) {
                doorbell::ring(socket.node_end.as_raw_fd());
            }
        }
        has_worked
    }

    fn after_freeing(&mut self, index: usize) {
        let socket = &mut self.sockets[index];
        socket.is_shown |= socket.side.after_freeing();
        if socket.side.must_empty() {
            Self::empty(socket);
        }
    }

    fn empty(socket: &Attached) -> Heard {
        doorbell::empty(socket.node_end.as_raw_fd())
    }

    /// Put a message into its destination's memory; false without room there.
    fn deliver(&mut self, from: usize, taken: &Submission) -> bool {
        let sender = &self.sockets[from];
        let Some(to) = sender.routes.get(taken.route as usize) else {
            return true;
        };
        let name = Name {
            port: taken.port,
            ..*to
        };
        let Some(&index) = self.by_name.get(&name) else {
            return true; // no socket there: lost, as in Linux
        };
        let source = sender.local.unwrap_or_default();
        let receiver = &mut self.sockets[index];
        receiver.look_taken();
        // As the plane has it: from there on the port is congested at once.
        let is_full = receiver.unread_bytes > 4 * self.sizes.receive_default as usize;
        let place = (!is_full).then(|| receiver.side.reserve(taken.length, false));
        let Some(place) = place.flatten() else {
            let side = &receiver.side;
            side.await_taken(side.unread() / 2 + 1);
            return false;
        };
        let (sender, receiver) = (&self.sockets[from].side, &self.sockets[index].side);
        sys::copy_between(sender, taken, receiver, &place);
        let arrival = Arrival {
            source,
            extension: taken.extension,
            extension_bytes: taken.extension_bytes,
            ..Arrival::default()
        };
        let receiver = &mut self.sockets[index];
        receiver.unread_bytes += taken.length;
        receiver.side.publish(&place, &arrival);
        receiver.is_shown |= receiver.side.must_show();
        true
    }

    fn all_asleep(&mut self) -> bool {
        let mut asleep = true;
        for socket in &mut self.sockets {
            let is_idle = socket.side.sleep().unwrap_or(true);
            // What waits for another socket waits for that one's doorbell.
            asleep &= is_idle || socket.held.is_some();
        }
        asleep
    }

    fn wait(&mut self) {
        let mut polled = vec![libc::pollfd {
            fd: self.listener.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        }];
        let mut timeout_ms = 100;
        for socket in &self.sockets {
            let is_filled = socket.side.was_filled();
            timeout_ms = if is_filled { 1 } else { timeout_ms };
            polled.push(libc::pollfd {
                fd: socket.node_end.as_raw_fd(),
                events: if is_filled { 0 } else { libc::POLLIN },
                revents: 0,
            });
        }
        sys::poll(&mut polled, timeout_ms);
        for index in (0..self.sockets.len()).rev() {
            let has_event = polled[index + 1].revents != 0;
            self.hear(index, has_event);
        }
        if polled[0].revents != 0 {
            while let Some(connection) = sys::accept(&self.listener) {
                self.request(&connection);
            }
        }
    }

    fn hear(&mut self, index: usize, has_event: bool) {
        let socket = &mut self.sockets[index];
        socket.is_shown |= has_event && socket.side.must_show_again();
        let must_empty = socket.side.must_empty();
        if !must_empty && (!has_event || socket.side.is_filled()) {
            return;
        }
        if Self::empty(socket) == Heard::End && socket.side.submissions() == Ok(0) {
            self.sockets.swap_remove(index);
            self.by_name = self
                .sockets
                .iter()
                .enumerate()
                .filter_map(|(index, socket)| Some((socket.local?, index)))
                .collect();
        }
    }

    // -- requests

    fn request(&mut self, connection: &OwnedFd) {
        let mut record = [0u8; RECORD_BYTES];
        let (_, descriptors) = sys::receive(connection, &mut record);
        let operation = u16::from_le_bytes([record[6], record[7]]);
        let cookie = descriptors
            .first()
            .map_or(0, |one| cookie_of(one.as_raw_fd()));
        let index = self.sockets.iter().position(|one| one.cookie == cookie);
        let mut fields = [0u8; 24];
        fields.copy_from_slice(&record[FIELDS_AT..FIELDS_AT + 24]);
        let mut name = Name::from_bytes(&fields);
        let (status, with) = match (operation, index) {
            (1, _) => {
                let with = self.open(record[FIELDS_AT + 1] & 0x08 != 0);
                (0, Some(with))
            }
            (2, Some(index)) => (0, Some((None, index))),
            (3, Some(index)) => {
                let status = self.bind(index, &mut name);
                record[FIELDS_AT..FIELDS_AT + 24].copy_from_slice(&name.bytes());
                (status, None)
            }
            (4, Some(index)) => {
                let route = self.route(index, name);
                record[FIELDS_AT..FIELDS_AT + 4].copy_from_slice(&route.to_le_bytes());
                record[FIELDS_AT + 4..FIELDS_AT + 8].copy_from_slice(&1u32.to_le_bytes());
                (0, None)
            }
            (2..=4, None) => (libc::ENOTSOCK, None),
            _ => (libc::ENOSYS, None),
        };
        record[12..16].copy_from_slice(&status.to_le_bytes());
        let mut numbers = Vec::new();
        if let Some((user_end, index)) = &with {
            numbers.extend(user_end.as_ref().map(AsRawFd::as_raw_fd));
            numbers.push(self.sockets[*index].memory.0);
            numbers.push(self.congestion_file.0);
        }
        sys::answer(connection, &record, &numbers);
    }

    fn open(&mut self, nonblock: bool) -> (Option<OwnedFd>, usize) {
        let (user_end, node_end) = sys::control_socket(nonblock);
        let cookie = cookie_of(user_end.as_raw_fd());
        let sizes = Sizes {
            cookie,
            place: &self.place,
            ..self.sizes
        };
        let (memory, area) = layout::make(&sizes).expect("memory");
        let (journal, journal_area) = journal::make(&sizes).expect("a journal");
        self.sockets.push(Attached {
            cookie,
            node_end,
            side: NodeSide::new(area, journal_area).expect("both are new"),
            memory: Owned(memory),
            _journal: Owned(journal),
            local: None,
            routes: Vec::new(),
            held: None,
            is_shown: false,
            unread_bytes: 0,
        });
        (Some(user_end), self.sockets.len() - 1)
    }

    fn bind(&mut self, index: usize, name: &mut Name) -> i32 {
        if self.sockets[index].local.is_some() {
            return libc::EINVAL;
        }
        if name.port == 0 {
            name.port = self.next_port;
            self.next_port += 1;
        }
        if self.by_name.contains_key(name) {
            return libc::EADDRINUSE;
        }
        self.by_name.insert(*name, index);
        self.sockets[index].local = Some(*name);
        self.sockets[index].side.set_local(Some(*name));
        0
    }

    fn route(&mut self, index: usize, mut to: Name) -> u32 {
        to.port = 0;
        let socket = &mut self.sockets[index];
        let known = socket.routes.iter().position(|&one| one == to);
        let route = known.unwrap_or_else(|| {
            socket.routes.push(to);
            socket.routes.len() - 1
        });
        let route = u32::try_from(route).expect("few");
        if known.is_none() {
            socket.side.open_route(route, None);
        }
        route
    }
}
