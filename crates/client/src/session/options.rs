//! How is a session opened?

use std::collections::BTreeMap;
use std::fmt;

use crate::Error;
use crate::token::{AUTHORIZATION, Token};

/// The variable with the number of a user whose server is trusted, besides this program's own user and root.
const SERVER_UID: &str = "NERITE_SERVER_UID";

/// What a session sends, and which user's server it trusts.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SessionOptions {
    headers: Vec<(String, String)>,
    token: Token,
    pub(super) operator: bool,
    server_uid: Option<u32>,
}

impl SessionOptions {
    /// Sends a header, for calls that the operator restricted.
    pub fn header(mut self, name: &str, value: &str) -> SessionOptions {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends the secret of a token, for servers that require one. The default is `NERITE_TOKEN` in the environment. An empty text sends none.
    pub fn token(mut self, secret: &str) -> SessionOptions {
        self.token = Token::new(secret);
        self
    }

    /// The headers that the session sends. A token that the program sets overrides a header, and a header overrides the environment.
    pub(super) fn all_headers(&self) -> BTreeMap<String, String> {
        let mut headers: BTreeMap<_, _> = self.headers.iter().cloned().collect();
        let is_token = |name: &String| name.eq_ignore_ascii_case(AUTHORIZATION);
        if self.token.is_named() || !headers.keys().any(is_token) {
            headers.retain(|name, _| !is_token(name));
            headers.extend(self.token.bearer().map(|bearer| (AUTHORIZATION.to_owned(), bearer)));
        }
        headers
    }

    /// Opens the session for an operator. The server reserves places for operators, which are used when all others are taken. A session in such a place may
    /// make only the operator's calls.
    pub fn operator(mut self) -> SessionOptions {
        self.operator = true;
        self
    }

    /// Also trusts a server of this user. Without it, and without `NERITE_SERVER_UID`, only servers of this program's own user and of root are
    /// trusted.
    pub fn server_uid(mut self, uid: u32) -> SessionOptions {
        self.server_uid = Some(uid);
        self
    }

    /// The user that was named, by the program or in the environment.
    pub(super) fn named_uid(&self) -> Result<Option<u32>, Error> {
        if self.server_uid.is_some() {
            return Ok(self.server_uid);
        }
        let Some(text) = std::env::var_os(SERVER_UID).filter(|text| !text.is_empty()) else { return Ok(None) };
        let text = text.to_string_lossy();
        let uid = text.parse();
        uid.map(Some).map_err(|_| Error::Session(format!("{SERVER_UID} is '{text}', which is no user's number")))
    }
}

impl fmt::Debug for SessionOptions {
    /// Omits the values of headers, because they are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SessionOptions { headers, token, operator, server_uid } = self;
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let mut shown = f.debug_struct("SessionOptions");
        shown.field("headers", &names).field("token", token).field("operator", operator);
        shown.field("server_uid", server_uid).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let options = SessionOptions::default().header("key", "hidden-value").token("hidden-token");
        assert_eq!(options.all_headers().len(), 2);
        let shown = format!("{options:?} {:#?}", options.clone().operator());
        assert!(shown.contains("key") && !shown.contains("hidden"), "{shown}");
    }

    #[test]
    fn a_token_comes_before_a_header() {
        let brought = |options: SessionOptions| options.all_headers().into_iter().collect::<Vec<_>>();
        let of = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let header = SessionOptions::default().header("Authorization", "Basic x");
        assert_eq!(brought(header.clone()), of("Authorization", "Basic x"));
        assert_eq!(brought(header.clone().token("a")), of("authorization", "Bearer a"));
        assert_eq!(brought(header.token("")), []);
    }
}
