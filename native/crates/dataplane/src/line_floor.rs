//! What no round trip between two processors can be faster than: a cache line there and back.
//!
//! Two threads, each bound to a processor, write one word in turn. The rate of the best window counts:
//! others are of moments in which the machine did something else.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

/// Round trips of one window: 0.1 to 0.5 ms.
const WINDOW: u64 = 1000;
/// Windows that are looked at; the time limit may end them earlier, but not before the first.
const WINDOWS_MAX: u64 = 100;
/// Looks at the word between two looks at the clock, which costs as much as a line.
const LOOKS: u32 = 4096;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// Of one round trip.
    pub nanoseconds: f64,
    pub round_trips: u64,
    /// Where both threads ran at the end.
    pub processors: (usize, usize),
}

/// Why there is no figure.
#[derive(Debug)]
pub enum NoFloor {
    /// Both are one: a line stays where it is.
    OneProcessor(usize),
    /// It is not there, or this process may not run on it.
    Refused(usize, io::Error),
    /// One of both did not run, or not for long enough.
    Busy,
}

impl fmt::Display for NoFloor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OneProcessor(number) => write!(
                formatter,
                "processors {number} and {number}: a cache line goes between two"
            ),
            Self::Refused(number, reason) => write!(formatter, "processor {number}: {reason}"),
            Self::Busy => formatter.write_str("the processors were busy with other threads"),
        }
    }
}

impl Error for NoFloor {}

/// The word, alone on its line and on the one that is fetched with it.
#[repr(align(128))]
struct Line {
    word: AtomicU64,
    is_over: AtomicBool,
}

/// Measure the time of a cache line there and back between two processors, for at most `limit`.
///
/// # Errors
/// `NoFloor`.
pub fn measure(first: usize, second: usize, limit: Duration) -> Result<Floor, NoFloor> {
    if first == second {
        return Err(NoFloor::OneProcessor(first));
    }
    let line = Line {
        word: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    };
    let deadline = Instant::now() + limit;
    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            let place = bind(second);
            let answered = place.and_then(|()| answer(&line, deadline));
            line.is_over.store(true, Ordering::Relaxed);
            answered
        });
        let asking = scope.spawn(|| {
            let asked = bind(first).and_then(|()| ask(&line, deadline));
            line.is_over.store(true, Ordering::Relaxed);
            asked
        });
        let asked = asking.join().unwrap_or(Err(NoFloor::Busy));
        let answered = answering.join().unwrap_or(Err(NoFloor::Busy));
        // Who was refused says so; the other one found no partner.
        match (asked, answered) {
            (Ok(floor), Ok(place)) => Ok(Floor {
                processors: (floor.processors.0, place),
                ..floor
            }),
            (Err(NoFloor::Busy) | Ok(_), Err(reason)) | (Err(reason), _) => Err(reason),
        }
    })
}

/// Bind this thread to a processor.
fn bind(processor: usize) -> Result<(), NoFloor> {
    if processor >= CpuSet::MAX_CPU {
        let reason = io::Error::from(rustix::io::Errno::INVAL);
        return Err(NoFloor::Refused(processor, reason));
    }
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).map_err(|reason| NoFloor::Refused(processor, reason.into()))
}

/// Write odd numbers, await even ones; return the best window's.
fn ask(line: &Line, deadline: Instant) -> Result<Floor, NoFloor> {
    let mut best = Duration::MAX;
    let mut done = 0;
    await_word(line, 1, deadline)?; // the other side is bound and runs
    line.word.store(2, Ordering::Release);
    for _ in 0..WINDOWS_MAX {
        let began = Instant::now();
        if done > 0 && began >= deadline {
            break;
        }
        for _ in 0..WINDOW {
            let next = 2 * done + 3;
            if await_word(line, next, deadline).is_err() {
                return floor_of(best, done - done % WINDOW);
            }
            line.word.store(next + 1, Ordering::Release);
            done += 1;
        }
        best = best.min(began.elapsed());
    }
    floor_of(best, done)
}

