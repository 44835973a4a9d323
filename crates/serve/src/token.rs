//! Tokens that clients have to present.

use std::io;
use std::path::Path;

/// A token that a client has to present.
///
/// ```
/// use serve::Token;
///
/// let token = Token::new("secret");
/// assert!(token.matches("secret") && !token.matches("guess"));
/// ```
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Makes a random token of 128 bits.
    pub fn random() -> io::Result<Token> {
        let mut bytes = [0u8; 16];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Makes a token from a text that both sides know.
    pub fn new(text: impl Into<String>) -> Token {
        Token(text.into())
    }

    /// Text of the token, for an address that only the user sees.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether `other` is this token, in a time that does not depend on how much of it is right.
    pub fn matches(&self, other: &str) -> bool {
        let differences = self.0.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
        self.0.len() == other.len() && differences == 0
    }
}

/// Returns whether other users can read a file, by its Unix permissions; `false` on systems that have none.
pub fn others_can_read(file: &Path) -> bool {
    #[cfg(unix)]
    return std::fs::metadata(file)
        .is_ok_and(|meta| std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o077 != 0);
    #[cfg(not(unix))]
    {
        let _ = file;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_matches_only_itself() {
        let token = Token::new("abc");
        assert!(token.matches("abc"));
        assert!(
            !token.matches("abd") && !token.matches("ab") && !token.matches("abcd") && !token.matches("")
        );
    }
}
