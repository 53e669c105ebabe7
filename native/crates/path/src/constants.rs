//! Numbers of the wire and of the interface; each is explained in `src/urds/constants.py`.
//!
//! Source: linux v6.12 include/uapi/linux/rds.h and net/rds/rds.h.

/// Octets of a header.
pub const HEADER_BYTES: usize = 48;
/// Octets of the extension space at the end of a header.
pub const EXTENSION_BYTES: usize = 16;
/// Octets of a congestion map: one bit for each port.
pub const CONGESTION_MAP_BYTES: usize = 8192;
/// From this length on a payload travels by reference and is received into memory of its own.
pub const LONG_BYTES: usize = 8192;

/// Target of a ping.
pub const PING_PORT: u16 = 0;
/// Source of the handshake's probe ping; nobody may bind it.
pub const PROBE_PORT: u16 = 1;
/// The lowest port that a socket may have.
pub const PORT_FIRST: u16 = 2;

/// The message is a congestion map; Linux tests for exactly this value.
pub const FLAG_CONG_BITMAP: u8 = 0x01;
/// The sender wants an acknowledgement soon.
pub const FLAG_ACK_REQUIRED: u8 = 0x02;
/// The message was handed to an earlier stream.
pub const FLAG_RETRANSMITTED: u8 = 0x04;
