//! How are the processes of one model version started in their sandbox?

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use nerite_request::Status;

use crate::directory::LockedDirectory;
use crate::groups::{self, NoGroup};
use crate::policy::{Policy, Processes};
use crate::program::{confine, try_out};
use crate::settings;

/// The beginning of the names of directories for models' temporary files.
const PREFIX: &str = "nerite-sandbox-";
/// How long the end of the server waits until the temporary files of models are gone.
const END_MAX: Duration = Duration::from_secs(10);
/// Variables that name a place for temporary files and caches.
const TEMPORARY: [&str; 5] = ["TMPDIR", "TEMP", "TMP", "HOME", "XDG_CACHE_HOME"];

/// The sandbox of one model version. Its processes share a directory for temporary files, which is removed with it.
#[derive(Debug)]
pub struct Sandbox {
    model: String,
    backend: String,
    policy: Policy,
    /// The models that its models may load and unload.
    loadable: Vec<String>,
    temporary: LockedDirectory,
    /// Why its processes have no control group, if the policy asks for one.
    no_group: Option<NoGroup>,
}

impl Sandbox {
    /// The sandbox that the operator's settings of a backend and the parameters of a model ask for; `None` if neither does. `places` may be read; the
    /// first of them is the model's directory.
    pub fn read<'a>(
        backend: &str,
        settings: &BTreeMap<String, String>,
        model: &str,
        parameter: impl Fn(&str) -> Option<&'a str>,
        places: &[&Path],
    ) -> Result<Option<Sandbox>, Status> {
        let model_dir = places.first().copied().unwrap_or(Path::new("/"));
        let Some(mut policy) = settings::read(backend, settings, model, parameter, model_dir)? else { return Ok(None) };
        let no_group = match groups::base(&policy) {
            Ok(group) => {
                policy.group = group;
                None
            }
            Err(why) => Some(why),
        };
        policy.read.extend(places.iter().map(|place| absolute(place)));
        let below = std::env::temp_dir();
        LockedDirectory::sweep(PREFIX, &below);
        let temporary = LockedDirectory::make(PREFIX, &below).map_err(|error| {
            Status::internal(format!(
                "model '{model}' cannot have a directory for its temporary files in {} ({error}); TMPDIR names another",
                below.display()
            ))
        })?;
        policy.write.push(temporary.path().to_owned());
        let path = temporary.path().as_os_str();
        policy.variables.extend(TEMPORARY.map(|name| (OsString::from(name), Some(path.to_owned()))));
        let loadable = settings::loadable_models(settings);
        Ok(Some(Sandbox {
            model: model.to_owned(),
            backend: backend.to_owned(),
            policy,
            loadable,
            temporary,
            no_group,
        }))
    }

    /// As [`Sandbox::read`], and checks that the kernel can enforce it. Its temporary files are removed at [`end`] at the latest.
    pub fn open<'a>(
        backend: &str,
        settings: &BTreeMap<String, String>,
        model: &str,
        parameter: impl Fn(&str) -> Option<&'a str>,
        places: &[&Path],
    ) -> Result<Option<Arc<Sandbox>>, Status> {
        let Some(sandbox) = Sandbox::read(backend, settings, model, parameter, places)? else { return Ok(None) };
        sandbox.check()?;
        let sandbox = Arc::new(sandbox);
        let mut all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&sandbox));
        Ok(Some(sandbox))
    }

    /// The models that its processes may load and unload.
    pub fn loadable_models(&self) -> &[String] {
        &self.loadable
    }

    /// Whether the operator or the model asks for a sandbox.
    pub fn is_requested<'a>(
        backend: &str,
        settings: &BTreeMap<String, String>,
        model: &str,
        parameter: impl Fn(&str) -> Option<&'a str>,
        model_dir: &Path,
    ) -> Result<bool, Status> {
        Ok(settings::read(backend, settings, model, parameter, model_dir)?.is_some())
    }

    /// The command that starts `program` in the sandbox, without arguments. `arg0` is what `ps` shows in place of the program's path. It may also read `places`, and write in `own`, which the server made.
    pub fn command(
        &self,
        program: &OsStr,
        arg0: Option<&OsStr>,
        variables: &[(&str, Option<OsString>)],
        places: &[PathBuf],
        own: Option<&Path>,
    ) -> Command {
        let mut policy = self.policy.clone();
        policy.arg0 = arg0.map(OsStr::to_owned);
        policy.variables.extend(variables.iter().map(|(name, value)| (OsString::from(name), value.clone())));
        policy.read.extend(places.iter().map(|place| absolute(place)));
        policy.write.extend(own.map(absolute));
        self.sweep_groups();
        let mut command = confine(&policy);
        command.arg(program);
        command
    }

    /// Whether a process in it may start no other.
    pub fn forbids_processes(&self) -> bool {
        self.policy.processes == Processes::Itself
    }

    /// Confines a process that does nothing, and logs the restrictions that are in force. An error says what the kernel lacks, and the cure.
    pub fn check(&self) -> Result<(), Status> {
        let refused = |why: &dyn Display| {
            Status::unsupported(format!(
                "model '{}' cannot be confined as --backend-config={},sandbox or its parameter SANDBOX asks: {why}; or set sandbox=best-effort, \
                 which confines it by what there is",
                self.model, self.backend
            ))
        };
        match &self.no_group {
            Some(why) if self.policy.group_memory_bytes.is_some() && !self.policy.is_best_effort => {
                return Err(refused(&format_args!("sandbox-group-memory needs a control group, and {why}")));
            }
            Some(why) => log::info!("model '{}' has resource limits and no control group: {why}", self.model),
            None => {}
        }
        let tried = try_out(&self.policy);
        self.sweep_groups();
        let (held, missing) = tried.map_err(|why| refused(&why))?;
        log::info!("model '{}' is confined: {held}", self.model);
        if !missing.is_empty() {
            log::warn!(
                "model '{}' is not confined by all that its sandbox asks for, but without: {missing}",
                self.model
            );
        }
        Ok(())
    }
}

impl Sandbox {
    /// Removes the control groups of processes that have ended.
    fn sweep_groups(&self) {
        if let Some(base) = &self.policy.group {
            groups::sweep(base);
        }
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.sweep_groups();
    }
}

/// The restrictions that would be in force on this host for a sandbox without settings. An error says what the kernel lacks, and the cure.
pub fn probe() -> Result<String, String> {
    try_out(&Policy::default()).map(|(held, _)| held)
}

/// All sandboxes of this process that are in use.
static OPEN: Mutex<Vec<Weak<Sandbox>>> = Mutex::new(Vec::new());

/// Removes the temporary files of models, because the server ends. Drop does not do this, because threads hold the models until the process ends.
pub fn end() {
    let all = std::mem::take(&mut *OPEN.lock().unwrap_or_else(PoisonError::into_inner));
    let all: Vec<_> = all.iter().filter_map(Weak::upgrade).collect();
    for sandbox in &all {
        sandbox.sweep_groups();
    }
    LockedDirectory::remove_all(all.iter().map(|sandbox| &sandbox.temporary), END_MAX);
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
