//! Which collector of OpenTelemetry gets spans, and how?
//!
//! Flags come first, then the variables that OpenTelemetry's own libraries read, then Triton's defaults.

use nerite_api::SpanConfig;

use crate::flags::{BadValue, bad};

/// What is appended to an endpoint of all signals.
const TRACES_PATH: &str = "/v1/traces";

/// The settings of `opentelemetry,<key>=<value>`, completed by variables, and log lines about them.
pub(super) fn collector(
    flag: &'static str,
    given: &[(&str, &str)],
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(SpanConfig, Vec<String>), BadValue> {
    let (mut config, notes) = from_variables(&variable);
    for (key, value) in given {
        match *key {
            "url" => (*value).clone_into(&mut config.url),
            "resource" => config.resource.push(pair(value).ok_or_else(|| {
                bad(flag, format!("--{flag} opentelemetry,resource=<key>=<value> names an attribute. Got {value}"))
            })?),
            "bsp_max_queue_size" => config.queue_max = count(flag, key, value)?,
            "bsp_schedule_delay" => config.delay_ms = count(flag, key, value)?,
            "bsp_max_export_batch_size" => config.batch_max = count(flag, key, value)?,
            // The caller reports unknown settings. As in Triton, they have no effect.
            _ => {}
        }
    }
    Ok((config, notes))
}

fn from_variables(variable: &impl Fn(&str) -> Option<String>) -> (SpanConfig, Vec<String>) {
    // An empty variable is how a shell or a compose file says "not given".
    let any = |names: &[&str]| names.iter().find_map(|name| variable(name).filter(|text| !text.is_empty()));
    let (mut config, mut notes) = (SpanConfig::default(), Vec::new());
    let whole = any(&["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]);
    let base = any(&["OTEL_EXPORTER_OTLP_ENDPOINT"]).map(|base| format!("{}{TRACES_PATH}", base.trim_end_matches('/')));
    config.url = whole.or(base).unwrap_or(config.url);
    config.resource = any(&["OTEL_RESOURCE_ATTRIBUTES"]).map(|text| pairs(&text)).unwrap_or_default();
    config.resource.extend(any(&["OTEL_SERVICE_NAME"]).map(|name| ("service.name".to_owned(), name)));
    config.headers = any(&["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"])
        .map(|text| pairs(&text))
        .unwrap_or_default();
    config.certificates =
        any(&["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"]).unwrap_or_default();
    let numbers: [(&mut u32, &[&str]); 4] = [
        (&mut config.queue_max, &["OTEL_BSP_MAX_QUEUE_SIZE"]),
        (&mut config.delay_ms, &["OTEL_BSP_SCHEDULE_DELAY"]),
        (&mut config.batch_max, &["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"]),
        (&mut config.timeout_ms, &["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"]),
    ];
    for (value, names) in numbers {
        let Some(text) = any(names) else { continue };
        match text.trim().parse() {
            Ok(number) => *value = number,
            // OpenTelemetry specifies that such a variable is ignored.
            Err(_) => notes.push(format!("{}: '{text}' is no number; {value} holds", names.join(" or "))),
        }
    }
    (config, notes)
}

fn count(flag: &'static str, key: &str, value: &str) -> Result<u32, BadValue> {
    value.trim().parse().map_err(|_| bad(flag, format!("opentelemetry,{key}: Invalid option value. Got {value}")))
}

/// Reads `<key>=<value>,<key>=<value>`. Text that is no pair is ignored.
fn pairs(text: &str) -> Vec<(String, String)> {
    let decoded = |(key, value): (String, String)| (decoded(key.trim()), decoded(value.trim()));
    text.split(',').filter_map(pair).map(decoded).collect()
}

fn pair(text: &str) -> Option<(String, String)> {
    let (key, value) = text.split_once('=')?;
    (!key.trim().is_empty()).then(|| (key.to_owned(), value.to_owned()))
}

/// Decodes percent-encoding, such as `%2C`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%').and_then(|code| std::str::from_utf8(code).ok());
        if let Some(byte) = code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            bytes.push(byte);
            rest = after.get(2..).unwrap_or_default();
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)], variables: &[(&str, &str)]) -> (SpanConfig, Vec<String>) {
        let variable =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned());
        collector("trace-config", given, variable).unwrap()
    }

    #[track_caller]
    fn check_url(given: &[(&str, &str)], variables: &[(&str, &str)], url: &str) {
        assert_eq!(read(given, variables).0.url, url);
    }

    #[test]
    fn flags_come_before_variables_and_these_before_defaults() {
        let (all, traces) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        check_url(&[], &[], "http://localhost:4318/v1/traces");
        check_url(&[], &[(all, "http://a:1/")], "http://a:1/v1/traces");
        check_url(&[], &[(all, "http://a:1"), (traces, "http://b:2/x")], "http://b:2/x");
        check_url(&[("url", "http://c:3")], &[(all, "http://a:1"), (traces, "")], "http://c:3");
        let (config, notes) = read(
            &[("bsp_schedule_delay", "7"), ("unknown", "x")],
            &[
                ("OTEL_BSP_SCHEDULE_DELAY", "9"),
                ("OTEL_BSP_MAX_QUEUE_SIZE", "5"),
                ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "x"),
            ],
        );
        assert_eq!((config.delay_ms, config.queue_max, config.batch_max), (7, 5, 512));
        assert_eq!(notes, ["OTEL_BSP_MAX_EXPORT_BATCH_SIZE: 'x' is no number; 512 holds"]);
    }

    #[test]
    fn lists_of_pairs_are_read() {
        let given = [("resource", "a=b=c"), ("resource", "service.name=flag")];
        let variables = [
            ("OTEL_RESOURCE_ATTRIBUTES", "x=1,nonsense, y = a%2Cb%zz"),
            ("OTEL_SERVICE_NAME", "variable"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20t"),
        ];
        let config = read(&given, &variables).0;
        let attributes: Vec<_> = config.resource.iter().map(|(key, value)| format!("{key}:{value}")).collect();
        assert_eq!(attributes, ["x:1", "y:a,b%zz", "service.name:variable", "a:b=c", "service.name:flag"]);
        assert_eq!(config.headers, [("authorization".to_owned(), "Bearer t".to_owned())]);
    }

    #[test]
    fn what_is_no_setting_is_refused() {
        let refused = |given: &[(&str, &str)]| collector("trace-config", given, |_| None).is_err();
        assert!(refused(&[("resource", "novalue")]) && refused(&[("resource", "=x")]));
        assert!(refused(&[("bsp_max_queue_size", "-1")]) && refused(&[("bsp_schedule_delay", "soon")]));
    }

    #[test]
    fn a_password_in_the_url_is_refused_and_not_repeated() {
        let outcomes = |url: &str| {
            [&[("url", url)][..], &[]].map(|given| read(given, &[("OTEL_EXPORTER_OTLP_ENDPOINT", url)]).0.check())
        };
        for url in ["http://me:hidden@collector:4318", "hidden@collector", "grpc://me:hidden@collector/x"] {
            for outcome in outcomes(url) {
                let refused = outcome.unwrap_err();
                assert!(refused.contains("OTEL_EXPORTER_OTLP_HEADERS") && !refused.contains("hidden"), "{refused}");
            }
        }
        assert!(outcomes("http://collector/x?to=a@b").iter().all(Result::is_ok));
    }
}
