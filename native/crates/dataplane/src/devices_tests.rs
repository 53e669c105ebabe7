use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Mutex as StdMutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use urds_path::{Address, ArrivingPayload, Limits, NO_EXTENSION, SocketAddress};

use super::*;
use crate::mailbox::MailboxSettings;
use crate::state::MailboxId;
use crate::sys::eventfd::EventFd;
use crate::waiting::WaitFor;

const LATE: Duration = Duration::from_secs(5);
const LATE_NS: u64 = 5_000_000_000;

/// A device whose peer is the test: it rings once if it was asked to.
struct Fake {
    plane: Weak<Plane>,
    mailbox: MailboxId,
    doorbell: EventFd,
    is_armed: AtomicBool,
    has_rung: AtomicBool,
    is_never_quiet: AtomicBool,
    served: AtomicUsize,
    came: StdMutex<VecDeque<u8>>,
    /// 0 for never.
    due_ns: AtomicU64,
}

impl Fake {
    fn put(&self, byte: u8) {
        self.came.lock().unwrap().push_back(byte);
        if self.is_armed.swap(false, SeqCst) {
            self.doorbell.ring();
        }
    }
}

impl Device for Fake {
    fn hear(&self) {
        self.has_rung.store(true, SeqCst);
    }

    fn serve(&self) {
        self.served.fetch_add(1, SeqCst);
        self.due_ns.store(0, SeqCst);
        let Some(plane) = self.plane.upgrade() else {
            return;
        };
        while let Some(byte) = self.came.lock().unwrap().pop_front() {
            let mut state = plane.lock();
            let Some(record) = state.mailboxes.get_mut(self.mailbox) else {
                return;
            };
            let source = SocketAddress::new(local(), 9);
            let payload = ArrivingPayload::Borrowed(std::slice::from_ref(&byte));
            record.inbox.push(source, NO_EXTENSION, payload, 0, 0);
            state.note_arrival(self.mailbox, 1);
        }
    }

    fn arm(&self) -> bool {
        if self.has_rung.swap(false, SeqCst) {
            self.doorbell.silence();
        }
        self.is_armed.store(true, SeqCst);
        let is_quiet = self.came.lock().unwrap().is_empty() && !self.is_never_quiet.load(SeqCst);
        self.is_armed.store(is_quiet, SeqCst);
        is_quiet
    }

    fn due_ns(&self) -> Option<u64> {
        let due_ns = self.due_ns.load(SeqCst);
        (due_ns > 0).then_some(due_ns)
    }
}

fn local() -> Address {
    Address::from(Ipv4Addr::LOCALHOST)
}

fn made() -> (Arc<Plane>, Arc<Fake>) {
    let plane = Plane::new(Limits::default(), None, None, None).expect("descriptors are left");
    let mailbox = plane.mailbox(local(), 5000, MailboxSettings::default());
    let fake = Arc::new(Fake {
        plane: Arc::downgrade(&plane),
        mailbox,
        doorbell: EventFd::new().expect("descriptors are left"),
        is_armed: AtomicBool::new(false),
        has_rung: AtomicBool::new(false),
        is_never_quiet: AtomicBool::new(false),
        served: AtomicUsize::new(0),
        came: StdMutex::default(),
        due_ns: AtomicU64::new(0),
    });
    (plane, fake)
}

fn add(plane: &Plane, fake: &Arc<Fake>) {
    let device: Arc<dyn Device> = fake.clone();
    plane
        .add_device(fake.doorbell.descriptor(), device)
        .expect("watches are left");
}

fn take(plane: &Plane, mailbox: MailboxId) -> Option<u8> {
    let taken = plane.wait(
        mailbox,
        WaitFor::Arrival,
        Some(LATE_NS),
        &mut || false,
        |state| {
            let record = state.mailboxes.get_mut(mailbox).expect("it is open");
            let byte = record.inbox.front().map(|front| front.payload[0]);
            record.inbox.pop();
            Ok(byte)
        },
    );
    taken.expect("it is open")
}

/// Ends the progress thread of a plane, also after a panic.
struct Over<'a>(&'a Plane, &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.1.store(true, SeqCst);
        self.0.wake();
    }
}

/// Run the progress thread of a plane until the work is done.
fn with_progress_thread(plane: &Plane, work: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    let over = Over(plane, &is_over);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                plane.help(Some(plane.now_ns() + LATE_NS));
            }
        });
        let _over = over;
        work();
    });
}

