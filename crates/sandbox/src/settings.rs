//! Which sandbox do the operator and a model's author ask for?
//!
//! Both can set the same things: the operator by settings of the backend (`sandbox-memory`), the author by parameters of the model
//! (`SANDBOX_MEMORY`). If the operator sets a sandbox, the author may restrict it further, but not extend it. Otherwise the author may choose one.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use nerite_request::Status;

use crate::policy::{Named, Policy, Processes};

/// The setting that confines the processes of all models of a backend.
pub const SETTING: &str = "sandbox";

/// All settings of a sandbox, as a backend has them.
pub const KEYS: [&str; 9] = [SETTING, NETWORK, MEMORY, GROUP_MEMORY, PROCESSES, FILE_SIZE, READ, WRITE, MODELS];

const NETWORK: &str = "sandbox-network";
const MEMORY: &str = "sandbox-memory";
const GROUP_MEMORY: &str = "sandbox-group-memory";
const PROCESSES: &str = "sandbox-processes";
const FILE_SIZE: &str = "sandbox-file-size";
const READ: &str = "sandbox-read";
const WRITE: &str = "sandbox-write";
/// Only the operator sets this one. No parameter of a model has its meaning.
const MODELS: &str = "sandbox-models";

/// The placeholder for the model's directory in its parameters.
const MODEL_DIRECTORY: &str = "$$TRITON_MODEL_DIRECTORY";

/// Whether there is a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Choice {
    #[default]
    Off,
    On,
    BestEffort,
}

impl Choice {
    const ALL: [Choice; 3] = [Choice::Off, Choice::On, Choice::BestEffort];

    /// How it is written.
    fn word(self) -> &'static str {
        match self {
            Choice::Off => "off",
            Choice::On => "on",
            Choice::BestEffort => "best-effort",
        }
    }
}

/// The sandbox that one of the two asks for.
#[derive(Debug, Default)]
struct Wishes {
    choice: Option<Choice>,
    network: Option<bool>,
    memory_bytes: Option<u64>,
    group_memory_bytes: Option<u64>,
    processes: Option<Processes>,
    file_bytes: Option<u64>,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
}

/// The policy that follows from the settings of a backend and the parameters of a model; `None` if neither asks for one.
pub(crate) fn read<'a>(
    backend: &str,
    settings: &BTreeMap<String, String>,
    model: &str,
    parameter: impl Fn(&str) -> Option<&'a str>,
    model_dir: &Path,
) -> Result<Option<Policy>, Status> {
    let of_operator = |key: &str| settings.get(key).cloned();
    let operator = Wishes::read(of_operator, |key| format!("--backend-config={backend},{key}"))?;
    let directory = model_dir.display().to_string();
    let of_model = |key: &str| parameter(&parameter_of(key)).map(|value| value.replace(MODEL_DIRECTORY, &directory));
    let author = Wishes::read(of_model, |key| format!("parameter {} of model '{model}'", parameter_of(key)))?;
    join(&operator, author, model)
}

/// A place that the operator's settings of a backend allow to its models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedPlace {
    /// The setting that names it.
    pub key: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// Whether models may also write there.
    pub is_writable: bool,
    /// Whether models are confined by these settings. Otherwise the place means nothing.
    pub is_used: bool,
}

/// The places that the operator's settings of a backend name, also those that are no whole paths, which no model could be loaded with.
pub fn allowed_places(settings: &BTreeMap<String, String>) -> Vec<AllowedPlace> {
    let value = |key: &str| settings.get(key).map_or("", |text| text.trim());
    let is_used = [Choice::On, Choice::BestEffort].iter().any(|choice| choice.word() == value(SETTING));
    let of = |(key, is_writable): (&'static str, bool)| {
        let place = move |path| AllowedPlace { key, path, is_writable, is_used };
        split(value(key)).into_iter().map(place)
    };
    [(READ, false), (WRITE, true)].into_iter().flat_map(of).collect()
}

