//! Which descriptors are sockets of ours: a cache, never a registry. The kernel is asked.
//!
//! An entry says "not asked", "not ours", or which slot has the socket. It is forgotten by the calls
//! that give a number away (close, dup2, ...). What goes past those - raw system calls, the closing of
//! a child of vfork, dup and `SCM_RIGHTS` - is found out because an entry is believed for one tick of
//! a coarse clock, 4.2 ms: then the kernel is asked again, for one of ours by its cookie.
//!
//! Slots are counted: a close in one thread does not take the memory from under a call of another.
//! The memory of slots is never returned, so counting a slot that has just been freed does no harm.
//! There is no lock, for a fork may happen at any moment and a signal handler may make any call.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use urds_client::Socket;

use crate::sys::{clock, memory, originals, sockets};
use crate::{Answer, place};

const PAGE_ENTRIES: usize = 1024;
const PAGES: usize = 1024; // beyond a million descriptors nothing is remembered
const SLAB_SLOTS: usize = 64;
const SLABS: usize = 16384;
const SLOT_BITS: u32 = 20;
const TICK_BITS: u32 = 20;
const STATE_BITS: u32 = 2;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const TICK_MASK: u64 = (1 << TICK_BITS) - 1;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const TRIES_MAX: usize = 64; // an entry that others change all the time

/// What an entry says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Unknown,
    NotOurs,
    Ours(u32),
}

/// The word of an entry: slot, tick, state, and how often it was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word(u64);

impl Word {
    fn said(self) -> Said {
        match self.0 >> (SLOT_BITS + TICK_BITS) & STATE_MASK {
            1 => Said::NotOurs,
            2 => Said::Ours(u32::try_from(self.0 & SLOT_MASK).unwrap_or(0)),
            _ => Said::Unknown,
        }
    }

    fn is_of(self, tick: u64) -> bool {
        self.0 >> SLOT_BITS & TICK_MASK == tick & TICK_MASK
    }

    /// Return the word that says this in the place of `self`.
    fn saying(self, said: Said, tick: u64) -> Self {
        let (state, slot) = match said {
            Said::Unknown => (0, 0),
            Said::NotOurs => (1, 0),
            Said::Ours(slot) => (2, u64::from(slot)),
        };
        let times = self.0 >> (SLOT_BITS + TICK_BITS + STATE_BITS);
        Self(
            times << (SLOT_BITS + TICK_BITS + STATE_BITS)
                | state << (SLOT_BITS + TICK_BITS)
                | (tick & TICK_MASK) << SLOT_BITS
                | slot,
        )
    }

    /// Return the word of an entry that was forgotten once more.
    fn forgotten(self) -> Self {
        let times = (self.0 >> (SLOT_BITS + TICK_BITS + STATE_BITS)).wrapping_add(1);
        Self(times << (SLOT_BITS + TICK_BITS + STATE_BITS))
    }
}

struct Page([AtomicU64; PAGE_ENTRIES]);

static TABLE: [AtomicPtr<Page>; PAGES] = [const { AtomicPtr::new(core::ptr::null_mut()) }; PAGES];

/// A place for a socket, counted.
struct Slot {
    users: AtomicU32, // 0: free
    next: AtomicU32,  // in the list of free slots
    socket: UnsafeCell<MaybeUninit<Socket>>,
}

struct Slab([Slot; SLAB_SLOTS]);

static SLABS_MADE: [AtomicPtr<Slab>; SLABS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SLABS];
/// How many slots were ever handed out.
static SLOTS_USED: AtomicU32 = AtomicU32::new(0);
/// The first free slot + 1 in the lower half, how often it changed in the upper one.
static FREE: AtomicU64 = AtomicU64::new(0);

/// A socket of ours for the time of a call.
#[derive(Debug)]
pub struct Held {
    slot: u32,
}

