//! Which secret does a client bring?

use std::fmt;

/// Names the secret, if the program sets none.
const VARIABLE: &str = "NERITE_TOKEN";
/// The header that brings it.
pub(crate) const AUTHORIZATION: &str = "authorization";

/// The secret of a token that the server knows. It is never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Token(Option<String>);

impl Token {
    /// This secret; empty for none, whatever the environment says.
    pub(crate) fn new(secret: &str) -> Token {
        Token(Some(secret.to_owned()))
    }

    /// Whether the program named one, or none on purpose.
    pub(crate) fn is_named(&self) -> bool {
        self.0.is_some()
    }

    /// The value of the header: of this secret, or of the one in the environment.
    pub(crate) fn bearer(&self) -> Option<String> {
        let secret = self.0.clone().or_else(|| std::env::var(VARIABLE).ok());
        secret.filter(|secret| !secret.is_empty()).map(|secret| format!("Bearer {secret}"))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_named() { "Token(named)" } else { "Token(of the environment)" })
    }
}
