//! Two paths over a stream that is cut anywhere: each message once, in order, in both directions.
//!
//! A stream is modelled exactly, as TCP has it: bytes that were written, bytes that the peer's
//! TCP has and acknowledged, bytes that the peer has read. A break takes what was not read,
//! unless the reader drains it first, which the shell promises to do. An offer may be out while
//! everything else goes on: its bytes are with the stream before the path knows.

use std::io::IoSlice;

use arbitrary::{Arbitrary, Unstructured};
use urds_path::{
    AckMode, Body, CongestionMap, Counters, Freed, Hold, Limits, NO_EXTENSION, Owner, PathCore,
    Payload, WriteBuffer,
};

use crate::mailboxes::{FIRST_PORT, Mailboxes};

const MS: u64 = 1_000_000;
const STEPS_MAX: usize = 80;
const OWNER: Owner = Owner(7);
const ALL: usize = usize::MAX;
const SLICES: usize = 1024;
/// Around the lengths at which a payload is inline, owned, by reference, and lent.
const SIZES: [usize; 10] = [0, 1, 40, 74, 75, 300, 8187, 8188, 9000, 40_000];
const BYTES: [usize; 10] = [1, 30, 48, 60, 500, 8240, 9000, 20_000, 70_000, ALL];

#[derive(Arbitrary, Debug)]
struct Script {
    kind: Kind,
    impatient: bool,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug, PartialEq)]
enum Kind {
    Linux,
    LinuxLowerSide,
    OwnNode,
    OwnNodeHeld,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Send {
        left: bool,
        size: u8,
        count: u8,
    },
    /// Give bytes to the stream, and tell the path later.
    Write {
        left: bool,
        bytes: u8,
    },
    Transmitted {
        left: bool,
    },
    /// Have bytes arrive at the peer's TCP.
    Arrive {
        left: bool,
        bytes: u8,
    },
    Read {
        left: bool,
        bytes: u8,
        by_body: bool,
    },
    /// Ask the TCP for what is acknowledged, as the shell does towards Linux.
    Ask {
        left: bool,
    },
    Tick,
    Cut {
        orderly: bool,
    },
    Cancel {
        left: bool,
    },
    MapDue {
        left: bool,
    },
    Ping {
        left: bool,
    },
}

/// Bytes from one side to the other on the current stream.
#[derive(Debug, Default)]
struct Direction {
    written: u64,
    on_the_way: Vec<u8>, // not with the peer's TCP
    arrived: Vec<u8>,    // acknowledged by it, not read
}

/// A path with what is around it.
struct Side {
    core: PathCore,
    mailboxes: Mailboxes,
    counters: Counters,
    map: CongestionMap,
    write_buffer: Option<(WriteBuffer, usize)>, // and how many of its bytes the stream took
    sent: Vec<Vec<u8>>,
    kept_from: usize, // messages before were cancelled, and may arrive or not
    account_bytes: usize,
    forth: Direction,
}

struct Link {
    kind: Kind,
    sides: [Side; 2],
    now_ns: u64,
}

/// Follow the script that the bytes make, then let everything through.
///
/// # Panics
/// If a message is lost, doubled, reordered or changed, or an account is wrong.
pub fn run(bytes: &[u8]) {
    let Ok(script) = Script::arbitrary_take_rest(Unstructured::new(bytes)) else {
        return;
    };
    let mut link = Link::new(script.kind, script.impatient);
    for step in script.steps.iter().take(STEPS_MAX) {
        link.follow(*step);
        link.check();
    }
    link.heal();
    link.check_whole();
}

impl Kind {
    fn release(self) -> AckMode {
        match self {
            Self::Linux | Self::LinuxLowerSide => AckMode::StreamAcknowledged,
            Self::OwnNode | Self::OwnNodeHeld => AckMode::PeerAcknowledged,
        }
    }

    fn hold(self) -> Hold {
        match self {
            Self::Linux | Self::OwnNode => Hold::Nothing,
            Self::LinuxLowerSide => Hold::FirstFrame,
            Self::OwnNodeHeld => Hold::Hello,
        }
    }
}

impl Side {
    fn new(kind: Kind, impatient: bool, sequence_first: u64) -> Self {
        let mut limits = Limits {
            acknowledge_messages: 4,
            acknowledge_bytes: 20_000,
            ..Limits::default()
        };
        if impatient {
            limits.unacked_packets_max = 1;
            limits.unacked_bytes_max = 1;
        }
        let mut core = PathCore::new(limits, sequence_first, Some(3));
        core.agree(kind.release(), kind.release() == AckMode::PeerAcknowledged);
        Self {
            core,
            mailboxes: Mailboxes::default(),
            counters: Counters::default(),
            map: CongestionMap::default(),
            write_buffer: None,
            sent: Vec::new(),
            kept_from: 0,
            account_bytes: 0,
            forth: Direction::default(),
        }
    }

