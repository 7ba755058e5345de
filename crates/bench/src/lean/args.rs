//! What is to be measured?

use std::path::PathBuf;
use std::time::Duration;

use super::error::BenchError;

pub(crate) const USAGE: &str = "\
Usage: nerite-bench [load] [options]       requests in a closed loop, one line per combination
       nerite-bench memcpy [--bytes LIST]  copies between two shared memory regions, in this process
       nerite-bench pingpong               round trips of 64 bytes between two processes

      --http HOST:PORT|unix:PATH   Measure this HTTP server
      --grpc HOST:PORT|unix:PATH   Measure this gRPC server
      --placement LIST     inline, shm (default: inline,shm)
      --bytes LIST         Tensor sizes, with suffix K or M (default: 64,4K,256K,4M,64M)
      --concurrency LIST   Requests under way (default: 1)
      --seconds N          Length of one measurement (default: 3)
      --requests N         Fewest requests of one measurement (default: 10)
      --warm-up N          Seconds before it (default: 1)
      --pids LIST          Server processes whose CPU time counts, with their children
      --model NAME         (default: identity_fp32)
      --input NAME         An FP32 input (default: INPUT0)
      --output NAME        An output (default: OUTPUT0)
      --output-bytes N     Its size, where it is not that of the input
      --regions N          Other regions registered meanwhile, none of them used (default: 0)
      --batch              Put a batch dimension of 1 before the shape
      --json               One JSON object per line
  -h, --help               Print this
";

/// What the command line asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Help,
    Load(Box<Plan>),
    Memcpy {
        bytes: Vec<usize>,
        json: bool,
    },
    PingPong {
        json: bool,
    },
    /// The other process of a ping-pong.
    Echo {
        path: PathBuf,
    },
}

/// All combinations of a measurement.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) servers: Vec<(Protocol, String)>,
    pub(crate) placements: Vec<Placement>,
    pub(crate) bytes: Vec<usize>,
    pub(crate) concurrency: Vec<usize>,
    pub(crate) length: Duration,
    pub(crate) requests_min: usize,
    pub(crate) warm_up: Duration,
    pub(crate) pids: Vec<u32>,
    pub(crate) model: String,
    pub(crate) input: String,
    pub(crate) output: String,
    pub(crate) output_bytes: Option<usize>,
    pub(crate) regions: usize,
    pub(crate) batch: bool,
    pub(crate) json: bool,
}

/// The protocol of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

/// Where tensors lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Inline,
    Shm,
}

impl Protocol {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Grpc => "grpc",
        }
    }
}

impl Placement {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Placement::Inline => "inline",
            Placement::Shm => "shm",
        }
    }
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            servers: Vec::new(),
            placements: vec![Placement::Inline, Placement::Shm],
            bytes: vec![64, 4 << 10, 256 << 10, 4 << 20, 64 << 20],
            concurrency: vec![1],
            length: Duration::from_secs(3),
            requests_min: 10,
            warm_up: Duration::from_secs(1),
            pids: Vec::new(),
            model: "identity_fp32".to_owned(),
            input: "INPUT0".to_owned(),
            output: "OUTPUT0".to_owned(),
            output_bytes: None,
            regions: 0,
            batch: false,
            json: false,
        }
    }
}

impl Command {
    pub(crate) fn read(args: &[String]) -> Result<Command, BenchError> {
        let (command, rest) = match args.split_first() {
            Some((first, rest)) if !first.starts_with('-') => (first.as_str(), rest),
            _ => ("load", args),
        };
        if let ("echo", [path]) = (command, rest) {
            return Ok(Command::Echo { path: path.into() });
        }
        let mut plan = Plan::default();
        let mut rest = rest.iter();
        while let Some(arg) = rest.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (arg.as_str(), None),
            };
            match name {
                "-h" | "--help" => return Ok(Command::Help),
                "--json" => plan.json = true,
                "--batch" => plan.batch = true,
                _ => {
                    let value = inline.or_else(|| rest.next().cloned());
                    let value = value.ok_or_else(|| unread(format!("{name} needs a value")))?;
                    plan.set(name, &value)?;
                }
            }
        }
        match command {
            "memcpy" => Ok(Command::Memcpy { bytes: plan.bytes, json: plan.json }),
            "pingpong" => Ok(Command::PingPong { json: plan.json }),
            "load" if plan.servers.is_empty() => Err(unread("no server: --http or --grpc".to_owned())),
            "load" => Ok(Command::Load(Box::new(plan))),
            other => Err(unread(format!("unknown command '{other}'"))),
        }
    }
}

