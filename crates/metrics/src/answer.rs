//! What does the metrics port answer?

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Method, Response, StatusCode};
use http_body_util::Full;
use hyper::ext::ReasonPhrase;
use nerite_api::Refused;

const PLAIN_UTF8: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Whether the page of metrics is asked for.
pub fn wants_page(method: &Method, path: &str) -> bool {
    method == Method::GET && matches!(path, "/metrics" | "/metrics/")
}

/// Answers a request with the text of `/metrics`. Any other path is an empty page, as in Triton.
pub fn answer(method: &Method, text: String) -> Response<Full<Bytes>> {
    if method != Method::GET {
        let mut response = Response::new(Full::from(r#"{"error":"Method Not Allowed"}"#));
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.extensions_mut().insert(ReasonPhrase::from_static(b"Not Allowed"));
        return response;
    }
    let mut response = Response::new(Full::from(text));
    response.headers_mut().insert(CONTENT_TYPE, PLAIN_UTF8);
    response
}

/// The answer to a client that may not see the metrics, or not now.
pub fn forbidden(refused: &Refused) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(refused.status.message.clone()));
    *response.status_mut() = StatusCode::from_u16(refused.http_status()).unwrap_or(StatusCode::FORBIDDEN);
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = refused.retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// The answer where the page could not be made.
pub fn failed(why: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(why));
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[track_caller]
    fn check(method: Method, path: &str, code: u16, body: &str) {
        let text = if wants_page(&method, path) { "page" } else { "" };
        let response = answer(&method, text.into());
        assert_eq!(response.status(), code, "{method} {path}");
        let mut future = std::pin::pin!(response.into_body().collect());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(Ok(sent)) = future.as_mut().poll(&mut cx) else { panic!("all there") };
        assert_eq!(sent.to_bytes(), body, "{method} {path}");
    }

    #[test]
    fn there_is_one_page_and_one_method() {
        check(Method::GET, "/metrics", 200, "page");
        check(Method::GET, "/metrics/", 200, "page");
        check(Method::GET, "/", 200, "");
        check(Method::GET, "/metrics/more", 200, "");
        check(Method::POST, "/metrics", 405, r#"{"error":"Method Not Allowed"}"#);
    }
}
