//! Receiving: the first record is copied out, then taken, under the lock of receivers.

use core::sync::atomic::{Ordering, fence};

use super::client_side::{ClientSide, Rejected};
use super::layout::{
    AT_NOTIFY, AT_PUBLISHED, AT_TAKEN, AT_WANTS_TAKEN, RECEIVE_ADDRESS, RECEIVE_EXTENSION,
    RECEIVE_EXTENSION_BYTES, RECEIVE_LENGTH, RECEIVE_NEXT, RECEIVE_PORT, RECEIVE_SCOPE,
    RECEIVE_TRACES, RECEIVE_WALL_NS, RECORD_BYTES, TRACE_BYTES, UNIT_BYTES,
};
use super::name::Name;
use super::node_receive::Trace;

/// What was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedKind {
    /// A message.
    Message,
    /// A notification, without data: port groups whose congestion changed.
    CongestionUpdate(u64),
}

/// A message or notification as its header says, and what is due after it.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Which of the two.
    pub kind: ReceivedKind,
    /// Bytes of the payload.
    pub length: usize,
    /// Who sent it.
    pub source: Name,
    /// Extension headers as on the wire.
    pub extension: [u8; 16],
    /// How many of them.
    pub extension_bytes: u8,
    /// Arrival by the clock of the host in nanoseconds, 0 if it was not asked for.
    pub wall_ns: u64,
    /// Receive-path positions and nanoseconds, as far as they were asked for.
    pub trace: Trace,
    /// Nothing is left: `ClientSide::sleep` is due.
    pub is_last: bool,
    /// Ring the node's doorbell.
    pub ring: bool,
}

impl Received {
    fn notification(groups: u64) -> Self {
        Self {
            kind: ReceivedKind::CongestionUpdate(groups),
            length: 0,
            source: Name::default(),
            extension: [0; 16],
            extension_bytes: 0,
            wall_ns: 0,
            trace: Trace::default(),
            is_last: false,
            ring: false,
        }
    }
}

impl ClientSide {
    /// Receive the first notification or message: `take` copies from the place of a payload, of the
    /// length that it gets with it. With `peek` a message stays; a notification does not.
    ///
    /// # Errors
    /// `Busy`, `Empty`, `Corrupt`.
    #[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
    #[inline(always)]
    pub fn receive(
        &self,
        peek: bool,
        take: impl FnOnce(usize, usize),
    ) -> Result<Received, Rejected> {
        let _guard = self.lock_receivers()?;
        let notify = self.area.long(AT_NOTIFY);
        if notify.load(Ordering::Relaxed) != 0 {
            let groups = notify.swap(0, Ordering::Relaxed);
            if groups != 0 {
                let mut received = Received::notification(groups);
                received.is_last = !self.has_something();
                return Ok(received);
            }
        }
        let published = self.area.long(AT_PUBLISHED).load(Ordering::Acquire) & 0xffff_ffff;
        let taken = self.area.long(AT_TAKEN).load(Ordering::Relaxed);
        if published == taken >> 32 {
            return Err(Rejected::Empty);
        }
        let last = u32::try_from(taken & 0xffff_ffff).unwrap_or(u32::MAX);
        let (unit, payload_at, mut received) = self.read_record(last)?;
        take(payload_at, received.length);
        if peek {
            return Ok(received);
        }
        let count = (taken >> 32).wrapping_add(1) & 0xffff_ffff;
        self.area
            .long(AT_TAKEN)
            .store(count << 32 | u64::from(unit), Ordering::Release);
        received.is_last = count == published && !self.has_something();
        received.ring = self.is_awaited(count);
        Ok(received)
    }

    /// Read the record that follows another one.
    #[allow(clippy::inline_always)] // its result would be written to memory, to be read at once
    #[inline(always)]
    fn read_record(&self, last: u32) -> Result<(u32, usize, Received), Rejected> {
        if last >= self.layout.receive_units {
            return Err(Rejected::Corrupt);
        }
        let last_at = self.layout.receive_unit(last);
        let unit = self
            .area
            .word(last_at + RECEIVE_NEXT)
            .load(Ordering::Acquire);
        if unit >= self.layout.receive_units {
            return Err(Rejected::Corrupt);
        }
        let at = self.layout.receive_unit(unit);
        let mut header = [0u8; RECORD_BYTES];
        self.area.copy_out(at, &mut header);
        let word = |offset: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&header[offset..offset + 4]);
            u32::from_le_bytes(bytes)
        };
        let mut received = Received::notification(0);
        received.kind = ReceivedKind::Message;
        received.length = word(RECEIVE_LENGTH) as usize;
        received.source.scope = word(RECEIVE_SCOPE);
        received.source.port = u16::from_le_bytes([header[RECEIVE_PORT], header[RECEIVE_PORT + 1]]);
        received
            .source
            .address
            .copy_from_slice(&header[RECEIVE_ADDRESS..RECEIVE_ADDRESS + 16]);
        received
            .extension
            .copy_from_slice(&header[RECEIVE_EXTENSION..]);
        received.extension_bytes = header[RECEIVE_EXTENSION_BYTES].min(16);
        received.wall_ns =
            u64::from(word(RECEIVE_WALL_NS + 4)) << 32 | u64::from(word(RECEIVE_WALL_NS));
        let mut payload_at = at + RECORD_BYTES;
        let room = (self.layout.receive_units - unit) as usize * UNIT_BYTES - RECORD_BYTES;
        let traces = header[RECEIVE_TRACES];
        let before = if traces > 0 { TRACE_BYTES } else { 0 };
        if before + received.length > room {
            return Err(Rejected::Corrupt);
        }
        if traces > 0 {
            let mut bytes = [0; TRACE_BYTES];
            self.area.copy_out(payload_at, &mut bytes);
            received.trace = Trace::read(traces, &bytes);
            payload_at += TRACE_BYTES;
        }
        Ok((unit, payload_at, received))
    }

    /// Return whether the node waits for this message to be taken.
    fn is_awaited(&self, count: u64) -> bool {
        fence(Ordering::SeqCst);
        let wants = self.area.long(AT_WANTS_TAKEN);
        let wanted = wants.load(Ordering::Relaxed);
        if wanted == 0 {
            return false;
        }
        // The lower half is the count; whether it was reached, on a circle of 32 bits.
        let ahead = count.wrapping_sub(wanted) & 0xffff_ffff;
        ahead < 1 << 31 && wants.swap(0, Ordering::Relaxed) != 0
    }
}
