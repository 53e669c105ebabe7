//! Keys: every access to registered memory passes here; the rules of `urds.verbs.engine.keys`.
//!
//! A key is a 24-bit index and an 8-bit variant. An access that is allowed gets a range of the
//! region's memory, and only that.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::errors::{EBUSY, EEXIST, ENOMEM, Fault, Rejected};
use crate::memory::{Content, Extent, Extents, Memory};
use crate::numbers::{
    KNOWN_ACCESS, LOCAL_WRITE, MW_BIND, OPTIONAL_ACCESS, REMOTE_ATOMIC, REMOTE_WRITE, Status,
};
use crate::work::{Binding, Piece};

const VARIANT_BITS: u32 = 8;
const REGION_INDEX_FIRST: u32 = 1;
const WINDOW_INDEX_FIRST: u32 = 1 << 23;
const INDEX_END: u32 = 1 << 24;
const REGION_KEY_FIRST: i64 = 1 << VARIANT_BITS;
const REGION_KEY_END: i64 = (WINDOW_INDEX_FIRST as i64) << VARIANT_BITS;
const COUNT_MAX: usize = 1 << 20;
const REMOTE_CHANGE: u32 = REMOTE_WRITE | REMOTE_ATOMIC;

/// Numbers of regions and windows, of all engines: one of another engine is never found.
static IDENTITIES: AtomicU64 = AtomicU64::new(1);

/// A protection domain; one within another reaches the memory of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain {
    pub own: u64,
    pub outer: Option<u64>,
}

impl Domain {
    /// Return whether queue pairs of this domain may use what belongs to the domain `owner`.
    fn reaches(self, owner: u64) -> bool {
        self.own == owner || self.outer == Some(owner)
    }
}

/// Hash of keys: their indices are spread already, or count up.
#[derive(Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0.rotate_left(8) ^ u64::from(*byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

pub(crate) type Map<K, V> = HashMap<K, V, BuildHasherDefault<KeyHasher>>;

/// Registered memory.
#[derive(Debug)]
pub struct Region {
    pub id: u64,
    pub domain: u64,
    pub memory: Arc<dyn Memory>,
    pub address: u64,
    pub length: u64,
    pub access: u32,
    pub windows: u32,
}

/// A part of a region with a remote key of its own; bound while `region` is not `None`.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub domain: u64,
    pub kind: u8,
    pub rkey: u32,
    /// The key of its region, which stays while there are windows.
    pub region: Option<u32>,
    address: u64,
    length: u64,
    access: u32,
    qpn: u32,
}

/// Draws random numbers for keys.
pub type Draw = Box<dyn FnMut() -> u64 + Send>;

struct Indices {
    first: u32,
    end: u32,
    fresh: u32,
    freed: VecDeque<u32>, // the last keys, oldest first
    used: HashSet<u32, BuildHasherDefault<KeyHasher>>,
}

impl Indices {
    fn new(first: u32, end: u32) -> Self {
        Self {
            first,
            end,
            fresh: 0,
            freed: VecDeque::new(),
            used: HashSet::default(),
        }
    }

    fn take(&mut self, draw: Option<&mut Draw>) -> Result<u32, Rejected> {
        self.demand_room()?;
        let key = match draw {
            None => self.count_on(),
            Some(draw) => self.draw(draw),
        };
        self.used.insert(key >> VARIANT_BITS);
        Ok(key)
    }

    fn choose(&mut self, key: u32) -> Result<(), Rejected> {
        let index = key >> VARIANT_BITS;
        if self.used.contains(&index) {
            let detail = format!("key {key:#x}: its index is in use");
            return Err(Rejected::new(EEXIST, detail));
        }
        self.demand_room()?;
        self.used.insert(index);
        self.freed.retain(|freed| freed >> VARIANT_BITS != index);
        Ok(())
    }

    fn give_back(&mut self, key: u32, is_random: bool) {
        let index = key >> VARIANT_BITS;
        self.used.remove(&index);
        // One that was chosen ahead of the count is not remembered: chosen ones have no bound.
        if !is_random && index < self.first + self.fresh {
            self.freed.push_back(key);
        }
    }

    /// Return the key that takes the place of this one: drawn ones say nothing of the next.
    fn renew(&mut self, key: u32, draw: Option<&mut Draw>) -> u32 {
        let Some(draw) = draw else {
            return next_variant(key);
        };
        let drawn = self.draw(draw);
        self.used.insert(drawn >> VARIANT_BITS);
        self.give_back(key, true);
        drawn
    }

