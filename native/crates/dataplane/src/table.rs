//! Tables whose rows have numbers that are never reused.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

/// Number of a row of a `Table<T>`: its slot and how often the slot was in use before.
///
/// Bits 62 and 63 of its `u64` form are always clear.
pub struct Id<T> {
    slot: u32,
    generation: u32,
    kind: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// Return the number that `from_u64` takes back.
    pub fn to_u64(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.generation)
    }

    /// Return the id with this number.
    #[allow(clippy::cast_possible_truncation)] // the halves of a u64
    pub fn from_u64(number: u64) -> Self {
        Self {
            slot: (number >> 32) as u32,
            generation: number as u32,
            kind: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn place(self) -> usize {
        self.slot as usize
    }
}

impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Id<T> {}

impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        self.to_u64() == other.to_u64()
    }
}

impl<T> Eq for Id<T> {}

impl<T> Hash for Id<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.to_u64().hash(state);
    }
}

impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "#{}.{}", self.slot, self.generation)
    }
}

struct Slot<T> {
    generation: u32,
    row: Option<T>,
}

/// Rows found by number in one step; a slot is reused, its old ids stay stale.
pub struct Table<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    /// Keep a row and return its id.
    ///
    /// # Panics
    /// At 2^30 rows, which no memory holds.
    pub fn insert(&mut self, row: T) -> Id<T> {
        self.insert_with(|_| row)
    }

    /// The same for a row that knows its own id.
    ///
    /// # Panics
    /// As `insert`.
    pub fn insert_with(&mut self, make: impl FnOnce(Id<T>) -> T) -> Id<T> {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = u32::try_from(self.slots.len()).expect("fewer rows than numbers");
            assert!(slot < 1 << 30, "bits 62 and 63 of a name are clear");
            self.slots.push(Slot {
                generation: 0,
                row: None,
            });
            slot
        });
        let entry = &mut self.slots[slot as usize];
        let id = Id {
            slot,
            generation: entry.generation,
            kind: PhantomData,
        };
        entry.row = Some(make(id));
        id
    }

    /// Remove a row; its id is stale from then on.
    pub fn remove(&mut self, id: Id<T>) -> Option<T> {
        let entry = self.slots.get_mut(id.place())?;
        if entry.generation != id.generation {
            return None;
        }
        let row = entry.row.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(row)
    }

    /// Return a row, `None` for a stale id.
    pub fn get(&self, id: Id<T>) -> Option<&T> {
        let entry = self.slots.get(id.place())?;
        if entry.generation == id.generation {
            entry.row.as_ref()
        } else {
            None
        }
    }

    /// Return a row to change, `None` for a stale id.
    pub fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        let entry = self.slots.get_mut(id.place())?;
        if entry.generation == id.generation {
            entry.row.as_mut()
        } else {
            None
        }
    }

    /// Return how many rows there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Return whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Return ids and rows.
    pub fn iter(&self) -> impl Iterator<Item = (Id<T>, &T)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(place, entry)| Some((name(place, entry.generation), entry.row.as_ref()?)))
    }

    /// Return ids and rows to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Id<T>, &mut T)> {
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(|(place, entry)| Some((name(place, entry.generation), entry.row.as_mut()?)))
    }

    /// Return the ids of all rows.
    pub fn ids(&self) -> Vec<Id<T>> {
        self.iter().map(|(id, _)| id).collect()
    }
}

#[allow(clippy::cast_possible_truncation)] // `insert_with` bounds the slots
fn name<T>(place: usize, generation: u32) -> Id<T> {
    Id {
        slot: place as u32,
        generation,
        kind: PhantomData,
    }
}

/// A set of rows: each of its calls takes one step, and none allocates once it has grown.
///
/// Ids are kept in the order in which they came until one is removed.
pub struct IdSet<T> {
    members: Vec<Id<T>>,
    /// By slot: one more than the index among the members, 0 for none.
    places: Vec<u32>,
}

impl<T> Default for IdSet<T> {
    fn default() -> Self {
        Self {
            members: Vec::new(),
            places: Vec::new(),
        }
    }
}

impl<T> IdSet<T> {
    /// Add an id; return whether it is new.
    #[inline]
    pub fn insert(&mut self, id: Id<T>) -> bool {
        !self.contains(id) && self.insert_new(id)
    }

    #[allow(clippy::cast_possible_truncation)] // no more members than slots
    fn insert_new(&mut self, id: Id<T>) -> bool {
        self.remove_slot(id.place()); // an older row of the same slot
        if self.places.len() <= id.place() {
            self.places.resize(id.place() + 1, 0);
        }
        self.members.push(id);
        self.places[id.place()] = self.members.len() as u32;
        true
    }

    /// Remove an id; return whether it was there.
    pub fn remove(&mut self, id: Id<T>) -> bool {
        self.contains(id) && self.remove_slot(id.place())
    }

    fn remove_slot(&mut self, slot: usize) -> bool {
        let Some(place) = self.places.get_mut(slot) else {
            return false;
        };
        let Some(at) = std::mem::take(place).checked_sub(1) else {
            return false;
        };
        self.members.swap_remove(at as usize);
        if let Some(moved) = self.members.get(at as usize) {
            self.places[moved.place()] = at + 1;
        }
        true
    }

    /// Return whether an id is in the set.
    #[inline]
    pub fn contains(&self, id: Id<T>) -> bool {
        match self.places.get(id.place()) {
            Some(&place) if place > 0 => self.members[place as usize - 1] == id,
            _ => false,
        }
    }

    /// Return whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Return how many ids are in the set.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Return the ids.
    pub fn iter(&self) -> impl Iterator<Item = Id<T>> {
        self.members.iter().copied()
    }

    /// Return the ids as one slice.
    pub fn as_slice(&self) -> &[Id<T>] {
        &self.members
    }

    /// Move all ids to the end of `target`; the set is empty after it.
    pub fn drain_into(&mut self, target: &mut Vec<Id<T>>) {
        for id in &self.members {
            self.places[id.place()] = 0;
        }
        target.append(&mut self.members);
    }

    /// Remove all ids.
    pub fn clear(&mut self) {
        for id in &self.members {
            self.places[id.place()] = 0;
        }
        self.members.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_stale_name_names_nothing() {
        let mut table = Table::default();
        let first = table.insert("first");
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second");
        assert_ne!(first, second);
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(table.get(Id::from_u64(second.to_u64())), Some(&"second"));
        assert_eq!(table.len(), 1);
    }

    proptest! {
        #[test]
        fn a_set_of_names_is_a_set(changes in proptest::collection::vec((0u64..20, 0u64..3, 0u8..4), 0..200)) {
            let mut ours: IdSet<()> = IdSet::default();
            let mut model: HashMap<u64, u64> = HashMap::new();
            for (slot, generation, what) in changes {
                let id = Id::from_u64(slot << 32 | generation);
                match what {
                    0 => {
                        let there = model.get(&slot) == Some(&generation);
                        prop_assert_eq!(ours.remove(id), there);
                        if there {
                            model.remove(&slot);
                        }
                    }
                    1 if generation == 2 => {
                        let mut all = Vec::new();
                        ours.drain_into(&mut all);
                        prop_assert_eq!(all.len(), model.len());
                        model.clear();
                    }
                    _ => prop_assert_eq!(ours.insert(id), model.insert(slot, generation) != Some(generation)),
                }
                prop_assert_eq!(ours.len(), model.len());
                for (&slot, &generation) in &model {
                    prop_assert!(ours.contains(Id::from_u64(slot << 32 | generation)));
                }
            }
        }
    }
}
