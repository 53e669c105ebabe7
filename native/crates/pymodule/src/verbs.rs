//! The verbs engine as Python sees it; `urds.verbs.engine.contract` and the stub.
//!
//! Thin: `urds_verbs` decides what a call means. Handles have plain values; the engine's lock is
//! taken with the interpreter held and nothing of Python is made, called or released under it.

mod completion_channel;
mod couriers;
mod engine;
mod looking;
mod memory;
mod public_calls;
mod queue_pair;
mod queues;
mod records;
mod regions;
mod requests;
mod shm;
mod stream;
mod stream_bytes;
mod values;
mod waiting;

use pyo3::prelude::*;
pub use stream::{Ram, stream_settings_of};

/// Add the classes of the engine to the module.
pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<engine::Engine>()?;
    module.add_class::<shm::ShmEngine>()?;
    module.add_class::<stream::Stream>()?;
    module.add_class::<couriers::RdmaCourier>()?;
    module.add_class::<queue_pair::QueuePair>()?;
    module.add_class::<queues::CompletionQueue>()?;
    module.add_class::<completion_channel::CompletionChannel>()?;
    module.add_class::<queues::SharedReceiveQueue>()?;
    module.add_class::<regions::Region>()?;
    module.add_class::<regions::MemoryWindow>()?;
    module.add_class::<records::SGE>()?;
    module.add_class::<records::RecvWR>()?;
    module.add_class::<records::SendWR>()
}
