//! Lists, dictionaries and tuples that the machine is still working on.

use super::number::Number;
use super::value::{Kind, Value};
use crate::stacks::StackId;

/// Rows of a table: the dictionaries of a list that all became rows, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rows {
    Events,
    Blocks,
    Segments,
}

/// A pickled list.
#[derive(Debug)]
pub(crate) enum List {
    Items(Vec<Value>),
    /// Consecutive rows, kept as a range: a trace of ten million events takes no more than one of ten.
    Rows {
        table: Rows,
        first: u32,
        count: u32,
    },
    /// A list of frames that has become a stack.
    Stack(StackId),
}

/// The lists, dictionaries, tuples and wide numbers of a pickle.
#[derive(Default)]
pub(crate) struct Nodes {
    pub(crate) lists: Vec<List>,
    dicts: Vec<Dict>,
    tuples: Vec<Box<[Value]>>,
    pub(crate) numbers: Vec<Number>,
    /// Values held by all of them, for the budget.
    cells: usize,
}

/// A pickled dictionary: its pairs, or what it became.
#[derive(Debug)]
pub(crate) enum Dict {
    Pairs(Vec<(Value, Value)>),
    Became(Value),
}

impl Nodes {
    pub(crate) fn new_list(&mut self, items: Vec<Value>) -> Value {
        self.cells += items.len();
        self.lists.push(List::Items(items));
        Value::new(Kind::List(self.lists.len() as u32 - 1))
    }

    pub(crate) fn new_dict(&mut self, pairs: Vec<(Value, Value)>) -> Value {
        self.cells += pairs.len() * 2;
        self.dicts.push(Dict::Pairs(pairs));
        Value::new(Kind::Dict(self.dicts.len() as u32 - 1))
    }

    pub(crate) fn new_tuple(&mut self, items: &[Value]) -> Value {
        if let [a, b] = items
            && let (Kind::Int(a), Kind::Int(b)) = (a.kind(), b.kind())
            && let Some(pair) = Value::inline_pair(a, b)
        {
            return pair;
        }
        self.cells += items.len();
        self.tuples.push(items.into());
        Value::new(Kind::Tuple(self.tuples.len() as u32 - 1))
    }

    pub(crate) fn new_number(&mut self, number: Number) -> Value {
        if let Number::Wide(wide) = number
            && let Some(inline) = i64::try_from(wide).ok().and_then(Value::inline_int)
        {
            return inline;
        }
        self.numbers.push(number);
        Value::new(Kind::Number(self.numbers.len() as u32 - 1))
    }

    pub(crate) fn tuple(&self, index: u32) -> &[Value] {
        &self.tuples[index as usize]
    }

    pub(crate) fn dict(&self, index: u32) -> &Dict {
        &self.dicts[index as usize]
    }

    /// The pairs of a dictionary that is still open; `None` once it has become a row.
    pub(crate) fn pairs_mut(&mut self, index: u32) -> Option<&mut Vec<(Value, Value)>> {
        match &mut self.dicts[index as usize] {
            Dict::Pairs(pairs) => Some(pairs),
            Dict::Became(_) => None,
        }
    }

    pub(crate) fn add_pairs(&mut self, index: u32, added: &[Value]) -> bool {
        self.cells += added.len();
        let Some(pairs) = self.pairs_mut(index) else { return false };
        pairs.extend(added.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        true
    }

    /// Takes the pairs of a dictionary that is about to become `value`.
    pub(crate) fn take_pairs(&mut self, index: u32) -> Vec<(Value, Value)> {
        match &mut self.dicts[index as usize] {
            Dict::Pairs(pairs) => {
                let pairs = std::mem::take(pairs);
                self.cells -= pairs.len() * 2;
                pairs
            }
            Dict::Became(_) => Vec::new(),
        }
    }

    pub(crate) fn became(&mut self, index: u32, value: Value) {
        self.dicts[index as usize] = Dict::Became(value);
    }

    pub(crate) fn became_stack(&mut self, index: u32, stack: StackId) {
        if let List::Items(items) = std::mem::replace(&mut self.lists[index as usize], List::Stack(stack)) {
            self.cells -= items.len();
        }
    }

    /// `value`, or the row or frame that its dictionary has become.
    pub(crate) fn resolve(&self, value: Value) -> Value {
        match value.kind() {
            Kind::Dict(index) => match self.dicts[index as usize] {
                Dict::Became(row) => row,
                Dict::Pairs(_) => value,
            },
            Kind::List(index) => match self.lists[index as usize] {
                List::Stack(stack) => Value::new(Kind::Stack(stack)),
                _ => value,
            },
            _ => value,
        }
    }

    /// Appends to a list; `false` if it has become a stack and can no longer change.
    pub(crate) fn append(&mut self, index: u32, value: Value) -> bool {
        let row = match value.kind() {
            Kind::Event(row) => Some((Rows::Events, row)),
            Kind::Block(row) => Some((Rows::Blocks, row)),
            Kind::Segment(row) => Some((Rows::Segments, row)),
            _ => None,
        };
        let list = &mut self.lists[index as usize];
        match (&mut *list, row) {
            (List::Rows { table, first, count }, Some((of, row)))
                if of == *table && row == *first + *count =>
            {
                *count += 1;
            }
            (List::Items(items), Some((table, first))) if items.is_empty() => {
                *list = List::Rows { table, first, count: 1 };
            }
            (List::Items(items), _) => {
                self.cells += 1;
                items.push(value);
            }
            (&mut List::Rows { table, first, count }, _) => {
                let mut items: Vec<Value> = (first..first + count).map(|row| row_value(table, row)).collect();
                items.push(value);
                self.cells += items.len();
                *list = List::Items(items);
            }
            (List::Stack(_), _) => return false,
        }
        true
    }

    /// Takes the content of a list whose rows go into a segment or a trace: a row belongs to one place only, however
    /// often a file refers to its list.
    pub(crate) fn take_list(&mut self, index: u32) -> List {
        let list = std::mem::replace(&mut self.lists[index as usize], List::Items(Vec::new()));
        if let List::Items(items) = &list {
            self.cells -= items.len();
        }
        list
    }

    /// Appends consecutive events to a list that has nothing else; `false` if it has.
    pub(crate) fn append_events(&mut self, index: u32, row: u32, more: u32) -> bool {
        match &mut self.lists[index as usize] {
            List::Rows { table: Rows::Events, first, count } if *first + *count == row => *count += more,
            _ => return false,
        }
        true
    }

    pub(crate) fn footprint(&self) -> usize {
        self.lists.len() * size_of::<List>()
            + self.dicts.len() * size_of::<Dict>()
            + self.tuples.len() * 24
            + self.numbers.len() * size_of::<Number>()
            // A vector that grew holds up to twice its content, in small separate allocations.
            + self.cells * 20
    }
}

pub(crate) fn row_value(table: Rows, row: u32) -> Value {
    Value::new(match table {
        Rows::Events => Kind::Event(row),
        Rows::Blocks => Kind::Block(row),
        Rows::Segments => Kind::Segment(row),
    })
}
