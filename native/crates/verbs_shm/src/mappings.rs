//! Memory of the peer that we have mapped, and write into without a packet.

use std::collections::HashMap;

use urds_channel::channel_memory::Direction;
use urds_channel::slots;
use urds_channel::sys::Errno;
use urds_channel::sys::area::Area;
use urds_verbs::errors::EINVAL;
use urds_verbs::memory::{Extent, Payload};

/// Before the region in its file: the page with the generation.
const CONTROL_BYTES: usize = 4096;
/// Bytes that are copied at once: a longer copy looks at the generation in between.
const COPY_BYTES: usize = 4 << 20;
/// Mappings that one side remembers, requested and rejected ones too.
const MAPPINGS_MAX: usize = 4096;

#[derive(Debug)]
enum Mapping {
    Requested,
    Rejected,
    Mapped {
        area: Area,
        address: u64,
        length: usize,
        generation: u64,
    },
}

/// By queue pair of the peer and key.
#[derive(Debug, Default)]
pub struct Mappings(HashMap<(u32, u32), Mapping>);

impl Mappings {
    /// Return whether the memory behind a key is to be requested now; only once.
    pub fn wants(&mut self, qpn: u32, key: u32) -> bool {
        if self.0.contains_key(&(qpn, key)) {
            return false;
        }
        if self.0.len() >= MAPPINGS_MAX {
            self.0
                .retain(|_, mapping| !matches!(mapping, Mapping::Rejected));
        }
        let has_room = self.0.len() < MAPPINGS_MAX;
        if has_room {
            self.0.insert((qpn, key), Mapping::Requested);
        }
        has_room
    }

    /// Take the answer: the file of the region, or none.
    ///
    /// # Errors
    /// EINVAL for an answer without a request, or memory that is not what it says.
    pub fn answer(&mut self, qpn: u32, key: u32, region: Option<Region>) -> Result<(), Errno> {
        let wrong = Errno(EINVAL);
        let mapping = match (self.0.get(&(qpn, key)), region) {
            (None, _) => return Ok(()), // forgotten with its queue pair
            (Some(Mapping::Requested), None) => Mapping::Rejected,
            (Some(Mapping::Requested), Some(region)) => {
                let area = Area::map(region.file)?;
                let length = usize::try_from(region.length).map_err(|_| wrong)?;
                let fits = CONTROL_BYTES
                    .checked_add(length)
                    .is_some_and(|end| end <= area.length());
                if !fits || region.address.checked_add(region.length).is_none() || length == 0 {
                    return Err(wrong);
                }
                Mapping::Mapped {
                    area,
                    address: region.address,
                    length,
                    generation: region.generation,
                }
            }
            _ => return Err(wrong),
        };
        self.0.insert((qpn, key), mapping);
        Ok(())
    }

    /// Return how many regions are mapped.
    pub fn mapped(&self) -> usize {
        let is_mapped = |mapping: &&Mapping| matches!(mapping, Mapping::Mapped { .. });
        self.0.values().filter(is_mapped).count()
    }

    /// Forget what was mapped for a queue pair of the peer.
    pub fn forget(&mut self, qpn: u32) {
        self.0.retain(|(of, _), _| *of != qpn);
    }

    /// Copy into mapped memory; false if it is not mapped, or was withdrawn.
    pub fn place(
        &mut self,
        direction: &Direction<'_>,
        qpn: u32,
        key: u32,
        address: u64,
        payload: Payload<'_>,
    ) -> bool {
        let Some(Mapping::Mapped {
            area,
            address: first,
            length,
            generation,
        }) = self.0.get(&(qpn, key))
        else {
            return false;
        };
        let start = address
            .checked_sub(*first)
            .and_then(|start| usize::try_from(start).ok());
        let Some(start) = start else {
            return false; // out of range: the owner rejects its packet
        };
        if start
            .checked_add(payload.len())
            .is_none_or(|end| end > *length)
        {
            return false;
        }
        let mut at = CONTROL_BYTES + start;
        let mut copy = |payload: Payload<'_>| {
            slots::place(direction, area.long(0), *generation, || match payload {
                Payload::Bytes(content) => {
                    area.copy_in(at, content);
                    at += content.len();
                }
                Payload::Extents(extents) => {
                    for extent in extents {
                        let to = area.bytes(at, extent.length);
                        extent.memory.copy_to(extent.at, to);
                        at += extent.length;
                    }
                }
            })
        };
        let is_placed = match payload {
            _ if payload.len() <= COPY_BYTES => copy(payload),
            Payload::Bytes(content) => content
                .chunks(COPY_BYTES)
                .all(|part| copy(Payload::Bytes(part))),
            Payload::Extents(extents) => extents
                .iter()
                .flat_map(parts)
                .all(|part| copy(Payload::Extents(&[part]))),
        };
        if !is_placed {
            self.0.remove(&(qpn, key));
        }
        is_placed
    }
}

/// Cut a range into parts that are copied at once.
fn parts<'a>(extent: &Extent<'a>) -> impl Iterator<Item = Extent<'a>> {
    let extent = *extent;
    let starts = (0..extent.length).step_by(COPY_BYTES);
    starts.map(move |done| Extent {
        memory: extent.memory,
        at: extent.at + done,
        length: COPY_BYTES.min(extent.length - done),
    })
}

/// What a reply to a request says; the file's descriptor stays the caller's.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub file: i32,
    pub address: u64,
    pub length: u64,
    pub generation: u64,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use urds_channel::channel_memory::{ChannelMemory, FILE_BYTES};
    use urds_channel::sys::area;
    use urds_verbs::memory::Memory;

    use super::*;

    /// Ones, until the owner of the target withdraws it: when a certain byte is read.
    struct Withdrawn {
        target: Arc<Area>,
        at: usize,
    }

    impl Memory for Withdrawn {
        fn read(&self, at: usize, to: &mut [u8]) {
            if (at..at + to.len()).contains(&self.at) {
                self.target.long(0).store(2, Ordering::SeqCst);
            }
            to.fill(1);
        }

        fn write(&self, _at: usize, _from: &[u8]) {}
    }

    #[test]
    fn a_long_copy_looks_at_the_generation_in_between() {
        const LENGTH: usize = 2 * COPY_BYTES + 100;
        let (file, target) = area::make(CONTROL_BYTES + LENGTH).unwrap();
        AtomicU64::store(target.long(0), 1, Ordering::Relaxed);
        let (channel, _) = area::make(FILE_BYTES).unwrap();
        let channel = ChannelMemory::map(channel).unwrap();
        let mut mappings = Mappings::default();
        assert!(mappings.wants(7, 8));
        let region = Region {
            file,
            address: 0,
            length: LENGTH as u64,
            generation: 1,
        };
        assert_eq!(mappings.answer(7, 8, Some(region)), Ok(()));
        let memory = &Withdrawn {
            target: Arc::new(target),
            at: 10,
        };
        let extents = [Extent {
            memory,
            at: 0,
            length: LENGTH,
        }];
        let payload = Payload::Extents(&extents);
        let direction = channel.direction(0);
        assert!(!mappings.place(&direction, 7, 8, 0, payload), "withdrawn");
        let seen = Area::map(file).unwrap();
        let mut edge = [9; 4];
        seen.copy_out(CONTROL_BYTES + COPY_BYTES - 2, &mut edge);
        assert_eq!(edge, [1, 1, 0, 0], "not a byte after the look");
        assert!(!slots::is_placing(&direction));
        assert!(mappings.wants(7, 8), "asked for anew");
    }
}
