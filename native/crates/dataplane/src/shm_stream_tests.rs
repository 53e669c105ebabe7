use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU32;
use std::thread;

use urds_channel::bytes::{INLINE_BYTES, RING_BYTES_MIN};
use urds_channel::slots::{Freed, SlotMemory, Word};
use urds_channel::sys::area;
use urds_path::Address;

use super::*;
use crate::sys::sockets::{poll_for, unix_pair};

const RING_BYTES: usize = RING_BYTES_MIN;

fn make(length: usize) -> io::Result<Descriptor> {
    Ok(Descriptor::new(area::make(length).map_err(of_system)?.0))
}

fn address(last: u8, port: u16) -> SocketAddress {
    SocketAddress::new(Address::from(Ipv4Addr::new(127, 0, 0, last)), port)
}

fn pair() -> (ShmStream, ShmStream) {
    let (one, other) = unix_pair().unwrap();
    let memory = make(memory_bytes(RING_BYTES)).unwrap();
    let (here, there) = (address(1, 0), address(2, 16385));
    let dials = ShmStream::new(
        one.get(),
        memory.get(),
        RING_BYTES,
        Side::Dials,
        (here, there),
    );
    let accepts = ShmStream::new(
        other.get(),
        memory.get(),
        RING_BYTES,
        Side::Accepts,
        (there, here),
    );
    (dials.unwrap(), accepts.unwrap())
}

fn write(stream: &ShmStream, bytes: &[u8]) -> io::Result<usize> {
    stream.write(&[IoSlice::new(bytes)])
}

fn read(stream: &ShmStream) -> io::Result<Vec<u8>> {
    let (mut first, mut second) = ([0; 3], vec![0; 2 * RING_BYTES]);
    let taken = stream.read(&mut first, &mut second)?;
    let mut bytes = first[..taken.min(3)].to_vec();
    bytes.extend(&second[..taken.saturating_sub(3)]);
    Ok(bytes)
}

fn kind<T>(result: &io::Result<T>) -> Option<ErrorKind> {
    result.as_ref().err().map(io::Error::kind)
}

fn is_rung(stream: &ShmStream) -> bool {
    poll_for(stream.descriptor(), libc::POLLIN, 0) != 0
}

#[test]
fn bytes_go_both_ways() {
    let (dials, accepts) = pair();
    assert_eq!(write(&dials, b"there").unwrap(), 5);
    assert_eq!(write(&accepts, b"and back").unwrap(), 8);
    assert_eq!(read(&accepts).unwrap(), b"there");
    assert_eq!(read(&dials).unwrap(), b"and back");
    assert_eq!(kind(&read(&dials)), Some(ErrorKind::WouldBlock));
    assert_eq!(dials.addresses(), Some((address(1, 0), address(2, 16385))));
}

#[test]
fn a_sleeping_side_is_rung_once_and_a_running_one_never() {
    let (dials, accepts) = pair();
    write(&dials, b"one").unwrap();
    assert!(!is_rung(&accepts));
    assert!(!accepts.rest(), "something is here");
    read(&accepts).unwrap();
    assert!(accepts.rest());
    write(&dials, b"two").unwrap();
    write(&dials, b"three").unwrap();
    assert!(is_rung(&accepts));
    accepts.hear();
    assert!(!is_rung(&accepts));
    assert_eq!(read(&accepts).unwrap(), b"twothree");
}

#[test]
fn a_full_ring_rings_once_half_of_it_is_free() {
    let (dials, accepts) = pair();
    assert_eq!(write(&dials, &vec![1; RING_BYTES]).unwrap(), RING_BYTES);
    let more = vec![2; INLINE_BYTES + 1];
    assert_eq!(kind(&write(&dials, &more)), Some(ErrorKind::WouldBlock));
    assert!(!dials.has_room());
    assert_eq!(dials.unacknowledged().unwrap(), RING_BYTES as u64);
    let mut some = [0; 100];
    accepts.read(&mut some, &mut []).unwrap();
    assert!(!dials.has_room() && !is_rung(&dials));
    read(&accepts).unwrap();
    assert!(is_rung(&dials) && dials.has_room());
    dials.hear();
    assert_eq!(write(&dials, &more).unwrap(), more.len());
}

