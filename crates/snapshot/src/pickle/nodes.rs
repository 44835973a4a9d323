//! Lists, dictionaries and tuples that are still under construction.

use super::number::Number;
use super::value::{PickleValue, ValueKind};
use crate::stacks::StackId;

/// Table that the dictionaries of a list became consecutive rows of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RowTable {
    Events,
    Blocks,
    Segments,
}

/// Pickled list.
#[derive(Debug)]
pub(crate) enum PickleList {
    Items(Vec<PickleValue>),
    /// Consecutive rows, kept as a range: a trace of ten million events takes no more memory than one of
    /// ten.
    Rows {
        table: RowTable,
        first: u32,
        count: u32,
    },
    /// List of frames that became a stack.
    Stack(StackId),
}

/// Lists, dictionaries, tuples and wide numbers of a pickle.
#[derive(Default)]
pub(crate) struct Nodes {
    pub(crate) lists: Vec<PickleList>,
    dicts: Vec<PickleDict>,
    tuples: Vec<Box<[PickleValue]>>,
    pub(crate) numbers: Vec<Number>,
    /// Number of values in all of them, for the budget.
    cells: usize,
}

/// Pickled dictionary: its pairs, or the value it became.
#[derive(Debug)]
pub(crate) enum PickleDict {
    Pairs(Vec<(PickleValue, PickleValue)>),
    Became(PickleValue),
}

impl Nodes {
    pub(crate) fn new_list(&mut self, items: Vec<PickleValue>) -> PickleValue {
        self.cells += items.len();
        self.lists.push(PickleList::Items(items));
        PickleValue::new(ValueKind::List(self.lists.len() as u32 - 1))
    }

    pub(crate) fn new_dict(&mut self, pairs: Vec<(PickleValue, PickleValue)>) -> PickleValue {
        self.cells += pairs.len() * 2;
        self.dicts.push(PickleDict::Pairs(pairs));
        PickleValue::new(ValueKind::Dict(self.dicts.len() as u32 - 1))
    }

    pub(crate) fn new_tuple(&mut self, items: &[PickleValue]) -> PickleValue {
        if let [a, b] = items
            && let (ValueKind::Int(a), ValueKind::Int(b)) = (a.kind(), b.kind())
            && let Some(pair) = PickleValue::inline_pair(a, b)
        {
            return pair;
        }
        self.cells += items.len();
        self.tuples.push(items.into());
        PickleValue::new(ValueKind::Tuple(self.tuples.len() as u32 - 1))
    }

    pub(crate) fn new_number(&mut self, number: Number) -> PickleValue {
        if let Number::Wide(wide) = number
            && let Some(inline) = i64::try_from(wide).ok().and_then(PickleValue::inline_int)
        {
            return inline;
        }
        self.numbers.push(number);
        PickleValue::new(ValueKind::Number(self.numbers.len() as u32 - 1))
    }

    pub(crate) fn tuple(&self, index: u32) -> &[PickleValue] {
        &self.tuples[index as usize]
    }

    pub(crate) fn dict(&self, index: u32) -> &PickleDict {
        &self.dicts[index as usize]
    }

    /// Returns the pairs of an open dictionary; `None` once it has become a row.
    pub(crate) fn pairs_mut(&mut self, index: u32) -> Option<&mut Vec<(PickleValue, PickleValue)>> {
        match &mut self.dicts[index as usize] {
            PickleDict::Pairs(pairs) => Some(pairs),
            PickleDict::Became(_) => None,
        }
    }