impl Plan {
    fn set(&mut self, name: &str, value: &str) -> Result<(), BenchError> {
        let read = match name {
            "--http" => text(value).map(|address| self.servers.push((Protocol::Http, address))),
            "--grpc" => text(value).map(|address| self.servers.push((Protocol::Grpc, address))),
            "--placement" => list(value, placement).map(|all| self.placements = all),
            "--bytes" => list(value, size).map(|all| self.bytes = all),
            "--concurrency" => list(value, |one| one.parse().ok().filter(|n| *n > 0)).map(|all| self.concurrency = all),
            "--seconds" => seconds(value).map(|length| self.length = length),
            "--warm-up" => seconds(value).map(|length| self.warm_up = length),
            "--requests" => value.parse().ok().map(|n: usize| self.requests_min = n.max(1)),
            "--pids" => list(value, |one| one.parse().ok()).map(|all| self.pids = all),
            "--model" => text(value).map(|name| self.model = name),
            "--input" => text(value).map(|name| self.input = name),
            "--output" => text(value).map(|name| self.output = name),
            "--output-bytes" => size(value).map(|bytes| self.output_bytes = Some(bytes)),
            "--regions" => value.parse().ok().map(|count| self.regions = count),
            _ => return Err(unread(format!("unknown option '{name}'"))),
        };
        read.ok_or_else(|| unread(format!("{name} does not take '{value}'")))
    }
}

fn text(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

fn list<T>(value: &str, one: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    value.split(',').map(one).collect()
}

fn placement(value: &str) -> Option<Placement> {
    [Placement::Inline, Placement::Shm].into_iter().find(|placement| placement.name() == value)
}

/// A number of bytes that whole FP32 values fill.
fn size(value: &str) -> Option<usize> {
    let (digits, unit) = match value.as_bytes().last()? {
        b'K' => (&value[..value.len() - 1], 1 << 10),
        b'M' => (&value[..value.len() - 1], 1 << 20),
        _ => (value, 1),
    };
    let bytes = digits.parse::<usize>().ok()?.checked_mul(unit)?;
    (bytes > 0 && bytes.is_multiple_of(4)).then_some(bytes)
}

fn seconds(value: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(value.parse().ok()?).ok()
}

/// The error of a command line that cannot be read: what is wrong, and the usage.
fn unread(what: String) -> BenchError {
    BenchError::Usage(format!("{what}\n\n{USAGE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Command, BenchError> {
        Command::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[track_caller]
    fn check(line: &str, change: impl FnOnce(&mut Plan)) {
        let mut plan = Plan::default();
        change(&mut plan);
        assert_eq!(read(line).expect("a plan"), Command::Load(Box::new(plan)), "{line}");
    }

    #[test]
    fn lists_and_suffixes_are_read() {
        check("--http a:1", |plan| plan.servers = vec![(Protocol::Http, "a:1".into())]);
        check("load --grpc=unix:/x --bytes 64,4K,1M --placement shm --concurrency 1,16 --json", |plan| {
            plan.servers = vec![(Protocol::Grpc, "unix:/x".into())];
            plan.bytes = vec![64, 4096, 1 << 20];
            plan.placements = vec![Placement::Shm];
            plan.concurrency = vec![1, 16];
            plan.json = true;
        });
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["", "load", "--http", "--http a:1 --bytes 3", "--http a:1 --concurrency 0", "--what 1", "fly"] {
            assert!(matches!(read(line), Err(BenchError::Usage(_))), "{line}");
        }
    }
}
