//! Which call does a path name?

use http::Method;
use nerite_api::Category;

/// A call, with the names in its path. Names are as the client wrote them, not percent-decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'p> {
    Live,
    Ready,
    Server,
    /// One model. The version is digits, or empty for the highest.
    Model {
        name: &'p str,
        version: &'p str,
        call: ModelCall,
    },
    /// Statistics of all models.
    AllStatistics,
    Index,
    /// Load or unload. `repository` is set if the path names one, which is refused.
    Control {
        repository: bool,
        name: &'p str,
        load: bool,
    },
    /// A call about shared memory. The name is empty if the path names no region: then all regions of this kind are meant, except by a registration,
    /// which needs a name.
    Region {
        kind: RegionKind,
        name: &'p str,
        call: RegionCall,
    },
    /// Trace settings of the server (empty name) or of a model.
    Trace {
        name: &'p str,
    },
    Logging,
}

/// A call about a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelCall {
    Metadata,
    Ready,
    Config,
    Statistics,
    Infer,
    Generate { stream: bool },
}

/// A kind of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    System,
    Cuda,
}

/// A call about a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionCall {
    Status,
    Register,
    Unregister,
}

/// Segments of the longest path, `v2/models/{m}/versions/{v}/generate_stream`, and one more to recognise a longer one.
const SEGMENTS_MAX: usize = 7;

impl<'p> Route<'p> {
    /// The call with exactly this path.
    pub fn of(path: &'p str) -> Option<Route<'p>> {
        let mut segments = [""; SEGMENTS_MAX];
        let mut count = 0;
        for segment in path.strip_prefix('/')?.split('/') {
            // Paths have no empty segments.
            if count == SEGMENTS_MAX || segment.is_empty() {
                return None;
            }
            segments[count] = segment;
            count += 1;
        }
        match &segments[..count] {
            ["v2"] => Some(Route::Server),
            ["v2", "health", "live"] => Some(Route::Live),
            ["v2", "health", "ready"] => Some(Route::Ready),
            ["v2", "models", "stats"] => Some(Route::AllStatistics),
            ["v2", "models", name, rest @ ..] => model(name, rest),
            ["v2", "trace", "setting"] => Some(Route::Trace { name: "" }),
            ["v2", "logging"] => Some(Route::Logging),
            ["v2", "repository", "index"] | ["v2", "repository", _, "index"] => Some(Route::Index),
            ["v2", "repository", "models", name, action] => control(false, name, action),
            ["v2", "repository", _, "models", name, action] => control(true, name, action),
            ["v2", "systemsharedmemory", rest @ ..] => region(RegionKind::System, rest),
            ["v2", "cudasharedmemory", rest @ ..] => region(RegionKind::Cuda, rest),
            _ => None,
        }
    }

    /// The model that the call is for. `None` for trace settings, which all models of one name share.
    pub fn model(&self) -> Option<&'p str> {
        match self {
            Route::Model { name, .. } | Route::Control { name, .. } => Some(name),
            _ => None,
        }
    }

