//! The tables that each side of a stream writes into the other's memory: space, credits, mappings.
//!
//! **Remote SGL**: the table of what the peer has announced lies in our memory. A urds peer says with
//! each credit update whether an entry came with it; of librdmacm each update looks into the next
//! slot. A taken entry is zeroed. Between urds peers entries whose memory continues become one.
//!
//! **Credit updates**: entries of the peer's table, and the credits we give: an absolute limit, 16 bits
//! of what was read plus what may wait.
//!
//! **Iomap**: buffers mapped for direct writes, ours in the peer's table, the peer's in ours.

use std::collections::VecDeque;

use crate::records::{
    Data, EINVAL, ENOMEM, Mapped, Memory, Post, PostKind, ProtocolError, Refused, StreamSettings,
    StreamStats,
};
use crate::wire::{
    CREDIT_HAS_ENTRY, CREDIT_LIMIT_MASK, IOMAP_ENTRY_BYTES, IomapEntry, Op, SGE_BYTES, Sge,
    emit_word,
};

/// Updates of the iomap that have not left, by slot: data sent later wait for them.
pub type Updates = VecDeque<(u32, Post)>;

/// Check memory that the peer names.
///
/// # Errors
/// It leaves the addresses.
pub(crate) fn check_range(
    address: u64,
    byte_count: u64,
    what: impl FnOnce() -> String,
) -> Result<(), ProtocolError> {
    if u128::from(address) + u128::from(byte_count) > 1 << 64 {
        let what = what();
        return Err(ProtocolError(format!(
            "{what}: {byte_count} bytes from {address:#x} wrap around"
        )));
    }
    Ok(())
}

/// Where the peer's iomap is, and how it reads it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerIomap {
    pub address: u64,
    pub rkey: u32,
    pub slots: u32,
    pub is_big_endian: bool,
    /// A urds peer is told of the end of a mapping.
    pub is_urds: bool,
}

/// The mappings of one stream, in both directions.
#[derive(Debug)]
pub struct Iomap<M> {
    memory: M,
    start: usize, // of our table in our memory
    slots: u32,
    is_big_endian: bool,
    remote: Vec<(u32, IomapEntry)>, // by slot of our table, in the order of their updates
    local: Vec<(u64, u32)>,         // names of buffers and slots of the peer's table
    returned: Vec<u32>,             // slots below those ever used, free again
    peer: PeerIomap,
}

impl<M: Memory> Iomap<M> {
    pub(crate) fn new(memory: M, start: usize, slots: u32, is_big_endian: bool) -> Self {
        Self {
            memory,
            start,
            slots,
            is_big_endian,
            remote: Vec::new(),
            local: Vec::new(),
            returned: Vec::new(),
            peer: PeerIomap::default(),
        }
    }

    pub(crate) fn adopt(&mut self, peer: PeerIomap) {
        self.peer = peer;
    }

    // -- ours, for the peer to write

    /// Take a slot of the peer's table and queue the update that fills it.
    ///
    /// # Errors
    /// ENOMEM if no slot is free, EINVAL for an offset or length out of range and for memory that
    /// is mapped already.
    pub(crate) fn map_buffer(
        &mut self,
        buffer: &Mapped,
        offset: i128,
        updates: &mut Updates,
    ) -> Result<(), Refused> {
        let byte_count = buffer.length;
        let (Ok(from), Ok(length)) = (u64::try_from(offset), u32::try_from(byte_count)) else {
            return Err(Self::out_of_range(byte_count, offset));
        };
        if length == 0 || u128::from(from) + u128::from(byte_count) > 1 << 64 {
            return Err(Self::out_of_range(byte_count, offset));
        }
        let address = buffer.address;
        if self.local.iter().any(|(name, _)| *name == buffer.name) {
            let detail = format!("memory at {address:#x} is mapped already");
            return Err(Refused::new(EINVAL, detail));
        }
        let used = u32::try_from(self.local.len()).unwrap_or(u32::MAX);
        if used >= self.peer.slots {
            let detail = format!("no slot is free, the peer offers {}", self.peer.slots);
            return Err(Refused::new(ENOMEM, detail));
        }
        // Slots are used up from 0 on; from then on there are returned ones.
        let slot = self.returned.pop().unwrap_or(used);
        self.local.push((buffer.name, slot));
        let entry = IomapEntry {
            offset: from,
            address,
            key: buffer.rkey,
            length,
        };
        self.queue(slot, Some(entry), updates);
        Ok(())
    }

