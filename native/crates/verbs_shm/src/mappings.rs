//! Memory of the peer that we have mapped, and write into without a packet.

use std::collections::HashMap;

use urds_channel::channel_memory::Direction;
use urds_channel::slots;
use urds_channel::sys::Errno;
use urds_channel::sys::area::Area;
use urds_verbs::errors::EINVAL;
use urds_verbs::memory::Payload;

use crate::channel::pieces;

/// Before the region in its file: the page with the generation.
const CONTROL_BYTES: usize = 4096;
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
        let is_placed = slots::place(direction, area.long(0), *generation, || match payload {
            Payload::Bytes(content) => area.copy_in(at, content),
            Payload::Extents(extents) => pieces(extents, |piece| {
                area.copy_in(at, piece);
                at += piece.len();
            }),
        });
        if !is_placed {
            self.0.remove(&(qpn, key));
        }
        is_placed
    }
}

/// What a reply to a request says; the file's descriptor stays the caller's.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    pub file: i32,
    pub address: u64,
    pub length: u64,
    pub generation: u64,
}
