//! Where everything lies in a socket's memory. Version 1; see docs/protocol/socket-memory.md.

use crate::atomics::Ordering;
use crate::sys::Errno;
use crate::sys::area::{self, Area, PAGE_BYTES};

/// First word: `URDSOCK1`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"URDSOCK1");
/// Of this layout.
pub const VERSION: u32 = 1;
/// Records are at multiples of this, and as long.
pub const UNIT_BYTES: usize = 64;
const SOFT_BYTES_MIN: usize = 64 << 10;
/// Before the payload of a record.
pub const RECORD_BYTES: usize = 64;
/// Between the header and the payload of a received record with a trace.
pub const TRACE_BYTES: usize = 64;
/// The longest path of a node socket.
pub const PLACE_BYTES_MAX: usize = 107;
/// Destinations of one socket.
pub const ROUTES: usize = 4096;
/// Entries of the client's table from addresses to routes.
pub const NAMES: usize = 2 * ROUTES;

// Written once, by the process that makes the memory.
pub const AT_MAGIC: usize = 0;
pub const AT_VERSION: usize = 8;
pub const AT_SUBMISSIONS: usize = 16;
pub const AT_SEND_UNITS: usize = 20;
pub const AT_RECEIVE_UNITS: usize = 24;
pub const AT_SEND_LIMIT: usize = 28;
pub const AT_RECEIVE_LIMIT: usize = 32;
pub const AT_MESSAGE_LIMIT: usize = 36;
pub const AT_RULES: usize = 40;
pub const AT_COOKIE: usize = 48;
pub const AT_PLACE_BYTES: usize = 128;
pub const AT_PLACE: usize = 132;

// Words of the client; those of one line change together.
pub const AT_SUBMITTED: usize = 256;
pub const AT_CLAIM: usize = 264;
pub const AT_SENT_BYTES: usize = 272;
pub const AT_CURSOR: usize = 280;
pub const AT_FIRST_ROUTE: usize = 284;
pub const AT_SENDERS: usize = 384;
pub const AT_RECEIVERS: usize = 512;
pub const AT_TAKEN: usize = 640;
pub const AT_READER_ASLEEP: usize = 768;
pub const AT_SENDER_WAITS: usize = 896;
pub const AT_WAIT_GROUPS: usize = 1024;
pub const AT_WAIT_FLAGS: usize = 1032;
pub const AT_PEER: usize = 1152;
pub const AT_OPTIONS: usize = 1280;

// Words of the node.
pub const AT_SUBMISSIONS_TAKEN: usize = 2048;
pub const AT_FREED_BYTES: usize = 2056;
pub const AT_PUBLISHED: usize = 2176;
pub const AT_NODE_ASLEEP: usize = 2304;
pub const AT_NOTIFY: usize = 2432;
pub const AT_ROOM_EVENT: usize = 2560;
pub const AT_WANTS_TAKEN: usize = 2688;
pub const AT_ROUTES_GENERATION: usize = 2816;
pub const AT_ABSENT_BYTES: usize = 2824;
pub const AT_OVER_QUOTA: usize = 2832;
pub const AT_LOCAL: usize = 2944;

// Tables behind the head.
pub const AT_ROUTES_SENT: usize = PAGE_BYTES;
pub const AT_NAMES: usize = AT_ROUTES_SENT + ROUTES * 8;
pub const NAME_BYTES: usize = 32;
pub const AT_ROUTES: usize = AT_NAMES + NAMES * NAME_BYTES;
pub const ROUTE_BYTES: usize = 32;
pub const AT_RING: usize = AT_ROUTES + ROUTES * ROUTE_BYTES;

/// In `AT_RULES`: Linux's behaviour where ours differs, as the setting `strict_linux`.
pub const RULE_STRICT_LINUX: u32 = 1;

/// In `AT_WAIT_FLAGS`: a sender was refused for congestion, and no monitor watches.
pub const WAIT_ANY: u32 = 1;
/// Threads sleep on the word `AT_ROOM_EVENT`.
pub const WAIT_SLEEPERS: u32 = 2;
/// A destination was refused room beside others.
pub const WAIT_ROOM: u32 = 4;

/// State of a tile of the send area, in the upper half of its word; the lower half is its units.
pub const TILE_FREE: u64 = 0;
pub const TILE_USED: u64 = 1 << 32;