    fn out_of_range(byte_count: u64, offset: i128) -> Refused {
        Refused::new(EINVAL, format!("{byte_count} bytes at offset {offset}"))
    }

    /// Free the slot of a buffer, and with `is_told` tell a urds peer.
    ///
    /// # Errors
    /// EINVAL for a buffer that is not mapped.
    pub(crate) fn unmap(
        &mut self,
        name: u64,
        address: u64,
        is_told: bool,
        updates: &mut Updates,
    ) -> Result<(), Refused> {
        let Some(at) = self.local.iter().position(|(known, _)| *known == name) else {
            let detail = format!("memory at {address:#x} is not mapped");
            return Err(Refused::new(EINVAL, detail));
        };
        let (_, slot) = self.local.swap_remove(at);
        self.returned.push(slot);
        let is_told = is_told && self.peer.is_urds;
        self.queue(slot, is_told.then(IomapEntry::default), updates);
        Ok(())
    }

    /// Queue an update in place of one for the same slot that has not left.
    fn queue(&self, slot: u32, entry: Option<IomapEntry>, updates: &mut Updates) {
        if let Some(at) = updates.iter().position(|(queued, _)| *queued == slot) {
            updates.remove(at);
        }
        if let Some(entry) = entry {
            let data = entry.emit(self.peer.is_big_endian);
            let post = Post {
                kind: PostKind::Iomap,
                data: Data::copy_of(&data[..], 0, data.len()),
                // Within the addresses: that of the table was checked with all its slots.
                address: self.peer.address + u64::from(slot) * IOMAP_ENTRY_BYTES as u64,
                rkey: self.peer.rkey,
                word: Some(emit_word(Op::Iomap, slot)),
            };
            updates.push_back((slot, post));
        }
    }

    // -- the peer's, for us to write

    /// Take the entry that the peer has written.
    ///
    /// # Errors
    /// No such slot; a buffer or offsets that leave the addresses.
    pub(crate) fn take_update(&mut self, slot: u32) -> Result<(), ProtocolError> {
        if slot >= self.slots {
            let slots = self.slots;
            return Err(ProtocolError(format!(
                "update of iomap slot {slot} of {slots}"
            )));
        }
        let mut bytes = [0; IOMAP_ENTRY_BYTES];
        let at = self.start + slot as usize * IOMAP_ENTRY_BYTES;
        self.memory.read(at, &mut bytes);
        let entry = IomapEntry::parse(&bytes, self.is_big_endian);
        self.remote.retain(|(known, _)| *known != slot);
        if entry.length > 0 {
            let length = entry.length.into();
            check_range(entry.address, length, || {
                format!("buffer of iomap slot {slot}")
            })?;
            check_range(entry.offset, length, || {
                format!("offset of iomap slot {slot}")
            })?;
            self.remote.push((slot, entry));
        }
        Ok(())
    }

    /// Return whether the peer has a buffer at this offset.
    pub fn is_mapped(&self, offset: u64) -> bool {
        self.place(offset, 1).is_some()
    }

    /// Return address, key and length of the memory from an offset on, in one mapping.
    pub(crate) fn place(&self, offset: u64, byte_count: u64) -> Option<(u64, u32, u64)> {
        let found = self.remote.iter().find(|(_, entry)| {
            offset
                .checked_sub(entry.offset)
                .is_some_and(|skipped| skipped < entry.length.into())
        });
        let (_, entry) = found?;
        let skipped = offset - entry.offset;
        let here = byte_count.min(u64::from(entry.length) - skipped);
        Some((entry.address + skipped, entry.key, here))
    }

    pub(crate) fn close(&mut self) {
        self.remote.clear();
    }
}

/// Memory of the peer that is still to be filled, from its front.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRange {
    pub address: u64,
    pub rkey: u32,
    pub byte_count: u64,
}

/// The table that the peer writes; what was read from it is the space of `Sending`.
#[derive(Debug)]
pub(crate) struct RemoteSgl<M> {
    memory: M,
    entries: u32,
    is_big_endian: bool,
    index: u32,
    is_merging: bool,
}

impl<M: Memory> RemoteSgl<M> {
    /// Read a table that begins with our memory.
    pub fn new(memory: M, entries: u32, is_big_endian: bool) -> Self {
        Self {
            memory,
            entries,
            is_big_endian,
            index: 1 % entries, // entry 0 came with the connect data
            is_merging: false,
        }
    }

    /// Take the space of the connect data, which was checked.
    pub fn adopt(&mut self, first: &Sge, is_merging: bool, spaces: &mut VecDeque<RemoteRange>) {
        self.is_merging = is_merging;
        if first.length > 0 {
            spaces.push_back(range_of(first));
        }
    }

