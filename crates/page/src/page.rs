//! How is a request for the page answered?

use std::sync::{Arc, OnceLock};

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use nerite_api::{Api, Category, Hosts, Protocol, aside, on_disk};
use nerite_http::answer_unread;
use nerite_listen::{Awaited, Progress};
use nerite_metrics::{Answer, Beside, Body};
use nerite_session::Inspector;
use nerite_wire::json::Writer;

use crate::callers::Callers;
use crate::guard::{self, Refusal};
use crate::reply;
use crate::route::Route;
use crate::traces::Traces;
use crate::{memory, models, requests};

/// The header with the number by which the page fetches the trace of a request.
const TRACE_TOKEN: HeaderName = HeaderName::from_static("nerite-page-trace");

/// The operator's settings for the page.
#[derive(Clone, Debug)]
pub struct Options {
    /// Clients that may make calls.
    pub callers: Callers,
    /// Names under which the page is shown.
    pub hosts: Hosts,
}

/// The page. Cheap to clone.
#[derive(Clone)]
pub struct Page(Arc<Inner>);

struct Inner {
    options: Options,
    traces: Arc<Traces>,
    /// Set once sessions are served.
    sessions: OnceLock<Inspector>,
}

impl Page {
    /// A page that shows no sessions yet.
    pub fn new(options: Options) -> Page {
        Page(Arc::new(Inner { options, traces: Traces::new(), sessions: OnceLock::new() }))
    }

    /// Shows these sessions from now on. Only the first call has an effect.
    pub fn show_sessions(&self, sessions: Inspector) {
        let _ = self.0.sessions.set(sessions);
    }

    async fn respond(self, api: Api, request: Request<Incoming>, progress: Arc<Progress>) -> Response<Body> {
        let outcome = match self.checked(&api, &request) {
            Ok(Route::Call(path)) => {
                let path = path.to_owned();
                return self.pass_on(api, request, &path, progress).await;
            }
            Ok(Route::Asset(asset)) => Ok(reply::asset(asset, request.headers())),
            Ok(route) => self
                .page_data(&api, route, request.uri().path(), request.headers())
                .await
                .map(|text| reply::json(api.account(), text)),
            Err(refusal) => Err(refusal),
        };
        let response = outcome.unwrap_or_else(|refusal| reply::refused(&refusal));
        let (parts, body) = request.into_parts();
        let response = answer_unread(&api, &parts.headers, body, Arc::clone(&progress), response).await;
        progress.wait_for(Awaited::Request);
        response
    }