#[test]
fn a_thread_that_waits_hears_a_device_itself() {
    let (plane, fake) = made();
    add(&plane, &fake);
    thread::scope(|scope| {
        for byte in 0..200 {
            let waiting = scope.spawn(|| take(&plane, fake.mailbox));
            fake.put(byte);
            assert_eq!(waiting.join().unwrap(), Some(byte));
        }
    });
}

#[test]
fn a_device_that_comes_while_a_thread_sleeps_is_heard() {
    let (plane, fake) = made();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| take(&plane, fake.mailbox));
        thread::sleep(Duration::from_millis(20));
        add(&plane, &fake);
        thread::sleep(Duration::from_millis(20));
        fake.put(3);
        assert_eq!(waiting.join().unwrap(), Some(3));
    });
}

#[test]
fn what_comes_while_no_thread_waits_is_the_progress_threads() {
    let (plane, fake) = made();
    add(&plane, &fake);
    let arrived = || {
        let state = plane.lock();
        let record = state.mailboxes.get(fake.mailbox).expect("it is open");
        !record.inbox.is_empty()
    };
    with_progress_thread(&plane, || {
        for byte in 0..100 {
            // One that waits hears the first, and leaves the device unarmed; none waits for the other.
            thread::scope(|scope| {
                let waiting = scope.spawn(|| take(&plane, fake.mailbox));
                thread::sleep(Duration::from_millis(u64::from(byte % 4) * 4));
                fake.put(byte);
                assert_eq!(waiting.join().unwrap(), Some(byte));
            });
            fake.put(byte);
            let start = Instant::now();
            while !arrived() {
                assert!(start.elapsed() < LATE, "message {byte} is not heard");
                thread::sleep(Duration::from_micros(100));
            }
            assert_eq!(take(&plane, fake.mailbox), Some(byte));
        }
    });
}

#[test]
fn an_event_loop_that_makes_passes_hears_a_device() {
    let (plane, fake) = made();
    add(&plane, &fake);
    plane.adopt();
    plane.progress();
    for byte in 0..50 {
        fake.put(byte);
        let mut ready = epoll::NOTHING;
        let outer = epoll::Epoll::new().expect("descriptors are left");
        outer
            .add(plane.descriptor(), epoll::READABLE, 0)
            .expect("watches are left");
        assert_eq!(outer.wait(&mut ready, Some(LATE_NS)).unwrap(), 1, "{byte}");
        plane.progress();
        assert_eq!(take(&plane, fake.mailbox), Some(byte));
    }
}

#[test]
fn a_device_that_is_never_quiet_does_not_hold_a_pass() {
    let (plane, fake) = made();
    add(&plane, &fake);
    plane.adopt();
    fake.is_never_quiet.store(true, SeqCst);
    plane.progress();
    let mut ready = epoll::NOTHING;
    let outer = epoll::Epoll::new().expect("descriptors are left");
    outer
        .add(plane.descriptor(), epoll::READABLE, 0)
        .expect("watches are left");
    assert_eq!(outer.wait(&mut ready, Some(LATE_NS)).unwrap(), 1);
}

#[test]
fn what_is_due_of_a_device_is_done_by_a_thread_that_waits_and_by_the_progress_thread() {
    let (plane, fake) = made();
    add(&plane, &fake);
    let is_served = || {
        let start = Instant::now();
        while fake.due_ns.load(SeqCst) != 0 {
            assert!(start.elapsed() < LATE, "it is not served");
            thread::sleep(Duration::from_micros(100));
        }
    };
    fake.due_ns.store(plane.now_ns() + 5_000_000, SeqCst);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| take(&plane, fake.mailbox));
        is_served();
        fake.put(1);
        assert_eq!(waiting.join().unwrap(), Some(1));
    });
    with_progress_thread(&plane, || {
        thread::sleep(Duration::from_millis(20)); // it sleeps for long
        fake.due_ns.store(plane.now_ns() + 5_000_000, SeqCst);
        plane.note_due_soon();
        is_served();
    });
}

#[test]
fn a_device_that_was_removed_is_not_called() {
    let (plane, fake) = made();
    add(&plane, &fake);
    plane.progress();
    plane.remove_device(fake.doorbell.descriptor());
    let served = fake.served.load(SeqCst);
    fake.doorbell.ring();
    plane.progress();
    assert_eq!(fake.served.load(SeqCst), served);
}
