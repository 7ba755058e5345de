//! Where does the server with these settings take requests, and how is it asked there?

use std::net::IpAddr;
use std::path::PathBuf;

use nerite_api::{Category, Protocol, Restriction};

use crate::settings::{FrontEndSettings, Fronts};

/// The address of a server beside this program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Where it is asked.
    pub(super) url: String,
    /// The protocol spoken there.
    pub(super) protocol: Protocol,
    /// The certificate that it shows, if the port uses TLS.
    pub(super) shown: Option<PathBuf>,
    /// Name and value of the header that the operator wants with questions about its health.
    pub(super) header: Option<(String, String)>,
    /// Whether the settings name the server, and not a person.
    pub(super) is_of_settings: bool,
    /// Whether certificates that were given are not needed: the address is the Unix socket of a server whose port has TLS.
    pub(super) needs_none: bool,
}

impl Place {
    /// A server that somebody named.
    pub(super) fn named(url: String) -> Place {
        Place { url, protocol: Protocol::Http, shown: None, header: None, is_of_settings: false, needs_none: false }
    }

    /// Where to ask the server of these fronts: over HTTP, or over gRPC if HTTP is off. `has_certificate`: whether the asker can show one.
    pub(super) fn of(fronts: Fronts, has_certificate: bool) -> Result<Place, String> {
        let (protocol, front) = match (fronts.http, fronts.grpc) {
            (Some(http), _) => (Protocol::Http, http),
            (None, Some(grpc)) => (Protocol::Grpc, grpc),
            (None, None) => {
                return Err("the settings have allow-http and allow-grpc false, so the server takes no requests".into());
            }
        };
        let rule = |rule: &Restriction| rule.protocol == protocol && rule.category == Category::Health;
        let header = fronts.restrictions.into_iter().find(rule).map(|rule| (rule.header, rule.value));
        let (url, shown) = address(front, protocol, has_certificate)?;
        let needs_none = url.starts_with("unix:");
        Ok(Place { url, protocol, shown, header, is_of_settings: true, needs_none })
    }
}

/// The URL, and the file of the certificate that is shown there.
fn address(
    front: FrontEndSettings,
    protocol: Protocol,
    has_certificate: bool,
) -> Result<(String, Option<PathBuf>), String> {
    let name = match protocol {
        Protocol::Http => "http",
        Protocol::Grpc => "grpc",
    };
    let Some(port) = front.port else {
        let socket = front.socket.unwrap_or_default();
        return Ok((format!("unix:{}", socket.display()), None));
    };
    let wants_certificate = front.tls.as_ref().is_some_and(|tls| tls.client_roots.is_some());
    if wants_certificate && !has_certificate {
        // The socket has no TLS.
        let socket = front.socket.ok_or_else(|| {
            format!(
                "the port wants a certificate of its clients ({name}-use-ssl-mutual): give --cert and --key, or set {name}-socket, which wants none"
            )
        })?;
        return Ok((format!("unix:{}", socket.display()), None));
    }
    if port == 0 {
        return Err(format!(
            "{name}-port is 0, so the system chose the port when the server started: name it, as in 'nerite ready http://127.0.0.1:PORT'"
        ));
    }
    let scheme = if front.tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://{}:{}", host(&front.address), port);
    Ok((url, front.tls.map(|tls| tls.certificate)))
}

/// The host to ask of a server that listens at `address`. All addresses include that of the loopback device.
fn host(address: &str) -> String {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    match bare.parse() {
        Ok(IpAddr::V4(ip)) if ip.is_unspecified() => "127.0.0.1".to_owned(),
        Ok(IpAddr::V6(ip)) if ip.is_unspecified() => "[::1]".to_owned(),
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        Ok(IpAddr::V4(_)) | Err(_) => bare.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::parse;

    fn place(line: &str, has_certificate: bool) -> Result<Place, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let fronts = Fronts::read(&parse(&words).expect("known flags")).map_err(|error| error.to_string())?;
        Place::of(fronts, has_certificate)
    }

    #[track_caller]
    fn check(line: &str, url: &str, shown: Option<&str>) {
        let found = place(line, false).expect("a place");
        assert_eq!((found.url.as_str(), found.shown), (url, shown.map(PathBuf::from)), "{line}");
    }

    #[test]
    fn the_place_is_where_the_server_listens() {
        check("", "http://127.0.0.1:8000", None);
        check("--http-port=9000", "http://127.0.0.1:9000", None);
        check("--http-address=::", "http://[::1]:8000", None);
        check("--http-address=[::1]", "http://[::1]:8000", None);
        check("--http-address=10.0.0.7", "http://10.0.0.7:8000", None);
        check("--http-address=localhost", "http://localhost:8000", None);
        check("--allow-http=false --grpc-port=9001", "http://127.0.0.1:9001", None);
        check("--allow-http=false --http-socket=/run/http", "unix:/run/http", None);
    }

    #[test]
    fn tls_is_known_with_the_certificate_that_is_shown() {
        let files = "--http-server-cert=/s.pem --http-server-key=/s.key --http-root-cert=/r.pem";
        check(&format!("--http-use-ssl=true {files}"), "https://127.0.0.1:8000", Some("/s.pem"));
        let mutual = format!("--http-use-ssl-mutual=true {files}");
        let refused = place(&mutual, false).expect_err("it has no certificate");
        assert!(refused.contains("http-use-ssl-mutual") && refused.contains("--cert and --key"), "{refused}");
        assert_eq!(place(&mutual, true).map(|found| found.url), Ok("https://127.0.0.1:8000".to_owned()));
        check(&format!("{mutual} --http-socket=/run/http"), "unix:/run/http", None);
    }

    #[test]
    fn the_header_of_restricted_health_is_sent() {
        let header = |line: &str| place(line, false).expect("a place").header;
        let key = Some(("key".to_owned(), "secret".to_owned()));
        assert_eq!(header("--http-restricted-api=health,metadata:Key=secret"), key);
        assert_eq!(header("--http-restricted-api=metadata:key=secret"), None);
        assert_eq!(header("--grpc-restricted-protocol=health:key=secret"), None);
        let grpc = header("--allow-http=false --grpc-restricted-protocol=health:key=secret");
        assert_eq!(grpc, Some(("triton-grpc-protocol-key".to_owned(), "secret".to_owned())));
    }

    #[test]
    fn a_server_that_cannot_be_asked_is_said() {
        let refused = |line: &str| place(line, false).expect_err("no place");
        assert!(refused("--allow-http=false --allow-grpc=false").contains("takes no requests"));
        assert!(refused("--http-port=0").contains("http-port is 0"));
    }
}
