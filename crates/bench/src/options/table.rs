//! Which options are there, and what does each change?

use std::path::PathBuf;
use std::time::Duration;

use super::{
    Compression, Distribution, InputData, Load, Memory, Metrics, Options, Protocol, Range, SessionCalls, Sweep,
};

/// One option of the command line.
pub(super) struct Entry {
    /// With the hyphens.
    pub(super) names: &'static [&'static str],
    /// What the usage calls its value. Empty: the option has none.
    pub(super) value: &'static str,
    /// Empty: accepted for scripts, and not in the usage.
    pub(super) about: &'static str,
    pub(super) set: fn(&mut Options, &str) -> Result<(), String>,
}

const fn entry(
    names: &'static [&'static str],
    value: &'static str,
    about: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
) -> Entry {
    Entry { names, value, about, set }
}

/// A group of the usage, with its options.
pub(super) struct Group(pub(super) &'static str, pub(super) &'static [Entry]);

/// What a setter returns that cannot fail.
macro_rules! set {
    ($place:expr, $value:expr) => {{
        $place = $value;
        Ok(())
    }};
}

const METRICS_URL: &str = "localhost:8002/metrics";
const METRICS_INTERVAL: Duration = Duration::from_secs(1);
/// Prepared calls in a packet, where the option does not say how many.
const CALLS_IN_PACKET: usize = 32;

pub(super) const GROUPS: &[Group] = &[
    Group("Server", SERVER),
    Group("Load", LOAD),
    Group("Measurement", MEASUREMENT),
    Group("Tensors", TENSORS),
    Group("Sequences", SEQUENCES),
    Group("Output", OUTPUT),
    Group("", COMPATIBLE),
];

const SERVER: &[Entry] = &[
    entry(&["-m", "--model-name"], "NAME", "the model (required)", |o, v| set!(o.model, v.to_owned())),
    entry(&["-x", "--model-version"], "N", "its version (default: the latest)", |o, v| set!(o.version, v.to_owned())),
    entry(&["-u", "--url"], "ADDRESS", "host:port, https://host:port, unix:PATH or a session's socket", |o, v| {
        set!(o.url, v.to_owned())
    }),
    entry(&["--load-url"], "ADDRESS", "where requests go, if not to -u, which describes the model", |o, v| {
        set!(o.load_url, v.to_owned())
    }),
    entry(&["-i", "--protocol"], "PROTOCOL", "http, grpc or session (default: http)", |o, v| {
        o.protocol =
            choice("-i", v, &[("http", Protocol::Http), ("grpc", Protocol::Grpc), ("session", Protocol::Session)])?;
        Ok(())
    }),
    entry(&["--streaming"], "", "requests in one gRPC stream for each client", |o, _| set!(o.is_streaming, true)),
    entry(&["--session-calls"], "KIND", "plain, prepared, batched or batched:N (default: plain)", |o, v| {
        set!(o.session_calls, session_calls(v)?)
    }),
    entry(&["-H"], "NAME:VALUE", "a header of each request", |o, v| {
        let (name, value) = v.split_once(':').ok_or_else(|| format!("-H is name:value, and is '{v}'"))?;
        o.headers.push((name.trim().to_owned(), value.trim().to_owned()));
        Ok(())
    }),
    entry(&["--request-parameter"], "NAME:VALUE:TYPE", "a parameter of each request; int, bool or string", |o, v| {
        o.add_parameter(v)
    }),
    entry(&["--grpc-compression-algorithm"], "NAME", "none, gzip or deflate (default: none)", |o, v| {
        let all = [("none", Compression::None), ("gzip", Compression::Gzip), ("deflate", Compression::Deflate)];
        o.compression = choice("--grpc-compression-algorithm", v, &all)?;
        Ok(())
    }),
    entry(&["--ssl-grpc-use-ssl"], "", "gRPC over TLS", |o, _| set!(o.tls.is_grpc, true)),
    entry(
        &["--ssl-https-ca-certificates-file", "--ssl-grpc-root-certifications-file"],
        "FILE",
        "the certificates to trust, in PEM (default: the system's)",
        |o, v| set!(o.tls.roots, Some(v.into())),
    ),
    entry(
        &["--ssl-https-client-certificate-file", "--ssl-grpc-certificate-chain-file"],
        "FILE",
        "the certificate to present, in PEM",
        |o, v| set!(o.tls.certificate, Some(v.into())),
    ),
    entry(&["--ssl-https-private-key-file", "--ssl-grpc-private-key-file"], "FILE", "its key, in PEM", |o, v| {
        set!(o.tls.key, Some(v.into()))
    }),
    entry(
        &["--bls-composing-models"],
        "NAME:N,…",
        "models that the model calls, for the server's figures",
        |o, v| {
            o.composing = v.split(',').map(|one| one.split_once(':').unwrap_or((one, ""))).map(owned).collect();
            Ok(())
        },
    ),
    entry(&["--server-pid"], "N", "the server's process (default: found by its port, on this host)", |o, v| {
        o.server_pids.push(number("--server-pid", v)?);
        Ok(())
    }),
];