/// The models that the confined models of a backend may load and unload.
pub(crate) fn loadable_models(settings: &BTreeMap<String, String>) -> Vec<String> {
    let names = settings.get(MODELS).map_or("", String::as_str).split(',');
    names.map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The paths of a list with `:` between them.
fn split(text: &str) -> Vec<PathBuf> {
    text.split(':').filter(|path| !path.is_empty()).map(PathBuf::from).collect()
}

/// The model's parameter for the same thing as a setting.
fn parameter_of(key: &str) -> String {
    key.to_ascii_uppercase().replace('-', "_")
}

fn join(operator: &Wishes, author: Wishes, model: &str) -> Result<Option<Policy>, Status> {
    let ceiling = operator.choice.unwrap_or_default();
    let choice = match (ceiling, author.choice) {
        (Choice::Off, requested) => requested.unwrap_or_default(),
        (ceiling, None | Some(Choice::BestEffort)) => ceiling,
        (_, Some(Choice::On)) => Choice::On,
        (ceiling, Some(Choice::Off)) => return Err(loosens(model, SETTING, "off", ceiling.word())),
    };
    if choice == Choice::Off {
        return Ok(None);
    }
    let bounded = ceiling != Choice::Off;
    let has_network = author.network.unwrap_or(operator.network.unwrap_or(false));
    if bounded && has_network && !operator.network.unwrap_or(false) {
        return Err(loosens(model, NETWORK, "on", "off"));
    }
    let allowed = operator.processes.unwrap_or_default();
    let processes = author.processes.unwrap_or(allowed);
    if bounded && rank(processes) > rank(allowed) {
        return Err(loosens(model, PROCESSES, words(processes), words(allowed)));
    }
    let named = [(READ, author.read, &operator.read, false), (WRITE, author.write, &operator.write, true)];
    let named = named.into_iter().map(|(key, paths, roots, is_writable)| {
        let below = |path: PathBuf| below(model, key, &path, bounded.then_some(roots.as_slice()));
        let paths = paths.into_iter().map(below);
        paths.map(|path| Ok(Named { path: path?, is_writable })).collect::<Result<Vec<_>, Status>>()
    });
    Ok(Some(Policy {
        is_best_effort: choice == Choice::BestEffort,
        has_network,
        memory_bytes: least(model, MEMORY, author.memory_bytes, operator.memory_bytes, bounded)?,
        group_memory_bytes: least(
            model,
            GROUP_MEMORY,
            author.group_memory_bytes,
            operator.group_memory_bytes,
            bounded,
        )?,
        file_bytes: least(model, FILE_SIZE, author.file_bytes, operator.file_bytes, bounded)?,
        processes,
        named: named.collect::<Result<Vec<_>, Status>>()?.concat(),
        ..Policy::default()
    }))
}

fn least(
    model: &str,
    key: &str,
    author: Option<u64>,
    operator: Option<u64>,
    bounded: bool,
) -> Result<Option<u64>, Status> {
    match (author, operator) {
        (Some(requested), Some(allowed)) if bounded && requested > allowed => {
            Err(loosens(model, key, requested, allowed))
        }
        (requested, allowed) => Ok(requested.or(allowed)),
    }
}

/// The path that a model names, without links, if it is below a path that the operator allows.
fn below(model: &str, key: &str, path: &Path, roots: Option<&[PathBuf]>) -> Result<PathBuf, Status> {
    let parameter = parameter_of(key);
    let real = path.canonicalize().map_err(|error| {
        Status::invalid(format!(
            "parameter {parameter} of model '{model}' names '{}', which cannot be found: {error}",
            path.display()
        ))
    })?;
    let is_below = |root: &PathBuf| root.canonicalize().is_ok_and(|root| real.starts_with(root));
    match roots {
        Some(roots) if !roots.iter().any(is_below) => Err(Status::invalid(format!(
            "parameter {parameter} of model '{model}' names '{}', which lies below none of the places that --backend-config's {key} allows \
             ({}); add it there, or leave it out",
            real.display(),
            if roots.is_empty() { "none".to_owned() } else { joined(roots) }
        ))),
        _ => Ok(real),
    }
}

fn joined(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":")
}

fn loosens(model: &str, key: &str, requested: impl Display, allowed: impl Display) -> Status {
    let parameter = parameter_of(key);
    Status::invalid(format!(
        "parameter {parameter} of model '{model}' is '{requested}', and the operator's {key} is '{allowed}': a model may tighten its sandbox, never \
         loosen it"
    ))
}

fn rank(processes: Processes) -> u64 {
    match processes {
        Processes::Itself => 0,
        Processes::AtMost(count) => count,
        Processes::Any => u64::MAX,
    }
}

fn words(processes: Processes) -> String {
    match processes {
        Processes::Any => "any".to_owned(),
        counted => rank(counted).to_string(),
    }
}

