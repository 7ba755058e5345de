//! Which web site does an `Origin` name?

use super::ANY;
use super::hosts::parts;

/// Whether an origin is the site at this host. A proxy in front may speak TLS, so both schemes count.
pub fn is_origin_of(origin: &str, host: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let Some(default) = default_port(scheme) else { return false };
    let port = |port: &str| if port.is_empty() { default } else { port }.to_owned();
    match (parts(authority), parts(host)) {
        (Some((name, own)), Some((known, at))) => name.eq_ignore_ascii_case(known) && port(own) == port(at),
        _ => false,
    }
}

/// An origin that the operator allows, as browsers write it: in lower case, without the scheme's own port. Or `*` for all.
pub fn allowed_origin(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    let written = || {
        let (scheme, authority) = lower.split_once("://")?;
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_lowercase())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
        let (_, port) = parts(authority).filter(|_| is_scheme && !authority.ends_with(':'))?;
        let is_default = default_port(scheme) == Some(port);
        let kept = if is_default { &lower[..lower.len() - port.len() - 1] } else { &lower };
        Some(kept.to_owned())
    };
    let origin = if text == ANY { Some(ANY.to_owned()) } else { written() };
    origin.ok_or_else(|| {
        format!("an origin is scheme://host or scheme://host:port, as browsers send it, or * for all. Got {text}")
    })
}

fn default_port(scheme: &str) -> Option<&'static str> {
    match scheme {
        "http" => Some("80"),
        "https" => Some("443"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_site(origin: &str, host: &str, same: bool) {
        assert_eq!(is_origin_of(origin, host), same, "{origin} at {host}");
    }

    #[test]
    fn a_site_is_a_name_and_a_port() {
        check_site("http://127.0.0.1:8000", "127.0.0.1:8000", true);
        check_site("http://LOCALHOST:8000", "localhost:8000", true);
        check_site("https://models.example", "models.example", true);
        check_site("https://models.example", "models.example:443", true);
        check_site("http://models.example:80", "models.example", true);
        check_site("http://[::1]:8000", "[::1]:8000", true);
        check_site("http://models.example", "models.example:443", false);
        check_site("https://models.example:80", "models.example", false);
        check_site("http://127.0.0.1:3000", "127.0.0.1:8000", false);
        check_site("http://127.0.0.1:8000.evil.example", "127.0.0.1:8000", false);
        check_site("http://evil.example", "127.0.0.1:8000", false);
        check_site("http://evil.example@127.0.0.1:8000", "127.0.0.1:8000", false);
        check_site("file://127.0.0.1:8000", "127.0.0.1:8000", false);
        for nothing in ["null", "", "http://", "127.0.0.1:8000"] {
            check_site(nothing, "127.0.0.1:8000", false);
            check_site(nothing, nothing, false);
        }
    }

    #[test]
    fn an_operator_allows_exact_origins() {
        for (given, origin) in [
            ("https://app.example", "https://app.example"),
            ("HTTPS://App.Example:443", "https://app.example"),
            ("http://app.example:80", "http://app.example"),
            ("http://app.example:443", "http://app.example:443"),
            ("http://[::1]:80", "http://[::1]"),
            ("http://localhost:5173", "http://localhost:5173"),
            ("chrome-extension://abcdef", "chrome-extension://abcdef"),
            ("*", "*"),
        ] {
            assert_eq!(allowed_origin(given), Ok(origin.to_owned()), "{given}");
        }
        for bad in [
            "",
            "null",
            "app.example",
            "https://",
            "https://app.example/",
            "https://app.example:",
            "https://app.example:99999",
            "https://*.example",
            "https://a.example,https://b.example",
            "1x://app.example",
        ] {
            let text = allowed_origin(bad).expect_err(bad);
            assert!(text.contains("scheme://host") && text.ends_with(bad), "{text}");
        }
    }
}