    fn send(&mut self, size: usize) {
        let number = u32::try_from(self.sent.len()).expect("few messages");
        let mut payload = number.to_be_bytes().to_vec();
        payload.resize(4 + size, number.to_be_bytes()[3]);
        self.account_bytes += payload.len();
        self.core.send(
            OWNER,
            4000,
            FIRST_PORT,
            Payload::copy_of(&payload),
            NO_EXTENSION,
        );
        self.sent.push(payload);
    }

    /// Give bytes of an offer to the stream; the path does not know yet.
    fn write(&mut self, bytes_max: usize) {
        self.transmitted();
        let wanted = self.core.wants_to_write();
        let Some(write_buffer) = self.core.poll_transmit(&self.map, &mut self.counters) else {
            assert!(!wanted || self.core.receiver.acknowledging || !self.core.wants_to_write());
            return;
        };
        let mut slices = [IoSlice::new(&[]); SLICES];
        let used = write_buffer.fill(0, &mut slices);
        let bytes = slices[..used]
            .iter()
            .map(|slice| &slice[..])
            .collect::<Vec<_>>()
            .concat();
        assert!(bytes.len() == write_buffer.len() || used == SLICES);
        assert!(write_buffer.single().is_none_or(|single| single == bytes));
        let taken = bytes.len().min(bytes_max);
        self.forth.written += taken as u64;
        self.forth.on_the_way.extend(&bytes[..taken]);
        drop(bytes);
        self.write_buffer = Some((write_buffer, taken));
    }

    fn transmitted(&mut self) {
        if let Some((write_buffer, taken)) = self.write_buffer.take() {
            self.core.transmitted(write_buffer, taken);
        }
    }

    fn arrive(&mut self, bytes: usize) {
        let bytes = bytes.min(self.forth.on_the_way.len());
        self.forth
            .arrived
            .extend(self.forth.on_the_way.drain(..bytes));
    }

    /// Take in what the peer wrote.
    fn receive(&mut self, mut data: &[u8], by_body: bool, now_ns: u64) {
        let Self {
            core,
            mailboxes,
            counters,
            ..
        } = self;
        if by_body && let Some(mut body) = core.receiver.take_body() {
            if body.memory.is_none() {
                body.carry_over(Body::zeroed(body.total))
                    .expect("memory of the right length");
            }
            let rest = body.rest_mut();
            let bytes = rest.len().min(data.len());
            rest[..bytes].copy_from_slice(&data[..bytes]);
            body.filled += bytes;
            data = &data[bytes..];
            let result = core.resume_body(body, now_ns, mailboxes, counters);
            assert_eq!(result, Ok(()));
        }
        if !data.is_empty() {
            assert_eq!(core.receive(data, now_ns, mailboxes, counters), Ok(()));
        }
    }

    fn ask(&mut self) {
        let acknowledged = self.forth.written - self.forth.on_the_way.len() as u64;
        self.core.handle_stream_acknowledged(acknowledged);
    }

    fn cancel(&mut self) {
        self.core.sender.cancel(OWNER, None);
        self.kept_from = self.sent.len();
        self.finish_freed();
        assert_eq!(
            self.account_bytes, 0,
            "cancelling leaves nothing in the account"
        );
    }

    fn finish_freed(&mut self) {
        let mut freed: Vec<Freed> = Vec::new();
        self.core.take_freed(&mut freed);
        for one in freed {
            assert_eq!(one.owner, OWNER);
            self.account_bytes = self
                .account_bytes
                .checked_sub(one.bytes)
                .expect("freed what was not queued");
        }
    }

    /// The account holds what is queued, and nothing else.
    fn check_account(&mut self) {
        self.finish_freed();
        let sender = &self.core.sender;
        let queued: usize = sender
            .sent()
            .chain(sender.unsent())
            .map(|message| message.payload.len())
            .sum();
        assert_eq!(self.account_bytes, queued);
    }
}

impl Link {
    fn new(kind: Kind, impatient: bool) -> Self {
        let mut link = Self {
            kind,
            sides: [
                Side::new(kind, impatient, 1000),
                Side::new(kind, impatient, 1 << 33),
            ],
            now_ns: 0,
        };
        link.connect();
        link
    }