const LOAD: &[Entry] = &[
    entry(
        &["--concurrency-range"],
        "START:END:STEP",
        "requests under way; an end of 0 needs -l (default: 1)",
        |o, v| {
            o.load = Load::Concurrency(Range::parse("--concurrency-range", v, 1)?);
            Ok(())
        },
    ),
    entry(&["--request-rate-range"], "START:END:STEP", "requests a second", |o, v| {
        set!(o.load, Load::Rate(Range::parse("--request-rate-range", v, 1.0)?))
    }),
    entry(&["--request-distribution"], "NAME", "constant or poisson (default: constant)", |o, v| {
        let all = [("constant", Distribution::Constant), ("poisson", Distribution::Poisson)];
        o.distribution = choice("--request-distribution", v, &all)?;
        Ok(())
    }),
    entry(&["--request-intervals"], "FILE", "times between requests in µs, one in a line", |o, v| {
        set!(o.load, Load::Intervals(PathBuf::from(v)))
    }),
    entry(&["--binary-search"], "", "search the range for the highest load within -l", |o, _| {
        set!(o.is_binary_search, true)
    }),
    entry(&["--max-threads"], "N", "connections at most, with a rate (default: as many as it takes)", |o, v| {
        set!(o.connections_max, Some(positive("--max-threads", v)?))
    }),
    entry(&["--sweep"], "WHAT", "sizes: inline and shared memory; config: batch, instances, delay", |o, v| {
        set!(o.sweep, Some(choice("--sweep", v, &[("sizes", Sweep::Sizes), ("config", Sweep::Config)])?))
    }),
    entry(&["--sizes"], "LIST", "bytes of a tensor, with suffix K or M, for --sweep sizes", |o, v| {
        set!(o.sizes, v.split(',').map(size).collect::<Result<_, _>>()?)
    }),
];

const MEASUREMENT: &[Entry] = &[
    entry(&["-p", "--measurement-interval"], "MS", "length of a window (default: 5000)", |o, v| {
        set!(o.interval, milliseconds("-p", v)?)
    }),
    entry(&["--measurement-mode"], "MODE", "time_windows or count_windows (default: time_windows)", |o, v| {
        set!(o.is_count_mode, choice("--measurement-mode", v, &[("time_windows", false), ("count_windows", true)])?)
    }),
    entry(&["--measurement-request-count"], "N", "requests of a window of count_windows (default: 50)", |o, v| {
        set!(o.count_min, positive("--measurement-request-count", v)?)
    }),
    entry(&["--request-count"], "N", "one window of this many requests", |o, v| {
        set!(o.request_count, number("--request-count", v)?)
    }),
    entry(&["--warmup-request-count"], "N", "requests before the first window (default: 0)", |o, v| {
        set!(o.warm_up_requests, number("--warmup-request-count", v)?)
    }),
    entry(&["-s", "--stability-percentage"], "PERCENT", "how far three windows may differ (default: 10)", |o, v| {
        set!(o.stability, number("-s", v)?)
    }),
    entry(&["-r", "--max-trials"], "N", "windows at most (default: 10)", |o, v| set!(o.trials_max, positive("-r", v)?)),
    entry(&["--percentile"], "N", "the percentile that is reported and stable (default: the average)", |o, v| {
        set!(
            o.percentile,
            match v {
                "-1" => None,
                _ => Some(
                    number("--percentile", v)
                        .ok()
                        .filter(|n| (1..100).contains(n))
                        .ok_or_else(|| format!("--percentile is 1 to 99, and is '{v}'"))?,
                ),
            }
        )
    }),
    entry(&["-l", "--latency-threshold"], "MS", "the load is raised up to this latency", |o, v| {
        let limit = milliseconds("-l", v)?;
        o.latency_max = (limit > Duration::ZERO).then_some(limit);
        Ok(())
    }),
];

