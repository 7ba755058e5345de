//! What may a configuration that a client sends with a load not change?
//!
//! The author of a model's own configuration is trusted, and the client is not: it may add a protection, but not take one away.

use nerite_config::ModelConfig;

/// The parameter that names the environment of a Python model.
const ENVIRONMENT: &str = "EXECUTION_ENV_PATH";
/// The parameter that names the library of a batching strategy.
const BATCH_STRATEGY: &str = "TRITON_BATCH_STRATEGY_PATH";
/// The parameter by which a model's runs may be on threads that serve connections.
const COST_BOUND: &str = "nerite.cost_bound";
/// The parameter that replaces the operator's limit for runs of a Python model.
const EXECUTE_TIMEOUT: &str = "EXECUTE_TIMEOUT_SECONDS";
/// The parameters that set how many threads one run of an ONNX model uses.
const THREADS: [&str; 2] = ["intra_op_thread_count", "inter_op_thread_count"];
/// The parameter that lets these threads use a core while they wait.
const SPINNING: &str = "session.intra_op.allow_spinning";
/// The parameter that replaces the operator's choice of processes for a model's instances.
const ISOLATED: &str = "isolated";
/// The values of [`ISOLATED`] that request such processes.
const TRUE: [&str; 4] = ["true", "1", "yes", "on"];
/// The parameter that requests a sandbox.
const SANDBOX: &str = "SANDBOX";
/// All parameters of a sandbox.
const SANDBOX_KEYS: [&str; 8] = [
    SANDBOX,
    "SANDBOX_NETWORK",
    "SANDBOX_MEMORY",
    "SANDBOX_GROUP_MEMORY",
    "SANDBOX_PROCESSES",
    "SANDBOX_FILE_SIZE",
    "SANDBOX_READ",
    "SANDBOX_WRITE",
];

/// Refuses a sent configuration that would run other code than the model's own one, or with less protection.
pub(super) fn check(
    sent: &ModelConfig,
    own: Option<&ModelConfig>,
    model: &str,
    allows_upload: bool,
) -> Result<(), String> {
    let change = Change { sent, own, model };
    if !allows_upload {
        let cure = "an environment runs as code: set it there, or start the server with --allow-model-upload=true";
        change.refuse_new(ENVIRONMENT, cure)?;
    }
    change.refuse_new(BATCH_STRATEGY, "a batching library runs in the server's process: set it there")?;
    change.refuse_new(COST_BOUND, "such runs may delay all clients: set it there")?;
    change.refuse_new(SPINNING, "threads that wait would use the cores of all clients: set it there")?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    THREADS.into_iter().try_for_each(|key| change.check_threads(key, cores))?;
    change.check_libraries()?;
    change.check_same(EXECUTE_TIMEOUT, "it bounds how long a run that hangs keeps others waiting")?;
    change.check_isolation()?;
    // The operator's setting may request a sandbox that the author's other parameters tighten.
    let has_sandbox = change.own(SANDBOX).is_some_and(|own| !["", "off"].contains(&own.trim()));
    let confines = |key: &&str| has_sandbox || (*key != SANDBOX && change.own(key).is_some());
    SANDBOX_KEYS
        .into_iter()
        .filter(confines)
        .try_for_each(|key| change.check_same(key, "it confines the model's process"))
}

/// The change from the model's own configuration to the one that was sent.
struct Change<'a> {
    sent: &'a ModelConfig,
    own: Option<&'a ModelConfig>,
    model: &'a str,
}

