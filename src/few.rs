//! A list that mostly has one item.

use std::{iter::Chain, option, slice};

use smallvec::SmallVec;

/// A list of which the first item is apart from the others, so that one of a single item is written where it is wanted,
/// and nothing is moved that is not there. Up to three items ask for no memory.
#[derive(Debug, Clone)]
pub(crate) struct Few<T> {
    first: Option<T>,
    others: SmallVec<[T; 2]>,
}

impl<T> Few<T> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { first: None, others: SmallVec::new() }
    }

    #[inline]
    pub(crate) fn one(item: T) -> Self {
        Self { first: Some(item), others: SmallVec::new() }
    }

    #[inline]
    pub(crate) fn push(&mut self, item: T) {
        self.push_made(|| item);
    }

    /// Appends what `make` returns, which is written where it stays: a large item that is put together elsewhere would
    /// be read again by larger words than it was written in, for which the processor waits.
    #[inline(always)]
    pub(crate) fn push_made(&mut self, make: impl FnOnce() -> T) {
        if self.first.is_none() {
            self.first = Some(make());
        } else {
            self.push_other(make());
        }
    }

    #[inline(never)]
    fn push_other(&mut self, item: T) {
        self.others.push(item);
    }

    #[inline]
    pub(crate) fn iter(&self) -> Items<'_, T> {
        Items(self.first.iter().chain(&self.others))
    }

    #[inline]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.first.iter_mut().chain(&mut self.others)
    }

    /// The only item, where there is no other.
    #[inline]
    pub(crate) fn only(&self) -> Option<&T> {
        self.first.as_ref().filter(|_| self.others.is_empty())
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        match at.checked_sub(1) {
            None => self.first.as_ref(),
            Some(at) => self.others.get(at),
        }
    }

    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        match at.checked_sub(1) {
            None => self.first.as_mut(),
            Some(at) => self.others.get_mut(at),
        }
    }
}

impl<T: Copy> Few<T> {
    /// `count` items that are all alike.
    pub(crate) fn alike(item: T, count: usize) -> Self {
        Self { first: (count > 0).then_some(item), others: SmallVec::from_elem(item, count.saturating_sub(1)) }
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The items of a [`Few`], in their order.
pub(crate) struct Items<'a, T>(Chain<option::Iter<'a, T>, slice::Iter<'a, T>>);

impl<'a, T> Iterator for Items<'a, T> {
    type Item = &'a T;

    #[inline]
    fn next(&mut self) -> Option<&'a T> {
        self.0.next()
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }

    // The chain goes through its two parts one after the other, where calls of `next` would ask each time which it is
    // in.
    #[inline]
    fn all<F: FnMut(&'a T) -> bool>(&mut self, f: F) -> bool {
        self.0.all(f)
    }
}

// Two lists together may have more items than can be counted; these cannot.
impl<T> ExactSizeIterator for Items<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_list_like_any_other() {
        let mut few = Few::new();
        assert!(few.is_empty() && few.only().is_none());
        for number in 0..5 {
            few.push(number);
            assert_eq!(few.iter().copied().collect::<Vec<_>>(), (0..=number).collect::<Vec<_>>());
            assert_eq!(few.iter().len(), usize::try_from(number).unwrap() + 1);
            assert_eq!(few.only(), (number == 0).then_some(&0));
        }
        few.iter_mut().for_each(|number| *number *= 2);
        assert_eq!((few.get(0), few.get(4), few.get(5)), (Some(&0), Some(&8), None));
        *few.get_mut(3).unwrap() = 7;
        assert_eq!(few.iter().copied().collect::<Vec<_>>(), [0, 2, 4, 7, 8]);
        assert!(few.get_mut(5).is_none() && !few.is_empty());
        for count in 0..4 {
            assert_eq!(Few::alike(3, count).iter().copied().collect::<Vec<_>>(), vec![3; count]);
        }
        assert_eq!(Few::one(1).only(), Some(&1));
    }
}