#[test]
fn a_reader_that_sleeps_has_told_what_it_took() {
    let (dials, accepts) = pair();
    write(&dials, b"three").unwrap();
    let mut some = [0; 3];
    accepts.read(&mut some, &mut []).unwrap();
    assert_eq!(dials.unacknowledged().unwrap(), 5);
    assert!(!accepts.rest(), "two are left");
    assert_eq!(dials.unacknowledged().unwrap(), 2);
    read(&accepts).unwrap();
    assert!(accepts.rest());
    assert_eq!(dials.unacknowledged().unwrap(), 0);
}

#[test]
fn a_long_payload_is_waited_for_up_to_half_a_ring() {
    let (dials, accepts) = pair();
    accepts.expect(10 * RING_BYTES);
    assert!(accepts.rest());
    write(&dials, &vec![1; RING_BYTES / 2 - 1]).unwrap();
    assert!(!is_rung(&accepts) && !accepts.has_come(10 * RING_BYTES));
    write(&dials, &[1]).unwrap();
    assert!(is_rung(&accepts) && accepts.has_come(10 * RING_BYTES));
}

#[test]
fn what_was_written_before_the_end_is_read_first() {
    for how in 0..3 {
        let (dials, accepts) = pair();
        assert!(accepts.rest());
        write(&dials, b"last words").unwrap();
        match how {
            0 => dials.shutdown().unwrap(),
            1 => dials.end(),
            _ => drop(dials),
        }
        assert!(is_rung(&accepts));
        accepts.hear();
        accepts.hear(); // the doorbell, and then the end
        assert_eq!(read(&accepts).unwrap(), b"last words");
        assert_eq!(read(&accepts).unwrap(), b"", "way {how}");
    }
}

#[test]
fn a_write_to_a_side_that_is_gone_fails() {
    let (dials, accepts) = pair();
    drop(accepts);
    dials.hear();
    assert_eq!(kind(&write(&dials, b"?")), Some(ErrorKind::BrokenPipe));
}

#[test]
fn half_an_end_leaves_the_other_direction() {
    let (dials, accepts) = pair();
    dials.shutdown().unwrap();
    accepts.hear();
    assert_eq!(read(&accepts).unwrap(), b"");
    write(&accepts, b"still").unwrap();
    assert_eq!(read(&dials).unwrap(), b"still");
}

#[test]
fn a_wrong_count_or_length_ends_the_stream() {
    let (dials, accepts) = pair();
    write(&dials, b"x").unwrap();
    let stamp = accepts.inward_way();
    stamp.stamp(0).store(1 << 32 | 1 << 20, Ordering::Relaxed);
    assert!(accepts.has_news(), "an error to find");
    assert_eq!(
        read(&accepts).unwrap_err().raw_os_error(),
        Some(libc::EPROTO)
    );
    assert!(accepts.has_protocol_error());
    dials.hear();
    assert!(write(&dials, b"x").is_err());
    let (dials, accepts) = pair();
    let freed = accepts.inward_way();
    freed.freed(Freed::Bytes).store(5, Ordering::Relaxed);
    assert!(dials.unacknowledged().is_err() && dials.has_protocol_error());
    assert!(dials.has_room() && dials.waiting() == 0);
}

