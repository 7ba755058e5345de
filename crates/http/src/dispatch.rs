//! Which client may make a call, and which code answers it?

use http::{Request, Response, StatusCode};
use http_body::Body as _;
use nerite_api::{Api, Category, Protocol};

use crate::calls::{control, generate, health, infer, metadata, regions, settings};
use crate::identifier::{identifier, in_repository};
use crate::incoming::Incoming;
use crate::reply::{JSON, Outgoing, PLAIN, charged, forbidden, method_not_allowed, not_found};
use crate::route::{ModelCall, Route};
use crate::unread::answer_unread;

/// Answers one request. The path is checked first, then whether the client may make the call, then the method.
pub async fn dispatch(api: &Api, request: Request<Incoming>) -> Response<Outgoing> {
    let (mut parts, mut body) = request.into_parts();
    let Some(route) = Route::of(parts.uri.path()) else {
        return Box::pin(answer_unread(api.flow(), &parts.headers, body, not_found())).await;
    };
    let header = |name: &str| parts.headers.get(name).map(http::HeaderValue::as_bytes);
    let named = || format!("{} {}", parts.method, parts.uri.path());
    let by_token = match api.allow(Protocol::Http, route.category(), route.changes(&parts.method), named, header) {
        Ok(by_token) => by_token,
        Err(refused) => return Box::pin(answer_unread(api.flow(), &parts.headers, body, forbidden(&refused))).await,
    };
    let api = by_token.as_ref().unwrap_or(api);
    if !route.takes(&parts.method) {
        api.note_status(u32::from(StatusCode::METHOD_NOT_ALLOWED.as_u16()));
        let refused = method_not_allowed(if route.refuses_as_json() { JSON } else { PLAIN });
        return Box::pin(answer_unread(api.flow(), &parts.headers, body, refused)).await;
    }
    if route.category() == Category::Inference {
        match api.book_message(body.size_hint().exact()) {
            Ok(counter) => body = body.counted(counter),
            Err(refused) => {
                api.note_status(u32::from(refused.http_status()));
                return Box::pin(answer_unread(api.flow(), &parts.headers, body, forbidden(&refused))).await;
            }
        }
    }
    let mut identifier = route.model().and_then(|segment| identifier(api, segment));
    if identifier.is_none()
        && let Route::Control { name, .. } = route
    {
        identifier = Box::pin(in_repository(api, name)).await;
    }
    let route = identifier.as_deref().map_or(route, |identifier| route.of_model(identifier));
    let outcome = match route {
        Route::Model { name, version, call: ModelCall::Infer } => {
            infer::infer(api, &mut parts.headers, body, name, version).await
        }
        Route::Model { name, version, call: ModelCall::Generate { stream } } => {
            // Boxed, like all futures except those of inferences, because each connection keeps space for the largest call.
            Box::pin(generate::generate(api, &parts, body, name, version, stream)).await
        }
        Route::Live => Ok(health::live(api)),
        Route::Ready => Ok(Box::pin(health::ready(api)).await),
        Route::Server => Ok(metadata::server(api)),
        Route::Model { name, version, call } => {
            api.note_inference(name, version, "");
            match call {
                ModelCall::Ready => Box::pin(health::model_ready(api, name, version)).await,
                ModelCall::Config => Box::pin(metadata::config(api, name, version)).await,
                ModelCall::Statistics => metadata::statistics(api, name, version),
                _ => Box::pin(metadata::model(api, name, version)).await,
            }
        }
        Route::AllStatistics => Box::pin(metadata::all_statistics(api)).await,
        Route::Index => Box::pin(control::index(api, body)).await,
        Route::Control { repository: true, .. } => Err(control::no_repository()),
        Route::Control { name, load: true, .. } => Box::pin(control::load(api, &parts.headers, body, name)).await,
        Route::Control { name, .. } => Box::pin(control::unload(api, body, name)).await,
        Route::Region { kind, name, call } => Box::pin(regions::region(api, body, kind, name, call)).await,
        Route::Trace { name } => Box::pin(settings::trace(api, &parts, body, name)).await,
        Route::Logging => Box::pin(settings::logging(api, &parts, body)).await,
    };
    // If the client has disconnected, the answer is not sent, so the log line of the call has no status.
    let has_gone = outcome.as_ref().is_err_and(|failure| failure.has_gone);
    let answer = outcome.unwrap_or_else(Into::into);
    if !has_gone {
        api.note_status(u32::from(answer.status().as_u16()));
    }
    charged(api.account(), answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of the future that `dispatch` returns.
    fn size_of_future<'a, F>(_dispatch: impl Fn(&'a Api, Request<Incoming>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_future_of_a_request_is_small() {
        // This future is copied into that of the connection once per request. Box parts that are rarely needed.
        let bytes = size_of_future(dispatch);
        assert!(bytes <= 2560, "{bytes}");
    }
}