const TENSORS: &[Entry] = &[
    entry(&["-b"], "N", "rows of a request (default: 1)", |o, v| set!(o.batch, positive("-b", v)?)),
    entry(&["--shape"], "NAME:D1,D2", "the shape of an input with variable dimensions", |o, v| {
        o.tensors.shapes.push(shape(v)?);
        Ok(())
    }),
    entry(&["--input-data"], "DATA", "random, zero, a folder, or a file of JSON (default: random)", |o, v| {
        o.tensors.data = match (v, std::mem::take(&mut o.tensors.data)) {
            ("random", _) => InputData::Random,
            ("zero", _) => InputData::Zero,
            (path, InputData::Paths(mut paths)) => {
                paths.push(path.into());
                InputData::Paths(paths)
            }
            (path, _) => InputData::Paths(vec![path.into()]),
        };
        Ok(())
    }),
    entry(&["--string-length"], "N", "length of random strings (default: 128)", |o, v| {
        set!(o.tensors.string_len, positive("--string-length", v)?)
    }),
    entry(&["--string-data"], "TEXT", "the value of all strings", |o, v| set!(o.tensors.string, Some(v.to_owned()))),
    entry(&["--input-tensor-format"], "FORMAT", "binary or json, over HTTP (default: binary)", |o, v| {
        set!(o.tensors.is_input_json, is_json("--input-tensor-format", v)?)
    }),
    entry(&["--output-tensor-format"], "FORMAT", "binary or json, over HTTP (default: binary)", |o, v| {
        set!(o.tensors.is_output_json, is_json("--output-tensor-format", v)?)
    }),
    entry(
        &["--shared-memory"],
        "KIND",
        "none, system, cuda, or lease: memory that a nerite server lends (default: none)",
        |o, v| {
            let all = [
                ("none", Memory::Inline),
                ("system", Memory::System),
                ("cuda", Memory::Cuda),
                ("lease", Memory::Lease),
            ];
            o.memory = choice("--shared-memory", v, &all)?;
            Ok(())
        },
    ),
    entry(&["--output-shared-memory-size"], "BYTES", "for outputs of variable size (default: 102400)", |o, v| {
        set!(o.output_bytes, positive("--output-shared-memory-size", v)?)
    }),
];

const SEQUENCES: &[Entry] = &[
    entry(&["--num-of-sequences"], "N", "sequences under way, with a rate (default: 4)", |o, v| {
        set!(o.sequence.count, positive("--num-of-sequences", v)?)
    }),
    entry(&["--sequence-length"], "N", "requests of a sequence (default: those of the data, or 20)", |o, v| {
        set!(o.sequence.len, Some(positive("--sequence-length", v)?))
    }),
    entry(&["--sequence-length-variation"], "PERCENT", "by which lengths differ (default: 20)", |o, v| {
        set!(o.sequence.variation, number("--sequence-length-variation", v)?)
    }),
    entry(&["--sequence-id-range"], "START:END", "ids of sequences (default: from 1)", |o, v| {
        let (start, end) = v.split_once(':').map_or((v, None), |(start, end)| (start, Some(end)));
        o.sequence.first_id = number("--sequence-id-range", start)?;
        o.sequence.end_id =
            end.filter(|end| !end.is_empty()).map(|end| number("--sequence-id-range", end)).transpose()?;
        Ok(())
    }),
    entry(&["--serial-sequences"], "", "one request of a sequence at a time, with a rate", |o, _| {
        set!(o.sequence.is_serial, true)
    }),
];

