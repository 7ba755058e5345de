//! Which code runs in a model's process before the model?
//!
//! The code of `python/nerite/model`. Its sources are built into the server, so the user's interpreter needs no package of this project.

use std::sync::OnceLock;

use nerite_process::packets::Greeting;

/// The program of the interpreter: it reads the modules from the socket and starts the main one.
pub(crate) const LAUNCHER: &str = include_str!("../../../python/nerite/model/launch.py");

/// One of the modules: its name, which no package of the user has, and its source.
macro_rules! part {
    ($name:literal) => {
        (concat!("nerite_model.", $name), include_str!(concat!("../../../python/nerite/model/", $name, ".py")))
    };
}

/// The modules that the server sends, by name.
const MODULES: &[(&str, &str)] = &[
    ("nerite_model", include_str!("../../../python/nerite/model/__init__.py")),
    part!("answer"),
    part!("arguments"),
    part!("batch"),
    part!("calls"),
    part!("channel"),
    part!("config"),
    part!("cuda"),
    part!("debugger"),
    part!("decoupled"),
    part!("dlpack"),
    part!("errors"),
    part!("imports"),
    part!("loading"),
    part!("logger"),
    part!("loop"),
    part!("memory"),
    part!("metrics"),
    part!("native"),
    part!("nested"),
    part!("packed"),
    part!("packets"),
    part!("prepared"),
    part!("readiness"),
    part!("requests"),
    part!("stub"),
    part!("template"),
    part!("tensors"),
    part!("title"),
    part!("unmapping"),
    part!("utils"),
    part!("waiting"),
    part!("workers"),
];

/// The module that runs a model in a terminal. A server does not send it.
pub(crate) const TRIAL: (&str, &str) = part!("trial");

/// The main module.
const MAIN: &str = "nerite_model.stub";

/// The modules by their names.
pub(crate) fn sources() -> impl Iterator<Item = (&'static str, &'static str)> {
    MODULES.iter().copied()
}

/// The text of the first packet.
pub(crate) fn modules() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| Greeting { modules: MODULES.iter().copied().collect(), main: MAIN }.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_module_travels() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/nerite/model");
        let files = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<_> = files.filter_map(|name| name.strip_suffix(".py").map(str::to_owned)).collect();
        let mut sent: Vec<_> =
            MODULES.iter().map(|(name, _)| name.trim_start_matches("nerite_model.").to_owned()).collect();
        sent.extend(["launch".to_owned(), "__init__".to_owned(), "trial".to_owned()]);
        sent.retain(|name| name != "nerite_model");
        files.sort();
        sent.sort();
        assert_eq!(files, sent);
    }
}
