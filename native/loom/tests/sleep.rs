//! The words of a socket memory that tell which side sleeps: one thread is the client, one the node.
//!
//! The control socket is a model: bytes that show POLLIN to the client, and bytes of the client, of
//! which a full one blocks. Messages are counts.

use loom::model::Builder;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use urds_loom::WITHOUT_FENCES;
use urds_loom::sleep::{awake, must_ring, set_asleep};

/// Both directions of a control socket.
#[derive(Default)]
struct Bytes {
    shown: bool,
    rung: bool,
    filled: bool,
}

#[derive(Default)]
struct Socket {
    bytes: Mutex<Bytes>,
    changed: Condvar,
}

impl Socket {
    fn change(&self, change: impl FnOnce(&mut Bytes)) {
        change(&mut self.bytes.lock().expect("no thread panics"));
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn(&Bytes) -> bool) {
        let mut bytes = self.bytes.lock().expect("no thread panics");
        while !until(&bytes) {
            bytes = self.changed.wait(bytes).expect("no thread panics");
        }
    }
}

/// Words of the memory.
struct Memory {
    submitted: AtomicU32,
    published: AtomicU32,
    taken: AtomicU32,
    freed: AtomicU32,
    reader_asleep: AtomicU32,
    node_asleep: AtomicU32,
    sender_waits: AtomicU32,
    socket: Socket,
}

impl Memory {
    /// Never freed: loom cannot drop what is its own once it has found a deadlock.
    fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            submitted: AtomicU32::new(0),
            published: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            freed: AtomicU32::new(0),
            reader_asleep: AtomicU32::new(1),
            node_asleep: AtomicU32::new(1),
            sender_waits: AtomicU32::new(0),
            socket: Socket::default(),
        }))
    }

    fn has_unread(&self) -> bool {
        self.published.load(Ordering::Acquire) != self.taken.load(Ordering::Acquire)
    }

    // -- of the client

    /// Take one message, as `ClientSide::receive` and then `sleep` do, or wait for one.
    fn receive(&self, number: u32, forgets_late: bool) {
        while !self.has_unread() {
            self.quiet(forgets_late);
            self.socket.wait(|bytes| bytes.shown);
        }
        self.taken.store(number, Ordering::Release);
        if !self.has_unread() {
            self.quiet(forgets_late);
        }
    }

    /// Take POLLIN away; a rule to break: take the bytes after the word was set.
    fn quiet(&self, forgets_late: bool) {
        if self.has_unread() {
            return;
        }
        let forget = || self.socket.change(|bytes| bytes.shown = false);
        if !forgets_late {
            forget();
        }
        set_asleep(&self.reader_asleep);
        if forgets_late {
            forget();
        }
        if self.has_unread() && self.reader_asleep.load(Ordering::Relaxed) != 0 {
            self.socket.change(|bytes| bytes.rung = true);
        }
    }

    fn submit(&self, number: u32) {
        self.submitted.store(number, Ordering::Release);
        if must_ring(&self.node_asleep) {
            self.socket.change(|bytes| bytes.rung = true);
        }
    }

    /// Fill the control socket, then wait until it is emptied.
    fn wait_for_room(&self) {
        set_asleep(&self.sender_waits);
        self.socket.change(|bytes| bytes.filled = true);
        self.socket.wait(|bytes| !bytes.filled);
    }

    // -- of the node

    fn publish(&self, number: u32) {
        self.published.store(number, Ordering::Release);
        self.show();
    }

    fn show(&self) {
        if self.has_unread() && must_ring(&self.reader_asleep) {
            self.socket.change(|bytes| bytes.shown = true);
        }
    }

    fn has_room(&self) -> bool {
        self.submitted.load(Ordering::Acquire) == self.freed.load(Ordering::Acquire)
    }

    fn is_filled(&self) -> bool {
        self.sender_waits.load(Ordering::Acquire) != 0
    }

    /// Empty a filled control socket, if there is room.
    fn empty(&self) {
        if self.is_filled() && self.has_room() {
            self.sender_waits.store(0, Ordering::Release);
            self.socket.change(|bytes| bytes.filled = false);
        }
    }

    /// Take and free so many messages; `looks_again` is the look at a filled socket before sleep.
    fn serve(&self, count: u32, looks_again: bool) {
        loop {
            awake(&self.node_asleep);
            self.freed
                .store(self.submitted.load(Ordering::Acquire), Ordering::Release);
            self.empty();
            if self.freed.load(Ordering::Relaxed) == count {
                break;
            }
            set_asleep(&self.node_asleep);
            // One look at the word: it decides whether to empty, and whether bytes are news.
            let is_filled = looks_again && self.is_filled();
            if !self.has_room() || (is_filled && self.has_room()) {
                continue;
            }
            self.hear(is_filled);
        }
        // What fills the socket after that is heard as bytes, and room is there.
        while looks_again && !self.has_ended() {
            self.empty();
            let is_filled = self.is_filled();
            if !is_filled {
                self.hear(is_filled);
            }
        }
    }

    /// Wait for bytes; those of a filled socket are no news once the word was seen.
    fn hear(&self, is_filled: bool) {
        self.socket
            .wait(|bytes| bytes.rung || (bytes.filled && !is_filled));
        // Bytes of a sender that does not wait any more say nothing.
        let waits = self.is_filled();
        self.socket.change(|bytes| {
            bytes.rung = false;
            bytes.filled &= waits;
        });
    }

    fn has_ended(&self) -> bool {
        self.taken.load(Ordering::Acquire) == u32::MAX
    }

    fn end(&self) {
        self.taken.store(u32::MAX, Ordering::Release);
        self.socket.change(|bytes| bytes.rung = true);
    }
}

/// Take a meeting through every order with so many changes between threads that nothing forces.
fn every_order(meeting: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(meeting);
}

/// A client receives what a node publishes, and says when it has to be shown again.
fn bring(count: u32, forgets_late: bool) {
    every_order(move || {
        let memory = Memory::new();
        let client = thread::spawn(move || {
            for number in 1..=count {
                memory.receive(number, forgets_late);
            }
            memory.end();
        });
        for number in 1..=count {
            memory.publish(number);
        }
        while !memory.has_ended() {
            memory.hear(false);
            memory.show();
        }
        client.join().expect("no panic");
    });
}

/// A node takes what a client submits.
fn submit(count: u32) {
    every_order(move || {
        let memory = Memory::new();
        let client = thread::spawn(move || {
            for number in 1..=count {
                memory.submit(number);
            }
        });
        memory.serve(count, false);
        client.join().expect("no panic");
    });
}

/// A client whose account one message fills hears of room.
fn make_room(looks_again: bool) {
    every_order(move || {
        let memory = Memory::new();
        let client = thread::spawn(move || {
            memory.submit(1);
            memory.wait_for_room();
            memory.end();
        });
        memory.serve(1, looks_again);
        client.join().expect("no panic");
    });
}

#[test]
fn a_receiver_hears_of_each_message() {
    bring(2, false);
}

#[test]
fn a_node_hears_of_each_submission() {
    submit(2);
}

#[test]
fn a_sender_without_room_hears_of_it() {
    make_room(true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_receiver_without_fences_is_found() {
    WITHOUT_FENCES.set(true);
    bring(2, false);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_node_without_fences_is_found() {
    WITHOUT_FENCES.set(true);
    submit(1);
}

#[test]
#[should_panic(expected = "deadlock")]
fn bytes_that_are_taken_after_the_word_are_found() {
    bring(2, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_filled_socket_that_no_look_empties_is_found() {
    make_room(false);
}
