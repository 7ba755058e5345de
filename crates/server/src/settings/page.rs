//! Where is the page for browsers, and whose calls does it accept?

use nerite_listen::TlsFiles;
use nerite_page::Callers;

use super::{FrontEndSettings, SettingsError, contradiction};
use crate::flags::Values;

/// The address of the page's own port, if only the port is given.
const ADDRESS: &str = "127.0.0.1";
/// The page's own port, if only the address is given: the one after those of Triton.
const PORT: u16 = 8003;

/// The page for browsers.
#[derive(Clone, Debug)]
pub struct Ui {
    /// A port of its own; `None` for that of the metrics.
    pub own_port: Option<(String, u16)>,
    /// The certificates of its own port: the files for the metrics port, even if there is no metrics port.
    pub own_tls: Option<TlsFiles>,
    /// Names under which it is opened.
    pub hosts: Vec<String>,
    /// Whose calls it accepts.
    pub callers: Callers,
}

/// Reads the flags. At the metrics port the page must not get around the rules for HTTP. If HTTP has no port or requires certificates, not all users of
/// this host can call over HTTP, so the page accepts only the operator's calls.
pub(super) fn ui(values: &Values<'_>, http: Option<&FrontEndSettings>) -> Result<Option<Ui>, SettingsError> {
    let has_own = values.has("ui-address") || values.has("ui-port");
    let has_metrics = values.bool("allow-metrics", true)?;
    if !values.bool("ui", has_metrics || has_own)? {
        return Ok(None);
    }
    if !has_own && !has_metrics {
        let text = "Error: Use of '--ui=true' requires the metrics port or one of its own, '--ui-port=<port>'.";
        return Err(contradiction(text, &["ui"]));
    }
    let own_port = if has_own {
        Some((values.text("ui-address").unwrap_or(ADDRESS).to_owned(), values.int("ui-port", PORT)?))
    } else {
        None
    };
    let own_tls = if has_own { super::metrics::tls(values)? } else { None };
    let requires_certificates =
        |front: &FrontEndSettings| front.tls.as_ref().is_some_and(|tls| tls.client_roots.is_some());
    // A Unix socket alone is for those that its file's mode lets in.
    let is_http_for_all = http.is_some_and(|front| front.port.is_some() && !requires_certificates(front));
    let callers = match (&own_port, is_http_for_all) {
        (Some(_), _) => Callers::All,
        (None, true) => Callers::Host,
        (None, false) => Callers::Operator,
    };
    Ok(Some(Ui { own_port, own_tls, hosts: values.all("ui-host").map(str::to_owned).collect(), callers }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::flags::parse;
    use crate::settings::Settings;

    #[track_caller]
    fn check(line: &str, expect: Option<(Option<(&str, u16)>, Callers)>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let given = parse(&words).unwrap();
        let found = Settings::read(&given).unwrap().ui;
        let expect = expect.map(|(port, callers)| (port.map(|(at, port)| (at.to_owned(), port)), callers));
        assert_eq!(found.map(|ui| (ui.own_port, ui.callers)), expect, "{line}");
    }

    #[test]
    fn the_page_is_at_the_metrics_port_unless_it_has_one_of_its_own() {
        check("", Some((None, Callers::Host)));
        check("--allow-http=false", Some((None, Callers::Operator)));
        check("--allow-http=false --http-socket=s", Some((None, Callers::Operator)));
        check("--http-use-ssl=true --http-server-cert=c --http-server-key=k", Some((None, Callers::Host)));
        let mutual = "--http-use-ssl-mutual=true --http-server-cert=c --http-server-key=k --http-root-cert=r";
        check(mutual, Some((None, Callers::Operator)));
        check("--ui=false", None);
        check("--allow-metrics=false", None);
        check("--ui-port=9000", Some((Some(("127.0.0.1", 9000)), Callers::All)));
        check("--ui-address=0.0.0.0", Some((Some(("0.0.0.0", 8003)), Callers::All)));
        check(
            "--ui-port=9000 --allow-metrics=false --allow-http=false",
            Some((Some(("127.0.0.1", 9000)), Callers::All)),
        );
        check("--ui-port=9000 --ui=false", None);
    }

    #[test]
    fn a_port_of_its_own_is_secured_by_the_files_of_the_metrics_port() {
        let read = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            Settings::read(&parse(&words).unwrap()).unwrap().ui.unwrap().own_tls
        };
        let files = "--metrics-use-ssl=true --metrics-server-cert=c --metrics-server-key=k";
        assert!(read(files).is_none(), "it is at the metrics port");
        assert!(read("--ui-port=9000").is_none());
        assert_eq!(read(&format!("--ui-port=9000 {files}")).unwrap().certificate, std::path::Path::new("c"));
        assert!(read(&format!("--ui-port=9000 --allow-metrics=false {files}")).is_some());
    }

    #[test]
    fn a_page_without_any_port_is_refused() {
        let given = parse(&["--ui=true".to_owned(), "--allow-metrics=false".to_owned()]).unwrap();
        assert!(Settings::read(&given).unwrap_err().to_string().contains("--ui-port=<port>"));
    }
}
