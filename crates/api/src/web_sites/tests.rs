//! Are clients served, and web sites only where the operator allows them?

use super::*;

const OPEN: &str = "10.0.0.7:8000";
const LOCAL: &str = "127.0.0.1:8000";
const HERE: (&str, &str) = ("host", LOCAL);

/// The rules of a listener at `address`, with the words of both flags.
fn rules(address: &str, hosts: &[&str], origins: &[&str]) -> WebSites {
    let hosts: Vec<String> = hosts.iter().map(|host| allowed_host(host).expect("a host")).collect();
    let origins = origins.iter().map(|origin| allowed_origin(origin).expect("an origin")).collect();
    let rules = WebSites::new(&hosts, origins, Some("box\n"));
    rules.at(Some(address.parse().expect("an address"))).expect("it is no Unix socket")
}

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers
}

/// The status of the answer to a GET and to a POST with these headers.
#[track_caller]
fn check(rules: &WebSites, lines: &[(&'static str, &'static str)], expect: [u16; 2]) {
    let code = |method: Method| match rules.judge(&method, &headers(lines)) {
        Verdict::Serve | Verdict::ServeSite(_) => 200,
        Verdict::Preflight(_) => 204,
        Verdict::Refuse(refusal) => refusal.code.as_u16(),
    };
    assert_eq!([Method::GET, Method::POST].map(code), expect, "{lines:?}");
}

const SERVED: [u16; 2] = [200, 200];
const FORBIDDEN: [u16; 2] = [403, 403];
const MISDIRECTED: [u16; 2] = [421, 421];

#[test]
fn clients_that_are_no_browsers_are_served_whatever_they_send() {
    for rules in [rules(OPEN, &[], &[]), rules(LOCAL, &[], &[]), rules(OPEN, &["models.example"], &[])] {
        check(&rules, &[HERE], SERVED);
        check(&rules, &[], SERVED);
        check(&rules, &[HERE, ("content-type", "application/x-www-form-urlencoded")], SERVED);
        check(&rules, &[HERE, ("content-type", "text/plain"), ("referer", "http://evil.example/")], SERVED);
    }
    check(&rules(OPEN, &[], &[]), &[("host", "models.example")], SERVED);
}

#[test]
fn other_sites_are_refused_and_a_visitor_is_not() {
    for rules in [rules(OPEN, &[], &[]), rules(LOCAL, &[], &[]), rules(OPEN, &["*"], &["https://app.example"])] {
        for origin in [
            "null",
            "http://evil.example",
            "http://127.0.0.1:3000",
            "http://127.0.0.1",
            "",
            "https://app.example.evil.example",
        ] {
            check(&rules, &[HERE, ("origin", origin)], FORBIDDEN);
            check(&rules, &[HERE, ("origin", origin), ("sec-fetch-site", "same-origin")], FORBIDDEN);
        }
        for site in ["cross-site", "same-site", "", "anything-new"] {
            check(&rules, &[HERE, ("sec-fetch-site", site)], FORBIDDEN);
            check(&rules, &[HERE, ("sec-fetch-site", site), ("sec-fetch-mode", "no-cors")], FORBIDDEN);
            check(&rules, &[HERE, ("sec-fetch-site", site), ("sec-fetch-mode", "navigate")], [200, 403]);
        }
        check(&rules, &[HERE, ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")], FORBIDDEN);
        check(&rules, &[HERE, ("origin", "http://127.0.0.1:8000"), ("origin", "http://127.0.0.1:8000")], FORBIDDEN);
    }
}

#[test]
fn the_servers_own_site_is_served_under_a_name_that_it_knows() {
    for (host, origin) in [
        (LOCAL, "http://127.0.0.1:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("box.local", "http://box.local:80"),
        ("10.0.0.7", "https://10.0.0.7"),
    ] {
        check(&rules(OPEN, &[], &[]), &[("host", host), ("origin", origin), ("sec-fetch-site", "same-origin")], SERVED);
    }
    let proxied = [("host", "models.example"), ("origin", "https://models.example")];
    check(&rules(OPEN, &[], &[]), &proxied, FORBIDDEN);
    check(&rules(OPEN, &["models.example"], &[]), &proxied, SERVED);
    check(&rules(OPEN, &["*"], &[]), &proxied, SERVED);
}

#[test]
fn a_host_is_checked_where_only_this_host_can_ask_or_the_operator_named_some() {
    let evil = [("host", "evil.example:8000")];
    for address in [LOCAL, "127.8.8.8:1", "[::1]:8000", "[::ffff:127.0.0.1]:8000"] {
        check(&rules(address, &[], &[]), &evil, MISDIRECTED);
        check(&rules(address, &["*"], &[]), &evil, SERVED);
        check(&rules(address, &["models.example"], &[]), &evil, MISDIRECTED);
        check(&rules(address, &["models.example"], &[]), &[("host", "models.example:8000")], SERVED);
        check(&rules(address, &[], &["http://evil.example:8000"]), &evil, MISDIRECTED);
    }
    for address in [OPEN, "0.0.0.0:8000", "[::]:8000"] {
        check(&rules(address, &[], &[]), &evil, SERVED);
        check(&rules(address, &["models.example"], &[]), &evil, MISDIRECTED);
        check(&rules(address, &["models.example"], &[]), &[("host", "models.example:8000")], SERVED);
        check(&rules(address, &["models.example", "*"], &[]), &evil, SERVED);
    }
    check(&rules(LOCAL, &[], &[]), &[HERE, ("host", "evil.example")], MISDIRECTED);
    check(&rules(LOCAL, &[], &[]).with_hosts(&["page.example".to_owned()]), &[("host", "page.example")], SERVED);
    assert!(WebSites::default().at(None).is_none(), "a Unix socket");
}

#[test]
fn an_allowed_site_may_send_and_read() {
    let site = ("origin", "https://app.example");
    let foreign = [HERE, site, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "cors")];
    for allowed in ["https://app.example", "https://APP.example:443", "*"] {
        let rules = rules(OPEN, &[], &[allowed]);
        check(&rules, &foreign, SERVED);
        let Verdict::ServeSite(origin) = rules.judge(&Method::POST, &headers(&foreign)) else { panic!("it is served") };
        let mut answer = HeaderMap::new();
        share_with(&mut answer, origin);
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_ORIGIN], "https://app.example");
        assert_eq!(answer[VARY], "Origin");
        let exposed = answer[ACCESS_CONTROL_EXPOSE_HEADERS].to_str().unwrap_or_default();
        assert!(exposed.starts_with("Inference-Header-Content-Length, "), "{exposed}");
    }
    check(&rules(OPEN, &[], &["http://app.example"]), &foreign, FORBIDDEN);
}

