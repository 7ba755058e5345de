//! Which secret does a client send?

use std::fmt;

/// The environment variable with the secret, if the program sets none.
const VARIABLE: &str = "NERITE_TOKEN";
/// The header with the secret.
pub(crate) const AUTHORIZATION: &str = "authorization";

/// The secret of a token that the server knows. Debug output never shows it.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Token(Option<String>);

impl Token {
    /// A token with this secret. An empty text means no token, even if the environment names one.
    pub(crate) fn new(secret: &str) -> Token {
        Token(Some(secret.to_owned()))
    }

    /// Whether the program set a secret, or set none explicitly.
    pub(crate) fn is_named(&self) -> bool {
        self.0.is_some()
    }

    /// The value of the header, for this secret or for the one in the environment.
    pub(crate) fn bearer(&self) -> Option<String> {
        // A variable that was read from a file often ends in a newline.
        let of_environment = || std::env::var(VARIABLE).ok().map(|secret| secret.trim().to_owned());
        let secret = self.0.clone().or_else(of_environment);
        secret.filter(|secret| !secret.is_empty()).map(|secret| format!("Bearer {secret}"))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_named() { "Token(named)" } else { "Token(of the environment)" })
    }
}