    fn count_on(&mut self) -> u32 {
        while (self.fresh as usize) < COUNT_MAX {
            let index = self.first + self.fresh;
            self.fresh += 1;
            if !self.used.contains(&index) {
                return index << VARIANT_BITS;
            }
        }
        next_variant(self.freed.pop_front().unwrap_or(self.first << VARIANT_BITS))
    }

    fn draw(&self, draw: &mut Draw) -> u32 {
        // At most an eighth of the range is in use, so this ends after few tries.
        loop {
            let number = draw();
            let span = u64::from(self.end - self.first);
            let index = self.first + u32::try_from(number % span).unwrap_or(0);
            if !self.used.contains(&index) {
                let variant = u32::try_from(number >> 56).unwrap_or(0);
                return index << VARIANT_BITS | variant;
            }
        }
    }

    fn demand_room(&self) -> Result<(), Rejected> {
        if self.used.len() < COUNT_MAX {
            return Ok(());
        }
        let detail = format!("all {COUNT_MAX} keys are in use");
        Err(Rejected::new(ENOMEM, detail))
    }
}

/// All regions and windows of one engine.
pub struct Keys {
    regions: Map<u32, Region>,
    by_region: Map<u64, u32>, // by identity
    windows: Map<u32, u64>,   // by key
    window_records: Map<u64, Window>,
    region_indices: Indices,
    window_indices: Indices,
    draw: Option<Draw>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Keys of {} regions", self.regions.len())
    }
}

/// What a registration names: its memory, the address of the first byte, rights.
pub struct Registration {
    pub memory: Arc<dyn Memory>,
    pub length: u64,
    pub is_readonly: bool,
    pub address: i128,
    pub access: i64,
}

impl Registration {
    /// Return the address and the access bits that count.
    fn check(&self) -> Result<(u64, u32), Rejected> {
        let known = i64::from(KNOWN_ACCESS);
        let bits = self.access & !i64::from(OPTIONAL_ACCESS);
        if bits & !known != 0 {
            let detail = format!("access flags {:#x}, known are {known:#x}", self.access);
            return Err(Rejected::invalid(detail));
        }
        let bits = u32::try_from(bits).unwrap_or(0); // known bits only
        if bits & REMOTE_CHANGE != 0 && bits & LOCAL_WRITE == 0 {
            let detail = "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE";
            return Err(Rejected::invalid(detail));
        }
        if self.is_readonly && bits & LOCAL_WRITE != 0 {
            let detail = "LOCAL_WRITE for a buffer that cannot be written";
            return Err(Rejected::invalid(detail));
        }
        let end = (1_i128 << 64) - i128::from(self.length);
        match u64::try_from(self.address) {
            Ok(address) if self.address <= end => Ok((address, bits)),
            _ => Err(Rejected::invalid(format!(
                "{} outside 64 bits",
                extent(self.address, i128::from(self.length))
            ))),
        }
    }
}

impl Keys {
    /// Make an empty table. `draw`: keys that peers cannot guess; without it they count up.
    pub fn new(draw: Option<Draw>) -> Self {
        Self {
            regions: Map::default(),
            by_region: Map::default(),
            windows: Map::default(),
            window_records: Map::default(),
            region_indices: Indices::new(REGION_INDEX_FIRST, WINDOW_INDEX_FIRST),
            window_indices: Indices::new(WINDOW_INDEX_FIRST, INDEX_END),
            draw,
        }
    }

    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    pub fn region(&self, key: u32) -> Option<&Region> {
        self.regions.get(&key)
    }

    /// Register memory; returns its identity and key.
    ///
    /// # Errors
    /// EINVAL for access flags, address or key; EEXIST for a key in use; ENOMEM.
    pub fn register(
        &mut self,
        domain: u64,
        registration: Registration,
        key: Option<i64>,
    ) -> Result<(u64, u32), Rejected> {
        let (address, access) = registration.check()?;
        let key = match key {
            None => self.region_indices.take(self.draw.as_mut())?,
            Some(key) => match u32::try_from(key) {
                Ok(chosen) if (REGION_KEY_FIRST..REGION_KEY_END).contains(&key) => {
                    self.region_indices.choose(chosen)?;
                    chosen
                }
                _ => {
                    let detail = format!("key {key:#x} is not one that a region may have");
                    return Err(Rejected::invalid(detail));
                }
            },
        };
        let id = IDENTITIES.fetch_add(1, Relaxed);
        let region = Region {
            id,
            domain,
            memory: registration.memory,
            address,
            length: registration.length,
            access,
            windows: 0,
        };
        self.regions.insert(key, region);
        self.by_region.insert(id, key);
        Ok((id, key))
    }

