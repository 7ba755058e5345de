//! What does `nerite bench` do, and what does it print?

use std::io::Write;
use std::path::Path;

use crate::caller::Caller;
use crate::interrupt::Interrupt;
use crate::live::Live;
use crate::machine::{machine, now};
use crate::options::{Load, Options, Sweep};
use crate::page::page;
use crate::plots::size_picture;
use crate::profile::{Observer, Profiler};
use crate::report::{console, csv, export, json, sweeps};
use crate::results::{About, Client, Level, Point, Results};
use crate::search::search;
use crate::stability::WINDOWS;
use crate::sweep;

/// The length of a window of a sweep, and windows at most, if the user does not say so. A sweep has many measurements.
const SWEEP_INTERVAL_MS: u64 = 500;
const SWEEP_TRIALS_MAX: usize = 4;
/// Requests under way in a sweep of configurations, if the user does not say so. With fewer there are no batches.
const SWEEP_CONCURRENCY: usize = 16;

/// Why a command ended before its end.
pub(crate) enum Failure {
    /// The reason.
    Failed(String),
    /// The measurements of a level did not agree. The rest was reported.
    Unstable,
}

impl From<String> for Failure {
    fn from(reason: String) -> Failure {
        Failure::Failed(reason)
    }
}

/// Measures what the options say, prints the report, and writes the files.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let interrupt = Interrupt::watch()?;
    let options = &defaults(options);
    let mut watcher = Watcher { options, interrupt, live: Live::new(levels(options)) };
    let caller = Caller::new(options)?;
    let (points, sizes, configs) = Default::default();
    let mut results = Results { about: about(options, caller.server()?.0), points, sizes, configs };
    let measured = match options.sweep {
        None => measure(options, &mut results, &mut watcher),
        Some(Sweep::Sizes) => sweep::sizes(options, &caller, &mut watcher).map(|sizes| results.sizes.push(sizes)),
        Some(Sweep::Config) => sweep::configs(options, &caller, &mut watcher).map(|configs| results.configs = configs),
    };
    watcher.live.finish();
    measured?;
    report(options, &results)
}

/// Measures the levels.
fn measure(options: &Options, results: &mut Results, watcher: &mut Watcher<'_>) -> Result<(), String> {
    let profiler = Profiler::new(options)?;
    let model = &profiler.model;
    watcher.print(&console::header(options, model.is_sequence, model.is_decoupled))?;
    let measured = search(options, profiler.intervals_rate(), |level| {
        watcher.print(&console::begin(level))?;
        let point = profiler.measure(level, watcher)?;
        watcher.print(&console::level(options, &point))?;
        if !point.is_stable {
            watcher.note(&console::unstable(options, level));
        }
        if let Some(max) = options.latency_max.filter(|max| latency_us(options, &point) > max.as_secs_f64() * 1e6) {
            watcher.note(&console::too_slow(max));
        }
        Ok(point)
    });
    profiler.end()?;
    results.points = measured?;
    Ok(())
}

/// Prints what is known at the end, and writes the files.
fn report(options: &Options, results: &Results) -> Result<(), Failure> {
    let files = &options.files;
    let text = match options.sweep {
        _ if files.is_json => json::object(results) + "\n",
        None => console::summary(options.percentile, &results.points),
        Some(_) => sweeps::sweeps(results),
    };
    print(&text)?;
    if let Some(best) = results.configs.iter().find(|config| config.is_best) {
        print(&format!("\n{}", sweep::best_config(best)))?;
    }
    let save = |path: &Path, text: &str| {
        std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
    };
    if let Some(path) = &files.csv {
        save(path, &csv::table(options, &results.points))?;
        for (step, text) in csv::steps(&results.points) {
            save(&path.with_file_name(format!("{step}.{}", path.file_name().unwrap_or_default().display())), &text)?;
        }
    }
    if let Some(path) = &files.export {
        save(path, &export::requests(&results.points))?;
    }
    if let Some(path) = &files.html {
        save(path, &page(results))?;
    }
    if let (Some(path), Some(sweep)) = (&files.picture, results.sizes.first()) {
        save(path, &size_picture(sweep, &picture_title(results)))?;
    }
    if results.points.iter().all(|point| point.is_stable) { Ok(()) } else { Err(Failure::Unstable) }
}

fn picture_title(results: &Results) -> String {
    let About { server, machine, .. } = &results.about;
    format!("p50 of one request by the size of its tensor, {server}, {} cores of {}", machine.cores, machine.processor)
}

/// The options of a sweep, where the user left them out.
fn defaults(options: &Options) -> Options {
    let mut options = options.clone();
    if options.sweep.is_none() {
        return options;
    }
    let given = Options::default();
    if options.interval == given.interval {
        options.interval = std::time::Duration::from_millis(SWEEP_INTERVAL_MS);
    }
    if options.trials_max == given.trials_max {
        options.trials_max = SWEEP_TRIALS_MAX;
    }
    if options.sweep == Some(Sweep::Config) && options.load == given.load {
        options.load = Load::Concurrency(crate::options::Range::one(SWEEP_CONCURRENCY));
    }
    options
}

fn about(options: &Options, server: String) -> About {
    About {
        date: now(),
        machine: machine(),
        server,
        address: options.address(),
        model: options.model.clone(),
        version: options.version.clone(),
        protocol: options.protocol,
        memory: options.memory,
        batch: options.batch,
        percentile: options.percentile,
    }
}

/// The levels of the options; 0 if nobody knows how many there will be.
fn levels(options: &Options) -> usize {
    match &options.load {
        _ if options.sweep.is_some() || options.is_binary_search => 0,
        Load::Concurrency(range) if range.is_endless() => 0,
        Load::Concurrency(range) => (range.end - range.start) / range.step + 1,
        Load::Rate(range) if range.is_endless() => 0,
        Load::Rate(range) => ((range.end - range.start) / range.step) as usize + 1,
        Load::Intervals(_) => 1,
    }
}

/// Shows how the measurement goes on.
struct Watcher<'o> {
    options: &'o Options,
    interrupt: Interrupt,
    live: Live,
}

/// The latency that is held against the limit.
fn latency_us(options: &Options, point: &Point) -> f64 {
    point.client.stabilized_us(options.percentile)
}

impl Watcher<'_> {
    /// Says something on the standard error.
    fn note(&self, text: &str) {
        self.live.suspend(|| eprint!("{text}"));
    }

    fn print(&self, text: &str) -> Result<(), String> {
        if self.options.files.is_json { Ok(()) } else { self.live.suspend(|| print(text)) }
    }
}

impl Observer for Watcher<'_> {
    fn level(&mut self, level: Level) {
        self.live.level(&level);
    }

    fn window(&mut self, trial: usize, client: &Client) {
        let trials_max = self.options.trials_max.max(WINDOWS);
        self.live.window(trial, trials_max, client.throughput, client.stabilized_us(self.options.percentile));
        if self.options.verbosity > 0 {
            // A pipe that is gone is noticed by the report.
            let _ = self.print(&console::pass(trial, client, self.options.percentile));
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.is_set()
    }
}

fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| format!("cannot write the report: {error}"))
}
