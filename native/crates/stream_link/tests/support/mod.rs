//! Memory of streams between guards, which the engine writes and the core reads.

use std::sync::Arc;

use urds_stream::{Memory as StreamMemory, Region};
use urds_verbs::Engine;
use urds_verbs::memory::Memory;

#[path = "../../../verbs/tests/support/mod.rs"]
pub mod queue_pairs;

use queue_pairs::{Guarded, register};

/// Rights of a peer that writes.
pub const WRITE_ACCESS: i64 = 3;

#[derive(Clone)]
pub struct Ram(pub Arc<Guarded>);

impl StreamMemory for Ram {
    fn read(&self, at: usize, to: &mut [u8]) {
        self.0.read(at, to);
    }

    fn write(&self, at: usize, from: &[u8]) {
        self.0.write(at, from);
    }
}

/// Return registered memory, all zeros.
pub fn region(engine: &mut Engine, length: usize, address: u64) -> Region<Ram> {
    let memory = Arc::new(Guarded::new(length));
    let (_, rkey) = register(engine, memory.clone(), length, address, WRITE_ACCESS);
    Region {
        memory: Ram(memory),
        address,
        rkey,
        length,
    }
}