    /// Move the next entry from the table; return whether there was one.
    ///
    /// # Errors
    /// An announced entry that is empty, one that leaves the addresses, more entries than the table
    /// holds.
    pub fn take_entry(
        &mut self,
        is_announced: bool,
        spaces: &mut VecDeque<RemoteRange>,
    ) -> Result<bool, ProtocolError> {
        let index = self.index;
        let at = index as usize * SGE_BYTES;
        let mut bytes = [0; SGE_BYTES];
        self.memory.read(at, &mut bytes);
        let entry = Sge::parse(&bytes, self.is_big_endian);
        if entry.length == 0 {
            if is_announced {
                return Err(ProtocolError(format!("announced entry {index} is empty")));
            }
            return Ok(false);
        }
        check_range(entry.address, entry.length.into(), || {
            format!("entry {index}")
        })?;
        self.memory.write(at, &[0; SGE_BYTES]);
        self.index = (index + 1) % self.entries;
        self.append(&entry, spaces)?;
        Ok(true)
    }

    fn append(&self, entry: &Sge, spaces: &mut VecDeque<RemoteRange>) -> Result<(), ProtocolError> {
        if self.is_merging
            && let Some(last) = spaces.back_mut()
            && last.rkey == entry.key
            && last.address.checked_add(last.byte_count) == Some(entry.address)
        {
            last.byte_count += u64::from(entry.length);
            return Ok(());
        }
        if spaces.len() >= self.entries as usize {
            return Err(ProtocolError(format!(
                "entry {} of a table that holds {}",
                spaces.len() + 1,
                self.entries
            )));
        }
        spaces.push_back(range_of(entry));
        Ok(())
    }
}

fn range_of(entry: &Sge) -> RemoteRange {
    RemoteRange {
        address: entry.address,
        rkey: entry.key,
        byte_count: entry.length.into(),
    }
}

/// Where the peer's table is, and how many messages the peer may send.
#[derive(Debug)]
pub(crate) struct SglUpdates {
    is_urds_peer: bool,
    table: Sge,
    is_big_endian: bool,
    /// Of the peer's table.
    pub entries: u32,
    index: u32,
    // Counted without wrapping
    queue: u64,
    half: u64,
    pub messages_read: u64,
    pub limit: u64,
    /// Messages read: credits are due.
    pub threshold: u64,
}

impl SglUpdates {
    pub fn new(settings: &StreamSettings) -> Self {
        let queue = u64::from(settings.receive_queue);
        let half = (queue / 2).max(1);
        Self {
            is_urds_peer: false,
            table: Sge::default(),
            is_big_endian: false,
            entries: 0,
            index: 0,
            queue,
            half,
            messages_read: 0,
            limit: queue,
            threshold: half,
        }
    }

    pub fn begin_at(&mut self, messages: u64) {
        self.messages_read = messages;
        self.limit = messages + self.queue;
        self.threshold = messages + self.half;
    }

    /// Take where the peer's table is.
    pub fn adopt(&mut self, table: Sge, is_big_endian: bool, is_urds: bool) {
        self.table = table;
        self.is_big_endian = is_big_endian;
        self.is_urds_peer = is_urds;
        self.entries = table.length;
        self.index = 1 % self.entries; // entry 0 went with the connect data
    }

    /// Return an update that gives all credits there are, and announces `space`.
    pub fn update(&mut self, space: Option<Sge>, stats: &mut StreamStats) -> Post {
        self.threshold = self.messages_read + self.half;
        self.limit = self.messages_read + self.queue;
        #[expect(clippy::cast_possible_truncation, reason = "the mask leaves 16 bits")]
        let mut argument = (self.limit & u64::from(CREDIT_LIMIT_MASK)) as u32;
        stats.credits_sent += 1;
        let Some(space) = space else {
            let word = emit_word(Op::Credit, argument);
            return Post::without_bytes(PostKind::Credit, Some(word));
        };
        if self.is_urds_peer {
            argument |= CREDIT_HAS_ENTRY;
        }
        let address = self.table.address + u64::from(self.index) * SGE_BYTES as u64;
        self.index = (self.index + 1) % self.entries;
        stats.entries_sent += 1;
        let data = space.emit(self.is_big_endian);
        Post {
            kind: PostKind::Credit,
            data: Data::copy_of(&data[..], 0, data.len()),
            address,
            rkey: self.table.key,
            word: Some(emit_word(Op::Credit, argument)),
        }
    }
}
