//! The error type of everything that can fail because of the user's input: [`Failure`].
//!
//! ```
//! use failure::Failure;
//!
//! let cause = Some("it is empty".to_owned());
//! let failure = Failure::new("`a.pickle` cannot be read", cause, Some("record it again"));
//! assert_eq!(failure.message(), "`a.pickle` cannot be read\n  cause: it is empty\nhint: record it again");
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::io;

/// An error message: what failed, its cause, and a hint what to do.
#[derive(Debug)]
pub struct Failure {
    what: String,
    cause: Option<String>,
    hint: Option<String>,
    refusal: Option<io::ErrorKind>,
}

impl Failure {
    /// Returns an error message.
    pub fn new(what: impl Into<String>, cause: Option<String>, hint: Option<&str>) -> Failure {
        Failure { what: what.into(), cause, hint: hint.map(str::to_owned), refusal: None }
    }

    /// Adds the kind of the I/O error, for callers that distinguish a missing file from an invalid one.
    pub fn refused(self, by_system: io::ErrorKind) -> Failure {
        Failure { refusal: Some(by_system), ..self }
    }

    /// Replaces the hint.
    pub fn hinting(self, hint: String) -> Failure {
        Failure { hint: Some(hint), ..self }
    }

    /// Returns the kind of the I/O error, if a file could not be opened.
    pub fn refusal(&self) -> Option<io::ErrorKind> {
        self.refusal
    }

    /// Returns the whole message, as the terminal shows it after `error:`.
    pub fn message(&self) -> String {
        let cause = self.cause.as_ref().map(|cause| format!("\n  cause: {cause}"));
        let hint = self.hint.as_ref().map(|hint| format!("\nhint: {hint}"));
        format!("{}{}{}", self.what, cause.unwrap_or_default(), hint.unwrap_or_default())
    }

    /// Returns the cause.
    pub fn cause(&self) -> Option<&str> {
        self.cause.as_deref()
    }

    /// Returns the hint.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Returns the error for a file that is not a readable snapshot.
    pub fn reading(name: &str, error: &snapshot::Error) -> Failure {
        Failure {
            what: format!("`{name}` {}", error.what),
            cause: Some(error.cause.clone()),
            hint: Some(error.hint.clone()),
            refusal: error.refusal(),
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Failure {}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        match error.downcast::<Failure>() {
            Ok(failure) => failure,
            Err(error) => {
                let cause = error.chain().skip(1).map(ToString::to_string).collect::<Vec<_>>().join(": ");
                let refusal = error.chain().find_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()));
                let cause = (!cause.is_empty()).then_some(cause);
                Failure { what: error.to_string(), cause, hint: None, refusal }
            }
        }
    }
}
