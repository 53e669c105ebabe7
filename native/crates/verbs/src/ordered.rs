//! A few values in their order, for what most calls put in and take out again.
//!
//! Of a tree each first and last value is an allocation. Here the smaller side moves, which of values that
//! come and go in their order is nothing.

use std::collections::VecDeque;

#[derive(Debug)]
pub struct Ordered<T>(VecDeque<T>);

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Copy + Ord> Ordered<T> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn first(&self) -> Option<&T> {
        self.0.front()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    /// Put a value in, once.
    #[inline]
    pub fn insert(&mut self, value: T) {
        if self.0.back().is_none_or(|last| *last < value) {
            self.0.push_back(value);
        } else if let Err(place) = self.0.binary_search(&value) {
            self.0.insert(place, value);
        }
    }

    /// Take a value out, if it is there.
    #[inline]
    pub fn remove(&mut self, value: &T) {
        if self.0.front() == Some(value) {
            self.0.pop_front();
        } else if let Ok(place) = self.0.binary_search(value) {
            self.0.remove(place);
        }
    }

    /// Take all out of another one.
    pub fn append(&mut self, other: &mut Self) {
        for value in other.0.drain(..) {
            self.insert(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_order_and_there_once_whatever_comes_first() {
        let mut ordered = Ordered::default();
        for value in [5, 1, 9, 5, 3, 9] {
            ordered.insert(value);
        }
        assert_eq!(ordered.iter().copied().collect::<Vec<_>>(), [1, 3, 5, 9]);
        ordered.remove(&3);
        ordered.remove(&4);
        ordered.remove(&1);
        let mut other = Ordered::default();
        other.insert(7);
        other.insert(5);
        ordered.append(&mut other);
        assert!(other.is_empty());
        assert_eq!(ordered.iter().copied().collect::<Vec<_>>(), [5, 7, 9]);
        assert_eq!(ordered.first(), Some(&5));
    }
}
