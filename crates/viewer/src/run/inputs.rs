//! The inputs of a page: read when they are looked at, and only the last few are kept in memory.

use super::runs::{LoadedInput, RunIds, RunInput};
use crate::answers::ranks::DeviceFacts;
use crate::{Problem, no_such_run};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Reads the input of a number.
pub type InputReader<'a> = Box<dyn Fn(usize) -> Result<RunInput, Problem> + Send + Sync + 'a>;

/// Inputs that stay in memory after they were looked at, where they can be read again.
pub(crate) const MAX_LOADED: usize = 8;

/// The inputs, each perhaps in memory.
pub(crate) struct PageInputs<'a> {
    names: Vec<String>,
    /// `None` if all are in memory.
    reader: Option<InputReader<'a>>,
    /// A lock per input: whoever needs one that is being read waits for it.
    loaded: Vec<Mutex<Option<Arc<LoadedInput>>>>,
    /// Numbers of the inputs in memory, the one that was used last at the end.
    recent: Mutex<Vec<usize>>,
    facts: Vec<OnceLock<Result<Vec<DeviceFacts>, Problem>>>,
    /// The next input that `help_summarize` takes.
    next: AtomicUsize,
}

impl<'a> PageInputs<'a> {
    /// Inputs that are in memory.
    pub(crate) fn in_memory(inputs: Vec<RunInput>) -> PageInputs<'a> {
        let names: Vec<String> = inputs.iter().map(|input| input.name.clone()).collect();
        let all = PageInputs::new(names, None);
        for (number, input) in inputs.into_iter().enumerate() {
            all.put(number, input);
        }
        all
    }

    /// Inputs that a function reads.
    pub(crate) fn on_demand(names: Vec<String>, reader: InputReader<'a>) -> PageInputs<'a> {
        PageInputs::new(names, Some(reader))
    }

    fn new(names: Vec<String>, reader: Option<InputReader<'a>>) -> PageInputs<'a> {
        PageInputs {
            reader,
            loaded: names.iter().map(|_| Mutex::default()).collect(),
            recent: Mutex::default(),
            facts: names.iter().map(|_| OnceLock::new()).collect(),
            next: AtomicUsize::new(0),
            names,
        }
    }

    /// Paths of the inputs.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether inputs are read when they are looked at.
    pub(crate) fn is_on_demand(&self) -> bool {
        self.reader.is_some()
    }

    /// Number of the input that has a device.
    pub(crate) fn with_device(&self, id: usize) -> Option<usize> {
        RunIds::input_with(id, self.names.len())
    }

    /// Keeps an input that was read already.
    pub(crate) fn put(&self, number: usize, input: RunInput) -> Arc<LoadedInput> {
        let loaded = Arc::new(LoadedInput::new(input, false, RunIds::of_input(number, self.names.len())));
        if let Some(slot) = self.loaded.get(number) {
            *lock(slot) = Some(loaded.clone());
        }
        self.used(number);
        loaded
    }

    /// Returns an input, from memory or from its reader.
    pub(crate) fn get(&self, number: usize) -> Result<Arc<LoadedInput>, Problem> {
        let mut slot = lock(self.loaded.get(number).ok_or_else(no_such_run)?);
        let loaded = match &*slot {
            Some(loaded) => loaded.clone(),
            None => self.read(number)?,
        };
        *slot = Some(loaded.clone());
        // Others are dropped next, and two threads must not wait for each other's.
        drop(slot);
        self.used(number);
        Ok(loaded)
    }

    fn read(&self, number: usize) -> Result<Arc<LoadedInput>, Problem> {
        let reader = self.reader.as_ref().ok_or_else(no_such_run)?;
        let ids = RunIds::of_input(number, self.names.len());
        Ok(Arc::new(LoadedInput::new(reader(number)?, false, ids)))
    }

    /// Notes that an input was used, and drops those that were not used for longest.
    fn used(&self, number: usize) {
        let mut recent = lock(&self.recent);
        recent.retain(|&other| other != number);
        recent.push(number);
        let surplus = if self.is_on_demand() { recent.len().saturating_sub(MAX_LOADED) } else { 0 };
        let dropped: Vec<usize> = recent.drain(..surplus).collect();
        drop(recent);
        for slot in dropped.into_iter().filter_map(|number| self.loaded.get(number)) {
            *lock(slot) = None;
        }
    }

    /// What the ranks are compared by, of the inputs that were read so far.
    pub(crate) fn facts(&self) -> impl Iterator<Item = (usize, &Result<Vec<DeviceFacts>, Problem>)> {
        self.facts.iter().enumerate().filter_map(|(number, facts)| Some((number, facts.get()?)))
    }

    /// Reads what the ranks are compared by, of all inputs; waits for those that another thread reads.
    pub(crate) fn summarize_all(&self) {
        (0..self.facts.len()).for_each(|number| self.summarize(number));
    }

    /// The same for inputs that no other thread reads: several threads share the work.
    pub(crate) fn help_summarize(&self) {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.facts.len() {
                return;
            }
            self.summarize(number);
        }
    }

    fn summarize(&self, number: usize) {
        let Some(facts) = self.facts.get(number) else { return };
        facts.get_or_init(|| {
            let here = self.loaded.get(number).and_then(|slot| lock(slot).clone());
            // Not kept: someone may look at other inputs.
            let loaded = here.map_or_else(|| self.read(number), Ok)?;
            Ok(loaded.views().map(|view| DeviceFacts::new(&view)).collect())
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::Recording;

    const RANKS: usize = 40;

    fn input(number: usize) -> RunInput {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/torch/torch-2.4.1.pickle.xz");
        let snapshot = snapshot::open(path.as_ref()).expect("a fixture");
        RunInput { name: format!("rank{number}.pickle"), snapshot, recording: Recording::default() }
    }

    #[test]
    fn an_input_is_read_when_it_is_needed_and_again_once_others_have_replaced_it() {
        let reads: Arc<Mutex<Vec<usize>>> = Arc::default();
        let noted = reads.clone();
        let reader = move |number: usize| {
            lock(&noted).push(number);
            if number == 3 { Err(Problem::new("cut off")) } else { Ok(input(number)) }
        };
        let names = (0..RANKS).map(|number| format!("rank{number}.pickle")).collect();
        let inputs = PageInputs::on_demand(names, Box::new(reader));
        inputs.put(0, input(0));
        assert_eq!(inputs.get(20).expect("an input").views().next().expect("a device").id, 20);
        let _ = (inputs.get(20), inputs.get(0));
        assert_eq!(*lock(&reads), [20], "they are kept");
        assert_eq!(inputs.get(3).err().expect("a problem").what, "cut off");
        for number in 21..20 + MAX_LOADED {
            inputs.get(number).expect("an input");
        }
        let in_memory = || inputs.loaded.iter().filter(|slot| lock(slot).is_some()).count();
        assert_eq!(in_memory(), MAX_LOADED);
        lock(&reads).clear();
        inputs.get(20).expect("an input");
        assert_eq!(*lock(&reads), [20], "the one that was not used for longest was dropped");

        inputs.help_summarize();
        assert_eq!(in_memory(), MAX_LOADED, "summaries keep no snapshot");
        let (read, broken): (Vec<_>, Vec<_>) = inputs.facts().partition(|(_, facts)| facts.is_ok());
        assert_eq!((read.len(), broken.len(), broken[0].0), (RANKS - 1, 1, 3));
        assert!(inputs.get(RANKS).is_err());
    }

    #[test]
    fn numbers_of_devices_do_not_depend_on_what_is_read() {
        for (input, device) in [(0, 0), (6, 0), (2, 3), (6, 15)] {
            let ids = RunIds::of_input(input, 7);
            assert_eq!(RunIds::input_with(ids.device(device), 7), Some(input));
        }
        assert_eq!(RunIds::of_input(6, 7).device(0), 6, "the first device has the number of its input");
    }
}