impl Held {
    /// Return the socket.
    pub fn socket(&self) -> &Socket {
        // SAFETY: a counted slot has its socket, which no thread changes before the count is 0.
        unsafe {
            let slot = slot_at(self.slot).unwrap_unchecked();
            (*slot.socket.get()).assume_init_ref()
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        release(self.slot);
    }
}

/// Return the socket behind a descriptor; None if it is not ours, or no descriptor.
///
/// # Errors
/// What the node answered about one that has our name: EIO without a node.
pub fn look_up(fd: i32) -> Answer<Option<Held>> {
    let Some(entry) = entry_of(fd) else {
        return Ok(ask(fd)?.map(|slot| Held { slot }));
    };
    for _ in 0..TRIES_MAX {
        let word = Word(entry.load(Ordering::Acquire));
        let tick = clock::ticks();
        match word.said() {
            Said::NotOurs if word.is_of(tick) => return Ok(None),
            Said::Ours(slot) => {
                let Some(held) = hold(slot) else { continue };
                if entry.load(Ordering::Acquire) != word.0 {
                    continue;
                }
                if word.is_of(tick) {
                    return Ok(Some(held));
                }
                if sockets::cookie(fd) == Ok(held.socket().cookie()) {
                    let seen = word.saying(Said::Ours(slot), tick);
                    let _ = change(entry, word, seen);
                    return Ok(Some(held));
                }
                if change(entry, word, word.forgotten()) {
                    release(slot);
                }
            }
            _ => match ask(fd)? {
                None => {
                    let _ = change(entry, word, word.saying(Said::NotOurs, tick));
                    return Ok(None);
                }
                Some(slot) => {
                    let held = Held { slot };
                    count(slot); // for the entry, before another thread can see and forget it
                    if change(entry, word, word.saying(Said::Ours(slot), tick)) {
                        return Ok(Some(held));
                    }
                    release(slot);
                }
            },
        }
    }
    Ok(ask(fd)?.map(|slot| Held { slot }))
}

/// Tell quickly whether a descriptor may be ours: false is certain for this tick of the clock.
#[inline]
pub fn may_be_ours(fd: i32) -> bool {
    let Some(entry) = known_entry(fd) else {
        return true;
    };
    let word = Word(entry.load(Ordering::Acquire));
    !(word.said() == Said::NotOurs && word.is_of(clock::ticks()))
}

/// Remember a new socket of ours.
///
/// # Errors
/// ENOMEM.
pub fn add(fd: i32, socket: Socket) -> Answer {
    let slot = place_socket(socket).ok_or(libc::ENOMEM)?;
    let Some(entry) = entry_of(fd) else {
        release(slot);
        return Ok(0);
    };
    let mut word = Word(entry.load(Ordering::Acquire));
    loop {
        let old = word.said();
        if change(
            entry,
            word,
            word.forgotten().saying(Said::Ours(slot), clock::ticks()),
        ) {
            if let Said::Ours(old) = old {
                release(old);
            }
            return Ok(0);
        }
        word = Word(entry.load(Ordering::Acquire));
    }
}

/// Forget what is known of a number: it is about to be given away, or just was.
pub fn forget(fd: i32) {
    if let Some(entry) = known_entry(fd) {
        clear(entry);
    }
}

/// Forget the numbers from `first` to `last`, both included.
pub fn forget_range(first: u32, last: u32) {
    for (number, page) in TABLE.iter().enumerate() {
        // SAFETY: a page that was stored stays.
        let Some(page) = (unsafe { page.load(Ordering::Acquire).as_ref() }) else {
            continue;
        };
        for (within, entry) in page.0.iter().enumerate() {
            let fd = u32::try_from(number * PAGE_ENTRIES + within).unwrap_or(u32::MAX);
            if (first..=last).contains(&fd) {
                clear(entry);
            }
        }
    }
}

fn clear(entry: &AtomicU64) {
    let mut word = Word(entry.load(Ordering::Acquire));
    // An answer that is under way would be stored over an entry that says nothing, so it counts too.
    while !change(entry, word, word.forgotten()) {
        word = Word(entry.load(Ordering::Acquire));
    }
    if let Said::Ours(slot) = word.said() {
        release(slot);
    }
}

fn change(entry: &AtomicU64, from: Word, to: Word) -> bool {
    entry
        .compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed)
        .is_ok()
}

/// Ask the kernel, then the node, whose a descriptor is. The slot is counted for the caller.
#[cold]
fn ask(fd: i32) -> Answer<Option<u32>> {
    let mut room = [0; sockets::NAME_BYTES];
    let Ok(name) = sockets::abstract_name(fd, &mut room) else {
        return Ok(None);
    };
    let Some(namespace) = place::namespace_of(name) else {
        return Ok(None);
    };
    let Ok(cookie) = sockets::cookie(fd) else {
        return Ok(None);
    };
    if let Some(slot) = known_by(cookie) {
        return Ok(Some(slot));
    }
    match place::find(namespace, fd) {
        Ok(socket) => place_socket(socket).map(Some).ok_or(libc::ENOMEM),
        Err(libc::ENOTSOCK | libc::EBADF) => Ok(None), // another program gave it such a name
        Err(errno) => Err(place::after_node(errno)),
    }
}

