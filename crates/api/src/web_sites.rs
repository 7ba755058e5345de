//! Which requests of browsers does a listener serve?
//!
//! ```text
//!   request ─ Host known? ─ Origin? ─┬─ allowed ──────────── served, and the site may read the answer
//!             loopback only: 421     ├─ own site ───────┐
//!                                    ├─ none ── Sec-Fetch-Site ─── served, unless it names another site
//!                                    └─ another site ── 403
//! ```
//!
//! A browser sends requests for any web site that its user visits, from the user's host and with the user's rights. It marks them with `Origin` and
//! `Sec-Fetch-Site`, which no script of a site can change. Other clients do not send these headers, and are served whatever else they send. A site can
//! also point a name of its own to this server (DNS rebinding), so that it is the server's own site for the browser. Only the name in `Host` tells.

mod hosts;
mod limits;
mod origins;

use std::net::SocketAddr;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

pub use hosts::{Hosts, allowed_host};
use limits::{PREFLIGHT_AGE_S, QUOTED_CHARS_MAX, REQUESTED_HEADERS_BYTES_MAX};
pub use origins::{allowed_origin, is_origin_of};

/// Allows every host, or every origin.
const ANY: &str = "*";
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const HOSTS_FLAG: &str = "--http-allowed-hosts";
const ORIGINS_FLAG: &str = "--http-allowed-origins";
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST");
/// What a script may read of an answer besides its type and length.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "Inference-Header-Content-Length, Content-Encoding, Accept-Encoding, Retry-After, WWW-Authenticate, endpoint-load-metrics",
);

/// The rules for browsers, of all listeners or of one.
#[derive(Clone, Debug, Default)]
pub struct WebSites {
    hosts: Hosts,
    origins: Vec<String>,
    /// Whether every host is the server's own, because the operator allows all.
    allows_any_host: bool,
    /// Whether each request must name one of the hosts.
    checks_host: bool,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is served.
    Serve,
    /// It is served, and scripts of this origin may read the answer.
    ServeSite(HeaderValue),
    /// A browser asks whether a site may send a request. The answer has no content and these headers.
    Preflight(Box<HeaderMap>),
    /// It is refused.
    Refuse(Box<Refusal>),
}

/// Why a request of a browser is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the answer.
    pub code: StatusCode,
    /// What is wrong, and the cure.
    pub text: String,
}

impl WebSites {
    /// The operator's rules. The hosts are of [`allowed_host`], the origins of [`allowed_origin`]. `machine` is the name of this machine.
    pub fn new(hosts: &[String], origins: Vec<String>, machine: Option<&str>) -> WebSites {
        let allows_any_host = hosts.iter().any(|host| host == ANY);
        WebSites {
            hosts: Hosts::new(hosts.iter().map(String::as_str), machine),
            origins,
            allows_any_host,
            checks_host: !hosts.is_empty() && !allows_any_host,
        }
    }

    /// The same rules for a server with more names.
    #[must_use]
    pub fn with_hosts(&self, more: &[String]) -> WebSites {
        WebSites { hosts: self.hosts.with(more), ..self.clone() }
    }

    /// The names of this server.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// The rules for a listener at this address. `None` for a Unix socket, which no browser can reach. On a loopback address hosts are always checked:
    /// only programs of this host reach it, and they need no other name.
    pub fn at(&self, address: Option<SocketAddr>) -> Option<WebSites> {
        let is_loopback = address?.ip().to_canonical().is_loopback();
        Some(WebSites { checks_host: self.checks_host || (is_loopback && !self.allows_any_host), ..self.clone() })
    }

    /// What becomes of a request with this method and these headers.
    pub fn judge(&self, method: &Method, headers: &HeaderMap) -> Verdict {
        self.decide(method, headers).unwrap_or_else(|refusal| Verdict::Refuse(Box::new(refusal)))
    }

    fn decide(&self, method: &Method, headers: &HeaderMap) -> Result<Verdict, Refusal> {
        if self.checks_host {
            self.hosts.check(headers, HOSTS_FLAG)?;
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        match (origins.next(), origins.next()) {
            (None, _) => {}
            (Some(origin), None) if self.allows(origin) => {
                let is_preflight = method == Method::OPTIONS && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
                return Ok(if is_preflight { preflight(origin, headers) } else { Verdict::ServeSite(origin.clone()) });
            }
            (Some(origin), None) => self.check_own(origin, headers)?,
            (Some(_), Some(_)) => return Err(forbidden("the request has several Origin headers")),
        }
        let is_own = |site: &HeaderValue| site == "same-origin" || site == "none";
        match headers.get_all(FETCH_SITE).iter().find(|site| !is_own(site)) {
            Some(site) if !is_visit(method, headers) => Err(forbidden(&format!(
                "a browser sent this request for another web site (Sec-Fetch-Site: {}), without its Origin; a site that {ORIGINS_FLAG} allows sends \
                 one with fetch in mode 'cors'",
                quoted(site)
            ))),
            _ => Ok(Verdict::Serve),
        }
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        self.origins.iter().any(|allowed| allowed == ANY || origin.as_bytes().eq_ignore_ascii_case(allowed.as_bytes()))
    }

    /// Refuses an origin that is not the site of this server itself.
    fn check_own(&self, origin: &HeaderValue, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = hosts::only_host(headers).and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !origin.to_str().is_ok_and(|origin| is_origin_of(origin, host)) {
            return Err(forbidden(&format!(
                "a browser sent this request for the web site '{}', which may not use this server; if the site is yours, start the server with \
                 {ORIGINS_FLAG}=<origin>",
                quoted(origin)
            )));
        }
        if !self.allows_any_host && !self.hosts.knows(host) {
            return Err(forbidden(&format!(
                "a browser sent this request for the web site at '{}', and this server does not know itself by that name; if it is yours, start the \
                 server with {HOSTS_FLAG}=<name>",
                quoted(host)
            )));
        }
        Ok(())
    }
}

/// Lets scripts of this origin read an answer.
pub fn share_with(answer: &mut HeaderMap, origin: HeaderValue) {
    answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    answer.append(VARY, HeaderValue::from_static("Origin"));
}

/// Whether a user follows a link. The answer is shown to the user, and no site can read it.
fn is_visit(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::GET && headers.get(FETCH_MODE).is_some_and(|mode| mode == "navigate")
}

/// Whatever headers the browser asks for are allowed: tokens and headers of restrictions are among them.
fn preflight(origin: &HeaderValue, headers: &HeaderMap) -> Verdict {
    let mut answer = HeaderMap::new();
    share_with(&mut answer, origin.clone());
    answer.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
    answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(PREFLIGHT_AGE_S));
    let requested =
        headers.get(ACCESS_CONTROL_REQUEST_HEADERS).filter(|requested| requested.len() <= REQUESTED_HEADERS_BYTES_MAX);
    if let Some(requested) = requested {
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, requested.clone());
    }
    Verdict::Preflight(Box::new(answer))
}

fn forbidden(text: &str) -> Refusal {
    Refusal { code: StatusCode::FORBIDDEN, text: text.to_owned() }
}

/// What a client wrote, shortened and without control characters.
fn quoted(text: impl AsRef<[u8]>) -> String {
    let text = String::from_utf8_lossy(text.as_ref());
    text.chars().take(QUOTED_CHARS_MAX).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests;
