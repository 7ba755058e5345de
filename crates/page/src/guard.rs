//! Which web sites may send requests to this server?
//!
//! A browser sends requests to this server for any web page, with the rights of the person who reads that page. Three rules keep other sites out. The
//! `Host` header must be a name of this server, so that a site cannot point its own name here (DNS rebinding). `Sec-Fetch-Site` and `Origin` must not
//! name another site. A request that changes something must have a `Content-Type` for which a browser first sends a preflight request to another site;
//! this server does not answer preflight requests.

use std::str::FromStr;

use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Method, StatusCode};
use nerite_api::Refused;
use nerite_api::codes::http_status;
use nerite_request::Status;

use crate::limits::HOST_CHARS_MAX;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Content types that a browser sends to another site only after a preflight request.
const TYPES: [&[u8]; 2] = [b"application/json", b"application/octet-stream"];

/// The host names of this server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(Vec<String>);

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of the answer.
    pub code: StatusCode,
    /// What is wrong, and what would be right.
    pub text: String,
    /// The whole seconds after which the client may try again, if waiting helps.
    pub retry_after_s: Option<u64>,
}

impl Refusal {
    /// With this status and this text.
    pub fn new(code: StatusCode, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into(), retry_after_s: None }
    }

    /// The refusal of an unknown path.
    pub fn not_found() -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, "Not Found")
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Refusal {
        let code = StatusCode::from_u16(refused.http_status()).unwrap_or(StatusCode::FORBIDDEN);
        Refusal { code, text: refused.status.message, retry_after_s: refused.retry_after_s }
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        let code = StatusCode::from_u16(http_status(status.code)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Refusal::new(code, status.message)
    }
}

impl Hosts {
    /// Addresses, `localhost`, `names`, and the machine's own name, with `.local` as well.
    pub fn new<'n>(names: impl IntoIterator<Item = &'n str>, machine: Option<&str>) -> Hosts {
        let own = machine.map(str::trim).filter(|name| !name.is_empty());
        let own = own.into_iter().flat_map(|name| [name.to_owned(), format!("{name}.local")]);
        Hosts(names.into_iter().map(str::to_owned).chain(own).map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Whether a request may name this host, with or without a port. Any IP address is accepted, because a site cannot make an address point to
    /// another server.
    pub fn knows(&self, host: &str) -> bool {
        let Some(name) = name_of(host) else { return false };
        let is_address = name.parse::<std::net::Ipv4Addr>().is_ok() || name.parse::<std::net::Ipv6Addr>().is_ok();
        is_address || name == "localhost" || name.ends_with(".localhost") || self.0.contains(&name)
    }
}

/// The name of a host without port, brackets and final dot, in lower case.
fn name_of(host: &str) -> Option<String> {
    let authority = Authority::from_str(host).ok()?;
    // A host with a user name is not accepted.
    if authority.as_str().contains('@') {
        return None;
    }
    let name = authority.host().trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    (!name.is_empty()).then(|| name.to_ascii_lowercase())
}

/// Whether the page may be shown under the `Host` of the request. A request without one is HTTP/1.0, in which no name can mislead.
pub fn check_host(hosts: &Hosts, headers: &HeaderMap) -> Result<(), Refusal> {
    let mut all = headers.get_all(HOST).iter();
    let (Some(host), None) = (all.next(), all.next()) else {
        return if headers.contains_key(HOST) { Err(unknown_host("several names")) } else { Ok(()) };
    };
    let host = host.to_str().unwrap_or_default();
    if hosts.knows(host) { Ok(()) } else { Err(unknown_host(host)) }
}

/// Whether a request of the page's scripts may be answered.
pub fn check(hosts: &Hosts, method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
    check_host(hosts, headers)?;
    let Some(host) = headers.get(HOST).map(http::HeaderValue::as_bytes) else {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "the request names no host"));
    };
    let only_reads = method == Method::GET;
    let is_own = |site: &[u8]| site == b"same-origin" || (only_reads && site == b"none");
    if headers.get_all(FETCH_SITE).iter().any(|site| !is_own(site.as_bytes())) {
        return Err(foreign("Sec-Fetch-Site says that another site asks"));
    }
    if headers.get_all(ORIGIN).iter().any(|origin| !is_origin_of(origin.as_bytes(), host)) {
        return Err(foreign("Origin names another site than Host"));
    }
    let content_type = headers.get(CONTENT_TYPE).map(http::HeaderValue::as_bytes).unwrap_or_default();
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if !only_reads && !TYPES.iter().any(|known| essence.eq_ignore_ascii_case(known)) {
        let text = "a call through the page has the Content-Type application/json or application/octet-stream";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    Ok(())
}

