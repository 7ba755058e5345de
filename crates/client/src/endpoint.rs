//! Where does a server listen?

use std::path::PathBuf;

use crate::Error;

/// An address: `http://host:port`, `https://host:port`, `host:port`, or `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// Host and port, for connecting and for the Host header, and whether the server speaks TLS.
    Tcp { authority: String, secure: bool },
    /// A Unix socket.
    Unix { path: PathBuf },
}

impl Endpoint {
    /// Reads an address. The schemes grpc and grpcs mean the same as http and https.
    pub(crate) fn parse(text: &str) -> Result<Endpoint, Error> {
        let fault = |reason: &str| Error::Endpoint { endpoint: text.to_owned(), reason: reason.to_owned() };
        if let Some(path) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")) {
            return if path.is_empty() { Err(fault("no path")) } else { Ok(Endpoint::Unix { path: path.into() }) };
        }
        let (rest, secure) = match text.split_once("://") {
            Some(("http" | "grpc", rest)) => (rest, false),
            Some(("https" | "grpcs", rest)) => (rest, true),
            Some(_) => return Err(fault("unknown scheme")),
            None => (text, false),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains('/') {
            return Err(fault("a path after the port"));
        }
        let port = authority.rsplit_once(':').filter(|(host, _)| !host.is_empty());
        match port.and_then(|(_, port)| port.parse::<u16>().ok()) {
            Some(_) => Ok(Endpoint::Tcp { authority: authority.to_owned(), secure }),
            None => Err(fault("no port")),
        }
    }

    /// The value of the Host header. Servers on Unix sockets ignore it.
    pub(crate) fn authority(&self) -> &str {
        match self {
            Endpoint::Tcp { authority, .. } => authority,
            Endpoint::Unix { .. } => "localhost",
        }
    }

    /// The port, if it has one.
    pub(crate) fn port(&self) -> Option<u16> {
        let Endpoint::Tcp { authority, .. } = self else { return None };
        authority.rsplit_once(':')?.1.parse().ok()
    }

    /// The host, if the server speaks TLS.
    pub(crate) fn secure_host(&self) -> Option<&str> {
        let Endpoint::Tcp { authority, secure: true } = self else { return None };
        let (host, _) = authority.rsplit_once(':')?;
        Some(host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host))
    }

    /// The scheme and the authority, as HTTP/2 writes them.
    pub(crate) fn origin(&self) -> String {
        let scheme = if self.secure_host().is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.authority())
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Tcp { .. } => f.write_str(&self.origin()),
            Endpoint::Unix { path } => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shown: Option<&str>) {
        assert_eq!(Endpoint::parse(text).ok().map(|e| e.to_string()).as_deref(), shown, "{text}");
    }

    #[test]
    fn an_address_is_a_host_with_a_port_or_a_path() {
        check("http://localhost:8000", Some("http://localhost:8000"));
        check("http://localhost:8000/", Some("http://localhost:8000"));
        check("localhost:8000", Some("http://localhost:8000"));
        check("grpc://[::1]:8001", Some("http://[::1]:8001"));
        check("https://a:1", Some("https://a:1"));
        check("grpcs://a:1", Some("https://a:1"));
        check("unix:/run/nerite.sock", Some("unix:/run/nerite.sock"));
        check("unix:///run/nerite.sock", Some("unix:/run/nerite.sock"));
    }

    #[test]
    fn the_host_of_a_certificate_has_no_port_and_no_brackets() {
        let host = |text: &str| Endpoint::parse(text).ok().and_then(|one| one.secure_host().map(str::to_owned));
        assert_eq!(host("https://a.b:1").as_deref(), Some("a.b"));
        assert_eq!(host("https://[::1]:1").as_deref(), Some("::1"));
        assert_eq!(host("http://a.b:1"), None);
    }

    #[test]
    fn a_unix_socket_has_no_port() {
        let port = |text: &str| Endpoint::parse(text).ok().and_then(|one| one.port());
        assert_eq!(port("http://[::1]:8010"), Some(8010));
        assert_eq!(port("unix:/run/8010"), None);
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in ["", "localhost", ":8000", "localhost:80000", "https://a", "ftp://a:1", "unix:", "a:1/v2"] {
            check(text, None);
        }
    }
}
