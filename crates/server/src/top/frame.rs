//! How does one look at a server appear on a terminal?

use std::collections::BTreeMap;

use serde_json::Value;

use super::gather::Sample;
use super::metrics::{ModelNumbers, Numbers};
use crate::plain::{cell, cell_end, plain, size};

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// The fewest rows of regions and of sessions that are shown, if there are that many, and room beside the models.
const LISTED_MIN: usize = 4;
/// The fewest models that are shown, if there are that many.
const MODELS_MIN: usize = 2;
/// Lines of a list beside its rows: an empty one, the heading, and how many rows are not shown.
const LINES_OF_LIST: usize = 3;
/// The lines of a hint: an empty one and the hint.
const LINES_OF_HINT: usize = 2;
/// Columns become narrower down to this width. Only then columns are left out.
const COLUMN_MIN: usize = 16;
const GAP: &str = "  ";
const NONE: &str = "-";
/// The most models whose faults are shown.
const FAULTS_MAX: usize = 3;
/// What the index says of a model that was unloaded on purpose.
const UNLOADED: &str = "unloaded";

/// The lines of one look. Rates are those since `before`.
pub(super) fn frame(url: &str, before: Option<&Sample>, now: &Sample, size: Size) -> Vec<String> {
    // The last column stays empty: after a character there, some terminals continue in the next line.
    let columns = size.columns.saturating_sub(1);
    let (mut models, mut regions, mut sessions) = (models(before, now), regions(now), sessions(now));
    let head = head(url, before, now);
    let lists = keep_first([&mut models, &mut regions, &mut sessions], size.rows.saturating_sub(head.len()));
    let hint = hint(now).filter(|_| head.len() + lists * (LINES_OF_LIST + 1) + LINES_OF_HINT <= size.rows);
    let beside = LINES_OF_LIST * lists + if hint.is_some() { LINES_OF_HINT } else { 0 };
    let mut lines = head_lines(head, columns, size.rows.saturating_sub(beside));
    let room = size.rows.saturating_sub(lines.len() + beside);
    let listed = (regions.len() + sessions.len()).min((2 * LISTED_MIN).max(room / 2));
    let listed = listed.min(room.saturating_sub(models.len().min(MODELS_MIN)));
    let (for_models, for_sessions) = (room.saturating_sub(listed), listed.div_ceil(2));
    // The last columns are left out first.
    let heading = ["MODEL", "STATE", "REQ/S", "FAIL/S", "WAITING", "ROWS/RUN", "MEAN", "QUEUE", "COMPUTE"];
    section(&mut lines, "models", &heading, &models, Size { columns, rows: for_models });
    let heading = ["REGION", "OBJECT", "BYTES", "HELD BY", "IN FLIGHT", "STATE"];
    let rows = listed.saturating_sub(sessions.len().min(for_sessions));
    section(&mut lines, "regions", &heading, &regions, Size { columns, rows });
    let heading = ["SESSION", "PROGRAM", "PID", "USER", "LEASES", "LEASE BYTES", "IN FLIGHT"];
    let rows = listed.saturating_sub(regions.len().min(listed / 2));
    section(&mut lines, "sessions", &heading, &sessions, Size { columns, rows });
    if let Some(hint) = hint {
        lines.push(String::new());
        lines.push(hint);
    }
    lines.truncate(size.rows);
    lines.into_iter().map(|line| cut(&line, columns)).collect()
}

/// Empties the last lists if there are too few lines for a row of each. The first list stays. Returns how many have rows.
fn keep_first(lists: [&mut Vec<Vec<String>>; 3], lines: usize) -> usize {
    let most = (lines / (LINES_OF_LIST + 1)).max(1);
    let mut kept = 0;
    for list in lists {
        if kept == most {
            list.clear();
        }
        kept += usize::from(!list.is_empty());
    }
    kept
}

