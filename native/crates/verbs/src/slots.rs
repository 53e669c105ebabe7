//! Elements by number: a vector whose free places are used again.

#[derive(Debug)]
pub struct Slots<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    /// Keep an element and return its number.
    pub fn insert(&mut self, element: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.places[number as usize] = Some(element);
            return number;
        }
        self.places.push(Some(element));
        u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX) // never so many: 64 GiB of them
    }

    pub fn remove(&mut self, number: u32) -> Option<T> {
        let found = self.places.get_mut(number as usize)?.take();
        if found.is_some() {
            self.free.push(number);
        }
        found
    }

    pub fn get(&self, number: u32) -> Option<&T> {
        self.places.get(number as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.places.get_mut(number as usize)?.as_mut()
    }

    pub fn count(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
