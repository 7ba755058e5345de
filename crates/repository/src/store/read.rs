//! How does a directory become a model's source?

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nerite_config::{
    ConfigError, Entry, ModelConfig, VersionPolicy, check_agents, check_directory_name, deduce_backend, from_json,
    no_model_file, normalise, parse_text, validate, validate_tensors,
};
use nerite_request::setting::LoadOptions;

use super::bounded::read_bounded;
use super::fingerprint::{CONFIG_FILE, CONFIG_FOLDER};
use super::versions::{self, Folders};
use super::{Fingerprint, ModelDir, ModelSource, PollError, StoreOptions, Warning, protections, sent};
use crate::limits::CONFIG_BYTES_MAX;

/// The usual name of a model's file.
const MODEL_FILE: &str = "model.onnx";

/// Reads a model of a repository, with `json` in place of its configuration if given. If it `is_named`, its directory and its configuration may have
/// another name.
pub(super) fn from_repository(
    options: &StoreOptions,
    model: &str,
    path: PathBuf,
    json: Option<&str>,
    is_named: bool,
) -> Result<ModelSource, PollError> {
    source(options, (model, is_named), ModelDir::of_repository(path), json).map_err(|reason| unusable(model, reason))
}

/// Builds a model from a request's files alone.
pub(super) fn from_request(options: &StoreOptions, model: &str, load: &LoadOptions) -> Result<ModelSource, PollError> {
    let Some(json) = &load.config else {
        return Err(unusable(model, "Load parameter 'config' must be specified for model file override".to_owned()));
    };
    sent::write(&load.files)
        .and_then(|directory| source(options, (model, false), directory, Some(json)))
        .map_err(|reason| unusable(model, reason))
}

fn unusable(model: &str, reason: String) -> PollError {
    PollError::Unusable { model: model.to_owned(), reason }
}

fn source(
    options: &StoreOptions,
    (model, is_named): (&str, bool),
    directory: ModelDir,
    json: Option<&str>,
) -> Result<ModelSource, String> {
    let path = directory.path();
    let unread = |cause: io::Error| format!("failed to read directory {}: {cause}", path.display());
    // Computed before anything is read, so that a change during the reads causes a reload next time.
    let (fingerprint, file_states) = Fingerprint::of(path).map_err(unread)?;
    let folders = versions::scan(path).map_err(unread)?;
    let written = written_config(options, path, json)?;
    let config_given = written.is_some();
    let mut written = written.unwrap_or_default();
    if is_named {
        model.clone_into(&mut written.name);
    }
    let config = settle(options, model, path, &folders, written)?;
    if json.is_some() {
        let own = || {
            settle(options, model, path, &folders, written_config(options, path, None).ok()?.unwrap_or_default()).ok()
        };
        let own = if directory.is_made() { None } else { own() };
        protections::check(&config, own.as_ref(), model, options.allow_upload)?;
    }
    let fingerprint = fingerprint.with_config(&config);
    let policy = VersionPolicy::of(&config);
    let versions = policy.select(&folders.versions);
    let mut warnings = folders.warnings;
    if let VersionPolicy::Specific(wanted) = policy {
        let missing = wanted.into_iter().filter(|version| !versions.contains(version));
        warnings.extend(missing.map(|version| Warning::MissingVersion { model: model.to_owned(), version }));
    }
    Ok(ModelSource {
        model: model.to_owned(),
        // The store decides which models are in which directory.
        identifier: model.to_owned(),
        needs: Vec::new(),
        config: Arc::new(config),
        config_given,
        versions,
        fingerprint,
        file_states,
        overridden: json.is_some(),
        warnings,
        directory,
    })
}

/// The configuration as it was written, if there is one.
fn written_config(options: &StoreOptions, directory: &Path, json: Option<&str>) -> Result<Option<ModelConfig>, String> {
    if let Some(json) = json {
        return from_json(json).map(Some).map_err(spoken_config);
    }
    let named = (!options.config_name.is_empty())
        .then(|| directory.join(CONFIG_FOLDER).join(format!("{}.pbtxt", options.config_name)))
        .filter(|path| path.exists());
    let path = named.unwrap_or_else(|| directory.join(CONFIG_FILE));
    // `exists` would be false for a file in a folder that cannot be searched.
    let absent = fs::symlink_metadata(&path).is_err_and(|cause| cause.kind() == io::ErrorKind::NotFound);
    if absent && options.auto_complete {
        return Ok(None);
    }
    let text = read_bounded(&path, CONFIG_BYTES_MAX)?;
    parse_text(&path.display().to_string(), &text).map(Some).map_err(spoken_config)
}

/// Deduces the backend, fills in defaults, and checks what can be checked without the backend.
fn settle(
    options: &StoreOptions,
    model: &str,
    directory: &Path,
    folders: &Folders,
    config: ModelConfig,
) -> Result<ModelConfig, String> {
    // As in Triton, agents come before everything else: they may change the files.
    check_agents(&config, model).map_err(spoken_config)?;
    let entries = folders.first.as_ref().map(|first| entries(&directory.join(first))).transpose();
    let entries = entries.map_err(|cause| format!("failed to read directory {}: {cause}", directory.display()))?;
    let config = deduce_backend(config, model, entries.as_deref())
        .map_err(|refused| format!("{refused} {}", misplacement(model, directory, folders, entries.as_deref())))?;
    let config = normalise(config, model);
    validate(&config).map_err(spoken_config)?;
    // With auto-completion, inputs and outputs may still be missing. They are checked after it.
    if !options.auto_complete {
        validate_tensors(&config).map_err(spoken_config)?;
    }
    // As in Triton, faults of the configuration come first.
    check_directory_name(&config, model).map_err(spoken_config)?;
    Ok(config)
}

/// A sentence for a model whose backend cannot be deduced from its files, which says where they belong and how they are named.
fn misplacement(model: &str, directory: &Path, folders: &Folders, entries: Option<&[Entry]>) -> String {
    match (&folders.first, entries) {
        (Some(first), Some(entries)) if !folders.versions.is_empty() => {
            no_model_file(&format!("{model}/{first}"), entries)
        }
        _ => format!("'{model}' has no version directory: a model lies at {model}/1/{}", model_file(directory)),
    }
}

/// The warning about a repository that has files and no model.
pub(super) fn no_model(repository: PathBuf) -> Warning {
    let file = model_file(&repository);
    Warning::NoModel { repository, file }
}

/// The first file of a directory that has a model file's name, or the usual name.
fn model_file(directory: &Path) -> String {
    let entries = entries(directory).unwrap_or_default();
    let files = entries.into_iter().filter(|entry| !entry.is_dir && entry.name.starts_with("model."));
    files.map(|entry| entry.name).min().unwrap_or_else(|| MODEL_FILE.to_owned())
}

/// The entries of a folder.
fn entries(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let is_dir = super::is_there(&entry.path());
        entries.push(Entry { name: entry.file_name().to_string_lossy().into_owned(), is_dir });
    }
    Ok(entries)
}

fn spoken_config(refused: ConfigError) -> String {
    refused.to_string()
}