// -- slots

/// Return the slot of a socket that this process has already, counted.
fn known_by(cookie: u64) -> Option<u32> {
    (0..SLOTS_USED.load(Ordering::Acquire)).find(|&number| {
        hold(number).is_some_and(|held| {
            let is_it = held.socket().cookie() == cookie;
            if is_it {
                count(number);
            }
            is_it
        })
    })
}

fn slot_at(number: u32) -> Option<&'static Slot> {
    let slab = SLABS_MADE
        .get(number as usize / SLAB_SLOTS)?
        .load(Ordering::Acquire);
    // SAFETY: a slab that was stored stays.
    Some(&unsafe { slab.as_ref() }?.0[number as usize % SLAB_SLOTS])
}

/// Count a slot that is in use, for the time of a call.
fn hold(number: u32) -> Option<Held> {
    let slot = slot_at(number)?;
    let mut users = slot.users.load(Ordering::Acquire);
    while users != 0 {
        match slot.users.compare_exchange_weak(
            users,
            users + 1,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => return Some(Held { slot: number }),
            Err(now) => users = now,
        }
    }
    None
}

/// Count a slot once more, which the caller holds.
fn count(number: u32) {
    if let Some(slot) = slot_at(number) {
        slot.users.fetch_add(1, Ordering::AcqRel);
    }
}

fn release(number: u32) {
    let Some(slot) = slot_at(number) else { return };
    if slot.users.fetch_sub(1, Ordering::AcqRel) != 1 {
        return;
    }
    // SAFETY: the count went to 0 here, and from 0 no thread counts up before it is handed out again.
    unsafe { (*slot.socket.get()).assume_init_drop() };
    let mut free = FREE.load(Ordering::Acquire);
    loop {
        slot.next.store(
            u32::try_from(free & u64::from(u32::MAX)).unwrap_or(0),
            Ordering::Release,
        );
        let next = (free >> 32).wrapping_add(1) << 32 | u64::from(number + 1);
        match FREE.compare_exchange_weak(free, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(now) => free = now,
        }
    }
}

/// Put a socket into a free slot, which is counted once.
fn place_socket(socket: Socket) -> Option<u32> {
    originals::serve_waits();
    let number = freed().or_else(fresh)?;
    let slot = slot_at(number)?;
    // SAFETY: a slot outside the list whose count is 0 belongs to who took it.
    unsafe { (*slot.socket.get()).write(socket) };
    slot.users.store(1, Ordering::Release);
    Some(number)
}

fn freed() -> Option<u32> {
    let mut free = FREE.load(Ordering::Acquire);
    loop {
        let number = u32::try_from(free & u64::from(u32::MAX))
            .unwrap_or(0)
            .checked_sub(1)?;
        let after = slot_at(number)?.next.load(Ordering::Acquire);
        let next = (free >> 32).wrapping_add(1) << 32 | u64::from(after);
        match FREE.compare_exchange_weak(free, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(number),
            Err(now) => free = now,
        }
    }
}

fn fresh() -> Option<u32> {
    let number = SLOTS_USED.fetch_add(1, Ordering::AcqRel);
    let slab = SLABS_MADE.get(number as usize / SLAB_SLOTS)?;
    // SAFETY: zeros are a slab of free slots, and nothing else stores there.
    unsafe { memory::once(slab) }?;
    Some(number)
}

// -- entries

fn entry_of(fd: i32) -> Option<&'static AtomicU64> {
    let fd = usize::try_from(fd).ok()?;
    let place = TABLE.get(fd / PAGE_ENTRIES)?;
    // SAFETY: zeros are a page of entries that say nothing, and nothing else stores there.
    let page = unsafe { memory::once(place) }?;
    // SAFETY: a page that was stored stays.
    Some(&unsafe { page.as_ref() }.0[fd % PAGE_ENTRIES])
}

/// As `entry_of`, without making its page.
fn known_entry(fd: i32) -> Option<&'static AtomicU64> {
    let fd = usize::try_from(fd).ok()?;
    let page = TABLE.get(fd / PAGE_ENTRIES)?.load(Ordering::Acquire);
    // SAFETY: a page that was stored stays.
    Some(&unsafe { page.as_ref() }?.0[fd % PAGE_ENTRIES])
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
