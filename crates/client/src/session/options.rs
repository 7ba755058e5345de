//! How is a session opened?

use crate::Error;

/// Names the user whose server may be talked to, besides this program's own user and root.
const SERVER_UID: &str = "NERITE_SERVER_UID";

/// What a session brings, and whose server it may be opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionOptions {
    pub(super) headers: Vec<(String, String)>,
    pub(super) operator: bool,
    server_uid: Option<u32>,
}

impl SessionOptions {
    /// Brings a header, for calls that the operator restricted.
    pub fn header(mut self, name: &str, value: &str) -> SessionOptions {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// For an operator: when all sessions are taken, the server has places left for those. A session that got such a place makes
    /// the operator's calls and no others.
    pub fn operator(mut self) -> SessionOptions {
        self.operator = true;
        self
    }

    /// The server may be this user's. Without it, and without `NERITE_SERVER_UID`, only servers of this program's own user and of
    /// root are talked to.
    pub fn server_uid(mut self, uid: u32) -> SessionOptions {
        self.server_uid = Some(uid);
        self
    }

    /// The user that was named, here or in the environment.
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