const OUTPUT: &[Entry] = &[
    entry(&["-v"], "", "more of the client's times", |o, _| {
        o.verbosity += 1;
        Ok(())
    }),
    entry(&["--json"], "", "one JSON object in place of the report", |o, _| set!(o.files.is_json, true)),
    entry(&["--html"], "FILE", "a page with plots", |o, v| set!(o.files.html, Some(v.into()))),
    entry(&["--svg"], "FILE", "the plot of --sweep sizes alone", |o, v| set!(o.files.picture, Some(v.into()))),
    entry(&["-f", "--latency-report-file"], "FILE", "the report in CSV", |o, v| set!(o.files.csv, Some(v.into()))),
    entry(&["--verbose-csv"], "", "more columns in it", |o, _| set!(o.files.is_csv_verbose, true)),
    entry(&["--profile-export-file"], "FILE", "each request with its times, in JSON", |o, v| {
        set!(o.files.export, Some(v.into()))
    }),
    entry(&["--collect-metrics"], "", "the server's metrics of GPUs in the CSV", |o, _| {
        metrics(o);
        Ok(())
    }),
    entry(&["--metrics-url"], "URL", "where they are (default: localhost:8002/metrics)", |o, v| {
        v.clone_into(&mut metrics(o).url);
        Ok(())
    }),
    entry(&["--metrics-interval"], "MS", "time between two looks (default: 1000)", |o, v| {
        metrics(o).interval = milliseconds("--metrics-interval", v)?;
        Ok(())
    }),
    entry(&["--trace-level"], "LEVEL", "trace settings that are set first, with the next three", |o, v| {
        trace(o, "trace_level", v);
        Ok(())
    }),
    entry(&["--trace-rate"], "N", "one of N requests", |o, v| {
        trace(o, "trace_rate", v);
        Ok(())
    }),
    entry(&["--trace-count"], "N", "requests at most", |o, v| {
        trace(o, "trace_count", v);
        Ok(())
    }),
    entry(&["--log-frequency"], "N", "traces of a file", |o, v| {
        trace(o, "log_frequency", v);
        Ok(())
    }),
];

/// What scripts for perf_analyzer contain, and what has no effect here.
const COMPATIBLE: &[Entry] = &[
    entry(&["-a", "--async"], "", "", |o, _| set!(o.is_async, Some(true))),
    entry(&["--sync"], "", "", |o, _| set!(o.is_async, Some(false))),
    entry(&["--service-kind"], "KIND", "", |_, v| choice("--service-kind", v, &[("triton", ())])),
    entry(&["--model-signature-name"], "NAME", "", |_, _| Ok(())),
    entry(&["--ssl-https-verify-peer"], "N", "", |_, v| choice("--ssl-https-verify-peer", v, &[("1", ())])),
    entry(&["--ssl-https-verify-host"], "N", "", |_, v| choice("--ssl-https-verify-host", v, &[("2", ())])),
    entry(&["--ssl-https-client-certificate-type"], "TYPE", "", |_, v| {
        choice("--ssl-https-client-certificate-type", v, &[("PEM", ())])
    }),
    entry(&["--ssl-https-private-key-type"], "TYPE", "", |_, v| {
        choice("--ssl-https-private-key-type", v, &[("PEM", ())])
    }),
];

fn owned((name, version): (&str, &str)) -> (String, String) {
    (name.to_owned(), version.to_owned())
}