impl Change<'_> {
    fn own(&self, key: &str) -> Option<&str> {
        self.own.and_then(|own| own.parameter(key))
    }

    /// Refuses a value that the model's own configuration does not have.
    fn refuse_new(&self, key: &str, cure: &str) -> Result<(), String> {
        let new = self.sent.parameter(key).filter(|value| self.own(key) != Some(value));
        new.map_or(Ok(()), |value| Err(self.refusal(key, Some(value), cure)))
    }

    /// Refuses more threads for each run than there are cores. They would keep the threads of other clients from the cores.
    fn check_threads(&self, key: &str, cores: usize) -> Result<(), String> {
        let sent = self.sent.parameter(key).and_then(|value| value.trim().parse::<usize>().ok());
        if sent.is_some_and(|threads| threads > cores) {
            let cure = format!("a client may set at most {cores}, the number of cores: lower it, or set it there");
            return self.refuse_new(key, &cure);
        }
        Ok(())
    }

    /// Refuses libraries of operators that the model's own configuration does not name.
    fn check_libraries(&self) -> Result<(), String> {
        let new = libraries(self.sent).iter().find(|path| !self.own.is_some_and(|own| libraries(own).contains(path)));
        let cure = "a library of operators runs in the server's process: name it there";
        new.map_or(Ok(()), |path| Err(self.refusal("op_library_filename", Some(path), cure)))
    }

    /// Refuses any change of this parameter.
    fn check_same(&self, key: &str, why: &str) -> Result<(), String> {
        let sent = self.sent.parameter(key);
        if sent == self.own(key) { Ok(()) } else { Err(self.refusal(key, sent, &format!("{why}: leave it as it is"))) }
    }

    /// Refuses to run a model in the server's process where its own configuration does not say so.
    fn check_isolation(&self) -> Result<(), String> {
        let isolates = |value: &str| TRUE.contains(&value.trim().to_ascii_lowercase().as_str());
        let (sent, own) = (self.sent.parameter(ISOLATED), self.own(ISOLATED));
        let is_allowed = match sent {
            Some(value) => isolates(value) || sent == own,
            // The operator's setting decides.
            None => !own.is_some_and(isolates),
        };
        let cure = "a crash of the model would end the server: set it to 'true', or leave it as it is";
        if is_allowed { Ok(()) } else { Err(self.refusal(ISOLATED, sent, cure)) }
    }

    fn refusal(&self, key: &str, sent: Option<&str>, cure: &str) -> String {
        let does = sent.map_or_else(|| format!("does not set {key}"), |value| format!("sets {key} to '{value}'"));
        let own = match (sent, self.own(key)) {
            (Some(_), None) => "the model's own configuration does not".to_owned(),
            (_, own) => format!("the model's own configuration sets to '{}'", own.unwrap_or_default()),
        };
        format!("the configuration that a load of model '{}' brings {does}, which {own}; {cure}", self.model)
    }
}

