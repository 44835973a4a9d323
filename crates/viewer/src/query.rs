//! What the page asks, out of an address.

use crate::Problem;
use std::collections::BTreeMap;
use std::str::FromStr;

/// The parameters of a question, by name.
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    /// From what comes after the `?`.
    pub(crate) fn new(text: &str) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decoded(name), decoded(value))
                })
                .collect(),
        )
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A value, if it is there; one that makes no sense is a mistake.
    pub(crate) fn maybe<T: FromStr>(&self, name: &str) -> Result<Option<T>, Problem> {
        let parse =
            |text: &String| text.parse().map_err(|_| Problem::new(format!("`{name}` cannot be `{text}`")));
        self.0.get(name).map(parse).transpose()
    }

    /// A value that has to be there.
    pub(crate) fn get<T: FromStr>(&self, name: &str) -> Result<T, Problem> {
        self.maybe(name)?.ok_or_else(|| Problem::new(format!("the question lacks `{name}`")))
    }
}

/// Undoes percent-encoding; what is not valid UTF-8 afterwards becomes a question mark.
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

    #[test]
    fn parameters_come_decoded() {
        let query = Query::new("at=7&search=train.py%3A20+caf%C3%A9&odd=%zz&bare");
        assert_eq!(query.get::<usize>("at"), Ok(7));
        assert_eq!(query.text("search"), Some("train.py:20 café"));
        assert_eq!(query.text("odd"), Some("%zz"));
        assert_eq!(query.text("bare"), Some(""));
        assert!(query.get::<usize>("search").is_err());
        assert!(query.get::<usize>("missing").is_err());
        assert_eq!(query.maybe::<usize>("missing"), Ok(None));
    }
}
