//! The blocks of all segments: an arena of rows that know their neighbours.

/// No block, no range.
pub(crate) const NONE: u32 = u32::MAX;

/// What a block is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Free and backed by memory.
    Free,
    /// Handed out.
    Allocated,
    /// Given back by the program, waiting for another stream.
    Pending,
    /// A part of an expandable segment without memory behind it.
    Unmapped,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    /// Bytes asked for when it was last handed out; stays when it is freed, as in PyTorch.
    pub(crate) requested: u64,
    /// When it was made, or its segment, where that decides between equal sizes.
    pub(crate) age: u64,
    /// Where its segment begins.
    pub(crate) base: u64,
    /// Searches of its pool before it became free.
    pub(crate) free_since: u64,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// The list that it is in when it is free.
    pub(crate) list: u32,
    /// The expandable range that it lies in.
    pub(crate) range: u32,
    pub(crate) state: State,
    /// Its segment.
    pub(crate) segment: u32,
    /// Whether the address of its segment is the model's guess.
    pub(crate) guessed: bool,
}

impl Block {
    /// Whether it shares its segment with others.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }

    pub(crate) fn is_expandable(&self) -> bool {
        self.range != NONE
    }
}

/// The arena.
#[derive(Clone, Default)]
pub(crate) struct Blocks {
    rows: Vec<Block>,
    spare: Vec<u32>,
}

impl Blocks {
    #[inline]
    pub(crate) fn get(&self, block: u32) -> &Block {
        &self.rows[block as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, block: u32) -> &mut Block {
        &mut self.rows[block as usize]
    }

    #[inline]
    pub(crate) fn add(&mut self, block: Block) -> u32 {
        match self.spare.pop() {
            Some(place) => {
                self.rows[place as usize] = block;
                place
            }
            None => {
                self.rows.push(block);
                self.rows.len() as u32 - 1
            }
        }
    }

    /// Gives up the row of a block that is in no list and has no neighbours any more.
    #[inline]
    pub(crate) fn discard(&mut self, block: u32) {
        self.rows[block as usize].size = 0;
        self.spare.push(block);
    }

    /// Links a new block in front of `block`.
    #[inline]
    pub(crate) fn link_before(&mut self, new: u32, block: u32) {
        let prev = self.get(block).prev;
        self.get_mut(new).prev = prev;
        self.get_mut(new).next = block;
        self.get_mut(block).prev = new;
        if prev != NONE {
            self.get_mut(prev).next = new;
        }
    }

    /// Links a new block behind `block`.
    pub(crate) fn link_after(&mut self, new: u32, block: u32) {
        let next = self.get(block).next;
        self.get_mut(new).prev = block;
        self.get_mut(new).next = next;
        self.get_mut(block).next = new;
        if next != NONE {
            self.get_mut(next).prev = new;
        }
    }

    /// `block` takes over the bytes of the neighbour before it, which is in no list.
    #[inline]
    pub(crate) fn absorb_prev(&mut self, block: u32) {
        let prev = self.get(block).prev;
        let Block { addr, size, prev: before, .. } = *self.get(prev);
        let row = self.get_mut(block);
        row.addr = addr;
        row.size += size;
        row.prev = before;
        if before != NONE {
            self.get_mut(before).next = block;
        }
        self.discard(prev);
    }

    /// `block` takes over the bytes of the neighbour behind it, which is in no list.
    #[inline]
    pub(crate) fn absorb_next(&mut self, block: u32) {
        let next = self.get(block).next;
        let Block { size, next: behind, .. } = *self.get(next);
        let row = self.get_mut(block);
        row.size += size;
        row.next = behind;
        if behind != NONE {
            self.get_mut(behind).prev = block;
        }
        self.discard(next);
    }

    /// Every block that exists.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Block)> {
        self.rows.iter().enumerate().filter(|(_, row)| row.size > 0).map(|(place, row)| (place as u32, row))
    }

    /// Rows, used and spare: what a copy costs.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }
}
