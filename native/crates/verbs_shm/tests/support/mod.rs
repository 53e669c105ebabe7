//! Two devices of one process, each with one connected queue pair, and a channel between them.

#![allow(dead_code, clippy::missing_panics_doc, clippy::unwrap_used)] // each user needs a part of it

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use urds_channel::channel_memory::{ChannelMemory, FILE_BYTES};
use urds_channel::sys::area::{self, Area};
use urds_channel::sys::raw;
use urds_verbs::Engine;
use urds_verbs::attributes::{Cap, Field, Link};
use urds_verbs::errors::Rejected;
use urds_verbs::memory::Memory;
use urds_verbs::numbers::Opcode;
use urds_verbs::queue_pair::Setup;
use urds_verbs::work::{Completion, Doubts, Opcoded, Piece, Pieces, RecvWork, Route, SendWork};
use urds_verbs_shm::{Channels, PLACED_BYTES_MIN};

#[path = "../../../verbs/tests/support/mod.rs"]
mod queue_pairs;

use queue_pairs::{lead, link_of, register, setup};

pub const GIDS: [[u8; 16]; 2] = [[0xFD; 16], [0xFE; 16]];
pub const MTU_BYTES: u32 = 32 << 10;
pub const REGION_BYTES: usize = 2 << 20;
/// Behind the region, not registered.
pub const GUARD_BYTES: usize = 8192;
/// Before the region: the page with the generation.
const CONTROL_BYTES: usize = 4096;
/// What peers call the first byte of the region.
pub const ADDRESS: u64 = 0x10_0000;

/// Memory that a peer may map.
pub struct Ram(pub Area);

impl Memory for Ram {
    fn read(&self, at: usize, to: &mut [u8]) {
        self.0.copy_out(CONTROL_BYTES + at, to);
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.0.copy_in(CONTROL_BYTES + at, from);
    }
}

/// One device.
pub struct End {
    pub engine: Engine,
    pub channels: Channels,
    /// Of the one queue pair.
    pub number: u32,
    pub queue: u32,
    pub memory: Arc<Ram>,
    /// Of the region's memory.
    pub file: i32,
    /// Of doorbells, once it has a channel.
    socket: Option<UnixStream>,
    pub key: u32,
    pub peer_gid: [u8; 16],
    pub done: Vec<Completion>,
}

/// Return memory of generation 1, and its file.
fn ram() -> (i32, Arc<Ram>) {
    let (file, area) = area::make(CONTROL_BYTES + REGION_BYTES + GUARD_BYTES).unwrap();
    area.long(0).store(1, Ordering::Relaxed);
    (file, Arc::new(Ram(area)))
}

fn qpn(side: usize) -> u8 {
    0x10 + u8::try_from(side).unwrap()
}

impl End {
    fn new(side: usize, mtu_bytes: u32) -> Self {
        let mut engine = Engine::new(None, false);
        let queue = engine.completion_queue(4096, false).unwrap();
        let cap = Cap {
            max_send_wr: 1024,
            max_recv_wr: 1024,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 256,
        };
        let link = Link {
            payload_bytes_max: Some(256 << 10),
            ..link_of(mtu_bytes)
        };
        let number = engine.queue_pair(Setup {
            sq_sig_all: false,
            gid: GIDS[side],
            ..setup(qpn(side), queue, cap, link)
        });
        let (file, memory) = ram();
        let (_, key) = register(&mut engine, memory.clone(), REGION_BYTES, ADDRESS, 15);
        let mut end = Self {
            engine,
            channels: Channels::new(GIDS[side], mtu_bytes as usize, PLACED_BYTES_MIN),
            number,
            queue,
            memory,
            file,
            socket: None,
            key,
            peer_gid: GIDS[1 - side],
            done: Vec::new(),
        };
        end.connect(side);
        end
    }

    fn connect(&mut self, side: usize) {
        let numbers = [
            (Field::AccessFlags, 15),
            (Field::DestQpn, qpn(1 - side).into()),
            (Field::MaxRdAtomic, 16),
            (Field::MaxDestRdAtomic, 16),
            (Field::MinRnrTimer, 1),
            (Field::RnrRetry, 7),
            // The last PSNs before they come round.
            (Field::RqPsn, 0xFF_FFF0),
            (Field::SqPsn, 0xFF_FFF0),
        ];
        let peer = Route {
            gid: self.peer_gid,
            port: 0,
        };
        lead(&mut self.engine, self.number, peer, &numbers).unwrap();
    }

    pub fn piece(&self, at: usize, length: usize) -> Pieces {
        Pieces::One(Piece {
            address: i128::from(ADDRESS) + at as i128,
            length: i64::try_from(length).unwrap(),
            lkey: self.key,
        })
    }

    /// Post a receive; without room for it there is none.
    pub fn receive(&mut self, wr_id: u64, at: usize, length: usize) {
        let pieces = self.piece(at, length);
        let work = RecvWork {
            wr_id,
            pieces,
            num_sge: None,
        };
        let _ = self.engine.post_recv(self.number, work);
    }

    /// Post a request, without sending it yet.
    pub fn post(&mut self, work: SendWork) {
        self.try_post(work).unwrap();
    }

    /// Post one that may be rejected.
    pub fn try_post(&mut self, work: SendWork) -> Result<(), Rejected> {
        let (doubts, work) = (Doubts::default(), Opcoded::Known(Box::new(work)));
        self.engine.post_send(self.number, work, &doubts)
    }

    pub fn send(&mut self, wr_id: u64, at: usize, length: usize) {
        self.post(SendWork::new(wr_id, Opcode::Send, self.piece(at, length)));
        self.flush();
    }

    pub fn flush(&mut self) {
        self.channels.flush(&mut self.engine, 0);
    }

    pub fn progress(&mut self) -> bool {
        self.channels.progress(&mut self.engine, 0)
    }

    /// Return the next completion, if there is one.
    pub fn poll(&mut self) -> Option<Completion> {
        let queues = &mut self.engine.shared.completions;
        queues.get_mut(self.queue)?.poll(1, &mut self.done);
        self.done.pop()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        raw::close(self.file);
    }
}

/// Return both devices and the sockets' other ends, where doorbells are heard.
pub fn pair() -> ([End; 2], [UnixStream; 2]) {
    let (ends, heard, _) = pair_with_memory([MTU_BYTES; 2]);
    (ends, heard)
}

/// As `pair` with packets of so many bytes each, and a third mapping of the channel.
pub fn pair_with_memory(mtus: [u32; 2]) -> ([End; 2], [UnixStream; 2], ChannelMemory) {
    let (file, mapping) = area::make(FILE_BYTES).unwrap();
    drop(mapping);
    let mut ends = [End::new(0, mtus[0]), End::new(1, mtus[1])];
    let mut heard = Vec::new();
    for (side, end) in ends.iter_mut().enumerate() {
        let (socket, other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        heard.push(other);
        let memory = ChannelMemory::map(file).unwrap();
        let gid = end.peer_gid;
        end.channels
            .attach(gid, memory, socket.as_raw_fd(), side == 0);
        end.socket = Some(socket);
    }
    let third = ChannelMemory::map(file).unwrap();
    raw::close(file);
    (ends, heard.try_into().unwrap(), third)
}
