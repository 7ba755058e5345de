//! How does a client of another protocol open a session with its server?

use std::path::Path;

use crate::report::ServerReport;
use crate::token::AUTHORIZATION;
use crate::{Error, Session, SessionOptions, default_path, grpc, http};

impl http::Client {
    /// A session with the same server, for leases and for outputs of unknown size, if its socket is at [`default_path`]. `None` for a server on another host,
    /// or for a server other than nerite. The error is [`Error::Untrusted`] if a process that is not trusted listens at the socket. Requests can still be sent
    /// over this client then.
    pub async fn session(&self) -> Result<Option<Session>, Error> {
        self.session_at(default_path()).await
    }

    /// As `session`, for the socket at `path`.
    pub async fn session_at(&self, path: impl AsRef<Path>) -> Result<Option<Session>, Error> {
        beside(&self.server_metadata().await?, path.as_ref(), self.authorization()).await
    }
}

impl grpc::Client {
    /// A session with the same server, for leases and for outputs of unknown size, if its socket is at [`default_path`]. `None` for a server on another host,
    /// or for a server other than nerite. The error is [`Error::Untrusted`] if a process that is not trusted listens at the socket. Requests can still be sent
    /// over this client then.
    pub async fn session(&self) -> Result<Option<Session>, Error> {
        self.session_at(default_path()).await
    }

    /// As `session`, for the socket at `path`.
    pub async fn session_at(&self, path: impl AsRef<Path>) -> Result<Option<Session>, Error> {
        beside(&self.server_metadata().await?, path.as_ref(), self.authorization()).await
    }
}

/// A session with the server that sent this metadata, if that server has the socket at `path`. The session sends the client's token.
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
