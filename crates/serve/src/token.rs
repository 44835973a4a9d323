//! A secret that a client has to know.

use std::io;

/// The secret.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A new one, from the system's own randomness.
    pub fn random() -> io::Result<Token> {
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// One that was agreed upon.
    pub fn new(text: impl Into<String>) -> Token {
        Token(text.into())
    }

    /// The secret itself, for the address that only the user sees.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether this is it. Takes as long for a wrong one as for the right one.
    pub fn is(&self, other: &str) -> bool {
        let differences = self.0.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        self.0.len() == other.len() && differences == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        let token = Token::new("abc");
        assert!(token.is("abc"));
        assert!(!token.is("abd") && !token.is("ab") && !token.is("abcd") && !token.is(""));
    }
}