/// The first lines, each by the parts that may go to a line of their own.
fn head(url: &str, before: Option<&Sample>, now: &Sample) -> Vec<Vec<String>> {
    let visitor = now.page.as_ref().map(|page| &page.visitor);
    let field = |key: &str| visitor.and_then(|visitor| visitor[key].as_str()).map(plain);
    let version = field("version").map(|version| format!("nerite {version}"));
    let you = field("you").map(|you| format!("you are {you}"));
    let numbers = &now.numbers;
    let sum = |numbers: &Numbers, of: fn(&ModelNumbers) -> f64| numbers.models.values().map(of).sum::<f64>();
    let rate =
        |of: fn(&ModelNumbers) -> f64| since(before, now, |numbers| sum(numbers, of)).map_or(NONE.to_owned(), number);
    let processor =
        numbers.others.get("nv_cpu_utilization").map_or(NONE.to_owned(), |share| format!("{:.0} %", share * 100.0));
    let used = whole(numbers.other("nv_cpu_memory_used_bytes"));
    let bytes = |name: &str| size(whole(numbers.other(name)));
    let lines = vec![
        ["nerite top".to_owned(), plain(url)].into_iter().chain(version).chain(you).collect(),
        vec![
            format!("requests/s {}", rate(|model| model.success)),
            format!("failures/s {}", rate(|model| model.failure)),
            format!("waiting {}", number(sum(numbers, |model| model.waiting))),
            format!("processor {processor}"),
            format!("memory {} of {}", size(used), bytes("nv_cpu_memory_total_bytes")),
        ],
        vec![
            format!("regions {}", number(numbers.family("nerite_shm_regions").map(|(_, count)| count).sum())),
            format!("mapped {}", bytes("nerite_shm_mapped_bytes")),
            format!("sessions {}", number(numbers.other("nerite_sessions"))),
            format!("lent {}", bytes("nerite_lease_bytes.lent")),
            format!("held for clients {}", bytes("nerite_memory_budget_bytes.used")),
        ],
        copies(before, now),
    ];
    lines.into_iter().chain(faults(now).map(|fault| vec![fault])).collect()
}

/// Why models are not loaded, or were not loaded anew, where the server tells: the first of them.
fn faults(now: &Sample) -> impl Iterator<Item = String> + '_ {
    let fault = |entry: &Value| {
        // Of a model that is being loaded, the reason is how far it is.
        let reason = entry["reason"].as_str().filter(|_| entry["state"] != "LOADING")?;
        if reason.is_empty() || reason == UNLOADED {
            return None;
        }
        Some(format!("{}: {}", cell(entry["name"].as_str()?), plain(reason)))
    };
    listed_models(now).filter_map(fault).take(FAULTS_MAX)
}

/// The models' versions as the page lists them.
fn listed_models(now: &Sample) -> impl Iterator<Item = &Value> {
    now.page.as_ref().and_then(|page| page.models["models"].as_array()).into_iter().flatten()
}

/// The first lines. If the terminal is narrow they are wrapped, unless that would leave too few of the `rows` for the lists.
fn head_lines(head: Vec<Vec<String>>, columns: usize, rows: usize) -> Vec<String> {
    let whole: Vec<String> = head.iter().map(|parts| parts.join(GAP)).collect();
    let lines: Vec<String> = head.into_iter().flat_map(|parts| wrapped(parts, columns)).collect();
    if lines.len().saturating_add(2 * LISTED_MIN) <= rows { lines } else { whole }
}

/// The parts beside each other, in as many lines as they need.
fn wrapped(parts: Vec<String>, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        match lines.last_mut() {
            Some(line) if line.chars().count() + GAP.len() + part.chars().count() <= columns => {
                line.push_str(GAP);
                line.push_str(&part);
            }
            _ => lines.push(part),
        }
    }
    lines
}

