//! What does the metrics port answer?

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, Method, Response, StatusCode};
use http_body_util::Full;
use hyper::ext::ReasonPhrase;
use nerite_api::{Code, Refused, Status};
use nerite_budget::{Charge, paid};

const PLAIN_UTF8: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Whether the request is for the page of metrics.
pub fn wants_page(method: &Method, path: &str) -> bool {
    method == Method::GET && matches!(path, "/metrics" | "/metrics/")
}

/// Answers a request with the text of `/metrics`, whose memory has that charge until it is sent. Any other path is an empty page, as in Triton.
pub fn answer(mut charge: Charge, method: &Method, mut text: String) -> Response<Full<Bytes>> {
    if method != Method::GET {
        let mut response = Response::new(Full::from(r#"{"error":"Method Not Allowed"}"#));
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.extensions_mut().insert(ReasonPhrase::from_static(b"Not Allowed"));
        return response;
    }
    text.shrink_to_fit();
    charge.resize(text.capacity());
    let mut response = Response::new(Full::new(paid(text.into(), charge)));
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

/// The answer to a request that a browser sent for a web site that may not.
pub fn refused(code: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text.to_owned()));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, PLAIN_UTF8);
    response
}

/// The answer to a browser that asks whether a web site may send a request.
pub fn preflight(headers: HeaderMap) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = StatusCode::NO_CONTENT;
    *response.headers_mut() = headers;
    response
}

/// The answer where the page could not be made. The connection is closed: mostly it has to end, because too much memory is held.
pub fn failed(status: &Status) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(status.message.clone()));
    *response.status_mut() = match status.code {
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http_body_util::BodyExt;
    use nerite_budget::Account;

    use super::*;

    #[track_caller]
    fn check(method: Method, path: &str, code: u16, body: &str) {
        let text = if wants_page(&method, path) { "page" } else { "" };
        let response = answer(Account::unlimited().charge(0), &method, text.into());
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

    #[test]
    fn a_connection_that_has_to_end_is_told_why() {
        let response = failed(&Status::unavailable("the budget of all connections is used up"));
        assert_eq!(
            (response.status(), &response.headers()[CONNECTION]),
            (StatusCode::SERVICE_UNAVAILABLE, &HeaderValue::from_static("close"))
        );
    }

    #[test]
    fn a_page_is_charged_until_it_is_sent() {
        let account = Account::unlimited();
        let before = account.held();
        let response = answer(account.charge(2 << 20), &Method::GET, "x".repeat(1 << 20));
        assert_eq!(account.held() - before, 1 << 20);
        let mut future = std::pin::pin!(response.into_body().collect());
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(Ok(sent)) = future.as_mut().poll(&mut cx) else { panic!("all there") };
        let sent = sent.to_bytes();
        assert_eq!((sent.len(), account.held() - before), (1 << 20, 1 << 20), "the socket has not taken it");
        drop(sent);
        assert_eq!(account.held(), before);
    }
}
