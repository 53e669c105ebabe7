//! The cache against the kernel: every way in which a number changes hands.

use std::sync::OnceLock;

use super::*;
use crate::calls::names::{AF_RDS, socket};
use crate::calls::numbers;

#[path = "../../client/tests/support/mod.rs"]
mod support;

/// Return a socket of a node that all tests share.
fn ours() -> i32 {
    static NODE: OnceLock<support::Running> = OnceLock::new();
    NODE.get_or_init(|| {
        let running = support::start("table", support::small());
        // SAFETY: before any other thread of this process asks for the variable.
        unsafe { std::env::set_var("URDS_NODE", &running.path) };
        running
    });
    let fd = socket(AF_RDS, libc::SOCK_SEQPACKET, 0);
    assert!(fd >= 0);
    fd
}

fn is_ours(fd: i32) -> bool {
    look_up(fd).expect("the kernel answers").is_some()
}

/// A raw system call, which no hook sees.
fn raw(number: libc::c_long, first: i32, second: i32, third: i32) -> i32 {
    // SAFETY: integers, or a null pointer where a call takes one.
    i32::try_from(unsafe { libc::syscall(number, first, second, third) }).unwrap_or(-1)
}

fn other() -> i32 {
    raw(libc::SYS_eventfd2, 0, libc::EFD_NONBLOCK, 0)
}

/// Wait until what is known is old.
fn next_tick() {
    let tick = clock::ticks();
    while clock::ticks() == tick {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_copy_of_a_descriptor_is_the_same_socket() {
    let fd = ours();
    let copy = raw(libc::SYS_fcntl, fd, libc::F_DUPFD, 300);
    let first = look_up(fd).unwrap().unwrap();
    let second = look_up(copy).unwrap().unwrap();
    assert!(std::ptr::eq(first.socket(), second.socket()));
    drop((first, second));
    numbers::close(fd);
    assert!(!is_ours(fd));
    assert!(is_ours(copy));
    numbers::close(copy);
}

#[test]
fn a_number_that_went_past_libc_is_found_out_within_a_tick() {
    let fd = ours();
    let eventfd = other();
    assert!(is_ours(fd) && !is_ours(eventfd));
    raw(libc::SYS_dup3, eventfd, fd, 0);
    next_tick();
    assert!(!is_ours(fd));
    let again = ours();
    raw(libc::SYS_dup3, again, eventfd, 0);
    next_tick();
    assert!(is_ours(eventfd));
    for one in [fd, eventfd, again] {
        numbers::close(one);
    }
}

#[test]
fn numbers_that_libc_gives_away_are_forgotten_at_once() {
    let (fd, eventfd) = (ours(), other());
    assert!(!is_ours(eventfd));
    assert_eq!(numbers::dup2(fd, eventfd), eventfd);
    assert!(is_ours(eventfd));
    let spare = other();
    assert_eq!(numbers::dup3(spare, fd, 0), fd);
    assert!(!is_ours(fd));
    let high = raw(libc::SYS_fcntl, eventfd, libc::F_DUPFD, 400);
    assert!(is_ours(high));
    assert_eq!(
        numbers::close_range(high.cast_unsigned(), high.cast_unsigned(), 0),
        0
    );
    assert!(!is_ours(high));
    for one in [fd, eventfd, spare] {
        numbers::close(one);
    }
}

#[test]
fn what_is_no_descriptor_is_not_ours_and_not_remembered() {
    assert!(!is_ours(-1));
    assert!(!is_ours(1 << 29));
    let fd = ours();
    numbers::close(fd);
    assert!(!is_ours(fd));
}

#[test]
fn a_socket_of_another_with_such_a_name_is_not_ours_before_the_node_says_so() {
    let mut room = [0u8; sockets::NAME_BYTES];
    let fd = other();
    assert_eq!(sockets::abstract_name(fd, &mut room), Err(libc::ENOTSOCK));
    numbers::close(fd);
}

#[test]
fn threads_that_close_and_use_one_number_do_not_disturb_each_other() {
    const ROUNDS: usize = 2000;
    let fd = ours();
    let number = raw(libc::SYS_fcntl, fd, libc::F_DUPFD, 450);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    if let Some(held) = look_up(number).unwrap() {
                        assert_eq!(held.socket().cookie(), sockets::cookie(fd).unwrap());
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                numbers::close(number);
                numbers::dup2(fd, number);
            }
        });
    });
    assert!(is_ours(number));
    numbers::close(number);
    numbers::close(fd);
}

#[test]
fn slots_are_used_again() {
    let before = SLOTS_USED.load(Ordering::Relaxed);
    for _ in 0..500 {
        numbers::close(ours());
    }
    // Other tests of this process take some at the same time.
    assert!(SLOTS_USED.load(Ordering::Relaxed) - before < 100);
}

#[test]
fn a_word_keeps_what_it_says() {
    let word = Word(0);
    for said in [
        Said::Unknown,
        Said::NotOurs,
        Said::Ours(0),
        Said::Ours(1_048_575),
    ] {
        let saying = word.saying(said, 77);
        assert_eq!(saying.said(), said);
        assert!(saying.is_of(77) && !saying.is_of(78));
        assert_eq!(saying.forgotten().said(), Said::Unknown);
        assert_ne!(saying.forgotten().0, word.0);
    }
}
