//! What clients are told of congestion: maps in memory that they read, and words that wake them.

use std::collections::{HashMap, HashSet};

use urds_channel::congestion::{self, CongestionMemory};
use urds_channel::sys::Errno;
use urds_path::{Address, CongestionMap};

use crate::errors::{ErrorReason, Rejected};
use crate::mailbox::{ALL_GROUPS, Route};
use crate::plane::Plane;
use crate::state::{HostId, MailboxId, State};
use crate::sys::descriptor::Descriptor;
use crate::sys::sockets;

/// Peers whose maps clients can read; ports of others count as free.
const SLOTS: u32 = 16_384;

/// Whose map: of a peer as it told one of our addresses, or of an address of ours.
type MapOf = (Option<HostId>, Address);

/// The congestion memory of a plane.
pub(crate) struct Maps {
    memory: CongestionMemory,
    /// The next worker's, which writes.
    file: Descriptor,
    /// What clients get: it cannot be mapped for writing.
    to_read: Descriptor,
    slots: HashMap<MapOf, u32>,
    congested: HashSet<u32>,
}

impl Maps {
    fn set(&mut self, of: MapOf, map: Option<&CongestionMap>) {
        let Some(&slot) = self.slots.get(&of) else {
            return;
        };
        let bytes = map.map_or(&[0; congestion::MAP_BYTES], CongestionMap::emit);
        let is_any = bytes.iter().any(|byte| *byte != 0);
        let was_any = !self.congested.is_empty();
        if is_any {
            self.congested.insert(slot);
        } else if !self.congested.remove(&slot) {
            return;
        }
        self.memory.set_map(slot, bytes);
        if was_any == self.congested.is_empty() {
            self.memory.set_any(!was_any);
        }
    }
}

impl Plane {
    /// Return the memory of congestion maps, made once: its descriptor for clients, who can only read
    /// it, and the one for a worker after this. Both stay ours.
    ///
    /// # Errors
    /// Of the system.
    pub fn congestion_memory(&self) -> Result<(i32, i32), Rejected> {
        if let Some(known) = self.lock().congestion_files() {
            return Ok(known);
        }
        let (file, memory) = congestion::make(SLOTS).map_err(of_system)?;
        self.keep_maps(Descriptor::new(file), memory)
    }

    /// Take over the memory of a worker before this; `file` is ours from now on.
    ///
    /// # Errors
    /// `System` with EINVAL for what is none; of the system.
    pub fn take_congestion_memory(&self, file: i32) -> Result<(), Rejected> {
        let file = Descriptor::new(file);
        let memory = congestion::open(file.get()).map_err(of_system)?;
        for slot in 0..memory.slots() {
            memory.clear(slot);
        }
        memory.set_any(false);
        self.keep_maps(file, memory).map(|_| ())
    }

    fn keep_maps(
        &self,
        file: Descriptor,
        memory: CongestionMemory,
    ) -> Result<(i32, i32), Rejected> {
        let to_read = sockets::reopened_to_read(file.get())?;
        let files = (to_read.get(), file.get());
        self.lock().attached.maps = Some(Maps {
            memory,
            file,
            to_read,
            slots: HashMap::new(),
            congested: HashSet::new(),
        });
        Ok(files)
    }
}

pub(super) fn of_system(Errno(number): Errno) -> Rejected {
    ErrorReason::System(number).into()
}

impl State {
    fn congestion_files(&self) -> Option<(i32, i32)> {
        let maps = self.attached.maps.as_ref()?;
        Some((maps.to_read.get(), maps.file.get()))
    }

    /// Return the place of the map that concerns a socket's messages to a peer.
    pub(super) fn congestion_slot(&mut self, id: MailboxId, peer: Address) -> Option<u32> {
        let record = self.mailboxes.get(id)?;
        let here = self.hosts_by_address.get(&peer).copied();
        let (of, host) = match record.routes.get(&peer) {
            Some(Route::Loop) => ((None, peer), here?),
            None if here.is_some() => ((None, peer), here?),
            _ => ((Some(record.host), peer), record.host),
        };
        let maps = self.attached.maps.as_mut()?;
        if let Some(&slot) = maps.slots.get(&of) {
            return Some(slot);
        }
        let slot = u32::try_from(maps.slots.len()).ok();
        let slot = slot.filter(|&slot| slot < maps.memory.slots())?;
        maps.slots.insert(of, slot);
        let host = self.hosts.get(host)?;
        let map = match of.0 {
            None => Some(&host.congested),
            Some(_) => host.peer_map(&peer),
        };
        maps.set(of, map);
        Some(slot)
    }

    /// Tell a client where the map lies that concerns its messages to a peer.
    pub(super) fn place_map(&mut self, id: MailboxId, route: u32, peer: Address) {
        let slot = self.congestion_slot(id, peer);
        if let Some(attached) = self.attached_mut(id) {
            attached.side.set_route_slot(route, slot);
        }
    }

    /// Have clients read a peer's map as it is now, or that of an address of ours.
    pub(crate) fn publish_map(&mut self, id: HostId, peer: Option<Address>) {
        let (Some(maps), Some(host)) = (&mut self.attached.maps, self.hosts.get(id)) else {
            return;
        };
        match peer {
            Some(peer) => maps.set((Some(id), peer), host.peer_map(&peer)),
            None => maps.set((None, host.address), Some(&host.congested)),
        }
    }

    /// Tell a client of a new map, as far as it waits for it.
    pub(crate) fn tell_attached_of_map(&mut self, id: MailboxId, cleared: u64, exact: bool) {
        let Some(attached) = self.attached_mut(id) else {
            return;
        };
        let all = attached.side.options().mask() == ALL_GROUPS && !exact;
        let groups = if all { ALL_GROUPS } else { cleared };
        if attached.side.congestion_changed(groups) {
            self.show(id);
        }
    }

    /// Return whether a client may wait for a map of this peer: without a stream none would come.
    pub(crate) fn is_map_awaited(&self, host: HostId, peer: &Address) -> bool {
        self.has_attached()
            && self
                .hosts
                .get(host)
                .is_some_and(|host| host.peer_map(peer).is_some())
    }
}
