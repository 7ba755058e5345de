//! How does a model load and unload other models?

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nerite_backend::Models;
use nerite_config::to_json;
use nerite_memory::{Buffer, Reason};
use nerite_request::Status;
use nerite_request::setting::{FileContent, LoadOptions};

use super::Calls;
use crate::packets::{CallFailed, ConfigAnswer, Done, SegmentOffset};
use crate::shares::Maps;

/// A file in memory that is shared with the process.
struct SharedFile(Buffer);

impl std::fmt::Debug for SharedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedFile({} bytes)", self.0.len())
    }
}

impl FileContent for SharedFile {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let own = self.0.try_private(Reason::Model).map_err(|_| io::ErrorKind::OutOfMemory)?;
        out.write_all(own.private_bytes().unwrap_or_default())
    }
}

impl Calls {
    /// Loads a model.
    pub(crate) fn load(
        self: &Arc<Calls>,
        call: u64,
        model: &str,
        config: &str,
        files: Vec<(&str, SegmentOffset, usize)>,
    ) {
        let found = files.into_iter().map(|(path, location, bytes)| {
            let content = if bytes == 0 { Buffer::empty() } else { self.bytes_at(location, bytes)? };
            let content: Arc<dyn FileContent> = Arc::new(SharedFile(content));
            Some((path.to_owned(), content))
        });
        let Some(files) = found.collect() else {
            return self.answer(CallFailed { call, why: "a file lies nowhere" }, Maps::default());
        };
        let config = (!config.is_empty()).then(|| config.to_owned());
        let calls = Arc::clone(self);
        let done = move |outcome| calls.done(call, outcome);
        let options = LoadOptions { config, files, ..LoadOptions::default() };
        self.models().load(model, options, Box::new(done));
    }

    /// Unloads a model.
    pub(crate) fn unload(self: &Arc<Calls>, call: u64, model: &str, dependents: bool) {
        let calls = Arc::clone(self);
        let done = move |outcome| calls.done(call, outcome);
        self.models().unload(model, dependents, Box::new(done));
    }

    /// Answers with the configuration of a version of a model.
    pub(crate) fn answer_config(&self, call: u64, model: &str, version: Option<i64>) {
        let config = self.process.callees.models.config(model, version).map(|config| to_json(&config));
        let config = config.as_ref().map(String::as_str);
        self.answer(ConfigAnswer { call, config }, Maps::default());
    }

    /// Answers whether a version of a model is ready, once its instances have reported their readiness.
    pub(crate) fn answer_ready(self: &Arc<Calls>, call: u64, model: &str, version: Option<i64>) {
        let calls = Arc::clone(self);
        let done = move |answer: Result<(), Status>| calls.answer(Done { call, is: answer.is_ok() }, Maps::default());
        self.process.callees.models.ready(model, version, Box::new(done));
    }

    /// The models, for a call that loads or unloads one. While this model is initialized, the call is part of its load.
    fn models(&self) -> Models {
        let models = &self.process.callees.models;
        if self.is_initializing.load(Ordering::Relaxed) { models.within_load() } else { models.clone() }
    }

    fn done(&self, call: u64, outcome: Result<(), Status>) {
        match outcome {
            Ok(()) => self.answer(Done { call, is: true }, Maps::default()),
            Err(status) => self.answer(CallFailed { call, why: &status.message }, Maps::default()),
        }
    }
}