/// The libraries of operators that a configuration names.
fn libraries(config: &ModelConfig) -> &[String] {
    config.model_operations.as_ref().map_or(&[], |operations| &operations.op_library_filename)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn config(parameters: &[(&str, &str)]) -> ModelConfig {
        let line =
            |(key, value): &(&str, &str)| format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}");
        let lines: Vec<String> = parameters.iter().map(line).collect();
        nerite_config::parse_text("c", lines.join("\n").as_bytes()).unwrap()
    }

    /// Whether a client may send these parameters for a model with those of its own.
    #[track_caller]
    fn check_change(own: Option<&[(&str, &str)]>, sent: &[(&str, &str)], expected: Option<&str>) {
        let own = own.map(config);
        for allows_upload in [false, true] {
            let refused = check(&config(sent), own.as_ref(), "m", allows_upload).err();
            assert_eq!(refused.is_some(), expected.is_some(), "{sent:?}: {refused:?}");
            let text = refused.unwrap_or_default();
            assert!(text.contains(expected.unwrap_or_default()), "{text}");
        }
    }

    #[test]
    fn a_client_may_isolate_a_model_and_not_bring_it_back() {
        for value in ["false", "0", "No", "off", "", "maybe"] {
            let text =
                format!("brings sets isolated to '{value}', which the model's own configuration does not; a crash");
            check_change(None, &[(ISOLATED, value)], Some(&text));
            check_change(Some(&[]), &[(ISOLATED, value)], Some(&text));
        }
        check_change(Some(&[(ISOLATED, "false")]), &[(ISOLATED, "false")], None);
        check_change(Some(&[(ISOLATED, "false")]), &[], None);
        for value in ["true", "1", "Yes", " on"] {
            check_change(None, &[(ISOLATED, value)], None);
            check_change(Some(&[(ISOLATED, "false")]), &[(ISOLATED, value)], None);
            check_change(Some(&[(ISOLATED, value)]), &[(ISOLATED, "true")], None);
            check_change(
                Some(&[(ISOLATED, value)]),
                &[],
                Some("does not set isolated, which the model's own configuration sets to"),
            );
        }
        let text = "brings sets isolated to 'off', which the model's own configuration sets to 'true'; a crash";
        check_change(Some(&[(ISOLATED, "true")]), &[(ISOLATED, "off")], Some(text));
    }

    #[test]
    fn a_client_may_add_a_sandbox_and_not_change_one() {
        check_change(None, &[(SANDBOX, "on"), ("SANDBOX_NETWORK", "on")], None);
        // The operator's setting requests the sandbox.
        let tightened: &[(&str, &str)] = &[("SANDBOX_NETWORK", "off")];
        check_change(Some(tightened), tightened, None);
        check_change(Some(tightened), &[], Some("does not set SANDBOX_NETWORK"));
        check_change(Some(tightened), &[("SANDBOX_NETWORK", "on")], Some("sets SANDBOX_NETWORK to 'on'"));
        check_change(Some(&[(SANDBOX, "off")]), &[], None);
        let own: &[(&str, &str)] = &[(SANDBOX, "on"), ("SANDBOX_MEMORY", "1")];
        check_change(Some(own), own, None);
        let text = "does not set SANDBOX, which the model's own configuration sets to 'on'; it confines";
        check_change(Some(own), &[], Some(text));
        check_change(Some(own), &[own[0]], Some("does not set SANDBOX_MEMORY"));
        check_change(Some(own), &[own[0], ("SANDBOX_MEMORY", "2")], Some("sets SANDBOX_MEMORY to '2', which"));
        check_change(Some(own), &[("SANDBOX", "best-effort"), own[1]], Some("sets SANDBOX to 'best-effort'"));
        check_change(Some(own), &[own[0], own[1], ("SANDBOX_READ", "/")], Some("sets SANDBOX_READ to '/'"));
    }

    #[test]
    fn a_client_does_not_say_how_long_runs_take() {
        check_change(None, &[(COST_BOUND, "input_sizes")], Some("such runs may delay all clients"));
        check_change(Some(&[(COST_BOUND, "input_sizes")]), &[(COST_BOUND, "input_sizes")], None);
        check_change(Some(&[(COST_BOUND, "input_sizes")]), &[], None);
        check_change(None, &[(EXECUTE_TIMEOUT, "0")], Some("sets EXECUTE_TIMEOUT_SECONDS to '0'"));
        check_change(Some(&[(EXECUTE_TIMEOUT, "5")]), &[], Some("does not set EXECUTE_TIMEOUT_SECONDS"));
        check_change(Some(&[(EXECUTE_TIMEOUT, "5")]), &[(EXECUTE_TIMEOUT, "5")], None);
    }

    #[test]
    fn a_client_brings_no_library_and_no_more_threads_than_cores() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (some, many) = (cores.to_string(), (cores + 1).to_string());
        for key in THREADS {
            check_change(None, &[(key, &some)], None);
            check_change(None, &[(key, &many)], Some("a client may set at most"));
            check_change(Some(&[(key, &many)]), &[(key, &many)], None);
            check_change(Some(&[(key, &many)]), &[(key, "4096")], Some("a client may set at most"));
        }
        check_change(None, &[(SPINNING, "1")], Some("use the cores of all clients"));
        check_change(Some(&[(SPINNING, "1")]), &[(SPINNING, "1")], None);
        let with = |paths: &[&str]| {
            let mut made = config(&[]);
            made.model_operations.get_or_insert_default().op_library_filename =
                paths.iter().map(ToString::to_string).collect();
            made
        };
        assert_eq!(check(&with(&["a.so"]), Some(&with(&["a.so", "b.so"])), "m", true), Ok(()));
        for own in [None, Some(&with(&["a.so"]))] {
            let text = check(&with(&["a.so", "b.so"]), own, "m", true).unwrap_err();
            assert!(text.contains("sets op_library_filename to"), "{text}");
        }
    }
}
