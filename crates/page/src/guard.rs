//! Which web sites may send requests to the page?
//!
//! None but the page itself: these rules are stricter than those of the ports ([`nerite_api::WebSites`]). The `Host` header must be a name of this
//! server, so that a site cannot point its own name here (DNS rebinding). `Sec-Fetch-Site` and `Origin` must not name another site. A request that changes
//! something must have a `Content-Type` for which a browser first sends a preflight request to another site; the page does not answer preflight requests.

use http::header::{CONTENT_TYPE, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use nerite_api::codes::http_status;
use nerite_api::{Hosts, Refused, is_origin_of};
use nerite_request::Status;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Content types that a browser sends to another site only after a preflight request.
const TYPES: [&[u8]; 2] = [b"application/json", b"application/octet-stream"];
/// The flag that makes the page known under a name.
const FLAG: &str = "--ui-host";

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

/// Whether the page may be shown under the `Host` of the request. A request without one is HTTP/1.0, in which no name can mislead.
pub fn check_host(hosts: &Hosts, headers: &HeaderMap) -> Result<(), Refusal> {
    hosts.check(headers, FLAG).map_err(|refused| Refusal::new(refused.code, refused.text))
}

/// Whether a request of the page's scripts may be answered.
pub fn check(hosts: &Hosts, method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
    check_host(hosts, headers)?;
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "the request names no host"));
    };
    let only_reads = method == Method::GET;
    let is_own = |site: &[u8]| site == b"same-origin" || (only_reads && site == b"none");
    if headers.get_all(FETCH_SITE).iter().any(|site| !is_own(site.as_bytes())) {
        return Err(foreign("Sec-Fetch-Site says that another site asks"));
    }
    let is_page = |origin: &HeaderValue| origin.to_str().is_ok_and(|origin| is_origin_of(origin, host));
    if !headers.get_all(ORIGIN).iter().all(is_page) {
        return Err(foreign("Origin names another site than Host"));
    }
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    if !only_reads && !TYPES.iter().any(|known| essence.eq_ignore_ascii_case(known)) {
        let text = "a call through the page has the Content-Type application/json or application/octet-stream";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    Ok(())
}

fn foreign(why: &str) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, format!("only the page itself may ask this: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
