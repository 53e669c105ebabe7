//! One receiving direction: bytes of an unknown peer, cut anywhere, over several streams.
//!
//! The same bytes are taken in whole, in pieces, and in pieces with bodies read into memory of
//! their own. All three must learn the same, keep to the bounds, and never panic.

use arbitrary::{Arbitrary, Unstructured};
use urds_path::{Body, ControlMessage, Counters, DownReason, Header, Limits, Received, Receiver};

use crate::mailboxes::{FIRST_PORT, Got, Mailboxes};

const FRAME_BYTES_MAX: usize = 20_000;
const CONTROLS_MAX: usize = 4;
const STREAMS_MAX: usize = 4;
const HANDSHAKES_OF_STREAM: usize = 4;

#[derive(Arbitrary, Debug)]
struct Script {
    acknowledging: bool,
    watch_restarts: bool,
    checksum: bool,
    streams: Vec<Vec<Step>>,
    cuts: Vec<u16>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Frame(Frame),
    /// Any header with a short payload.
    Any([[u8; 16]; 3], u8),
    Bytes(Vec<u8>),
}

#[derive(Arbitrary, Debug)]
struct Frame {
    step: u8,
    ack: u8,
    size: Size,
    ports: Ports,
    flags: Flags,
    extension: ExtensionKind,
    unchecked: bool,
}

#[derive(Arbitrary, Debug)]
enum Size {
    Small(u8),
    Map,
    Around(u8), // the bound between short and long
    Any(u16),
}

#[derive(Arbitrary, Debug)]
enum Ports {
    Plain,
    Other(u8),
    Unbound,
    Low(u8, u8),
}

#[derive(Arbitrary, Debug)]
enum Flags {
    None,
    AckRequired,
    Retransmitted,
    Map,
    Any(u8),
}

#[derive(Arbitrary, Debug)]
enum ExtensionKind {
    None,
    Generation(u8),
    MapGeneration(u8),
    Any([u8; 16]),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Whole,
    InPieces,
    WithReader,
}

/// Everything that a receiver has learnt.
#[derive(Debug, PartialEq)]
struct Learnt {
    result: Result<(), DownReason>,
    got: Vec<Got>,
    controls: Vec<ControlMessage>,
    received: Received,
    ack_pending: (usize, usize, bool, u64),
    frames: u64,
    remaining: Option<(usize, usize)>,
    map: Option<Vec<u8>>,
    restarted: bool,
    counters: Counters,
}

/// Make a script of the bytes, and three receivers that follow it.
///
/// # Panics
/// If a rule is broken.
pub fn run(bytes: &[u8]) {
    let Ok(script) = Script::arbitrary_take_rest(Unstructured::new(bytes)) else {
        return;
    };
    let mut number = 0;
    let streams: Vec<Vec<u8>> = script
        .streams
        .iter()
        .take(STREAMS_MAX)
        .map(|steps| bytes_of(steps, &mut number))
        .collect();
    let whole = learnt(&script, &streams, How::Whole);
    assert_eq!(learnt(&script, &streams, How::InPieces), whole);
    assert_eq!(learnt(&script, &streams, How::WithReader), whole);
}

fn learnt(script: &Script, streams: &[Vec<u8>], how: How) -> Learnt {
    let mut receiver = Receiver::new(Limits {
        frame_bytes_max: FRAME_BYTES_MAX,
        control_events_max: CONTROLS_MAX,
        ..Limits::default()
    });
    receiver.acknowledging = script.acknowledging;
    receiver.watch_restarts = script.watch_restarts;
    receiver.checksum = script.checksum;
    let (mut mailboxes, mut counters) = (Mailboxes::default(), Counters::default());
    let mut result = Ok(());
    for (place, bytes) in streams.iter().enumerate() {
        if place > 0 {
            receiver.end_stream();
        }
        receiver.begin_stream();
        for piece in pieces(bytes, if how == How::Whole { &[] } else { &script.cuts }) {
            result = receive(&mut receiver, piece, how, &mut mailboxes, &mut counters);
            check_bounds(&receiver);
            if result.is_err() {
                break;
            }
        }
        if result.is_err() {
            break;
        }
    }
    Learnt {
        result,
        got: mailboxes.got,
        controls: receiver.controls.iter().cloned().collect(),
        received: receiver.received(),
        ack_pending: (
            receiver.ack_pending_messages,
            receiver.ack_pending_bytes,
            receiver.acknowledgement_due,
            receiver.acknowledged,
        ),
        frames: receiver.frames,
        remaining: result.is_ok().then(|| receiver.remaining()),
        map: receiver.peer_map.as_deref().map(|map| map.to_vec()),
        restarted: receiver.restarted,
        counters,
    }
}

