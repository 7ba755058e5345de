//! How is a script of events read?
//!
//! A test is a script. Each of its lines is an event and, after `->`, the expected result.
//!
//! ```text
//! load m 1,2b shared=c needs=x,y part sent       versions with a letter each for their files (a), the shared files' letter (a)
//! load m 1 served=b      resized m b             other instances, or other served versions; all kept generations have them now
//! ok #1 2     fail #1 2                          a version of operation 1 was loaded, or not
//! unload m    unload m dependents    stop        drained m:2#1
//! index       index ready    ask m    ask m 2    missing    why m    vanished
//! load m 1 anew    misfits ens                   loads although nothing changed; `ens` no longer fits its parts
//! unreadable m                                   the directory of `m` cannot be read
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};

use super::super::*;
use crate::store::{Facts, Listing};

/// Carries out all lines. The repositories have one directory each for `ens`, `m`, `other` and `part`, and two for `twin`.
#[track_caller]
pub fn check(script: &str) {
    let mut lifecycle = Lifecycle::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (event, expect) = line.split_once("->").unwrap_or_else(|| panic!("no answer: {line}"));
        let words: Vec<&str> = event.split_whitespace().collect();
        let orders = happen(&mut lifecycle, &words);
        assert_eq!(orders.trim(), expect.trim(), "at: {line}\nin: {lifecycle:#?}");
    }
}

/// Carries out one event. Returns its result as text.
pub fn happen(lifecycle: &mut Lifecycle, words: &[&str]) -> String {
    match words {
        ["load", model, versions, rest @ ..] => {
            let step = lifecycle.load_requested(model, facts(versions, rest), !rest.contains(&"part"));
            match step {
                Ok(LoadStep::Settled { retire, resize }) => {
                    format!("settled{}{}", listed("; retire", &retire), listed("; resize", &resize))
                }
                Ok(LoadStep::Load(plan)) => {
                    format!("#{} loads {:?}{}", plan.operation.0, plan.versions, listed("; resize", &plan.resize))
                }
                Err(why) => why,
            }
        }
        ["ok", operation, version] => ended(lifecycle.loaded(number(operation), parsed(version), Ok(()))),
        ["fail", operation, version] => {
            let broken = Err(Status::internal("broken"));
            ended(lifecycle.loaded(number(operation), parsed(version), broken))
        }
        ["resized", model, served] => {
            lifecycle.resized(model, letter(served));
            String::new()
        }
        ["unload", model, rest @ ..] => {
            let gone = lifecycle.unload_requested(model, rest.contains(&"dependents"));
            let users = if gone.users.is_empty() { String::new() } else { format!("; users {}", gone.users.join(" ")) };
            listed("retire", &gone.retire) + &users
        }
        ["misfits", model] => listed("retire", &lifecycle.take_misfit_out(model, "it does not fit")),
        ["stop"] => listed("retire", &lifecycle.unload_all().retire),
        ["drained", generation] => {
            lifecycle.drained(&generation_of(generation));
            String::new()
        }
        ["index", rest @ ..] => index(lifecycle, rest.contains(&"ready")),
        ["ask", model, rest @ ..] => match lifecycle.look_up(model, rest.first().map(|version| parsed(version))) {
            Ok(generation) => shown(&generation),
            Err(status) => status_text(&status),
        },
        ["missing"] => {
            let missing = |Missing { model, version, reason }| match version {
                Some(version) => format!("{model}:{version} ({reason})"),
                None => format!("{model} ({reason})"),
            };
            lifecycle.missing().map(missing).collect::<Vec<_>>().join(", ")
        }
        ["unreadable", model] => {
            lifecycle.note_failure(model, "its configuration is broken");
            String::new()
        }
        ["outdated"] => {
            let failed = lifecycle.failed_reloads().map(|model| &**model);
            failed.collect::<Vec<_>>().join(", ")
        }
        ["why", model] => lifecycle.failure(model).unwrap_or_default().to_owned(),
        ["vanished"] => lifecycle.vanished(&listing()).into_iter().collect::<Vec<_>>().join(", "),
        _ => panic!("no such event: {words:?}"),
    }
}

fn listing() -> Listing {
    let models = ["ens", "m", "other", "part", "twin"];
    Listing::of(models.map(|model| (model, "/r")).into_iter().chain([("twin", "/s")]))
}

fn facts(versions: &str, rest: &[&str]) -> Facts {
    let value = |key: &str| rest.iter().find_map(|word| word.strip_prefix(key));
    let mut facts = Facts { has_sent_files: rest.contains(&"sent"), anew: rest.contains(&"anew"), ..Facts::default() };
    facts.fingerprint.shared = letter(value("shared=").unwrap_or("a"));
    facts.fingerprint.served = letter(value("served=").unwrap_or("a"));
    facts.fingerprint.config = letter(value("config=").unwrap_or("a"));
    facts.completed = value("completed=").map_or_else(Vec::new, |versions| versions.split(',').map(parsed).collect());
    facts.needs = value("needs=").map_or_else(Vec::new, |needs| needs.split(',').map(str::to_owned).collect());
    for word in versions.split(',').filter(|word| *word != "-") {
        let digits = word.trim_end_matches(char::is_alphabetic);
        let own = if digits == word { "a" } else { &word[digits.len()..] };
        facts.versions.push(parsed(digits));
        facts.fingerprint.versions.insert(parsed(digits), letter(own));
    }
    facts
}

fn letter(word: &str) -> u64 {
    let mut hash = DefaultHasher::new();
    word.hash(&mut hash);
    hash.finish()
}

fn parsed(word: &str) -> i64 {
    word.parse().expect("the script writes numbers")
}

fn number(word: &str) -> Operation {
    Operation(word.trim_start_matches('#').parse().expect("the script writes numbers"))
}

fn generation_of(word: &str) -> Generation {
    let (model, rest) = word.split_once(':').expect("model:version#operation");
    let (version, operation) = rest.split_once('#').expect("model:version#operation");
    Generation { model: model.into(), version: parsed(version), operation: number(operation) }
}

fn shown(generation: &Generation) -> String {
    format!("{}:{}#{}", generation.model, generation.version, generation.operation.0)
}

fn listed(word: &str, generations: &[Generation]) -> String {
    if generations.is_empty() {
        return String::new();
    }
    let shown: Vec<String> = generations.iter().map(shown).collect();
    format!("{word} {}", shown.join(" "))
}

/// The text of a status, with visible line feeds: the one at the end of a failed load is tested too.
pub fn status_text(status: &Status) -> String {
    phrase::coded(status).replace('\n', "\\n")
}

fn ended(outcome: Option<LoadOutcome>) -> String {
    let Some(outcome) = outcome else { return "wait".to_owned() };
    let answer = outcome.answer.map_or_else(|status| status_text(&status), |()| "yes".to_owned());
    format!("{answer}{}{}", listed("; publish", &outcome.publish), listed("; retire", &outcome.retire))
}

/// The entries with a version or a reason; `the_index_lists_directories_by_name` looks at the others. Of the model in two repositories, nothing.
fn index(lifecycle: &Lifecycle, ready_only: bool) -> String {
    let mut lines = Vec::new();
    for entry in lifecycle.index(&listing(), ready_only) {
        let version = match entry.version {
            Some(version) => format!(":{version}"),
            None if entry.reason.is_empty() || entry.name == "twin" => continue,
            None => String::new(),
        };
        let reason = if entry.reason.is_empty() { String::new() } else { format!(" ({})", entry.reason) };
        lines.push(format!("{}{version} {}{reason}", entry.name, entry.state));
    }
    lines.join(", ")
}