    /// The route of a request that may be answered.
    fn checked<'r>(&self, api: &Api, request: &'r Request<Incoming>) -> Result<Route<'r>, Refusal> {
        let Options { callers, hosts } = &self.0.options;
        let route = Route::of(request.uri().path()).unwrap_or(Route::Unknown);
        if route.is_asset() {
            guard::check_host(hosts, request.headers())?;
        } else {
            guard::check(hosts, request.method(), request.headers())?;
        }
        if route == Route::Unknown {
            return Err(Refusal::not_found());
        }
        if !matches!(route, Route::Call(_)) && request.method() != Method::GET {
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"));
        }
        let is_for_all = route.is_asset() || route == Route::Visitor;
        if !is_for_all && !callers.admit(api.peer()) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, callers.refusal(api.peer())));
        }
        Ok(route)
    }

    /// The answer to a request that only the page makes.
    async fn page_data(
        &self,
        api: &Api,
        route: Route<'_>,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Vec<u8>, Refusal> {
        let allow = |category| -> Result<Api, Refusal> {
            let header = |name: &str| headers.get(name).map(http::HeaderValue::as_bytes);
            let allowed = api.allow(Protocol::Http, category, false, || format!("GET {path}"), header);
            Ok(allowed.map_err(Refusal::from)?.unwrap_or_else(|| api.clone()))
        };
        let (api, response) = match route {
            Route::Models => {
                let api = allow(Category::ModelRepository)?;
                let reader = api.clone();
                let written = on_disk(api.account(), move || models::write(&reader)).await.flatten();
                (api, written)
            }
            Route::Memory => {
                let (api, page) = (allow(Category::SharedMemory)?, self.clone());
                let reader = api.clone();
                let written =
                    aside(api.account(), move || memory::write(&reader, page.0.sessions.get())).await.flatten();
                (api, written)
            }
            Route::Requests(after) => {
                let api = allow(Category::Trace)?;
                let reader = api.clone();
                let written = aside(api.account(), move || requests::write(&reader, after)).await.flatten();
                (api, written)
            }
            Route::Trace(token) => {
                let api = allow(Category::Inference)?;
                // If there is no trace yet, the page asks again. An error status would show in the browser's console.
                let trace = self.0.traces.take(api.peer(), token).unwrap_or_else(|| b"null".to_vec());
                (api, Ok(trace))
            }
            _ => {
                let api = allow(Category::Metadata)?;
                let visitor = self.visitor(&api);
                (api, Ok(visitor))
            }
        };
        let response = response.map_err(Refusal::from);
        api.note_status(u32::from(response.as_ref().map_or_else(|refusal| refusal.code, |_| StatusCode::OK).as_u16()));
        response
    }

    /// A description of the visitor and the server, and what the visitor may do.
    fn visitor(&self, api: &Api) -> Vec<u8> {
        let (server, peer, callers) = (api.server_report(), api.peer(), self.0.options.callers);
        let may_call = callers.admit(peer);
        let mut out = Writer::with_capacity(256);
        out.object(|out| {
            out.key("name").string(server.name.as_bytes());
            out.key("version").string(server.version.as_bytes());
            out.key("you").string(peer.to_string().as_bytes());
            out.key("is_operator").bool(peer.is_operator());
            out.key("may_call").bool(may_call);
            if !may_call {
                out.key("why_no_calls").string(callers.refusal(peer).as_bytes());
            }
            let is_loading = api.load_bytes_max().map(drop);
            let by_token = api.has_scope_for_loads();
            out.key("may_load").bool(may_call && is_loading.is_ok() && by_token.is_ok());
            out.key("token_lacks_scope").bool(is_loading.is_ok() && by_token.is_err());
            if let Err(status) = is_loading.and(by_token) {
                out.key("why_no_loads").string(status.message.as_bytes());
            }
        });
        out.into_bytes()
    }

    /// Passes a call to the HTTP front end, which answers it like a call to its own port.
    async fn pass_on(
        &self,
        api: Api,
        mut request: Request<Incoming>,
        path: &str,
        progress: Arc<Progress>,
    ) -> Response<Body> {
        let Ok(path) = PathAndQuery::try_from(path) else {
            return reply::refused(&Refusal::not_found());
        };
        *request.uri_mut() = Uri::from(path);
        let token = request.headers().get(TRACE_TOKEN).and_then(|token| token.to_str().ok()?.parse().ok());
        let trace = token.and_then(|token| self.0.traces.begin(api.peer(), token));
        let api = trace.map_or_else(|| api.clone(), |trace| api.with_trace(trace));
        let answer = nerite_http::answer(api, request, progress).await;
        reply::passed_on(answer.map(BodyExt::boxed_unsync))
    }
}

impl Beside for Page {
    fn answer(
        &self,
        api: &Api,
        request: Request<Incoming>,
        progress: &Arc<Progress>,
    ) -> Result<Answer, Box<Request<Incoming>>> {
        let path = request.uri().path();
        // Methods other than GET at the root are answered by the metrics port, as without the page.
        if Route::of(path).is_none() || (path == "/" && request.method() != Method::GET) {
            return Err(Box::new(request));
        }
        Ok(Box::pin(self.clone().respond(api.clone(), request, Arc::clone(progress))))
    }
}
