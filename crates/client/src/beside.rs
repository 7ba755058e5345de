//! How does a client of another protocol open a session with its server?

use std::path::Path;

use crate::report::ServerReport;
use crate::session::paths_of;
use crate::token::AUTHORIZATION;
use crate::{Error, Session, SessionOptions, grpc, http};

impl http::Client {
    /// A session with the same server, if its socket is at a default path. `None` for a server on another host, or for one other than nerite. The default
    /// paths are that of this client's port, and [`crate::default_path`]. The error is [`Error::Untrusted`] if a process that is not trusted listens at the
    /// socket. Requests can still be sent over this client then.
    pub async fn session(&self) -> Result<Option<Session>, Error> {
        let paths = paths_of(self.port());
        beside(&self.server_metadata().await?, &paths, self.authorization()).await
    }

    /// As `session`, for the socket at `path`.
    pub async fn session_at(&self, path: impl AsRef<Path>) -> Result<Option<Session>, Error> {
        beside(&self.server_metadata().await?, &[path], self.authorization()).await
    }
}

impl grpc::Client {
    /// A session with the same server, if its socket is at a default path. `None` for a server on another host, or for one other than nerite. The default
    /// paths are that of this client's port, and [`crate::default_path`]. The error is [`Error::Untrusted`] if a process that is not trusted listens at the
    /// socket. Requests can still be sent over this client then.
    pub async fn session(&self) -> Result<Option<Session>, Error> {
        let paths = paths_of(self.port());
        beside(&self.server_metadata().await?, &paths, self.authorization()).await
    }

    /// As `session`, for the socket at `path`.
    pub async fn session_at(&self, path: impl AsRef<Path>) -> Result<Option<Session>, Error> {
        beside(&self.server_metadata().await?, &[path], self.authorization()).await
    }
}

/// A session with the server that sent this metadata, if that server has its socket at one of the `paths`. The session sends the client's token.
async fn beside(
    server: &ServerReport,
    paths: &[impl AsRef<Path>],
    authorization: Option<&str>,
) -> Result<Option<Session>, Error> {
    let Some(id) = server.server_id() else { return Ok(None) };
    let options = SessionOptions::default();
    let options = match authorization {
        Some(value) => options.header(AUTHORIZATION, value),
        None => options.token(""),
    };
    for path in paths {
        match Session::connect_to(path, &options).await {
            Ok(session) if session.terms().server_id == id => return Ok(Some(session)),
            Err(error @ Error::Untrusted { .. }) => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(None)
}
