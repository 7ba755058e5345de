//! Which session belongs to the server that a client talks to over another protocol?

use std::path::Path;

use crate::report::ServerReport;
use crate::token::AUTHORIZATION;
use crate::{Error, Session, SessionOptions, default_path, grpc, http};

impl http::Client {
    /// A session with the same server, for leases and for outputs of unknown size, if its socket is at [`default_path`]. `None` for a
    /// server on another host, or of another kind. [`Error::Untrusted`] if a process that is not trusted listens there: requests can
    /// still be sent over this client.
    pub async fn session(&self) -> Result<Option<Session>, Error> {
        self.session_at(default_path()).await
    }

    /// As `session`, with a socket at `path`.
    pub async fn session_at(&self, path: impl AsRef<Path>) -> Result<Option<Session>, Error> {
        beside(&self.server_metadata().await?, path.as_ref(), self.authorization()).await
    }
}

impl grpc::Client {
    /// A session with the same server, for leases and for outputs of unknown size, if its socket is at [`default_path`]. `None` for a
    /// server on another host, or of another kind. [`Error::Untrusted`] if a process that is not trusted listens there: requests can
    /// still be sent over this client.
    pub async fn session(&self) -> Result<Option<Session>, Error> {
        self.session_at(default_path()).await
    }

    /// As `session`, with a socket at `path`.
    pub async fn session_at(&self, path: impl AsRef<Path>) -> Result<Option<Session>, Error> {
        beside(&self.server_metadata().await?, path.as_ref(), self.authorization()).await
    }
}

/// A session with the server of this metadata, if the socket at `path` belongs to it. It sends the token of the client.
async fn beside(server: &ServerReport, path: &Path, authorization: Option<&str>) -> Result<Option<Session>, Error> {
    let Some(id) = server.server_id() else { return Ok(None) };
    let options = SessionOptions::default();
    let options = match authorization {
        Some(value) => options.header(AUTHORIZATION, value),
        None => options.token(""),
    };
    match Session::connect_to(path, &options).await {
        Ok(session) => Ok(Some(session).filter(|session| session.terms().server_id == id)),
        Err(error @ Error::Untrusted { .. }) => Err(error),
        Err(_) => Ok(None),
    }
}
