//! Options of a socket: words of the client, so that every process that has the socket sees them.

use core::sync::atomic::Ordering;

use super::layout::{AT_OPTIONS, Sizes};
use crate::sys::area::Area;

/// A word of the options; its value is as the option's, 0 unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Word {
    /// `SO_SNDBUF` as it counts: half of what getsockopt shows.
    SendBytes = 0,
    /// `SO_RCVBUF` as it counts.
    ReceiveBytes = 1,
    /// `RDS_RECVERR`.
    ReportErrors = 2,
    /// `RDS_CONG_MONITOR`.
    Monitor = 3,
    /// 1: a mask was installed (`MaskLow`, `MaskHigh`).
    HasMask = 4,
    /// Lower half of the mask of port groups.
    MaskLow = 5,
    /// Upper half.
    MaskHigh = 6,
    /// Option that asked for timestamps.
    Timestamp = 7,
    /// RXPATH latency: count, then three positions, one byte each.
    Traces = 8,
    /// `SO_RDS_TRANSPORT` plus 1; 0 is none.
    Transport = 9,
    /// Type of service.
    Tos = 10,
    /// `SO_REUSEADDR`.
    ReuseAddress = 11,
    /// `SO_BROADCAST`.
    Broadcast = 12,
    /// `SO_KEEPALIVE`.
    KeepAlive = 13,
    /// `SO_ZEROCOPY`.
    ZeroCopy = 14,
    /// `SO_LINGER` in seconds plus 1; 0 is off.
    Linger = 15,
    /// `SO_BUSY_POLL` in microseconds.
    BusyPoll = 16,
    /// A route was asked for: the type of service is settled.
    HasRoute = 17,
}

/// The options in the memory of a socket.
#[derive(Clone, Copy)]
pub struct Options<'a>(pub(super) &'a Area);

impl Options<'_> {
    /// Return the value of a word.
    #[inline]
    pub fn get(&self, word: Word) -> u32 {
        let at = AT_OPTIONS + word as usize * 4;
        self.0.word(at).load(Ordering::Relaxed)
    }

    /// Set the value of a word.
    #[inline]
    pub fn set(&self, word: Word, value: u32) {
        let at = AT_OPTIONS + word as usize * 4;
        self.0.word(at).store(value, Ordering::Relaxed);
    }

    /// Return the mask of port groups that the monitor watches, all of them unless one was
    /// installed.
    pub fn mask(&self) -> u64 {
        if self.get(Word::HasMask) == 0 {
            return u64::MAX;
        }
        u64::from(self.get(Word::MaskHigh)) << 32 | u64::from(self.get(Word::MaskLow))
    }
}

/// Set what a new socket has.
pub(super) fn set_defaults(area: &Area, sizes: &Sizes<'_>) {
    let options = Options(area);
    options.set(Word::SendBytes, sizes.send_default);
    options.set(Word::ReceiveBytes, sizes.receive_default);
}
