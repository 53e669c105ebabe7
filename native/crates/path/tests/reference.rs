//! The calls of the Python path's record, with equal results: bytes, numbers, positions, accounts,
//! counters.
//!
//! `tests/rds/plane/path_record.py` makes the record; if this fails, its `--plain` prints the state
//! of the Python path at that line.

mod common;

use common::{bytes_of, frames_of, map_message};
use urds_path::{
    AckMode, Arriving, CongestionMap, Counters, DownReason, Fence, Freed, Header, Hold, Limits,
    MessageSink, NO_EXTENSION, Owner, PathCore, Payload,
};

const RECORD: &str = include_str!("reference.txt");
const TARGET: u16 = 5000;

/// The mailbox at `TARGET`: messages and bytes.
#[derive(Default)]
struct Mailbox {
    messages: usize,
    bytes: usize,
}

impl MessageSink for Mailbox {
    fn deliver(&mut self, target_port: u16, message: Arriving<'_>) -> bool {
        if target_port == TARGET {
            self.messages += 1;
            self.bytes += message.payload.len();
        }
        target_port == TARGET
    }
}

struct World {
    core: PathCore,
    counters: Counters,
    mailbox: Mailbox,
    accounts: [(i64, u64); 2],
    fence: Option<Fence>,
    news: String,
}

/// The arguments of a call.
struct Values<'a>(std::str::SplitWhitespace<'a>);

impl Values<'_> {
    fn next(&mut self) -> i64 {
        self.0
            .next()
            .and_then(|word| word.parse().ok())
            .expect("a number")
    }

    fn of<T: TryFrom<i64, Error: std::fmt::Debug>>(&mut self) -> T {
        T::try_from(self.next()).expect("a number in its bounds")
    }

    fn flag(&mut self) -> bool {
        self.next() != 0
    }
}

impl World {
    fn new(values: &mut Values<'_>) -> Self {
        let (first, generation) = (values.of(), values.of::<u32>());
        let limits = Limits {
            unacked_packets_max: values.of(),
            unacked_bytes_max: values.of(),
            acknowledge_messages: 5,
            acknowledge_bytes: 30_000,
            acknowledge_delay_ns: 40_000_000,
            control_events_max: 3,
            frame_bytes_max: 50_000,
            ..Limits::default()
        };
        Self {
            core: PathCore::new(limits, first, (generation != 0).then_some(generation)),
            counters: Counters::default(),
            mailbox: Mailbox::default(),
            accounts: [(0, 0); 2],
            fence: None,
            news: String::new(),
        }
    }

    fn call(&mut self, name: &str, values: &mut Values<'_>) {
        let core = &mut self.core;
        match name {
            "attach" => {
                let holds = [Hold::Nothing, Hold::FirstFrame, Hold::Hello];
                core.attach(holds[values.of::<usize>()]);
            }
            "detach" => core.detach(&mut self.counters),
            "release" => core.end_hold(u64::try_from(values.next()).ok()),
            "agree" => {
                let releases = [
                    AckMode::NotYet,
                    AckMode::StreamAcknowledged,
                    AckMode::PeerAcknowledged,
                ];
                core.agree(releases[values.of::<usize>()], values.flag());
            }
            "restart" => self.news = core.restart_peer().to_string(),
            "send" => self.send(values),
            "control" => {
                let (source, target, extension) = (values.of(), values.of(), values.of());
                core.control(
                    source,
                    target,
                    [extension; 16],
                    values.flag(),
                    &mut self.counters,
                );
            }
            "write" => self.write(values.of()),
            "receive" => self.receive_message(values),
            "map" => {
                let generation: u32 = values.of();
                let bytes = map_message((generation != 0).then_some(generation));
                let result = self.receive(&bytes, 1);
                self.tell(result);
            }
            "acknowledged" => core.handle_stream_acknowledged(values.of()),
            "timeout" => core.handle_timeout(values.of()),
            "acknowledge" => core.acknowledge(),
            "ask" => core.request_ack(),
            "cancel" => {
                let owner = Owner(values.of());
                let port = values.of();
                let count = core.sender.cancel(owner, (port != 0).then_some(port));
                self.news = count.to_string();
            }
            "drop" => self.news = core.sender.drop_all().to_string(),
            "wanted" => core.sender.acknowledgement_wanted = true,
            "probe_dead_stream" => core.map_due = core.attached,
            "fence_here" => self.fence = Some(core.sender.fence()),
            _ => panic!("no call has the name {name}"),
        }
        self.release_accounts();
    }

    fn send(&mut self, values: &mut Values<'_>) {
        let (owner, target, bytes) = (values.of::<u16>(), values.of(), values.of::<usize>());
        let extension = [values.of::<u8>(); 16];
        let payload = Payload::copy_of(&vec![bytes.to_le_bytes()[0]; bytes]);
        self.accounts[usize::from(owner)].0 += i64::try_from(bytes).expect("short");
        self.core.send(
            Owner(owner.into()),
            4000 + owner,
            target,
            payload,
            extension,
        );
    }