impl Wishes {
    /// `value` gives the text of a key; `whose` names it in errors.
    fn read(value: impl Fn(&str) -> Option<String>, whose: impl Fn(&str) -> String) -> Result<Wishes, Status> {
        let value = |key: &str| value(key).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let refused = |key: &str, text: &str, allowed: &str| {
            Status::invalid(format!("{} is '{text}'; it is {allowed}", whose(key)))
        };
        let number = |key: &str| {
            let read = |text: String| text.parse().map_err(|_| refused(key, &text, "a number of bytes"));
            value(key).map(read).transpose()
        };
        let choice = value(SETTING).map(|text| {
            let named = Choice::ALL.into_iter().find(|choice| choice.word() == text);
            named.ok_or_else(|| refused(SETTING, &text, "'on', 'best-effort' or 'off'"))
        });
        let network = value(NETWORK).map(|text| match text.as_str() {
            "on" => Ok(true),
            "off" => Ok(false),
            _ => Err(refused(NETWORK, &text, "'on' or 'off'")),
        });
        let processes = value(PROCESSES).map(|text| match (text.as_str(), text.parse()) {
            ("any", _) => Ok(Processes::Any),
            (_, Ok(0)) => Ok(Processes::Itself),
            (_, Ok(count)) => Ok(Processes::AtMost(count)),
            _ => Err(refused(PROCESSES, &text, "a number, 0 for no other process, or 'any'")),
        });
        let paths = |key: &str| {
            let text = value(key).unwrap_or_default();
            let paths = split(&text);
            match paths.iter().find(|path| !path.is_absolute()) {
                Some(_) => Err(refused(key, &text, "a list of whole paths, with ':' between them")),
                None => Ok(paths),
            }
        };
        Ok(Wishes {
            choice: choice.transpose()?,
            network: network.transpose()?,
            memory_bytes: number(MEMORY)?,
            group_memory_bytes: number(GROUP_MEMORY)?,
            processes: processes.transpose()?,
            file_bytes: number(FILE_SIZE)?,
            read: paths(READ)?,
            write: paths(WRITE)?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn found(settings: &str, parameters: &str) -> Result<Option<Policy>, String> {
        let pairs = |text: &str| -> BTreeMap<String, String> {
            let pairs = text.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
        };
        let parameters = pairs(parameters);
        let parameter = |key: &str| parameters.get(key).map(String::as_str);
        read("python", &pairs(settings), "m", parameter, Path::new("/usr")).map_err(|status| status.message)
    }

    #[track_caller]
    fn check(settings: &str, parameters: &str, expect: Option<Policy>) {
        assert_eq!(found(settings, parameters).unwrap(), expect, "{settings} / {parameters}");
    }

    #[track_caller]
    fn refuse(settings: &str, parameters: &str, text: &str) {
        let message = found(settings, parameters).unwrap_err();
        assert!(message.contains(text), "{message}");
    }

    #[test]
    fn nothing_is_confined_unless_somebody_wants_it() {
        check("", "", None);
        check("sandbox=off sandbox-memory=5", "SANDBOX_MEMORY=4", None);
        check("sandbox=on", "", Some(Policy::default()));
        check("", "SANDBOX=on", Some(Policy::default()));
        check("sandbox=off", "SANDBOX=on", Some(Policy::default()));
        check("sandbox=best-effort", "", Some(Policy { is_best_effort: true, ..Policy::default() }));
    }

    #[test]
    fn a_model_tightens() {
        let requested = Policy { memory_bytes: Some(4), processes: Processes::AtMost(2), ..Policy::default() };
        check(
            "sandbox=on sandbox-memory=5 sandbox-processes=3",
            "SANDBOX_MEMORY=4 SANDBOX_PROCESSES=2",
            Some(requested.clone()),
        );
        check("sandbox=on sandbox-processes=any", "SANDBOX_MEMORY=4 SANDBOX_PROCESSES=2", Some(requested));
        check("sandbox=on sandbox-network=on", "SANDBOX_NETWORK=off", Some(Policy::default()));
        let together = Policy { group_memory_bytes: Some(4), ..Policy::default() };
        check("sandbox=on sandbox-group-memory=4", "", Some(together));
        check("sandbox=best-effort", "SANDBOX=on", Some(Policy::default()));
        check("sandbox=on", "SANDBOX=best-effort", Some(Policy::default()));
        let chosen = Policy { has_network: true, processes: Processes::Any, file_bytes: Some(9), ..Policy::default() };
        check(
            "sandbox-network=off",
            "SANDBOX=on SANDBOX_NETWORK=on SANDBOX_PROCESSES=any SANDBOX_FILE_SIZE=9",
            Some(chosen),
        );
    }

    #[test]
    fn a_model_never_loosens() {
        refuse("sandbox=on", "SANDBOX=off", "SANDBOX of model 'm' is 'off', and the operator's sandbox is 'on'");
        refuse(
            "sandbox=best-effort",
            "SANDBOX=off",
            "the operator's sandbox is 'best-effort': a model may tighten its sandbox",
        );
        refuse("sandbox=on", "SANDBOX_NETWORK=on", "the operator's sandbox-network is 'off'");
        refuse("sandbox=on sandbox-memory=5", "SANDBOX_MEMORY=6", "is '6', and the operator's sandbox-memory is '5'");
        refuse(
            "sandbox=on sandbox-group-memory=5",
            "SANDBOX_GROUP_MEMORY=6",
            "is '6', and the operator's sandbox-group-memory is '5'",
        );
        refuse("sandbox=on", "SANDBOX_PROCESSES=1", "is '1', and the operator's sandbox-processes is '0'");
        refuse("sandbox=on sandbox-processes=9", "SANDBOX_PROCESSES=any", "is 'any', and the operator's");
    }

    #[test]
    fn a_model_names_places_below_those_that_the_operator_allows() {
        let named = |path: &str, is_writable| Policy {
            named: vec![Named { path: Path::new(path).canonicalize().unwrap(), is_writable }],
            ..Policy::default()
        };
        check(
            "sandbox=on sandbox-write=/usr",
            "SANDBOX_WRITE=$$TRITON_MODEL_DIRECTORY/lib",
            Some(named("/usr/lib", true)),
        );
        check("sandbox=on sandbox-read=/etc:/usr", "SANDBOX_READ=/usr/", Some(named("/usr", false)));
        check("", "SANDBOX=on SANDBOX_READ=/usr", Some(named("/usr", false)));
        check("sandbox=on sandbox-write=/usr", "", Some(Policy::default()));
        refuse("sandbox=on sandbox-read=/usr", "SANDBOX_WRITE=/usr/lib", "sandbox-write allows (none)");
        refuse("sandbox=on sandbox-read=/usr", "SANDBOX_READ=/usr/../etc", "names '/etc', which lies below none");
        refuse("sandbox=on sandbox-read=/us", "SANDBOX_READ=/usr", "allows (/us)");
        refuse("sandbox=on sandbox-read=/", "SANDBOX_READ=/no/such", "which cannot be found");
    }

    #[test]
    fn the_places_of_the_operator_are_listed_whether_they_are_used_or_not() {
        let places = |pairs: &[(&str, &str)]| -> Vec<String> {
            let settings = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let shown = |place: AllowedPlace| {
                format!("{} {} {} {}", place.key, place.path.display(), place.is_writable, place.is_used)
            };
            allowed_places(&settings).into_iter().map(shown).collect()
        };
        let both = [("sandbox", "on"), ("sandbox-write", "tmp"), ("sandbox-read", " /a::/b ")];
        let expect = ["sandbox-read /a false true", "sandbox-read /b false true", "sandbox-write tmp true true"];
        assert_eq!(places(&both), expect);
        assert_eq!(places(&both[2..]), ["sandbox-read /a false false", "sandbox-read /b false false"]);
        assert_eq!(places(&[("sandbox", "best-effort"), ("sandbox-read", "/a")]), ["sandbox-read /a false true"]);
    }

    #[test]
    fn a_value_that_means_nothing_is_refused_by_name() {
        refuse("sandbox=true", "", "--backend-config=python,sandbox is 'true'; it is 'on', 'best-effort' or 'off'");
        refuse("sandbox-network=1", "", "--backend-config=python,sandbox-network is '1'; it is 'on' or 'off'");
        refuse("sandbox-memory=1G", "", "sandbox-memory is '1G'; it is a number of bytes");
        refuse("", "SANDBOX_PROCESSES=-1", "parameter SANDBOX_PROCESSES of model 'm' is '-1'; it is a number, 0 for");
        refuse("sandbox-write=tmp", "", "sandbox-write is 'tmp'; it is a list of whole paths");
    }
}
