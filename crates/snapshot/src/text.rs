//! Interned strings: every name, path and key is stored once and identified by a small number.

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;

/// Number of an interned string; look it up with [`Strings::get`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct StrId(pub u32);

impl StrId {
    /// Empty string, which also means "not given".
    pub const EMPTY: StrId = StrId(0);
}

/// Strings of a snapshot, each stored once.
#[derive(Clone)]
pub struct Strings {
    text: String,
    ends: Vec<u32>,
    index: HashTable<u32>,
    hasher: FxBuildHasher,
}

impl Strings {
    /// Creates a table that starts with `first`, so that those strings have known numbers.
    pub(crate) fn with(first: &[&str]) -> Strings {
        let mut strings =
            Strings { text: String::new(), ends: Vec::new(), index: HashTable::new(), hasher: FxBuildHasher };
        for text in first {
            strings.intern(text);
        }
        strings
    }

    /// Returns the text of `id`.
    pub fn get(&self, id: StrId) -> &str {
        let index = id.0 as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.text[start..self.ends[index] as usize]
    }

    /// Returns the number of distinct strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Always `false`: the empty string always exists.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the number of `text`, if it is known.
    pub(crate) fn find(&self, text: &str) -> Option<StrId> {
        let hash = self.hasher.hash_one(text.as_bytes());
        self.index.find(hash, |&index| self.get(StrId(index)) == text).map(|&found| StrId(found))
    }

    /// Returns the number of `text`, interning it if it is new. Beyond 4 GiB of text it returns
    /// [`StrId::EMPTY`]; the reader's budget is exhausted long before that.
    pub(crate) fn intern(&mut self, text: &str) -> StrId {
        if let Some(found) = self.find(text) {
            return found;
        }
        let Ok(end) = u32::try_from(self.text.len() + text.len()) else { return StrId::EMPTY };
        let id = self.ends.len() as u32;
        self.text.push_str(text);
        self.ends.push(end);
        let (all, ends, hasher) = (&self.text, &self.ends, &self.hasher);
        self.index.insert_unique(hasher.hash_one(text.as_bytes()), id, |&index| {
            let start = if index == 0 { 0 } else { ends[index as usize - 1] as usize };
            hasher.hash_one(&all.as_bytes()[start..ends[index as usize] as usize])
        });
        StrId(id)
    }

    pub(crate) fn footprint(&self) -> usize {
        self.text.len() + self.ends.len() * 4 + self.index.capacity() * 5
    }
}