// In a record of the send area, behind its word.
pub const SEND_LENGTH: usize = 8;
pub const SEND_ROUTE: usize = 12;
pub const SEND_PORT: usize = 16;
pub const SEND_EXTENSION_BYTES: usize = 18;
pub const SEND_FLAGS: usize = 20;
pub const SEND_EXTENSION: usize = 24;
pub const SEND_SENT_AFTER: usize = 40;
pub const SEND_ROUTE_SENT_AFTER: usize = 48;
pub const SEND_SUBMISSION: usize = 56;

// In a record of the receive area.
pub const RECEIVE_NEXT: usize = 0;
pub const RECEIVE_LENGTH: usize = 8;
pub const RECEIVE_SCOPE: usize = 12;
pub const RECEIVE_ADDRESS: usize = 16;
pub const RECEIVE_PORT: usize = 32;
pub const RECEIVE_EXTENSION_BYTES: usize = 34;
pub const RECEIVE_TRACES: usize = 35;
pub const RECEIVE_WALL_NS: usize = 40;
pub const RECEIVE_EXTENSION: usize = 48;

// In an entry of `AT_ROUTES`.
pub const ROUTE_FREED: usize = 0;
pub const ROUTE_FLAGS: usize = 8;
pub const ROUTE_SLOT: usize = 12;
pub const ROUTE_ERROR: usize = 16;
/// In `ROUTE_FLAGS`: messages waited too long for a connection.
pub const ROUTE_ABSENT: u32 = 1;
/// In `ROUTE_FLAGS`: the number means nothing any more; ask again.
pub const ROUTE_GONE: u32 = 2;

/// Behind how many units an area of so many is used for want of room alone, if a buffer counts so
/// many bytes: few pages are touched.
pub fn soft_units(buffer_bytes: u32, area_units: u32) -> u32 {
    let bytes = (2 * buffer_bytes as usize).max(SOFT_BYTES_MIN);
    u32::try_from(bytes / UNIT_BYTES).map_or(area_units, |units| units.min(area_units))
}

/// How large the parts of a socket's memory are, and what its node allows; for life.
#[derive(Clone, Copy, Debug)]
pub struct Sizes<'a> {
    /// Entries of the submission ring, a power of two.
    pub submissions: u32,
    /// Bytes of the send area, a multiple of a page; sparse.
    pub send_bytes: usize,
    /// Bytes of the receive area, a multiple of a page; sparse.
    pub receive_bytes: usize,
    /// `SO_SNDBUF` of a new socket, as it counts (half of what getsockopt shows).
    pub send_default: u32,
    /// `SO_RCVBUF` of a new socket, as it counts.
    pub receive_default: u32,
    /// The greatest `SO_SNDBUF`.
    pub send_limit: u32,
    /// The greatest `SO_RCVBUF`.
    pub receive_limit: u32,
    /// The longest message.
    pub message_limit: u32,
    /// `strict_linux`.
    pub is_strict: bool,
    /// `SO_COOKIE` of the user end.
    pub cookie: u64,
    /// Path of the node socket, empty if clients find it themselves.
    pub place: &'a [u8],
}

impl Default for Sizes<'_> {
    /// Return what a node without settings of its own has.
    fn default() -> Self {
        Self {
            submissions: 1 << 14,
            send_bytes: 256 << 20,
            receive_bytes: 320 << 20,
            send_default: 1 << 20,
            receive_default: 106_496,
            send_limit: 64 << 20,
            receive_limit: 64 << 20,
            message_limit: 8 << 20,
            is_strict: false,
            cookie: 0,
            place: b"",
        }
    }
}

/// Where the parts lie: read once, then private.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Entries of the submission ring.
    pub submissions: u32,
    /// Units of the send area.
    pub send_units: u32,
    /// Units of the receive area.
    pub receive_units: u32,
    /// Where the send area begins.
    pub send_at: usize,
    /// Where the receive area begins.
    pub receive_at: usize,
    /// The longest message.
    pub message_limit: u32,
}

impl Layout {
    fn new(submissions: u32, send_units: u32, receive_units: u32, message_limit: u32) -> Self {
        let send_at = (AT_RING + submissions as usize * 4).next_multiple_of(PAGE_BYTES);
        Self {
            submissions,
            send_units,
            receive_units,
            send_at,
            receive_at: send_at + send_units as usize * UNIT_BYTES,
            message_limit,
        }
    }

    /// Return the bytes of the whole memory.
    pub fn bytes(&self) -> usize {
        self.receive_at + self.receive_units as usize * UNIT_BYTES
    }