    fn write(&mut self, share: usize) {
        let map = CongestionMap::default();
        let Some(write_buffer) = self.core.poll_transmit(&map, &mut self.counters) else {
            "0:1".clone_into(&mut self.news);
            return;
        };
        let bytes = bytes_of(&write_buffer);
        self.core.transmitted(write_buffer, bytes.len() * share / 8);
        self.news = format!("{}:{}", bytes.len(), adler32(&bytes));
    }

    fn receive_message(&mut self, values: &mut Values<'_>) {
        let header = Header {
            sequence: values.of(),
            ack: values.of(),
            flags: values.of(),
            source_port: values.of(),
            target_port: values.of(),
            payload_bytes: values.of(),
            extension: NO_EXTENSION,
            ..Header::default()
        };
        let checksum = values.flag();
        let payload = vec![9; header.payload_bytes];
        let bytes = [&header.emit(checksum)[..], &payload].concat();
        assert_eq!(frames_of(&bytes).len(), 1);
        let (first, second) = bytes.split_at(bytes.len().min(values.of()));
        let now_ns = header.sequence * 1000;
        let mut result = self.receive(first, now_ns);
        if result.is_ok() && !second.is_empty() {
            result = self.receive(second, now_ns);
        }
        self.tell(result);
        if result.is_err() {
            self.core.detach(&mut self.counters);
        }
    }

    fn receive(&mut self, bytes: &[u8], now_ns: u64) -> Result<(), DownReason> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.core
            .receive(bytes, now_ns, &mut self.mailbox, &mut self.counters)
    }

    fn tell(&mut self, result: Result<(), DownReason>) {
        let news = match result {
            Ok(()) => "",
            Err(DownReason::TooLong) => "TOO_LONG",
            Err(DownReason::BadMap) => "BAD_MAP",
            Err(DownReason::BadChecksum) => "BAD_CHECKSUM",
            Err(DownReason::BadAcknowledgement) => "BAD_ACKNOWLEDGEMENT",
            Err(reason) => panic!("{reason:?} is the shell's"),
        };
        news.clone_into(&mut self.news);
    }

    fn release_accounts(&mut self) {
        let mut freed: Vec<Freed> = Vec::new();
        self.core.take_freed(&mut freed);
        for one in freed {
            let account = &mut self.accounts[usize::try_from(one.owner.0).expect("0 or 1")];
            account.0 -= i64::try_from(one.bytes).expect("short");
            account.1 += one.given_up;
        }
    }

    /// Print the visible state, in the words of `path_record.py`.
    fn seen(&mut self) -> String {
        let (core, counters) = (&self.core, &self.counters);
        let (own, receiver) = (&core.sender, &core.receiver);
        let account =
            |index: usize| format!("{}/{}", self.accounts[index].0, self.accounts[index].1);
        let flag = |flag: bool| u64::from(flag).to_string();
        let timeout = core
            .poll_timeout()
            .map_or("-1".to_owned(), |timeout| timeout.to_string());
        let counted: Vec<_> = counters
            .named()
            .map(|(_, value)| value.to_string())
            .collect();
        let parts = [
            std::mem::take(&mut self.news),
            own.position.to_string(),
            own.sequence_next.to_string(),
            own.pending_bytes.to_string(),
            own.unsent_len().to_string(),
            own.retransmits_len().to_string(),
            own.unacked_len().to_string(),
            flag(own.is_long()),
            account(0),
            account(1),
            flag(core.wants_to_write()),
            flag(core.is_plain()),
            flag(core.is_held()),
            timeout,
            core.bytes_written.to_string(),
            flag(core.attached),
            receiver.sequence_expected.to_string(),
            receiver.frames.to_string(),
            receiver.ack_pending_messages.to_string(),
            receiver.ack_pending_bytes.to_string(),
            flag(receiver.acknowledgement_due),
            receiver.acknowledged.to_string(),
            receiver.controls.len().to_string(),
            flag(receiver.restarted),
            self.mailbox.messages.to_string(),
            self.mailbox.bytes.to_string(),
            self.fence
                .as_ref()
                .map_or("-1".to_owned(), |fence| flag(fence.is_open())),
            flag(own.holds(None)),
            counted.join(","),
        ];
        parts.join(" ")
    }
}

/// RFC 1950.
fn adler32(bytes: &[u8]) -> u32 {
    let (mut low, mut high) = (1, 0);
    for &byte in bytes {
        low = (low + u32::from(byte)) % 65_521;
        high = (high + low) % 65_521;
    }
    high << 16 | low
}

#[test]
fn it_does_as_the_python_path() {
    let mut world: Option<World> = None;
    for (index, line) in RECORD.lines().enumerate() {
        let (call, seen) = line.split_once(" = ").unwrap_or((line, ""));
        let mut words = call.split_whitespace();
        let name = words.next().expect("a name");
        let mut values = Values(words);
        let Some(world) = world.as_mut().filter(|_| name != "new") else {
            world = Some(World::new(&mut values));
            continue;
        };
        world.call(name, &mut values);
        let own = world.seen();
        let matches = own == seen || adler32(own.as_bytes()).to_string() == seen;
        assert!(matches, "line {}: {call}\nown {own}\nref {seen}", index + 1);
    }
    assert!(world.is_some());
}