    /// The same call for another model.
    pub fn of_model(self, name: &'p str) -> Route<'p> {
        match self {
            Route::Model { version, call, .. } => Route::Model { name, version, call },
            Route::Control { repository, load, .. } => Route::Control { repository, name, load },
            other => other,
        }
    }

    /// The group of calls it belongs to, for access rules.
    pub fn category(&self) -> Category {
        match self {
            Route::Live | Route::Ready => Category::Health,
            Route::Server => Category::Metadata,
            Route::Model { call, .. } => match call {
                ModelCall::Metadata => Category::Metadata,
                ModelCall::Ready => Category::Health,
                ModelCall::Config => Category::ModelConfig,
                ModelCall::Statistics => Category::Statistics,
                ModelCall::Infer | ModelCall::Generate { .. } => Category::Inference,
            },
            Route::AllStatistics => Category::Statistics,
            Route::Index | Route::Control { .. } => Category::ModelRepository,
            Route::Region { .. } => Category::SharedMemory,
            Route::Trace { .. } => Category::Trace,
            Route::Logging => Category::Logging,
        }
    }

    /// Whether the call changes something of the server, for access rules.
    pub fn changes(&self, method: &Method) -> bool {
        match self {
            Route::Control { .. } => true,
            Route::Region { call, .. } => *call != RegionCall::Status,
            Route::Trace { .. } | Route::Logging => method != Method::GET,
            Route::Live | Route::Ready | Route::Server | Route::Model { .. } | Route::AllStatistics | Route::Index => {
                false
            }
        }
    }

    /// Whether the call can be made with this method.
    pub fn takes(&self, method: &Method) -> bool {
        let is_get = method == Method::GET;
        let is_post = method == Method::POST;
        match self {
            // Load balancers and monitors ask for health by HEAD. Triton refuses that.
            Route::Live | Route::Ready | Route::Model { call: ModelCall::Ready, .. } => {
                is_get || method == Method::HEAD
            }
            Route::Server | Route::AllStatistics => is_get,
            Route::Model { call, .. } => match call {
                ModelCall::Metadata | ModelCall::Ready | ModelCall::Config | ModelCall::Statistics => is_get,
                ModelCall::Infer | ModelCall::Generate { .. } => is_post,
            },
            Route::Index | Route::Control { .. } => is_post,
            Route::Region { call, .. } => {
                if *call == RegionCall::Status {
                    is_get
                } else {
                    is_post
                }
            }
            Route::Trace { .. } | Route::Logging => is_get || is_post,
        }
    }

    /// Whether a wrong method is answered as JSON and not as plain text. Triton does that for some paths.
    pub fn refuses_as_json(&self) -> bool {
        !matches!(self, Route::Live | Route::Ready | Route::Model { call: ModelCall::Ready | ModelCall::Infer, .. })
    }
}

fn model<'p>(name: &'p str, rest: &[&'p str]) -> Option<Route<'p>> {
    let (version, rest) = match rest {
        ["versions", version, rest @ ..] if version.bytes().all(|byte| byte.is_ascii_digit()) => (*version, rest),
        _ => ("", rest),
    };
    let call = match rest {
        [] => ModelCall::Metadata,
        ["ready"] => ModelCall::Ready,
        ["config"] => ModelCall::Config,
        ["stats"] => ModelCall::Statistics,
        ["infer"] => ModelCall::Infer,
        ["generate"] => ModelCall::Generate { stream: false },
        ["generate_stream"] => ModelCall::Generate { stream: true },
        ["trace", "setting"] if version.is_empty() => return Some(Route::Trace { name }),
        _ => return None,
    };
    Some(Route::Model { name, version, call })
}

fn control<'p>(repository: bool, name: &'p str, action: &str) -> Option<Route<'p>> {
    let load = match action {
        "load" => true,
        "unload" => false,
        _ => return None,
    };
    Some(Route::Control { repository, name, load })
}

