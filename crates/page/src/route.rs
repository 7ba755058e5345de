//! Which part of the page does a path name?

use crate::assets::{self, Asset};

/// The target of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'p> {
    /// A file of the page.
    Asset(&'static Asset),
    /// The description of the visitor, and what it may do.
    Visitor,
    /// The models and their states.
    Models,
    /// Regions, leases and sessions.
    Memory,
    /// The trace of one of the visitor's requests.
    Trace(u64),
    /// The requests of the last seconds after this number.
    Requests(u64),
    /// A call of the protocol, with its path from `/v2` on.
    Call(&'p str),
    /// An unknown path of the page.
    Unknown,
}

impl<'p> Route<'p> {
    /// The target of a path. `None` if the path does not belong to the page.
    pub fn of(path: &'p str) -> Option<Route<'p>> {
        if path == "/" {
            return Some(Route::Asset(assets::index()));
        }
        let rest = path.strip_prefix("/ui")?;
        let route = match rest {
            "" | "/" => Some(Route::Asset(assets::index())),
            "/api/visitor" => Some(Route::Visitor),
            "/api/models" => Some(Route::Models),
            "/api/memory" => Some(Route::Memory),
            _ if !rest.starts_with('/') => return None,
            _ => match rest.strip_prefix("/api/") {
                Some(call) => numbered(call).or_else(|| self::call(call, rest)),
                None => assets::find(&rest[1..]).map(Route::Asset),
            },
        };
        Some(route.unwrap_or(Route::Unknown))
    }

    /// Whether it is a file. All clients that may see the page may fetch its files.
    pub fn is_asset(&self) -> bool {
        matches!(self, Route::Asset(_))
    }
}

fn numbered(call: &str) -> Option<Route<'static>> {
    let (what, number) = call.split_once('/')?;
    let number = number.parse().ok()?;
    match what {
        "traces" => Some(Route::Trace(number)),
        "requests" => Some(Route::Requests(number)),
        _ => None,
    }
}

/// The calls that the page makes. Other calls are made at the ports of their protocols.
fn call<'p>(call: &str, rest: &'p str) -> Option<Route<'p>> {
    let is_made = call.starts_with("v2/models/") || call.starts_with("v2/repository/models/");
    is_made.then(|| Route::Call(&rest["/api".len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, route: Option<Route<'_>>) {
        assert_eq!(Route::of(path), route, "{path}");
    }

    #[test]
    fn the_page_has_its_paths_and_no_others() {
        for path in ["/", "/ui", "/ui/"] {
            check(path, Some(Route::Asset(assets::index())));
        }
        check("/ui/api/visitor", Some(Route::Visitor));
        check("/ui/api/models", Some(Route::Models));
        check("/ui/api/memory", Some(Route::Memory));
        check("/ui/api/traces/18446744073709551615", Some(Route::Trace(u64::MAX)));
        check("/ui/api/requests/7", Some(Route::Requests(7)));
        check("/ui/api/v2/models/a%20b/infer", Some(Route::Call("/v2/models/a%20b/infer")));
        check("/ui/api/v2/repository/models/m/load", Some(Route::Call("/v2/repository/models/m/load")));
        for path in [
            "/ui/api",
            "/ui/api/",
            "/ui/api/traces/x",
            "/ui/api/requests",
            "/ui/api/requests/-1",
            "/ui/api/v2/logging",
            "/ui/api/v2/systemsharedmemory/unregister",
        ] {
            check(path, Some(Route::Unknown));
        }
        check("/ui/../Cargo.toml", Some(Route::Unknown));
        for path in ["", "/metrics", "/uix", "/v2", "//", "/index.html"] {
            check(path, None);
        }
    }
}
