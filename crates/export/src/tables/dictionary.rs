//! Dictionaries of text columns: repeated texts are stored once.

use arrow_array::{ArrayRef, StringArray};
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

/// The dictionary for a sequence of texts, with the entry of each index of the sequence.
///
/// It is built once, from the interned tables, and shared by all batches: an Arrow file must not change a
/// dictionary between batches.
pub(super) struct Dictionary {
    keys: Vec<Option<i32>>,
    values: ArrayRef,
}

impl Dictionary {
    pub(super) fn new<'t, Text: Into<Cow<'t, str>>>(
        sequence: impl Iterator<Item = Option<Text>>,
    ) -> anyhow::Result<Dictionary> {
        let mut entries: HashMap<Cow<'t, str>, i32> = HashMap::new();
        let keys = sequence
            .map(|text| {
                let next = entries.len() as i32;
                text.map(|text| *entries.entry(text.into()).or_insert(next))
            })
            .collect();
        let mut texts = vec![""; entries.len()];
        for (text, &entry) in &entries {
            texts[entry as usize] = text;
        }
        let values = Arc::new(strings(texts.into_iter().map(Some))?);
        Ok(Dictionary { keys, values })
    }

    /// Returns the entry of the text at `index` of the sequence, if there is a text.
    pub(super) fn key(&self, index: usize) -> Option<i32> {
        self.keys[index]
    }

    pub(super) fn values(&self) -> ArrayRef {
        Arc::clone(&self.values)
    }
}

/// Builds a text column. Arrow counts its bytes in 31 bits and panics beyond that, so larger ones are
/// refused.
pub(super) fn strings<'t>(
    texts: impl Iterator<Item = Option<&'t str>> + Clone,
) -> anyhow::Result<StringArray> {
    let bytes: usize = texts.clone().flatten().map(str::len).sum();
    anyhow::ensure!(
        i32::try_from(bytes).is_ok(),
        "a text column of {bytes} bytes is larger than Arrow supports"
    );
    Ok(texts.collect())
}
