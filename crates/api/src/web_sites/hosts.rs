//! Which names does this server go by?

use std::net::{Ipv4Addr, Ipv6Addr};

use http::header::HOST;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::{ANY, Refusal, quoted};

/// The host names of this server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// Addresses, `localhost`, `names`, and the machine's own name, with `.local` as well.
    pub fn new<'n>(names: impl IntoIterator<Item = &'n str>, machine: Option<&str>) -> Hosts {
        let own = machine.map(str::trim).filter(|name| !name.is_empty());
        let own = own.into_iter().flat_map(|name| [name.to_owned(), format!("{name}.local")]);
        Hosts(names.into_iter().map(str::to_owned).chain(own).collect())
    }

    /// These names, and `more`.
    #[must_use]
    pub fn with(&self, more: &[String]) -> Hosts {
        Hosts([&self.0, more].concat())
    }

    /// Whether a request may name this host, with or without a port. Any IP address is accepted, because a site cannot make an address point to
    /// another server.
    pub fn knows(&self, host: &str) -> bool {
        let Some((name, _)) = parts(host) else { return false };
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        let is_below_localhost = || name.rsplit_once('.').is_some_and(|(_, top)| top.eq_ignore_ascii_case("localhost"));
        name.parse::<Ipv4Addr>().is_ok()
            || host.starts_with('[')
            || is("localhost")
            || is_below_localhost()
            || self.0.iter().any(|known| is(known))
    }

    /// Refuses a request whose `Host` is unknown. `flag` makes the server know a name. A request without `Host` is not of a browser.
    pub fn check(&self, headers: &HeaderMap, flag: &str) -> Result<(), Refusal> {
        let mut all = headers.get_all(HOST).iter();
        match (all.next(), all.next()) {
            (None, _) => Ok(()),
            (Some(host), None) if host.to_str().is_ok_and(|host| self.knows(host)) => Ok(()),
            (Some(host), None) => Err(unknown(&quoted(host), flag)),
            (Some(_), Some(_)) => Err(unknown("several names", flag)),
        }
    }
}

/// The host names of one request that is not served, and the flag that is the cure.
fn unknown(host: &str, flag: &str) -> Refusal {
    let text = format!(
        "this server does not know itself as '{host}', so another web site may have led you here; ask by the server's address, or start the server \
         with {flag}=<name>"
    );
    Refusal { code: StatusCode::MISDIRECTED_REQUEST, text }
}

/// The value of a request's only `Host`.
pub fn only_host(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut all = headers.get_all(HOST).iter();
    all.next().filter(|_| all.next().is_none())
}

/// The name and the port of a host. The name has no brackets and no final dot. The port is empty if there is none.
pub fn parts(host: &str) -> Option<(&str, &str)> {
    let (name, port) = if let Some(rest) = host.strip_prefix('[') {
        let (name, rest) = rest.split_once(']')?;
        name.parse::<Ipv6Addr>().ok()?;
        (name, if rest.is_empty() { rest } else { rest.strip_prefix(':')? })
    } else {
        let (name, port) = host.split_once(':').unwrap_or((host, ""));
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
        (is_name.then_some(name)?, port)
    };
    let is_port = port.bytes().all(|b| b.is_ascii_digit()) && (port.is_empty() || port.parse::<u16>().is_ok());
    is_port.then_some((name, port))
}

/// A host that the operator allows: a name, or `*` for all.
pub fn allowed_host(text: &str) -> Result<String, String> {
    let is_name = text == ANY || parts(text).is_some_and(|(name, _)| name == text);
    is_name
        .then(|| text.to_owned())
        .ok_or_else(|| format!("a host is a name without scheme, port and path, or * for all. Got {text}"))
}

#[cfg(test)]
mod tests {
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
        for host in
            ["", ":8002", "user@127.0.0.1", "x@a.localhost", "127.0.0.1/x", "127.1:x:y", "0x7f.1", "[::1", "[x]", "*"]
        {
            check_name(host, false);
        }
    }

    #[track_caller]
    fn check_parts(host: &str, expect: Option<(&str, &str)>) {
        assert_eq!(parts(host), expect, "{host}");
    }

    #[test]
    fn a_host_is_a_name_and_a_port() {
        check_parts("a.example:80", Some(("a.example", "80")));
        check_parts("a.example.", Some(("a.example", "")));
        check_parts("[::1]:8000", Some(("::1", "8000")));
        check_parts("[::1]8000", None);
        check_parts("a.example:99999", None);
        check_parts("a.example:+1", None);
    }

    #[test]
    fn an_operator_allows_names_and_no_more() {
        for good in ["models.example", "Models", "*", "10.0.0.1"] {
            assert_eq!(allowed_host(good), Ok(good.to_owned()));
        }
        for bad in ["", "https://models.example", "models.example:8000", "models.example/v2", "*.example", "a,b"] {
            let text = allowed_host(bad).expect_err(bad);
            assert!(text.contains("a name without scheme, port and path") && text.ends_with(bad), "{text}");
        }
    }
}