    /// Change a region; returns the key that it has now.
    ///
    /// # Errors
    /// EBUSY while windows are bound; EINVAL as `register`, or if it is gone.
    pub fn reregister(
        &mut self,
        id: u64,
        key: u32,
        domain: Option<u64>,
        registration: Registration,
        keeps_keys: bool,
    ) -> Result<u32, Rejected> {
        self.demand_free_of_windows(id, key)?;
        let (address, access) = registration.check()?;
        let Some(mut region) = self.regions.remove(&key) else {
            return Ok(key); // it was found above
        };
        region.domain = domain.unwrap_or(region.domain);
        region.memory = registration.memory;
        (region.address, region.length) = (address, registration.length);
        region.access = access;
        let key = if keeps_keys {
            key
        } else {
            self.region_indices.renew(key, self.draw.as_mut())
        };
        self.regions.insert(key, region);
        self.by_region.insert(id, key);
        Ok(key)
    }

    /// Remove a region.
    ///
    /// # Errors
    /// EBUSY while windows are bound, EINVAL if it was removed before.
    pub fn deregister(&mut self, id: u64, key: u32) -> Result<Option<Region>, Rejected> {
        self.demand_free_of_windows(id, key)?;
        self.region_indices.give_back(key, self.draw.is_some());
        self.by_region.remove(&id);
        Ok(self.regions.remove(&key))
    }

    fn demand_free_of_windows(&self, id: u64, key: u32) -> Result<(), Rejected> {
        match self.regions.get(&key).filter(|region| region.id == id) {
            None => Err(Rejected::invalid(format!(
                "region {key:#x} was deregistered before"
            ))),
            Some(region) if region.windows > 0 => Err(Rejected::new(
                EBUSY,
                format!(
                    "{} memory windows are bound to region {key:#x}",
                    region.windows
                ),
            )),
            Some(_) => Ok(()),
        }
    }

    // -- accesses

