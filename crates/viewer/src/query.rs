//! Parameters of a question, read from the address that the page asks for and written for the exported page.

use crate::Problem;
use serde::Serialize;
use serde::de::value::MapDeserializer;
use serde::de::{self, DeserializeOwned, IntoDeserializer, Visitor};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// Reads the text after the `?` of an address.
pub(crate) fn parse<Q: DeserializeOwned>(text: &str) -> Result<Q, Problem> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    let parameters: BTreeMap<String, QueryParameter> = pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), QueryParameter { name: decoded(name), value: decoded(value) })
        })
        .collect();
    Q::deserialize(MapDeserializer::new(parameters.into_iter()))
        .map_err(|QueryError(message)| Problem::new(message))
}

/// Writes `name=value&…` in the order of the names, without parameters that have no value. The page builds
/// its addresses by the same rule (`web/src/protocol/address.ts`) and so finds the answers of an exported
/// page.
pub(crate) fn format(query: &impl Serialize) -> String {
    let Ok(Value::Object(parameters)) = serde_json::to_value(query) else { return String::new() };
    let written = parameters.iter().filter_map(|(name, value)| match value {
        Value::Null => None,
        Value::String(text) => (!text.is_empty()).then(|| format!("{name}={text}")),
        value => Some(format!("{name}={value}")),
    });
    written.collect::<Vec<_>>().join("&")
}

/// One parameter; its name is needed for error messages.
struct QueryParameter {
    name: String,
    value: String,
}

impl QueryParameter {
    fn number<T: std::str::FromStr>(&self) -> Result<T, QueryError> {
        self.value.parse().map_err(|_| QueryError(format!("`{}` cannot be `{}`", self.name, self.value)))
    }
}

impl IntoDeserializer<'_, QueryError> for QueryParameter {
    type Deserializer = QueryParameter;

    fn into_deserializer(self) -> QueryParameter {
        self
    }
}

impl<'de> de::Deserializer<'de> for QueryParameter {
    type Error = QueryError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        visitor.visit_string(self.value)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        visitor.visit_u32(self.number()?)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        visitor.visit_u64(self.number()?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        visitor.visit_f64(self.number()?)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        visitor.visit_bool(self.number()?)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, QueryError> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, QueryError> {
        visitor.visit_enum(self.value.into_deserializer())
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u128 f32 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// Why a query cannot be read.
#[derive(Debug)]
struct QueryError(String);

impl Display for QueryError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for QueryError {}

impl de::Error for QueryError {
    fn custom<T: Display>(message: T) -> QueryError {
        QueryError(message.to_string())
    }

    fn missing_field(name: &'static str) -> QueryError {
        QueryError(format!("the question has no `{name}`"))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> QueryError {
        QueryError(format!("`{variant}` is not one of {}", expected.join(", ")))
    }
}

/// Undoes percent-encoding; bytes that are not valid UTF-8 become replacement characters.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = match (first, after) {
            (b'%', [high, low, ..]) => digit(*high).zip(digit(*low)).map(|(high, low)| high * 16 + low),
            _ => None,
        };
        match hex {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn digit(letter: u8) -> Option<u8> {
    char::from(letter).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Sample {
        run: usize,
        search: Option<String>,
        share: Option<f64>,
        is_open: Option<bool>,
    }

    #[test]
    fn parameters_are_decoded() {
        let text = "run=7&search=train.py%3A20+caf%C3%A9&share=0.5&is_open=true&other=%zz&bare";
        let expected = Sample {
            run: 7,
            search: Some("train.py:20 café".to_owned()),
            share: Some(0.5),
            is_open: Some(true),
        };
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn a_wrong_or_missing_parameter_is_named() {
        let problem = |text: &str| parse::<Sample>(text).expect_err("a problem").what;
        assert_eq!(problem("run=x"), "`run` cannot be `x`");
        assert_eq!(problem("search=x"), "the question has no `run`");
    }

    #[test]
    fn parameters_are_written_in_the_order_of_their_names() {
        let query = Sample { run: 7, search: Some(String::new()), share: None, is_open: Some(true) };
        assert_eq!(format(&query), "is_open=true&run=7");
    }
}