fn choice<T: Copy>(option: &str, value: &str, all: &[(&str, T)]) -> Result<T, String> {
    let found = all.iter().find(|(name, _)| name.eq_ignore_ascii_case(value));
    found.map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
        format!("{option} is {}, and is '{value}'", names.join(", "))
    })
}

fn number<T: std::str::FromStr>(option: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{option} is a number, and is '{value}'"))
}

fn positive<T: std::str::FromStr + PartialOrd + Default>(option: &str, value: &str) -> Result<T, String> {
    let found = value.parse().ok().filter(|found| *found > T::default());
    found.ok_or_else(|| format!("{option} is a number above 0, and is '{value}'"))
}

fn milliseconds(option: &str, value: &str) -> Result<Duration, String> {
    let found = value.parse().ok().and_then(|ms: f64| Duration::try_from_secs_f64(ms / 1e3).ok());
    found.ok_or_else(|| format!("{option} is a number of milliseconds, and is '{value}'"))
}

fn is_json(option: &str, value: &str) -> Result<bool, String> {
    choice(option, value, &[("binary", false), ("json", true)])
}

fn session_calls(value: &str) -> Result<SessionCalls, String> {
    let (kind, count) = value.split_once(':').map_or((value, None), |(kind, count)| (kind, Some(count)));
    match (kind, count) {
        ("plain", None) => Ok(SessionCalls::Plain),
        ("prepared", None) => Ok(SessionCalls::Prepared),
        ("batched", None) => Ok(SessionCalls::Batched(CALLS_IN_PACKET)),
        ("batched", Some(count)) => Ok(SessionCalls::Batched(positive("--session-calls", count)?)),
        _ => Err(format!("--session-calls is plain, prepared, batched or batched:N, and is '{value}'")),
    }
}

fn shape(text: &str) -> Result<(String, Vec<i64>), String> {
    let fault = || format!("--shape is name:d1,d2,… with numbers above 0, and is '{text}'");
    let (name, dimensions) = text.rsplit_once(':').ok_or_else(fault)?;
    let dimensions = dimensions.split(',').map(|one| one.parse().ok().filter(|dimension| *dimension > 0));
    Ok((name.to_owned(), dimensions.collect::<Option<_>>().ok_or_else(fault)?))
}

/// A number of bytes, with the suffix K or M for KiB or MiB.
fn size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    let bytes = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| format!("--sizes has a size that is no number of bytes: '{text}'"))
}

fn metrics(options: &mut Options) -> &mut Metrics {
    options.metrics.get_or_insert_with(|| Metrics { url: METRICS_URL.to_owned(), interval: METRICS_INTERVAL })
}

fn trace(options: &mut Options, setting: &str, value: &str) {
    match options.trace.iter_mut().find(|(name, _)| name == setting) {
        Some((_, values)) => values.push(value.to_owned()),
        None => options.trace.push((setting.to_owned(), vec![value.to_owned()])),
    }
}

/// What `nerite bench --help` prints of the options.
pub(crate) fn usage() -> String {
    let mut out = String::new();
    for Group(title, entries) in GROUPS.iter().filter(|Group(title, _)| !title.is_empty()) {
        out += &format!("\n{title}:\n");
        for entry in *entries {
            let names = entry.names.iter().map(|name| format!("{name} {}", entry.value).trim_end().to_owned());
            let names = names.collect::<Vec<_>>().join(", ");
            match names.len() {
                ..=36 => out += &format!("  {names:<36}  {}\n", entry.about),
                _ => out += &format!("  {names}\n  {:<36}  {}\n", "", entry.about),
            }
        }
    }
    out
}

/// The long options that the usage lists.
pub(crate) fn long_names() -> Vec<String> {
    let entries = GROUPS.iter().flat_map(|Group(_, entries)| *entries).filter(|entry| !entry.about.is_empty());
    let names = entries.flat_map(|entry| entry.names).filter(|name| name.starts_with("--"));
    names.map(|name| (*name).to_owned()).chain(["--help".to_owned()]).collect()
}
