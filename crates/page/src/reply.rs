//! How are the responses of the page made?

use std::convert::Infallible;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use nerite_budget::{Account, paid};
use nerite_metrics::Body;
use nerite_wire::json::write_error;

use crate::assets::Asset;
use crate::guard::Refusal;

/// The Content-Security-Policy: scripts, styles, pictures and data come from this server only, no page may show this one in a frame, and text never
/// becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Smaller responses are not charged, because the fixed charge of a connection covers one.
const CHARGED_BYTES_MIN: usize = 16 << 10;

/// A file of the page, unless the browser has it already.
pub fn asset(asset: &Asset, headers: &HeaderMap) -> Response<Body> {
    let tag = HeaderValue::from_str(&asset.tag()).unwrap_or(HeaderValue::from_static("\"\""));
    let has_it = headers.get(http::header::IF_NONE_MATCH) == Some(&tag);
    let (code, body) = if has_it { (StatusCode::NOT_MODIFIED, "") } else { (StatusCode::OK, asset.text) };
    let mut response = guarded(code, HeaderValue::from_static(asset.kind), Bytes::from_static(body.as_bytes()));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response.headers_mut().insert(ETAG, tag);
    response
}

/// A JSON text, charged to `account` until it is sent.
pub fn json(account: &Account, text: Vec<u8>) -> Response<Body> {
    let charge = if text.len() >= CHARGED_BYTES_MIN { account.charge(text.len()) } else { account.charge(0) };
    guarded(StatusCode::OK, JSON, paid(text.into(), charge))
}

/// The response to a refused request.
pub fn refused(refusal: &Refusal) -> Response<Body> {
    let mut response = guarded(refusal.code, JSON, write_error(&refusal.text).into());
    if refusal.code == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    }
    if refusal.code == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = refusal.retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The response of a call, with headers that keep other sites from reading or showing it.
pub fn passed_on(mut response: Response<Body>) -> Response<Body> {
    guard(response.headers_mut());
    response
}

fn guarded(code: StatusCode, kind: HeaderValue, bytes: Bytes) -> Response<Body> {
    let body = Full::new(bytes).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    guard(response.headers_mut());
    response
}

fn guard(headers: &mut HeaderMap) {
    let lines = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in lines {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
