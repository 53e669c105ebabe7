//! The memory of a socket whose client writes what it likes into it, between any two calls of the node.
//!
//! The script is what both do. No call panics, none reads outside of the memory, each comes to an
//! end; what the node takes and frees is never more than what was submitted, and a nonsense of the
//! client is an error, or harms what the client has of its own.

use std::sync::atomic::Ordering;

use arbitrary::{Arbitrary, Unstructured};
use urds_channel::journal;
use urds_channel::socket_memory::layout::{self, UNIT_BYTES};
use urds_channel::socket_memory::{
    Arrival, ClientError, ClientSide, Name, NodeSide, Outgoing, Sizes,
};
use urds_channel::sys::area::Area;
use urds_channel::sys::raw;

const STEPS_MAX: usize = 100;
/// Written once: a node reads them when it maps the memory.
const WRITTEN_ONCE: usize = 256;

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Step {
    Send {
        route: u8,
        length: u16,
    },
    Receive {
        peek: bool,
    },
    Sleep,
    Take,
    Free {
        which: u8,
    },
    Deliver {
        length: u16,
        has_trace: bool,
    },
    LookTaken,
    NodeSleeps,
    NodeWakes {
        groups: u64,
    },
    Restart,
    /// From here on the client does as it likes.
    Head {
        word: u16,
        value: u64,
    },
    Ring {
        entry: u8,
        value: u32,
    },
    Record {
        sends: bool,
        unit: u16,
        word: u8,
        value: u64,
    },
}

struct World {
    client: ClientSide,
    node: NodeSide,
    memory: i32,
    journal: i32,
    held: Vec<u32>,
}

impl Drop for World {
    fn drop(&mut self) {
        raw::close(self.memory);
        raw::close(self.journal);
    }
}

fn sizes() -> Sizes<'static> {
    Sizes {
        submissions: 16,
        send_bytes: 64 << 10,
        receive_bytes: 64 << 10,
        send_default: 8 << 10,
        receive_default: 8 << 10,
        ..Sizes::default()
    }
}

impl World {
    fn new() -> Self {
        let sizes = sizes();
        let (memory, area) = layout::make(&sizes).expect("memory");
        let (journal, journal_area) = journal::make(&sizes).expect("a journal");
        let node = NodeSide::new(area, journal_area).expect("both are new");
        let client = ClientSide::new(Area::map(memory).expect("a mapping")).expect("it is new");
        for route in 0..4 {
            node.open_route(route, None);
            let generation = node.routes_generation();
            let to = peer(u8::try_from(route).expect("few"));
            client
                .set_route(&to, 0, route, generation)
                .expect("no lock");
        }
        Self {
            client,
            node,
            memory,
            journal,
            held: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) -> Result<(), ClientError> {
        match step {
            Step::Send { route, length } => {
                let message = Outgoing {
                    to: peer(route % 4),
                    ..Outgoing::default()
                };
                let area = self.client.area();
                let payload = vec![route; usize::from(length % 9000)];
                let fill = |at| area.copy_in(at, &payload);
                let _ = self
                    .client
                    .send(&message, payload.len(), |_, _| false, fill);
            }
            Step::Receive { peek } => {
                let area = self.client.area();
                let take = |at, length| area.copy_out(at, &mut vec![0; length]);
                let _ = self.client.receive(peek, take);
            }
            Step::Sleep => {
                let _ = self.client.sleep(|| ());
            }
            Step::Take => {
                if let Some(taken) = self.node.take()? {
                    let mut payload = vec![0; taken.length];
                    self.node.area().copy_out(taken.at, &mut payload);
                    assert!(!self.held.contains(&taken.slot), "a slot is used once");
                    self.held.push(taken.slot);
                }
            }
            Step::Free { which } if !self.held.is_empty() => {
                let slot = self.held.swap_remove(usize::from(which) % self.held.len());
                self.node.free(slot);
            }
            Step::Free { .. } => {}
            Step::Deliver { length, has_trace } => self.deliver(usize::from(length), has_trace),
            Step::LookTaken => {
                let unread = self.node.unread();
                let mut taken = 0;
                self.node.look_taken(|_| taken += 1)?;
                assert_eq!(self.node.unread(), unread - taken);
            }
            Step::NodeSleeps => {
                self.node.sleep()?;
            }
            Step::NodeWakes { groups } => {
                self.node.after_freeing();
                self.node.must_empty();
                self.node.must_show_again();
                self.node.congestion_changed(groups);
            }
            Step::Restart => self.restart(),
            Step::Head { word, value } => {
                let at = WRITTEN_ONCE + usize::from(word) * 8 % (layout::AT_RING - WRITTEN_ONCE);
                let is_lock = at == layout::AT_SENDERS || at == layout::AT_RECEIVERS;
                if !is_lock {
                    self.client.area().long(at).store(value, Ordering::Relaxed);
                }
            }
            Step::Ring { entry, value } => {
                let at = layout::AT_RING + usize::from(entry % 16) * 4;
                self.client.area().word(at).store(value, Ordering::Relaxed);
            }
            Step::Record {
                sends,
                unit,
                word,
                value,
            } => self.write(sends, unit, word, value),
        }
        Ok(())
    }

    fn write(&self, sends: bool, unit: u16, word: u8, value: u64) {
        // Both areas are the last of the memory, one behind the other.
        let areas = sizes().send_bytes + sizes().receive_bytes;
        let first = self.client.area().length() - areas;
        let first = first + if sends { 0 } else { sizes().send_bytes };
        let at = first + usize::from(unit % 1024) * UNIT_BYTES + usize::from(word % 8) * 8;
        self.client.area().long(at).store(value, Ordering::Relaxed);
    }

    fn deliver(&mut self, length: usize, has_trace: bool) {
        let Some(place) = self.node.reserve(length, has_trace) else {
            return;
        };
        self.node.fill(&place, 0, &vec![1; length]);
        self.node.publish(&place, &Arrival::default());
    }

    /// The worker is killed between two calls: the next one knows what was taken.
    fn restart(&mut self) {
        let area = Area::map(self.memory).expect("a mapping");
        let journal = Area::map(self.journal).expect("a mapping");
        let unread = self.node.unread();
        self.node = NodeSide::new(area, journal).expect("both are good");
        assert_eq!(self.node.unread(), unread);
        let mut held = Vec::new();
        self.node.held_messages(|one| held.push(one.message.slot));
        held.sort_unstable();
        self.held.sort_unstable();
        assert_eq!(held, self.held, "what was taken and not freed");
    }
}

fn peer(route: u8) -> Name {
    Name::v4([10, 0, 0, route], 4000)
}

/// Play a script.
///
/// # Panics
/// When a rule is broken.
pub fn run(bytes: &[u8]) {
    let Ok(steps) = Vec::<Step>::arbitrary(&mut Unstructured::new(bytes)) else {
        return;
    };
    let mut world = World::new();
    for step in steps.into_iter().take(STEPS_MAX) {
        let _ = world.step(step);
    }
}
