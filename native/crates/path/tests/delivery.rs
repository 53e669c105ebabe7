//! Two paths over a stream that breaks anywhere: each message once, in order, none forgotten.
//!
//! A scenario is one seed; a failure prints it, and `scenario(SEED, ...)` runs it again.

mod common;

use common::link::{ALL, Broken, Kind, Link};

const SEEDS: u64 = 500; // of each kind
const STEPS: u64 = 80;
const SIZES: [usize; 8] = [0, 1, 40, 300, 8180, 8192, 9000, 40_000];
const BYTES: [usize; 9] = [1, 30, 48, 60, 500, 8240, 9000, 70_000, 1 << 20];

/// A random number generator with a seed (xorshift64*, Vigna 2016).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound
    }

    fn of(&mut self, values: &[usize]) -> usize {
        let index = self.below(values.len() as u64);
        usize::try_from(index).map_or(0, |index| values[index])
    }
}

/// Optional events apart from sending, writing, reading and cuts.
#[derive(Clone, Copy, Default)]
struct Events {
    restarts: bool,
    cancels: bool,
}

fn step(link: &mut Link, random: &mut Random, events: Events) -> Result<(), String> {
    let index = usize::from(random.below(3) == 0);
    match random.below(32) {
        0..8 => link.send(index, random.of(&SIZES)),
        8..14 => link.write(index, random.of(&BYTES)),
        14..18 => link.arrive(index, random.of(&BYTES)),
        18..22 => link.read(index, random.of(&BYTES))?,
        22..24 => link.ask(index),
        24..26 => link.tick(),
        26 => link.agree(index),
        27..30 => link.cut(random.below(2) == 0)?,
        30 if events.restarts => link.restart(index, 1 + random.below(2000))?,
        31 if events.cancels => link.cancel(index),
        _ => {
            for from in 0..2 {
                link.write(from, ALL);
                link.arrive(from, ALL);
                link.read(from, ALL)?;
            }
        }
    }
    Ok(())
}

/// Check the safety of one direction; true at any time.
fn is_safe(link: &Link, from: usize, events: Events) -> Result<(), String> {
    let (sender, receiver) = (&link.ends[from], &link.ends[1 - from]);
    let half = &sender.side.core.sender;
    let unsent = half.unsent_rows().map(|row| row.payload_bytes);
    let queued: usize = unsent
        .chain(half.sent_rows().map(|row| row.payload_bytes))
        .sum();
    if !events.cancels && sender.side.account != queued {
        return Err(format!(
            "account {} of {queued} bytes queued",
            sender.side.account
        ));
    }
    // Towards Linux TCP may hold messages that neither side has.
    let all_known = link.kind == Kind::OwnNode && !events.cancels;
    let known = receiver.received_ever.len() + half.message_count();
    if all_known && (known as u64 + sender.side.given_up) < sender.sent {
        return Err(format!("{} sent, {known} known", sender.sent));
    }
    if !events.restarts && !events.cancels {
        let hole = (0..)
            .zip(&receiver.got)
            .find(|(number, got)| got.1 != *number);
        return hole.map_or(Ok(()), |hole| Err(format!("a hole: {hole:?}")));
    }
    Ok(())
}

/// Check that one direction is complete after recovery.
fn is_done(link: &mut Link, from: usize, later: u64) -> Result<(), String> {
    let sender = &mut link.ends[from];
    let (left, account) = (
        sender.side.core.sender.message_count(),
        sender.side.account(),
    );
    if (left, account) != (0, 0) {
        return Err(format!("{left} messages, {account} bytes are left"));
    }
    let (map_generation, sent, sure_from) = (sender.map_generation, sender.sent, sender.sure_from);
    let given_up = sender.side.given_up;
    let receiver = &link.ends[1 - from];
    let last: Vec<_> = (sent - later..sent)
        .map(|number| (map_generation, number))
        .collect();
    if !receiver.got.ends_with(&last) {
        return Err(format!(
            "the last is {:?}, sent were {last:?}",
            receiver.got.last()
        ));
    }
    let missing = (sure_from..sent).filter(|number| !receiver.received_ever.contains(number));
    let missing = missing.count() as u64;
    if missing > given_up {
        return Err(format!("{missing} are missing, {given_up} were given up"));
    }
    Ok(())
}

/// Run one seed. Safety at every step, liveness once the stream holds.
fn scenario(seed: u64, kind: Kind, events: Events, broken: Broken) -> Result<(), String> {
    let (mut random, mut link) = (Random::new(seed), Link::new(kind, broken));
    for _ in 0..STEPS {
        step(&mut link, &mut random, events)?;
        is_safe(&link, 0, events)?;
        is_safe(&link, 1, events)?;
    }
    link.heal()?;
    let later = 1 + random.below(5);
    for _ in 0..later {
        link.send(0, random.of(&SIZES));
        link.send(1, random.of(&SIZES));
    }
    link.heal()?;
    is_done(&mut link, 0, later)?;
    is_done(&mut link, 1, later)
}

fn play(kind: Kind, events: Events) {
    for seed in 0..SEEDS {
        let outcome = scenario(seed, kind, events, Broken::Nothing);
        assert_eq!(outcome, Ok(()), "seed {seed}, {kind:?}");
    }
}

#[test]
fn urds_nodes_deliver_each_message_once_and_in_order() {
    play(Kind::OwnNode, Events::default());
}

#[test]
fn the_same_towards_linux_on_the_lower_side() {
    play(Kind::LinuxLower, Events::default());
}

#[test]
fn the_same_towards_linux_on_the_higher_side() {
    play(Kind::LinuxHigher, Events::default());
}

#[test]
fn a_generation_gets_nothing_twice_and_what_is_not_given_up_arrives() {
    play(
        Kind::OwnNode,
        Events {
            restarts: true,
            ..Events::default()
        },
    );
}

#[test]
fn cancelling_loses_nothing_that_is_sent_later() {
    for kind in [Kind::OwnNode, Kind::LinuxHigher] {
        play(
            kind,
            Events {
                cancels: true,
                ..Events::default()
            },
        );
    }
}

/// Rules broken on purpose: the tests above must fail.
#[test]
fn each_broken_rule_is_noticed() {
    for (kind, broken) in [
        (Kind::OwnNode, Broken::Repeating),
        (Kind::LinuxHigher, Broken::Repeating),
        (Kind::OwnNode, Broken::Duplicates),
        (Kind::LinuxLower, Broken::Duplicates),
        (Kind::LinuxHigher, Broken::Freeing),
        (Kind::OwnNode, Broken::Offering),
    ] {
        let noticed = (0..40)
            .filter(|&seed| scenario(seed, kind, Events::default(), broken).is_err())
            .count();
        assert!(noticed > 2, "{broken:?}, {kind:?}: {noticed} of 40");
    }
}