fn receive(
    receiver: &mut Receiver,
    mut piece: &[u8],
    how: How,
    mailboxes: &mut Mailboxes,
    counters: &mut Counters,
) -> Result<(), DownReason> {
    if how == How::WithReader
        && let Some(mut body) = receiver.take_body()
    {
        assert!(body.total <= FRAME_BYTES_MAX);
        // Every second time there is no memory.
        if body.memory.is_none() && piece.len().is_multiple_of(2) {
            body.carry_over(Body::zeroed(body.total))
                .expect("memory of the right length");
        }
        let rest = body.rest_mut();
        let bytes = rest.len().min(piece.len());
        rest[..bytes].copy_from_slice(&piece[..bytes]);
        body.filled += bytes;
        piece = &piece[bytes..];
        receiver.resume_body(body, mailboxes, counters)?;
    }
    if piece.is_empty() {
        Ok(())
    } else {
        receiver.receive(piece, mailboxes, counters)
    }
}

fn check_bounds(receiver: &Receiver) {
    let (of_header, of_payload) = receiver.remaining();
    assert!(of_header < 48 && of_payload <= FRAME_BYTES_MAX);
    assert!(receiver.controls.len() <= CONTROLS_MAX + STREAMS_MAX * HANDSHAKES_OF_STREAM);
    assert!(
        receiver
            .controls
            .iter()
            .all(|control| control.payload.len() <= 64)
    );
}

/// Cut bytes at those places.
fn pieces<'a>(bytes: &'a [u8], cuts: &[u16]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts
        .iter()
        .take(32)
        .map(|cut| usize::from(*cut) % (bytes.len() + 1))
        .collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|ends| &bytes[ends[0]..ends[1]])
        .collect()
}

fn bytes_of(steps: &[Step], number: &mut u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for step in steps.iter().take(40) {
        match step {
            Step::Frame(frame) => frame.append_to(&mut bytes, number),
            Step::Any(header, payload_bytes) => {
                let mut header = header.concat();
                header[16..20].copy_from_slice(&[0, 0, 0, *payload_bytes]);
                bytes.extend(header);
                bytes.resize(bytes.len() + usize::from(*payload_bytes), 1);
            }
            Step::Bytes(any) => bytes.extend(any.iter().take(200)),
        }
    }
    bytes
}

impl Frame {
    /// Numbers rise by one, or jump forward or back.
    fn append_to(&self, bytes: &mut Vec<u8>, number: &mut u64) {
        *number = match self.step {
            0..200 => *number + 1,
            200..220 => *number + u64::from(self.step - 200),
            220..250 => number.saturating_sub(u64::from(self.step - 220)),
            250..254 => 0,
            _ => u64::MAX - u64::from(self.step & 1),
        };
        let (source_port, target_port) = match self.ports {
            Ports::Plain => (4000, FIRST_PORT),
            Ports::Other(port) => (
                4000 + u16::from(port & 3),
                FIRST_PORT + u16::from(port >> 6),
            ),
            Ports::Unbound => (4000, FIRST_PORT - 1),
            Ports::Low(source, target) => (u16::from(source % 4), u16::from(target % 4)),
        };
        let payload = vec![self.step; self.size()];
        let header = Header {
            sequence: *number,
            ack: self.ack.into(),
            payload_bytes: payload.len(),
            source_port,
            target_port,
            flags: self.flags(),
            extension: self.extension(),
            ..Header::default()
        };
        *number = (*number).min(1 << 40);
        bytes.extend(header.emit(!self.unchecked));
        bytes.extend(payload);
    }

    fn size(&self) -> usize {
        match self.size {
            Size::Small(size) => size.into(),
            Size::Map => 8192,
            Size::Around(size) => 8064 + usize::from(size),
            Size::Any(size) => usize::from(size) % (FRAME_BYTES_MAX + 100),
        }
    }

    fn flags(&self) -> u8 {
        match self.flags {
            Flags::None => 0,
            Flags::AckRequired => 2,
            Flags::Retransmitted => 4,
            Flags::Map => 1,
            Flags::Any(flags) => flags,
        }
    }

    fn extension(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        match self.extension {
            ExtensionKind::None => {}
            ExtensionKind::Generation(generation) => {
                bytes[..5].copy_from_slice(&[6, 0, 0, 0, generation % 4]);
            }
            ExtensionKind::MapGeneration(map_generation) => {
                bytes = urds_path::extension::emit_generation(u32::from(map_generation % 4));
            }
            ExtensionKind::Any(any) => bytes = any,
        }
        bytes
    }
}