fn region<'p>(kind: RegionKind, rest: &[&'p str]) -> Option<Route<'p>> {
    let (name, action) = match rest {
        [action] => ("", *action),
        ["region", name, action] => (*name, *action),
        _ => return None,
    };
    let call = match action {
        "status" => RegionCall::Status,
        "register" => RegionCall::Register,
        "unregister" => RegionCall::Unregister,
        _ => return None,
    };
    Some(Route::Region { kind, name, call })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, route: Option<Route<'_>>) {
        assert_eq!(Route::of(path), route, "{path}");
    }

    fn of_model<'p>(name: &'p str, version: &'p str, call: ModelCall) -> Route<'p> {
        Route::Model { name, version, call }
    }

    #[test]
    fn every_path_of_the_protocol_is_known() {
        check("/v2", Some(Route::Server));
        check("/v2/health/live", Some(Route::Live));
        check("/v2/health/ready", Some(Route::Ready));
        check("/v2/models/stats", Some(Route::AllStatistics));
        check("/v2/models/m", Some(of_model("m", "", ModelCall::Metadata)));
        check("/v2/models/m/versions/7", Some(of_model("m", "7", ModelCall::Metadata)));
        check("/v2/models/m/ready", Some(of_model("m", "", ModelCall::Ready)));
        check("/v2/models/m/versions/007/ready", Some(of_model("m", "007", ModelCall::Ready)));
        check("/v2/models/m/config", Some(of_model("m", "", ModelCall::Config)));
        check("/v2/models/m/stats", Some(of_model("m", "", ModelCall::Statistics)));
        check("/v2/models/stats/stats", Some(of_model("stats", "", ModelCall::Statistics)));
        check("/v2/models/m/infer", Some(of_model("m", "", ModelCall::Infer)));
        check("/v2/models/a%20b/versions/1/infer", Some(of_model("a%20b", "1", ModelCall::Infer)));
        check("/v2/models/m/generate", Some(of_model("m", "", ModelCall::Generate { stream: false })));
        check(
            "/v2/models/m/versions/1/generate_stream",
            Some(of_model("m", "1", ModelCall::Generate { stream: true })),
        );
        check("/v2/models/m/trace/setting", Some(Route::Trace { name: "m" }));
        check("/v2/trace/setting", Some(Route::Trace { name: "" }));
        check("/v2/logging", Some(Route::Logging));
        check("/v2/repository/index", Some(Route::Index));
        check("/v2/repository/r/index", Some(Route::Index));
        let control = |repository, name, load| Some(Route::Control { repository, name, load });
        check("/v2/repository/models/m/load", control(false, "m", true));
        check("/v2/repository/models/m/unload", control(false, "m", false));
        check("/v2/repository/r/models/m/load", control(true, "m", true));
        let region = |kind, name, call| Some(Route::Region { kind, name, call });
        check("/v2/systemsharedmemory/status", region(RegionKind::System, "", RegionCall::Status));
        check("/v2/systemsharedmemory/region/r/register", region(RegionKind::System, "r", RegionCall::Register));
        check("/v2/cudasharedmemory/unregister", region(RegionKind::Cuda, "", RegionCall::Unregister));
        check("/v2/cudasharedmemory/region/r/status", region(RegionKind::Cuda, "r", RegionCall::Status));
    }

    #[test]
    fn nothing_else_is_known() {
        for path in [
            "",
            "/",
            "v2",
            "/v2/",
            "//v2",
            "/v1",
            "/v2/health",
            "/v2/health/",
            "/v2/health/live/",
            "/v2/models",
            "/v2/models/",
            "/v2/models/m/",
            "/v2/models//infer",
            "/v2/models/m/nothing",
            "/v2/models/m/versions",
            "/v2/models/m/versions/",
            "/v2/models/m/versions/one",
            "/v2/models/m/versions/-1",
            "/v2/models/m/versions/1/trace/setting",
            "/v2/models/m/versions/1/infer/more",
            "/v2/models/m/infer/more",
            "/v2/repository",
            "/v2/repository/models/m",
            "/v2/repository/models/m/reload",
            "/v2/systemsharedmemory",
            "/v2/systemsharedmemory/region/r",
            "/v2/systemsharedmemory/region/r/delete",
            "/metrics",
            "/v2/a/b/c/d/e/f/g/h",
        ] {
            check(path, None);
        }
    }

    #[test]
    fn each_call_has_its_method() {
        let route = |path| Route::of(path).expect("a known path");
        assert!(route("/v2/models/m/infer").takes(&Method::POST) && !route("/v2/models/m/infer").takes(&Method::GET));
        assert!(route("/v2").takes(&Method::GET) && !route("/v2").takes(&Method::HEAD));
        for health in ["/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v2/models/m/versions/1/ready"] {
            assert!(route(health).takes(&Method::GET) && route(health).takes(&Method::HEAD), "{health}");
            assert!(!route(health).takes(&Method::POST), "{health}");
        }
        assert!(route("/v2/logging").takes(&Method::GET) && route("/v2/logging").takes(&Method::POST));
        assert!(!route("/v2/logging").takes(&Method::DELETE));
        assert!(route("/v2/cudasharedmemory/status").takes(&Method::GET));
        assert!(!route("/v2/cudasharedmemory/unregister").takes(&Method::GET));
    }
}
