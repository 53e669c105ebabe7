//! Numbers of the wire and of the interface; each is explained in `src/urds/rds/numbers.py`.
//!
//! Source: linux v6.12 include/uapi/linux/rds.h and net/rds/rds.h.

/// Bytes of a header.
pub const HEADER_BYTES: usize = 48;
/// Bytes of the extension space at the end of a header.
pub const EXTENSION_BYTES: usize = 16;
/// Bytes of a congestion map: one bit for each port.
pub const CONGESTION_MAP_BYTES: usize = 8192;
/// A payload of this length or more travels by reference and is received into its own memory.
pub const LONG_BYTES: usize = 8192;

/// Target of a ping.
pub const PING_PORT: u16 = 0;
/// Source of the handshake's probe ping; no socket may bind it.
pub const PROBE_PORT: u16 = 1;
/// The lowest port of a socket.
pub const PORT_FIRST: u16 = 2;

/// The message is a congestion map; Linux tests for exactly this value.
pub const FLAG_CONG_BITMAP: u8 = 0x01;
/// The sender requests an acknowledgement soon.
pub const FLAG_ACK_REQUIRED: u8 = 0x02;
/// The message was sent on an earlier stream.
pub const FLAG_RETRANSMITTED: u8 = 0x04;
