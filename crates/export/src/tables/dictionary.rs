//! Texts that repeat, stored once: the dictionary of a column.

use arrow_array::{ArrayRef, StringArray};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// The dictionary for a sequence of texts, and for each place of the sequence its entry.
///
/// It is made once, from the interned tables, and shared by all batches: a file of Arrow batches must not change
/// a dictionary on the way.
pub(super) struct Dictionary {
    keys: Vec<Option<i32>>,
    values: ArrayRef,
}

impl Dictionary {
    pub(super) fn new<'t, Text: Into<Cow<'t, str>>>(
        sequence: impl Iterator<Item = Option<Text>>,
    ) -> anyhow::Result<Dictionary> {
        let mut places: HashMap<Cow<'t, str>, i32> = HashMap::new();
        let keys = sequence
            .map(|text| {
                let next = places.len() as i32;
                text.map(|text| *places.entry(text.into()).or_insert(next))
            })
            .collect();
        let mut texts = vec![""; places.len()];
        for (text, &place) in &places {
            texts[place as usize] = text;
        }
        let values = Arc::new(strings(texts.into_iter().map(Some))?);
        Ok(Dictionary { keys, values })
    }

    /// The entry of the text at `place` of the sequence, if there is a text.
    pub(super) fn key(&self, place: usize) -> Option<i32> {
        self.keys[place]
    }

    pub(super) fn values(&self) -> ArrayRef {
        Arc::clone(&self.values)
    }
}

/// Arrow counts the bytes of a text column in 31 bits and panics beyond: a file with more is refused instead.
pub(super) fn strings<'t>(
    texts: impl Iterator<Item = Option<&'t str>> + Clone,
) -> anyhow::Result<StringArray> {
    let bytes: usize = texts.clone().flatten().map(str::len).sum();
    anyhow::ensure!(
        i32::try_from(bytes).is_ok(),
        "a column of {bytes} bytes of text is more than Arrow holds"
    );
    Ok(texts.collect())
}