#[allow(clippy::cast_precision_loss)] // a window is far below 2^52 ns
fn floor_of(best: Duration, round_trips: u64) -> Result<Floor, NoFloor> {
    if round_trips < WINDOW {
        return Err(NoFloor::Busy);
    }
    Ok(Floor {
        nanoseconds: best.as_nanos() as f64 / WINDOW as f64,
        round_trips,
        processors: (sched_getcpu(), 0),
    })
}

/// Begin, then answer each number with the next one until the other side ends; return where this is.
fn answer(line: &Line, deadline: Instant) -> Result<usize, NoFloor> {
    let mut next = 1;
    loop {
        line.word.store(next, Ordering::Release);
        if await_word(line, next + 1, deadline).is_err() {
            return if next > 1 {
                Ok(sched_getcpu())
            } else {
                Err(NoFloor::Busy)
            };
        }
        next += 2;
    }
}

/// Look at the word until it has a value. No pause: the floor is that of a thread which looks as fast as it can.
#[inline]
fn await_word(line: &Line, value: u64, deadline: Instant) -> Result<(), NoFloor> {
    loop {
        for _ in 0..LOOKS {
            if line.word.load(Ordering::Acquire) == value {
                return Ok(());
            }
        }
        if line.is_over.load(Ordering::Relaxed) || Instant::now() >= deadline {
            return Err(NoFloor::Busy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// Two processors that this thread may use, if there are two.
    fn two() -> Option<(usize, usize)> {
        let usable = rustix::thread::sched_getaffinity(None).expect("a thread may ask");
        let mut numbers = (0..CpuSet::MAX_CPU).filter(|number| usable.is_set(*number));
        numbers.next().zip(numbers.next())
    }

    #[test]
    fn both_threads_run_where_they_were_sent() {
        let Some((low, high)) = two() else { return };
        for (first, second) in [(low, high), (high, low)] {
            let floor = measure(first, second, LIMIT).expect("nothing refuses");
            assert_eq!(floor.processors, (first, second));
            assert!(floor.round_trips >= WINDOW);
            assert!(floor.nanoseconds.is_finite() && floor.nanoseconds > 0.0);
        }
    }

    #[test]
    fn the_word_goes_there_and_back_in_each_round_trip() {
        let line = Line {
            word: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        };
        let deadline = Instant::now() + LIMIT;
        let floor = thread::scope(|scope| {
            scope.spawn(|| answer(&line, deadline));
            let floor = ask(&line, deadline);
            line.is_over.store(true, Ordering::Relaxed);
            floor.expect("both run")
        });
        // One write of each side for each, after one of each to begin. A busy machine reaches the limit
        // within a window, which does not count.
        let round_trips = line.word.load(Ordering::Relaxed) / 2 - 1;
        assert_eq!(floor.round_trips, round_trips - round_trips % WINDOW);
    }

    #[test]
    fn one_processor_has_no_floor() {
        let refused = measure(0, 0, LIMIT).expect_err("it is one");
        assert_eq!(
            refused.to_string(),
            "processors 0 and 0: a cache line goes between two"
        );
    }

    #[test]
    fn a_processor_that_is_not_there_is_named() {
        let own = two().map_or(0, |(low, _)| low);
        for absent in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            for (first, second) in [(own, absent), (absent, own)] {
                let refused = measure(first, second, LIMIT).expect_err("it is not there");
                let named = format!("processor {absent}: ");
                assert!(refused.to_string().starts_with(&named), "{refused}");
            }
        }
    }

    #[test]
    fn a_side_that_never_answers_ends_it() {
        let line = Line {
            word: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        };
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(matches!(ask(&line, soon), Err(NoFloor::Busy)));
        assert!(matches!(answer(&line, soon), Err(NoFloor::Busy)));
    }
}