#[test]
fn a_browser_may_ask_first() {
    let requested = [HERE, ("origin", "https://app.example"), ("access-control-request-method", "POST")];
    let with = |more: &[(&'static str, &'static str)]| headers(&[&requested[..], more].concat());
    let allowing = rules(OPEN, &[], &["https://app.example"]);
    let names = ("access-control-request-headers", "authorization,content-type");
    let Verdict::Preflight(answer) = allowing.judge(&Method::OPTIONS, &with(&[names])) else { panic!("it is one") };
    for (name, value) in [
        (ACCESS_CONTROL_ALLOW_ORIGIN, "https://app.example"),
        (ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
        (ACCESS_CONTROL_ALLOW_HEADERS, names.1),
        (ACCESS_CONTROL_MAX_AGE, "7200"),
        (VARY, "Origin"),
    ] {
        assert_eq!(answer[name], value);
    }
    let long = ("access-control-request-headers", "x".repeat(REQUESTED_HEADERS_BYTES_MAX + 1).leak() as &'static str);
    let Verdict::Preflight(answer) = allowing.judge(&Method::OPTIONS, &with(&[long])) else { panic!("it is one") };
    assert!(!answer.contains_key(ACCESS_CONTROL_ALLOW_HEADERS));
    // Without its question, OPTIONS is a request like others.
    let plain = allowing.judge(&Method::OPTIONS, &headers(&requested[..2]));
    assert!(matches!(plain, Verdict::ServeSite(_)), "{plain:?}");
    let refused = rules(OPEN, &[], &[]).judge(&Method::OPTIONS, &with(&[]));
    assert!(matches!(refused, Verdict::Refuse(_)), "{refused:?}");
}

#[track_caller]
fn check_text(rules: &WebSites, lines: &[(&'static str, &'static str)], parts: &[&str]) {
    let Verdict::Refuse(refusal) = rules.judge(&Method::POST, &headers(lines)) else { panic!("{lines:?} is refused") };
    assert!(parts.iter().all(|part| refusal.text.contains(part)), "{}", refusal.text);
    assert!(refusal.text.len() < 1000, "{}", refusal.text);
}

#[test]
fn a_refusal_names_the_site_and_the_cure() {
    let local = rules(LOCAL, &[], &[]);
    check_text(
        &local,
        &[HERE, ("origin", "http://a.example")],
        &["'http://a.example'", "--http-allowed-origins=<origin>"],
    );
    check_text(
        &local,
        &[HERE, ("sec-fetch-site", "same-site")],
        &["Sec-Fetch-Site: same-site", "--http-allowed-origins"],
    );
    check_text(&local, &[("host", "a.example:8000")], &["'a.example:8000'", "--http-allowed-hosts=<name>"]);
    let named = [("host", "a.example"), ("origin", "http://a.example")];
    check_text(&rules(OPEN, &[], &[]), &named, &["'a.example'", "--http-allowed-hosts=<name>"]);
    check_text(&local, &[("host", "a\tb'")], &["'a\\tb\\''"]);
    check_text(&local, &[("host", "'".repeat(3000).leak())], &["--http-allowed-hosts"]);
}
