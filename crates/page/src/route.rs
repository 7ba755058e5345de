//! What does a path of the page name?

use crate::assets::{self, Asset};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route<'p> {
    /// A file of the page.
    Asset(&'static Asset),
    /// Who the visitor is, and what it may do.
    Visitor,
    /// The models and their states.
    Models,
    /// Regions, leases and sessions.
    Memory,
    /// What was noted of one of the visitor's requests.
    Trace(u64),
    /// A call of the protocol, with its path from `/v2` on.
    Call(&'p str),
    /// Nothing.
    Unknown,
}

impl<'p> Route<'p> {
    /// What the path names; `None` if it is not the page's.
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
                Some(call) => trace(call).or_else(|| self::call(call, rest)),
                None => assets::find(&rest[1..]).map(Route::Asset),
            },
        };
        Some(route.unwrap_or(Route::Unknown))
    }

    /// Whether it is a file that anybody may have who may see the page.
    pub fn is_asset(&self) -> bool {
        matches!(self, Route::Asset(_))
    }
}

fn trace(call: &str) -> Option<Route<'static>> {
    let token = call.strip_prefix("traces/")?;
    token.parse().ok().map(Route::Trace)
}

/// Calls that the page makes. Others are made at the ports that are for them.
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
        check("/ui/api/v2/models/a%20b/infer", Some(Route::Call("/v2/models/a%20b/infer")));
        check("/ui/api/v2/repository/models/m/load", Some(Route::Call("/v2/repository/models/m/load")));
        for path in [
            "/ui/api",
            "/ui/api/",
            "/ui/api/traces/x",
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
