//! The plain traffic of one connection of RDS over RDMA, between a compiled plane and a compiled engine.
//!
//! Connecting, ends, operations, pings, retransmits, flow control and whatever is wrong are the
//! connection core's, in Python (`urds.rds.transports.rdma.core`), which is also the specification of what is
//! done here. While nothing of this is under way it gives its numbers to a [`Courier`], which then makes and takes
//! the frames of plain messages where they are posted and completed. Where anything else comes the courier stops,
//! and the core takes the numbers back.

#![forbid(unsafe_code)]

mod courier;
mod receiving;
mod sending;

pub use courier::{Completed, Counts, Courier, Numbers, Partial, Setup, Taken};