#[test]
fn memory_is_taken_only_if_it_cannot_shrink() {
    let (one, _other) = unix_pair().unwrap();
    let ends = (address(1, 0), address(2, 0));
    let open = |memory: i32, ring_bytes| {
        ShmStream::new(one.get(), memory, ring_bytes, Side::Dials, ends).map(drop)
    };
    let sealed = make(memory_bytes(RING_BYTES)).unwrap();
    assert!(open(sealed.get(), RING_BYTES).is_ok());
    assert_eq!(
        kind(&open(sealed.get(), 2 * RING_BYTES)),
        Some(ErrorKind::InvalidInput)
    );
    assert_eq!(
        kind(&open(sealed.get(), RING_BYTES + 1)),
        Some(ErrorKind::InvalidInput)
    );
    assert!(open(one.get(), RING_BYTES).is_err());
    assert!(open(-1, RING_BYTES).is_err());
}

#[test]
fn an_idle_ring_gives_its_memory_back_and_goes_on() {
    let (dials, accepts) = pair();
    write(&dials, &vec![9; RING_BYTES]).unwrap();
    for _ in 0..3 {
        dials.rest_memory(); // no effect: it is not read yet
    }
    assert_eq!(read(&accepts).unwrap(), vec![9; RING_BYTES]);
    assert!(accepts.rest());
    dials.rest_memory();
    let mut bytes = [0; 1];
    let way = accepts.inward_way();
    way.copy_out(0, &mut bytes);
    assert_eq!(bytes, [0]);
    assert_eq!(way.stamp(0).load(Ordering::Relaxed), 0);
    write(&dials, b"again").unwrap();
    assert_eq!(read(&accepts).unwrap(), b"again");
}

/// Return whether the page of the words is in the process's memory; Source: proc(5), pagemap.
fn keeps_words(stream: &ShmStream) -> bool {
    let word = std::ptr::from_ref(stream.memory.direction(0).word(Word::Ended));
    let page = word.addr() / 4096;
    let mut entry = [0; 8];
    let map = std::fs::File::open("/proc/self/pagemap").unwrap();
    map.read_exact_at(&mut entry, page as u64 * 8).unwrap();
    u64::from_ne_bytes(entry) >> 63 != 0
}

#[test]
fn an_idle_stream_gives_memory_back_and_keeps_its_words() {
    let (dials, accepts) = pair();
    write(&dials, b"once").unwrap();
    assert_eq!(read(&accepts).unwrap(), b"once");
    assert!(accepts.rest());
    dials.rest_memory();
    assert!(keeps_words(&dials));
    for _ in 0..3 {
        dials.rest_memory(); // the later ones change nothing
    }
    assert!(!keeps_words(&dials));
    assert!(keeps_words(&accepts));
    write(&dials, b"again").unwrap();
    assert_eq!(read(&accepts).unwrap(), b"again");
    assert!(keeps_words(&dials));
}

/// Two threads that sleep in `poll` whenever they can, as two planes do.
#[test]
fn a_stream_of_bytes_comes_whole() {
    const BYTES: u32 = 3_000_000;
    let (dials, accepts) = pair();
    let sleeps = AtomicU32::new(0);
    let wait = |stream: &ShmStream| {
        sleeps.fetch_add(1, Ordering::Relaxed);
        let told = poll_for(stream.descriptor(), libc::POLLIN, 20_000);
        assert!(told != 0, "a wake-up was lost");
        stream.hear();
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            while at < BYTES {
                let end = BYTES.min(at + 40_000);
                let bytes: Vec<u8> = (at..end).map(|at| at.to_le_bytes()[0]).collect();
                match write(&dials, &bytes) {
                    Ok(taken) => at += u32::try_from(taken).unwrap(),
                    Err(_) => wait(&dials),
                }
            }
            dials.shutdown().unwrap();
        });
        let mut at = 0u32;
        loop {
            match read(&accepts) {
                Ok(bytes) if bytes.is_empty() => break,
                Ok(bytes) => {
                    for byte in bytes {
                        assert_eq!(byte, at.to_le_bytes()[0]);
                        at += 1;
                    }
                }
                Err(_) => {
                    if accepts.rest() {
                        wait(&accepts);
                    }
                }
            }
        }
        assert_eq!(at, BYTES);
    });
    assert!(sleeps.load(Ordering::Relaxed) > 0);
}