/// Bytes copied per second, for each reason that had any. The first entry says what the numbers are.
fn copies(before: Option<&Sample>, now: &Sample) -> Vec<String> {
    const FAMILY: &str = "nerite_copied_bytes_total";
    let copied = now.numbers.family(FAMILY).filter_map(|(reason, _)| {
        let name = format!("{FAMILY}.{reason}");
        let rate = since(before, now, |numbers| numbers.other(&name))?;
        (rate > 0.0).then(|| format!("{} {}", plain(reason), size(whole(rate))))
    });
    let mut copied: Vec<String> = copied.collect();
    match copied.first_mut() {
        Some(first) => first.insert_str(0, "copies/s "),
        None => copied.push("copies/s none".to_owned()),
    }
    copied
}

fn models(before: Option<&Sample>, now: &Sample) -> Vec<Vec<String>> {
    let states = states(now);
    let mut names: Vec<&str> = now.numbers.models.keys().map(String::as_str).collect();
    names.extend(states.keys().copied().filter(|name| !now.numbers.models.contains_key(*name)));
    let late = |name: &str, of: fn(&ModelNumbers) -> f64| {
        since(before, now, |numbers| numbers.models.get(name).map_or(0.0, of)).unwrap_or_default()
    };
    // The busiest first.
    names.sort_by(|a, b| {
        late(b, |model| model.success).total_cmp(&late(a, |model| model.success)).then_with(|| a.cmp(b))
    });
    let row = |name: &str| {
        let numbers = now.numbers.models.get(name).copied().unwrap_or_default();
        let requests = late(name, |model| model.success);
        let mean = |of: fn(&ModelNumbers) -> f64| {
            if requests > 0.0 { micros(late(name, of) / requests) } else { NONE.to_owned() }
        };
        let ready = || if numbers.ready > 0.0 { "ready" } else { "not ready" }.to_owned();
        let runs = late(name, |model| model.runs);
        vec![
            // Identifiers of models of the same name differ at the end of the repositories' paths.
            if name.contains("::") { cell_end(name) } else { cell(name) },
            states.get(name).cloned().unwrap_or_else(ready),
            number(requests),
            number(late(name, |model| model.failure)),
            number(numbers.waiting),
            if runs > 0.0 { format!("{:.1}", late(name, |model| model.rows) / runs) } else { NONE.to_owned() },
            mean(|model| model.request_us),
            mean(|model| model.queue_us),
            mean(|model| model.compute_us),
        ]
    };
    names.into_iter().map(row).collect()
}

/// The states of models' versions by identifier, such as `1 ready, 2 loading`, where the server tells.
fn states(now: &Sample) -> BTreeMap<&str, String> {
    let mut states: BTreeMap<&str, String> = BTreeMap::new();
    for entry in listed_models(now) {
        let identifier = entry["identifier"].as_str().or_else(|| entry["name"].as_str());
        let (Some(identifier), state) = (identifier, entry["state"].as_str().unwrap_or_default()) else {
            continue;
        };
        let state = if state.is_empty() { "not loaded".to_owned() } else { state.to_ascii_lowercase() };
        let version = entry["version"].as_str().map(|version| format!("{} ", plain(version))).unwrap_or_default();
        let list = states.entry(identifier).or_default();
        let comma = if list.is_empty() { "" } else { ", " };
        *list += &format!("{comma}{version}{state}");
    }
    states
}

fn memory<'s>(now: &'s Sample, key: &str) -> &'s [Value] {
    let all = now.page.as_ref().and_then(|page| page.memory[key].as_array());
    all.map(Vec::as_slice).unwrap_or_default()
}

fn regions(now: &Sample) -> Vec<Vec<String>> {
    let mut all: Vec<&Value> = memory(now, "regions").iter().collect();
    // Stale regions come first, because an operator looks for them.
    all.sort_by_key(|region| !region["is_stale"].as_bool().unwrap_or_default());
    let row = |region: &&Value| {
        let device = || format!("device {}", region["device_id"]);
        let holder = match region["session"].as_u64() {
            Some(0) | None => {
                region["owner"].as_str().filter(|owner| !owner.is_empty()).unwrap_or("operator").to_owned()
            }
            Some(session) => format!("session {session}"),
        };
        vec![
            cell(region["name"].as_str().unwrap_or_default()),
            region["key"].as_str().map_or_else(device, cell),
            size(region["byte_size"].as_u64().unwrap_or_default()),
            cell(&holder),
            region["in_flight"].to_string(),
            cell(region["state"].as_str().unwrap_or_default()),
        ]
    };
    all.iter().map(row).collect()
}