    /// Read and check the layout of a mapped memory.
    ///
    /// # Errors
    /// EPROTO for another version, EINVAL for what is no memory of a socket.
    pub fn read(area: &Area) -> Result<Self, Errno> {
        let word = |at| area.word(at).load(Ordering::Relaxed);
        if area.length() < AT_RING || area.long(AT_MAGIC).load(Ordering::Relaxed) != MAGIC {
            return Err(Errno(libc::EINVAL));
        }
        if word(AT_VERSION) != VERSION {
            return Err(Errno(libc::EPROTO));
        }
        let read = Self::new(
            word(AT_SUBMISSIONS),
            word(AT_SEND_UNITS),
            word(AT_RECEIVE_UNITS),
            word(AT_MESSAGE_LIMIT),
        );
        let has_parts = read.submissions.is_power_of_two()
            && read.send_units > 1
            && read.receive_units > 1
            && read.send_units < 1 << 31
            && read.receive_units < 1 << 31;
        if !has_parts || read.bytes() != area.length() {
            return Err(Errno(libc::EINVAL));
        }
        Ok(read)
    }

    /// Return where an entry of the submission ring lies.
    #[inline]
    pub fn ring_entry(&self, count: u64) -> usize {
        let masked = u32::try_from(count & u64::from(self.submissions - 1)).unwrap_or(0);
        AT_RING + masked as usize * 4
    }

    /// Return where a unit of the send area lies.
    #[inline]
    pub fn send_unit(&self, unit: u32) -> usize {
        self.send_at + unit as usize * UNIT_BYTES
    }

    /// Return where a unit of the receive area lies.
    #[inline]
    pub fn receive_unit(&self, unit: u32) -> usize {
        self.receive_at + unit as usize * UNIT_BYTES
    }
}

/// Return the units of a record with so many bytes behind its header.
#[inline]
pub fn units_of(bytes: usize) -> u32 {
    u32::try_from((RECORD_BYTES + bytes).div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

/// Return how far the words of an entry of the node's route table lie.
#[inline]
pub fn route_at(route: u32) -> usize {
    AT_ROUTES + (route as usize % ROUTES) * ROUTE_BYTES
}

/// Return where the client counts the bytes sent to a route.
#[inline]
pub fn route_sent_at(route: u32) -> usize {
    AT_ROUTES_SENT + (route as usize % ROUTES) * 8
}

/// Make the memory of a socket: its descriptor, which is the caller's, and its mapping.
///
/// # Errors
/// EINVAL for sizes that do not fit; of the system.
pub fn make(sizes: &Sizes<'_>) -> Result<(i32, Area), Errno> {
    let units = |bytes: usize| u32::try_from(bytes / UNIT_BYTES).unwrap_or(u32::MAX);
    let layout = Layout::new(
        sizes.submissions,
        units(sizes.send_bytes),
        units(sizes.receive_bytes),
        sizes.message_limit,
    );
    let is_good = sizes.submissions.is_power_of_two()
        && sizes.place.len() <= PLACE_BYTES_MAX
        && layout.bytes().is_multiple_of(PAGE_BYTES)
        && (2..1 << 31).contains(&layout.send_units)
        && (2..1 << 31).contains(&layout.receive_units);
    if !is_good {
        return Err(Errno(libc::EINVAL));
    }
    let (file, area) = area::make(layout.bytes())?;
    let set = |at, value| area.word(at).store(value, Ordering::Relaxed);
    set(AT_VERSION, VERSION);
    set(AT_SUBMISSIONS, layout.submissions);
    set(AT_SEND_UNITS, layout.send_units);
    set(AT_RECEIVE_UNITS, layout.receive_units);
    set(AT_SEND_LIMIT, sizes.send_limit);
    set(AT_RECEIVE_LIMIT, sizes.receive_limit);
    set(AT_MESSAGE_LIMIT, sizes.message_limit);
    set(
        AT_RULES,
        if sizes.is_strict {
            RULE_STRICT_LINUX
        } else {
            0
        },
    );
    set(
        AT_PLACE_BYTES,
        u32::try_from(sizes.place.len()).unwrap_or(0),
    );
    area.copy_in(AT_PLACE, sizes.place);
    area.long(AT_COOKIE).store(sizes.cookie, Ordering::Relaxed);
    super::options::set_defaults(&area, sizes);
    set(AT_READER_ASLEEP, 1); // the first message is shown
    set(AT_NODE_ASLEEP, 1);
    set(AT_ROUTES_GENERATION, 1);
    area.long(AT_MAGIC).store(MAGIC, Ordering::Release);
    Ok((file, area))
}