    /// Return the bytes that a local work request names, at least one.
    ///
    /// # Errors
    /// `LocProtErr`: key, domain, right to write, range.
    pub fn local(
        &self,
        lkey: u32,
        address: i128,
        length: u64,
        domain: Domain,
        write: bool,
    ) -> Result<Extent<'_>, Fault> {
        let region = self.regions.get(&lkey);
        if let Some(region) = region
            && domain.reaches(region.domain)
            && (!write || region.access & LOCAL_WRITE != 0)
            && let Some(extent) = part(region, region.address, region.length, address, length)
        {
            return Ok(extent);
        }
        let reason = match region {
            None => "not valid".to_owned(),
            Some(region) if !domain.reaches(region.domain) => {
                "of another protection domain".to_owned()
            }
            Some(region) => format!(
                "{} outside {}",
                extent(address, i128::from(length)),
                extent(i128::from(region.address), i128::from(region.length))
            ),
        };
        Err(Fault {
            status: Status::LocProtErr,
            reason: format!("local key {lkey:#x}: {reason}"),
        })
    }

    /// Return the bytes that the peer of queue pair `qpn` names. Zero bytes need no key.
    ///
    /// # Errors
    /// `RemAccessErr`: key, domain, rights, range.
    pub fn remote(
        &self,
        rkey: u32,
        address: u64,
        length: u64,
        domain: Domain,
        access: u32,
        qpn: u32,
    ) -> Result<Option<Extent<'_>>, Fault> {
        if length == 0 {
            return Ok(None);
        }
        let address = i128::from(address);
        if let Some(region) = self.regions.get(&rkey) {
            if domain.reaches(region.domain)
                && region.access & access == access
                && let Some(found) = part(region, region.address, region.length, address, length)
            {
                return Ok(Some(found));
            }
        } else if let Some(window) = self.window_of_key(rkey)
            && let Some(region) = window.region.and_then(|key| self.regions.get(&key))
            && domain.reaches(window.domain)
            && (window.kind == 1 || window.qpn == qpn)
            && window.access & access == access
            && part(region, window.address, window.length, address, length).is_some()
            && let Some(found) = part(region, region.address, region.length, address, length)
        {
            return Ok(Some(found));
        }
        Err(Fault::of(Status::RemAccessErr))
    }

    /// Find `length` bytes of a message from `offset`: ranges, appended to `found`.
    ///
    /// # Errors
    /// `LocProtErr` where a key does not allow it.
    pub fn gather<'a>(
        &'a self,
        domain: Domain,
        pieces: &[Piece],
        offset: u64,
        length: u64,
        found: &mut Extents<'a>,
    ) -> Result<(), Fault> {
        let (mut offset, mut length) = (offset, length);
        for piece in pieces {
            if length == 0 {
                break;
            }
            let piece_bytes = piece.length.unsigned_abs(); // a post checks the sign
            if offset >= piece_bytes {
                offset -= piece_bytes;
                continue;
            }
            let count = length.min(piece_bytes - offset);
            let address = piece.address.saturating_add(i128::from(offset));
            found.push(self.local(piece.lkey, address, count, domain, false)?);
            (offset, length) = (0, length - count);
        }
        Ok(())
    }

    /// Copy bytes into the pieces, from `offset` bytes after their start.
    ///
    /// # Errors
    /// `LocProtErr` where a key does not allow it, `LocLenErr` when the pieces end before the data.
    /// What lies before the fault has been written.
    pub fn scatter(
        &self,
        domain: Domain,
        pieces: &[Piece],
        offset: u64,
        data: Content<'_>,
    ) -> Result<(), Fault> {
        let (mut offset, mut data) = (offset, data);
        for piece in pieces {
            if data.is_empty() {
                return Ok(());
            }
            // A receive is not checked when it is posted: a negative length holds nothing, and
            // what is behind it begins so many bytes earlier.
            let Ok(piece_bytes) = u64::try_from(piece.length) else {
                offset += piece.length.unsigned_abs();
                continue;
            };
            if offset >= piece_bytes {
                offset -= piece_bytes;
                continue;
            }
            let room = usize::try_from(piece_bytes - offset).unwrap_or(usize::MAX);
            let count = room.min(data.len());
            let (head, rest) = (data.part(0, count), data.part(count, data.len() - count));
            let address = piece.address.saturating_add(i128::from(offset));
            let target = self.local(piece.lkey, address, head.len() as u64, domain, true)?;
            head.write_to(target.memory, target.at);
            (offset, data) = (0, rest);
        }
        if data.is_empty() {
            Ok(())
        } else {
            Err(Fault::of(Status::LocLenErr))
        }
    }

    // -- windows

    /// Make an unbound window of kind 1 or 2; returns its identity.
    ///
    /// # Errors
    /// EINVAL for another kind, ENOMEM.
    pub fn new_window(&mut self, domain: u64, kind: i64) -> Result<u64, Rejected> {
        let Some(kind) = u8::try_from(kind).ok().filter(|kind| matches!(kind, 1 | 2)) else {
            let detail = format!("memory window of kind {kind}, known are 1 and 2");
            return Err(Rejected::invalid(detail));
        };
        let rkey = self.window_indices.take(self.draw.as_mut())?;
        let id = IDENTITIES.fetch_add(1, Relaxed);
        let window = Window {
            domain,
            kind,
            rkey,
            region: None,
            address: 0,
            length: 0,
            access: 0,
            qpn: 0,
        };
        self.window_records.insert(id, window);
        self.windows.insert(rkey, id);
        Ok(id)
    }

    pub fn window(&self, id: u64) -> Option<&Window> {
        self.window_records.get(&id)
    }

    fn window_of_key(&self, rkey: u32) -> Option<&Window> {
        self.window_records.get(self.windows.get(&rkey)?)
    }

    /// Point a window at a part of a region; it gets a new key.
    ///
    /// # Errors
    /// `MwBindErr`; then nothing changes.
    pub fn bind(&mut self, binding: &Binding, qpn: u32) -> Result<(), Fault> {
        let Some(bounds) = self.check_bind(binding) else {
            return Err(Fault::of(Status::MwBindErr));
        };
        self.unbind(binding.window);
        let Some(window) = self.window_records.get_mut(&binding.window) else {
            return Ok(()); // it was found above
        };
        if let Some((address, length)) = bounds
            && let Some(&key) = self.by_region.get(&binding.region)
            && let Some(region) = self.regions.get_mut(&key)
        {
            window.region = Some(key);
            (window.address, window.length) = (address, length);
            (window.access, window.qpn) = (binding.access & KNOWN_ACCESS, qpn);
            region.windows += 1;
        }
        self.windows.remove(&window.rkey);
        window.rkey = next_variant(window.rkey);
        self.windows.insert(window.rkey, binding.window);
        Ok(())
    }

    /// Return the bounds of a binding that is allowed; inside, `None` unbinds.
    #[allow(clippy::option_option)] // refused, unbound, bound
    fn check_bind(&self, binding: &Binding) -> Option<Option<(u64, u64)>> {
        let window = self.window_records.get(&binding.window)?;
        if window.kind == 2 && (window.region.is_some() || binding.length == 0) {
            return None;
        }
        let region = self.regions.get(self.by_region.get(&binding.region)?)?;
        let (length, bits) = (binding.length, binding.access);
        let start = binding.address - i128::from(region.address);
        let is_inside = start >= 0 && length >= 0 && length <= i128::from(region.length) - start;
        let is_allowed = window.domain == region.domain
            && (length == 0 || region.access & MW_BIND != 0)
            && bits & !KNOWN_ACCESS & !OPTIONAL_ACCESS == 0
            && (bits & REMOTE_CHANGE == 0 || region.access & LOCAL_WRITE != 0);
        if !(is_inside && is_allowed) {
            return None;
        }
        if length == 0 {
            return Some(None);
        }
        let address = u64::try_from(binding.address).ok()?;
        Some(Some((address, u64::try_from(length).ok()?)))
    }

    /// Remove a window, bound or not.
    pub fn free(&mut self, id: u64) {
        self.unbind(id);
        if let Some(window) = self.window_records.remove(&id) {
            self.windows.remove(&window.rkey);
            let is_random = self.draw.is_some();
            self.window_indices.give_back(window.rkey, is_random);
        }
    }

    /// Unbind the window of kind 2 that `rkey` names.
    ///
    /// # Errors
    /// `LocQpOpErr`: it is none that this queue pair has bound.
    pub fn invalidate(&mut self, rkey: u32, domain: Domain, qpn: u32) -> Result<(), Fault> {
        let id = self.windows.get(&rkey).copied().filter(|id| {
            self.window_records.get(id).is_some_and(|window| {
                window.region.is_some()
                    && window.domain == domain.own
                    && window.kind == 2
                    && window.qpn == qpn
            })
        });
        match id {
            Some(id) => {
                self.unbind(id);
                Ok(())
            }
            None => Err(Fault::of(Status::LocQpOpErr)),
        }
    }

    /// Unbind every window of a region, so that it can be deregistered.
    pub fn unbind_all(&mut self, key: u32) {
        if self
            .regions
            .get(&key)
            .is_none_or(|region| region.windows == 0)
        {
            return;
        }
        let bound: Vec<u64> = self
            .window_records
            .iter()
            .filter(|(_, window)| window.region == Some(key))
            .map(|(&id, _)| id)
            .collect();
        for id in bound {
            self.unbind(id);
        }
    }

    fn unbind(&mut self, id: u64) {
        if let Some(window) = self.window_records.get_mut(&id)
            && let Some(key) = window.region.take()
        {
            (window.length, window.access) = (0, 0);
            if let Some(region) = self.regions.get_mut(&key) {
                region.windows -= 1;
            }
        }
    }
}

/// Return the key of the same index with the next variant; 0 follows 255.
pub fn next_variant(key: u32) -> u32 {
    let variants = (1 << VARIANT_BITS) - 1;
    key & !variants | (key + 1) & variants
}

/// Return the memory at an address, if it lies inside of bounds of the region.
fn part(
    region: &Region,
    begin: u64,
    bounds_bytes: u64,
    address: i128,
    length: u64,
) -> Option<Extent<'_>> {
    let start = address
        .checked_sub(i128::from(begin))
        .filter(|start| *start >= 0)?;
    if start.checked_add(i128::from(length))? > i128::from(bounds_bytes) {
        return None;
    }
    Some(Extent {
        memory: &*region.memory,
        at: usize::try_from(start).ok()?,
        length: usize::try_from(length).ok()?,
    })
}

fn extent(address: i128, length: i128) -> String {
    if address < 0 {
        return format!("{length} bytes at -{:#x}", -address);
    }
    format!("{length} bytes at {address:#x}")
}
