//! Blocks of all segments: an arena of rows linked to their neighbours.

/// Index that means no block, or no range.
pub(crate) const NONE: u32 = u32::MAX;

/// State of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ModelBlockState {
    /// Free and backed by memory.
    Free,
    /// Handed out.
    Allocated,
    /// Freed by the program, waiting for another stream.
    Pending,
    /// Part of an expandable segment without mapped memory.
    Unmapped,
}

/// Part of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelBlock {
    pub(crate) addr: u64,
    pub(crate) size: u64,
    /// Requested bytes of its last allocation; kept when it is freed, as in PyTorch.
    pub(crate) requested: u64,
    /// Creation order of the block or its segment, if that decides between equal sizes.
    pub(crate) age: u64,
    /// Start address of its segment.
    pub(crate) base: u64,
    /// Number of searches of its pool before it became free.
    pub(crate) free_since: u64,
    pub(crate) prev: u32,
    pub(crate) next: u32,
    /// Free list that it belongs to.
    pub(crate) list: u32,
    /// Expandable range that contains it.
    pub(crate) range: u32,
    pub(crate) state: ModelBlockState,
    /// Number of its segment.
    pub(crate) segment: u32,
    /// Whether the address of its segment is a guess of the model.
    pub(crate) guessed: bool,
}

impl ModelBlock {
    /// Returns whether it shares its segment with other blocks.
    #[inline]
    pub(crate) fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }

    pub(crate) fn is_expandable(&self) -> bool {
        self.range != NONE
    }
}

/// Arena of blocks.
#[derive(Clone, Default)]
pub(crate) struct Blocks {
    rows: Vec<ModelBlock>,
    spare: Vec<u32>,
}

impl Blocks {
    #[inline]
    pub(crate) fn get(&self, block: u32) -> &ModelBlock {
        &self.rows[block as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, block: u32) -> &mut ModelBlock {
        &mut self.rows[block as usize]
    }

    #[inline]
    pub(crate) fn add(&mut self, block: ModelBlock) -> u32 {
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

    /// Frees the row of a block that has no free list and no neighbours any more.
    #[inline]
    pub(crate) fn discard(&mut self, block: u32) {
        self.rows[block as usize].size = 0;
        self.spare.push(block);
    }

    /// Links a new block before `block`.
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

    /// Links a new block after `block`.
    pub(crate) fn link_after(&mut self, new: u32, block: u32) {
        let next = self.get(block).next;
        self.get_mut(new).prev = block;
        self.get_mut(new).next = next;
        self.get_mut(block).next = new;
        if next != NONE {
            self.get_mut(next).prev = new;
        }
    }

    /// Extends `block` by the neighbour before it, which is in no free list.
    #[inline]
    pub(crate) fn absorb_prev(&mut self, block: u32) {
        let prev = self.get(block).prev;
        let ModelBlock { addr, size, prev: before, .. } = *self.get(prev);
        let row = self.get_mut(block);
        row.addr = addr;
        row.size += size;
        row.prev = before;
        if before != NONE {
            self.get_mut(before).next = block;
        }
        self.discard(prev);
    }

    /// Extends `block` by the neighbour after it, which is in no free list.
    #[inline]
    pub(crate) fn absorb_next(&mut self, block: u32) {
        let next = self.get(block).next;
        let ModelBlock { size, next: behind, .. } = *self.get(next);
        let row = self.get_mut(block);
        row.size += size;
        row.next = behind;
        if behind != NONE {
            self.get_mut(behind).prev = block;
        }
        self.discard(next);
    }

    /// Iterates over all existing blocks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &ModelBlock)> {
        self.rows.iter().enumerate().filter(|(_, row)| row.size > 0).map(|(place, row)| (place as u32, row))
    }

    /// Number of rows, used and spare: the cost of a copy.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }
}