    pub(crate) fn add_pairs(&mut self, index: u32, added: &[PickleValue]) -> bool {
        self.cells += added.len();
        let Some(pairs) = self.pairs_mut(index) else { return false };
        pairs.extend(added.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        true
    }

    /// Takes the pairs of a dictionary that becomes `value` next.
    pub(crate) fn take_pairs(&mut self, index: u32) -> Vec<(PickleValue, PickleValue)> {
        match &mut self.dicts[index as usize] {
            PickleDict::Pairs(pairs) => {
                let pairs = std::mem::take(pairs);
                self.cells -= pairs.len() * 2;
                pairs
            }
            PickleDict::Became(_) => Vec::new(),
        }
    }

    pub(crate) fn became(&mut self, index: u32, value: PickleValue) {
        self.dicts[index as usize] = PickleDict::Became(value);
    }

    pub(crate) fn became_stack(&mut self, index: u32, stack: StackId) {
        if let PickleList::Items(items) =
            std::mem::replace(&mut self.lists[index as usize], PickleList::Stack(stack))
        {
            self.cells -= items.len();
        }
    }

    /// Returns `value`, or the row or frame that its dictionary became.
    pub(crate) fn resolve(&self, value: PickleValue) -> PickleValue {
        match value.kind() {
            ValueKind::Dict(index) => match self.dicts[index as usize] {
                PickleDict::Became(row) => row,
                PickleDict::Pairs(_) => value,
            },
            ValueKind::List(index) => match self.lists[index as usize] {
                PickleList::Stack(stack) => PickleValue::new(ValueKind::Stack(stack)),
                _ => value,
            },
            _ => value,
        }
    }

    /// Appends to a list; returns `false` if it became a stack and can no longer change.
    pub(crate) fn append(&mut self, index: u32, value: PickleValue) -> bool {
        let row = match value.kind() {
            ValueKind::Event(row) => Some((RowTable::Events, row)),
            ValueKind::Block(row) => Some((RowTable::Blocks, row)),
            ValueKind::Segment(row) => Some((RowTable::Segments, row)),
            _ => None,
        };
        let list = &mut self.lists[index as usize];
        match (&mut *list, row) {
            (PickleList::Rows { table, first, count }, Some((of, row)))
                if of == *table && row == *first + *count =>
            {
                *count += 1;
            }
            (PickleList::Items(items), Some((table, first))) if items.is_empty() => {
                *list = PickleList::Rows { table, first, count: 1 };
            }
            (PickleList::Items(items), _) => {
                self.cells += 1;
                items.push(value);
            }
            (&mut PickleList::Rows { table, first, count }, _) => {
                let mut items: Vec<PickleValue> =
                    (first..first + count).map(|row| row_value(table, row)).collect();
                items.push(value);
                self.cells += items.len();
                *list = PickleList::Items(items);
            }
            (PickleList::Stack(_), _) => return false,
        }
        true
    }

    /// Takes the content of a list whose rows go into a segment or a trace: a row belongs to one of them,
    /// no matter how often a file refers to its list.
    pub(crate) fn take_list(&mut self, index: u32) -> PickleList {
        let list = std::mem::replace(&mut self.lists[index as usize], PickleList::Items(Vec::new()));
        if let PickleList::Items(items) = &list {
            self.cells -= items.len();
        }
        list
    }

    /// Appends consecutive events to a list that has nothing else; returns `false` if it has.
    pub(crate) fn append_events(&mut self, index: u32, row: u32, more: u32) -> bool {
        match &mut self.lists[index as usize] {
            PickleList::Rows { table: RowTable::Events, first, count } if *first + *count == row => {
                *count += more
            }
            _ => return false,
        }
        true
    }

    pub(crate) fn footprint(&self) -> usize {
        self.lists.len() * size_of::<PickleList>()
            + self.dicts.len() * size_of::<PickleDict>()
            + self.tuples.len() * 24
            + self.numbers.len() * size_of::<Number>()
            // A vector that grew holds up to twice its content, in small separate allocations.
            + self.cells * 20
    }
}

pub(crate) fn row_value(table: RowTable, row: u32) -> PickleValue {
    PickleValue::new(match table {
        RowTable::Events => ValueKind::Event(row),
        RowTable::Blocks => ValueKind::Block(row),
        RowTable::Segments => ValueKind::Segment(row),
    })
}