    fn connect(&mut self) {
        for side in &mut self.sides {
            side.forth = Direction::default();
            side.core.attach(self.kind.hold());
        }
        if self.kind == Kind::OwnNodeHeld {
            let told = [1, 0].map(|peer: usize| {
                self.sides[peer]
                    .core
                    .receiver
                    .sequence_expected
                    .checked_sub(1)
            });
            for (side, received_by_peer) in self.sides.iter_mut().zip(told) {
                side.core.end_hold(received_by_peer);
            }
        }
    }

    fn follow(&mut self, step: Step) {
        match step {
            Step::Send { left, size, count } => {
                for _ in 0..=count % 12 {
                    self.side(left).send(SIZES[usize::from(size) % SIZES.len()]);
                }
            }
            Step::Write { left, bytes } => self.side(left).write(bytes_of(bytes)),
            Step::Transmitted { left } => self.side(left).transmitted(),
            Step::Arrive { left, bytes } => self.side(left).arrive(bytes_of(bytes)),
            Step::Read {
                left,
                bytes,
                by_body,
            } => self.read(left, bytes_of(bytes), by_body),
            Step::Ask { left } => self.side(left).ask(),
            Step::Tick => self.tick(),
            Step::Cut { orderly } => self.cut(orderly),
            Step::Cancel { left } => self.side(left).cancel(),
            Step::MapDue { left } => {
                let side = self.side(left);
                side.map.set(FIRST_PORT);
                side.core.map_due = true;
            }
            Step::Ping { left } => {
                let Side { core, counters, .. } = self.side(left);
                core.control(4000, 0, NO_EXTENSION, false, counters);
            }
        }
    }

    fn side(&mut self, left: bool) -> &mut Side {
        &mut self.sides[usize::from(left)]
    }

    fn read(&mut self, left: bool, bytes: usize, by_body: bool) {
        let now_ns = self.now_ns;
        let arrived = &mut self.side(!left).forth.arrived;
        let bytes = bytes.min(arrived.len());
        let data: Vec<u8> = arrived.drain(..bytes).collect();
        if !data.is_empty() {
            self.side(left).receive(&data, by_body, now_ns);
        }
    }

    fn tick(&mut self) {
        self.now_ns += MS;
        for side in &mut self.sides {
            side.core.handle_timeout(self.now_ns);
        }
    }

    /// Break the stream; what TCP acknowledged is read first, by the promise of the shell.
    fn cut(&mut self, orderly: bool) {
        for left in [false, true] {
            if orderly {
                self.side(!left).arrive(ALL);
            }
            self.read(left, ALL, false);
        }
        for side in &mut self.sides {
            side.ask();
            side.core.detach(&mut side.counters);
        }
        self.connect();
    }

    /// Let everything through until nothing moves.
    fn heal(&mut self) {
        for _ in 0..400 {
            for left in [false, true] {
                self.side(left).write(ALL);
                self.side(left).transmitted();
                self.side(left).arrive(ALL);
                self.read(!left, ALL, left);
                self.side(left).ask();
            }
            self.tick();
            let done =
                |side: &Side| !side.core.sender.holds(Some(OWNER)) && !side.core.wants_to_write();
            if self.sides.iter().all(done) {
                return;
            }
        }
    }

    /// Safety: nothing twice, nothing in another order, nothing changed.
    fn check(&mut self) {
        for left in [0, 1] {
            self.sides[left].check_account();
            let (sent, kept_from) = (&self.sides[left].sent, self.sides[left].kept_from);
            let got = &self.sides[1 - left].mailboxes.got;
            let mut next = 0;
            for one in got {
                let number = one.payload.first_chunk().expect("a number of four bytes");
                let number = u32::from_be_bytes(*number) as usize;
                assert!(number >= next, "message {number} is doubled or late");
                assert!(number == next || next < kept_from, "message {next} is lost");
                assert_eq!(one.payload, sent[number]);
                next = number + 1;
            }
        }
    }

    /// Liveness: each message that was not cancelled has arrived, and no side keeps any.
    fn check_whole(&mut self) {
        self.check();
        for left in [0, 1] {
            let side = &self.sides[left];
            // A ping of the control plane asks for no acknowledgement: it waits for another's.
            assert!(!side.core.sender.holds(Some(OWNER)));
            assert_eq!(side.core.sender.pending_bytes, 0);
            assert_eq!(side.account_bytes, 0);
            assert_eq!(self.sides[1 - left].core.receiver.remaining(), (0, 0));
            let got = &self.sides[1 - left].mailboxes.got;
            let kept = &side.sent[side.kept_from..];
            assert!(got.len() >= kept.len(), "the last messages are lost");
            for (one, sent) in got[got.len() - kept.len()..].iter().zip(kept) {
                assert_eq!(&one.payload, sent);
            }
        }
    }
}

fn bytes_of(choice: u8) -> usize {
    BYTES[usize::from(choice) % BYTES.len()]
}