/// Whether an origin is that of this host, over HTTP or through a proxy that speaks TLS.
fn is_origin_of(origin: &[u8], host: &[u8]) -> bool {
    let authority = origin.strip_prefix(b"http://").or_else(|| origin.strip_prefix(b"https://"));
    authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
}

fn foreign(why: &str) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, format!("only the page itself may ask this: {why}"))
}

fn unknown_host(host: &str) -> Refusal {
    let host: String = host.chars().take(HOST_CHARS_MAX).flat_map(char::escape_default).collect();
    let text = format!(
        "this server does not know itself as '{host}', so another site may have led you here; open the page by the server's address, or start \
         the server with --ui-host=<name>"
    );
    Refusal::new(StatusCode::MISDIRECTED_REQUEST, text)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[track_caller]
    fn check_name(host: &str, known: bool) {
        assert_eq!(Hosts::new(["Models.example"], Some("box\n")).knows(host), known, "{host}");
    }

    #[test]
    fn addresses_and_own_names_are_known_and_no_others() {
        for host in
            ["127.0.0.1", "127.0.0.1:8002", "[::1]:8002", "[fe80::1]", "10.1.2.3:80", "localhost:8002", "LOCALHOST."]
        {
            check_name(host, true);
        }
        for host in ["a.localhost", "models.example:8002", "MODELS.EXAMPLE.", "box", "box:8002", "box.local"] {
            check_name(host, true);
        }
        for host in
            ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "notlocalhost", "box.evil.example"]
        {
            check_name(host, false);
        }
        for host in ["", ":8002", "user@127.0.0.1", "127.0.0.1/x", "127.1:x:y", "0x7f.1", "[::1"] {
            check_name(host, false);
        }
    }

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[track_caller]
    fn check_request(method: Method, lines: &[(&'static str, &'static str)], code: u16) {
        let outcome =
            check(&Hosts::default(), &method, &headers(lines)).err().map_or(200, |refusal| refusal.code.as_u16());
        assert_eq!(outcome, code, "{method} {lines:?}");
    }

    const HERE: (&str, &str) = ("host", "127.0.0.1:8002");
    const JSON: (&str, &str) = ("content-type", "application/json");

    #[test]
    fn the_page_and_programs_may_ask() {
        check_request(Method::GET, &[HERE], 200);
        check_request(Method::GET, &[HERE, ("sec-fetch-site", "same-origin")], 200);
        check_request(Method::GET, &[HERE, ("sec-fetch-site", "none")], 200);
        check_request(Method::POST, &[HERE, JSON], 200);
        check_request(Method::POST, &[HERE, ("content-type", "application/JSON; charset=utf-8")], 200);
        check_request(Method::POST, &[HERE, ("content-type", "application/octet-stream")], 200);
        check_request(
            Method::POST,
            &[HERE, JSON, ("origin", "http://127.0.0.1:8002"), ("sec-fetch-site", "same-origin")],
            200,
        );
    }

    #[test]
    fn other_sites_may_not() {
        for site in ["cross-site", "same-site", ""] {
            check_request(Method::GET, &[HERE, ("sec-fetch-site", site)], 403);
            check_request(Method::POST, &[HERE, JSON, ("sec-fetch-site", site)], 403);
        }
        check_request(Method::POST, &[HERE, JSON, ("sec-fetch-site", "none")], 403);
        for origin in ["null", "http://evil.example", "http://127.0.0.1:8000", "http://127.0.0.1:8002.evil.example", ""]
        {
            check_request(Method::POST, &[HERE, JSON, ("origin", origin)], 403);
        }
        check_request(Method::POST, &[HERE, JSON, ("origin", "http://127.0.0.1:8002"), ("origin", "null")], 403);
    }

    #[test]
    fn a_change_has_a_type_that_forms_cannot_send() {
        for kind in
            ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=application/json", ""]
        {
            check_request(Method::POST, &[HERE, ("content-type", kind)], 415);
        }
        check_request(Method::POST, &[HERE], 415);
    }

    #[test]
    fn a_foreign_host_is_refused_for_every_client() {
        check_request(Method::GET, &[("host", "evil.example")], 421);
        check_request(
            Method::POST,
            &[("host", "evil.example:8002"), JSON, ("origin", "http://evil.example:8002")],
            421,
        );
        check_request(Method::GET, &[HERE, ("host", "evil.example")], 421);
        check_request(Method::GET, &[], 400);
        assert_eq!(check_host(&Hosts::default(), &HeaderMap::new()), Ok(()), "HTTP/1.0 may have the page");
    }
}
