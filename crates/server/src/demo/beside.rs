//! How long does one call take from Python, by nerite's client and by tritonclient's ways?

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::show::{is_too_wide, size, time};
use super::{DemoError, DemoOptions};

/// The Python script that measures. It uses the clients that the Python on the path has installed.
const SCRIPT: &str = include_str!("beside.py");
const SIZES: [usize; 3] = [64, 256 << 10, 4 << 20];
/// The time limit of the script. Five ways with three sizes take less, imports included.
const PATIENCE: Duration = Duration::from_mins(1);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const WAY_CHARS: usize = 32;
/// The text after the output of a script that failed.
const ENDED_EARLY: &str = "\nended early";

/// One way to call a model, and its median time for each size in µs.
#[derive(Debug, PartialEq)]
struct Way {
    name: String,
    medians_us: Vec<f64>,
}

/// Prints the table, or one line that says why there is none.
pub(super) async fn measure(options: &DemoOptions) -> Result<(), DemoError> {
    let text = match run(options).await? {
        Ok(text) => text,
        Err(reason) => return print_reason(&reason),
    };
    let found = ways(&text);
    let has = |client: &str| found.iter().any(|way| way.name.starts_with(client));
    if !has("tritonclient") {
        return print_reason("python3 has no tritonclient (pip install 'tritonclient[http,grpc]')");
    }
    let is_narrow = is_too_wide(&heading());
    println!("\n{}", shown(&heading(), is_narrow));
    for way in &found {
        println!("{}", shown(&way.to_string(), is_narrow));
    }
    println!("One identity request from Python, result read back, p50.");
    if text.ends_with(ENDED_EARLY) {
        println!("The rest failed, or took more than {} s.", PATIENCE.as_secs());
    } else if !has("nerite") {
        println!("The Python on the path has no nerite-client (`pip install ./python` in the sources, or its wheel).");
    }
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "what it says is an outcome of its caller")]
fn print_reason(reason: &str) -> Result<(), DemoError> {
    println!("\nCalls from Python are not measured beside tritonclient's: {reason}.");
    Ok(())
}

/// What the script printed, or why it printed nothing.
async fn run(options: &DemoOptions) -> Result<Result<String, String>, DemoError> {
    let host = |url: &str| url.trim_start_matches("http://").to_owned();
    let fault = |reason| DemoError::System { what: "cannot measure calls from Python", reason };
    let output = tempfile::NamedTempFile::new().map_err(fault)?;
    let mut python = Command::new("python3");
    python
        .arg("-c")
        .arg(SCRIPT)
        .args([host(&options.http_url), host(&options.grpc_url)])
        .arg(&options.session_socket)
        .args(SIZES.map(|size| size.to_string()))
        .env("PYTHONPATH", python_path(&options.examples_dir))
        .stdin(Stdio::null())
        .stdout(output.reopen().map_err(fault)?)
        .stderr(Stdio::null());
    let Ok(child) = python.spawn() else { return Ok(Err("there is no python3 on the path".to_owned())) };
    let ended = Ended(child).within(PATIENCE).await.map_err(fault)?;
    let text = std::fs::read_to_string(output.path()).map_err(fault)?;
    Ok(match ended {
        Some(true) => Ok(text),
        Some(false) if text.is_empty() => Err("python3 has no numpy, or its clients do not run here".to_owned()),
        // The earlier measurements are valid.
        Some(false) | None => Ok(text + ENDED_EARLY),
    })
}

/// The package `nerite` of the sources, behind what is installed and what the user named.
fn python_path(examples: &Path) -> OsString {
    let named = std::env::var_os("PYTHONPATH").unwrap_or_default();
    let sources = examples.join("../python");
    let paths = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    let all: Vec<PathBuf> = paths.chain(sources.join("nerite").is_dir().then_some(sources)).collect();
    std::env::join_paths(all).unwrap_or(named)
}

/// A process that is killed with this value.
struct Ended(Child);

impl Ended {
    /// Whether the process exited with success; `None` if it did not exit within `patience`.
    async fn within(mut self, patience: Duration) -> std::io::Result<Option<bool>> {
        let since = Instant::now();
        while since.elapsed() < patience {
            if let Some(status) = self.0.try_wait()? {
                return Ok(Some(status.success()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(None)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lines that the script wrote whole.
fn ways(text: &str) -> Vec<Way> {
    let one = |line: &str| {
        let (name, rest) = line.split_once('\t')?;
        let medians_us: Option<Vec<f64>> = rest.split('\t').map(|field| field.parse().ok()).collect();
        medians_us.filter(|all| all.len() == SIZES.len()).map(|medians_us| Way { name: name.to_owned(), medians_us })
    };
    text.lines().filter_map(one).collect()
}

/// A line of the table, with the name in a line of its own where lines are short.
fn shown(line: &str, is_narrow: bool) -> String {
    let chars: Vec<char> = line.chars().collect();
    let (name, cells) = chars.split_at(WAY_CHARS.min(chars.len()));
    let (name, cells) = (String::from_iter(name), String::from_iter(cells));
    if is_narrow { format!("{}\n{cells}", name.trim_end()) } else { name + &cells }
}

fn heading() -> String {
    let sizes = SIZES.map(|bytes| format!("{:>12}", size(bytes)));
    format!("{:<WAY_CHARS$}{}", "From Python", sizes.concat())
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:<WAY_CHARS$}", self.name)?;
        self.medians_us.iter().try_for_each(|us| write!(f, "{:>12}", time(*us)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_ways_are_passed_over() {
        let text = "tritonclient.http, inline\t100.5\t1500\t9e4\na warning\nhalf\t1\t2\nnerite, one call\t9\tx\t1\n";
        let found = ways(text);
        assert_eq!(found, [Way { name: "tritonclient.http, inline".to_owned(), medians_us: vec![100.5, 1500.0, 9e4] }]);
        assert!(found[0].to_string().contains("1.50 ms") && found[0].to_string().len() <= heading().len() + 3);
    }

    #[test]
    fn where_lines_are_short_a_name_has_its_own() {
        let way = Way { name: "nerite, one call".to_owned(), medians_us: vec![9.0, 1500.0, 9e4] }.to_string();
        let narrow = shown(&way, true);
        assert_eq!(narrow, "nerite, one call\n        9 µs     1.50 ms     90.0 ms");
        assert_eq!(shown(&way, false), way);
    }

    #[tokio::test]
    async fn a_script_that_takes_too_long_is_ended() {
        let child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let pid = child.id();
        assert_eq!(Ended(child).within(Duration::from_millis(50)).await.expect("watched"), None);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
