//! Conversion of JSON, the form in which the tables keep values without a column, back to a pickle.
//!
//! It is streamed: the order of keys is preserved.

use super::pickler::Pickler;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::io::Write;

/// Writes the value of `json`, or None if it is not valid JSON.
pub(super) fn value<W: Write>(json: &str, pickle: &mut Pickler<'_, W>) {
    let start = pickle.position();
    let mut reader = serde_json::Deserializer::from_str(json);
    if (JsonToPickle { pickle: &mut *pickle, inside: false }).deserialize(&mut reader).is_err() {
        pickle.forget(start);
        pickle.none();
    }
}

/// Writes the keys and values of the object `json` into the open dictionary.
pub(super) fn pairs<W: Write>(json: &str, pickle: &mut Pickler<'_, W>) {
    let start = pickle.position();
    let mut reader = serde_json::Deserializer::from_str(json);
    if (JsonToPickle { pickle: &mut *pickle, inside: true }).deserialize(&mut reader).is_err() {
        pickle.forget(start);
    }
}

/// Value being converted.
struct JsonToPickle<'p, 'w, W> {
    pickle: &'p mut Pickler<'w, W>,
    /// Whether the dictionary is already open.
    inside: bool,
}

impl<'de, W: Write> DeserializeSeed<'de> for JsonToPickle<'_, '_, W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<W: Write> JsonToPickle<'_, '_, W> {
    /// Fails inside an open dictionary, which scalars and lists cannot extend.
    fn alone<E: Error>(&self) -> Result<(), E> {
        if self.inside { Err(E::custom("not an object")) } else { Ok(()) }
    }
}

impl<'de, W: Write> Visitor<'de> for JsonToPickle<'_, '_, W> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.alone()?;
        self.pickle.none();
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.alone()?;
        self.pickle.bool(value);
        Ok(())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.alone()?;
        self.pickle.int(value);
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.alone()?;
        self.pickle.unsigned(value);
        Ok(())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.alone()?;
        self.pickle.float(value);
        Ok(())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.alone()?;
        self.pickle.text(value);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.alone()?;
        self.pickle.empty_list();
        self.pickle.open_batch();
        while items.next_element_seed(JsonToPickle { pickle: &mut *self.pickle, inside: false })?.is_some() {}
        self.pickle.close_batch();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<(), A::Error> {
        if !self.inside {
            self.pickle.open_dict();
        }
        while let Some(key) = pairs.next_key::<String>()? {
            self.pickle.text(&key);
            pairs.next_value_seed(JsonToPickle { pickle: &mut *self.pickle, inside: false })?;
        }
        if !self.inside {
            self.pickle.close_dict();
        }
        Ok(())
    }
}