fn sessions(now: &Sample) -> Vec<Vec<String>> {
    let row = |session: &Value| {
        vec![
            session["session"].to_string(),
            cell(session["command"].as_str().unwrap_or_default()),
            session["pid"].to_string(),
            session["uid"].to_string(),
            session["leases"].to_string(),
            size(session["lease_bytes"].as_u64().unwrap_or_default()),
            session["in_flight"].to_string(),
        ]
    };
    memory(now, "sessions").iter().map(row).collect()
}

/// Why less is shown than there is.
fn hint(now: &Sample) -> Option<String> {
    let Some(page) = &now.page else {
        return Some(
            "no regions, sessions and states of models: the server's page is off (--ui) or has another port (--ui-port)"
                .to_owned(),
        );
    };
    page.visitor["why_no_calls"].as_str().map(plain)
}

/// A list, with as many of its rows and columns as there is room for.
fn section(lines: &mut Vec<String>, what: &str, heading: &[&str], rows: &[Vec<String>], room: Size) {
    if rows.is_empty() {
        return;
    }
    lines.push(String::new());
    let shown = &rows[..rows.len().min(room.rows)];
    let heading: Vec<String> = heading.iter().map(|&cell| cell.to_owned()).collect();
    let width = |column: usize| {
        shown.iter().chain([&heading]).filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths = fitted((0..heading.len()).map(|column| width(column).unwrap_or_default()).collect(), room.columns);
    for row in [&heading].into_iter().chain(shown) {
        let narrow = |(cell, &width): (&String, &usize)| format!("{:width$}", shortened(cell, width));
        let cells: Vec<String> = row.iter().zip(&widths).map(narrow).collect();
        lines.push(cells.join(GAP).trim_end().to_owned());
    }
    if shown.len() < rows.len() {
        lines.push(format!("… and {} more {what}", rows.len() - shown.len()));
    }
}

/// The widths of the columns that are shown. The widest become narrower first. Then the last ones are left out, because a part of a number would
/// mislead.
fn fitted(mut widths: Vec<usize>, columns: usize) -> Vec<usize> {
    let needed = |widths: &[usize]| widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1);
    while needed(&widths) > columns {
        let count = widths.len();
        match widths.iter_mut().max() {
            Some(widest) if *widest > COLUMN_MIN => *widest -= 1,
            _ if count > 1 => drop(widths.pop()),
            _ => break,
        }
    }
    widths
}

/// A cell in this many columns. Of a model's identifier the end is kept, because identifiers differ there.
fn shortened(cell: &str, width: usize) -> String {
    let length = cell.chars().count();
    if length <= width {
        return cell.to_owned();
    }
    let kept = width.saturating_sub(1);
    if cell.contains("::") {
        return format!("…{}", cell.chars().skip(length - kept).collect::<String>());
    }
    format!("{}…", cell.chars().take(kept).collect::<String>())
}

/// How much a number grew per second. `None` without an earlier sample; 0 if the counter is lower now, because it belongs to another process.
fn since(before: Option<&Sample>, now: &Sample, of: impl Fn(&Numbers) -> f64) -> Option<f64> {
    let before = before?;
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    Some(((of(&now.numbers) - of(&before.numbers)) / seconds.max(1e-9)).max(0.0))
}

fn whole(number: f64) -> u64 {
    number.max(0.0) as u64
}

fn number(value: f64) -> String {
    // The sum of no numbers is -0.
    let value = value + 0.0;
    if value >= 100.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn micros(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

fn cut(line: &str, columns: usize) -> String {
    match line.char_indices().nth(columns) {
        Some((end, _)) => line[..end].to_owned(),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests;
