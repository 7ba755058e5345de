//! What may a configuration that a client sends with a load not change?
//!
//! The author of a model's own configuration is trusted, and the client is not: it may add a protection, but not take one away. Two tables decide it: one
//! of the fields that are texts, and one of the parameters that the server reads. Counts of instances, batching, queues and the version policy are the
//! client's choice, as in Triton.

mod tables;

use nerite_config::{ModelConfig, texts_at};

use tables::{FIELDS, Field, PARAMETERS, Parameter};

/// The parameter that replaces the operator's choice of processes for a model's instances.
const ISOLATED: &str = "isolated";
/// The values of [`ISOLATED`] that request such processes.
const TRUE: [&str; 4] = ["true", "1", "yes", "on"];
/// The parameter that requests a sandbox.
const SANDBOX: &str = "SANDBOX";

/// Refuses a sent configuration that would run other code than the model's own one, or with less protection. Both are complete but for the tensors. `own` is
/// `None` if the model has no configuration of its own that could be read.
pub(super) fn check(
    sent: &ModelConfig,
    own: Option<&ModelConfig>,
    model: &str,
    allows_upload: bool,
) -> Result<(), String> {
    let change = Change { sent, own, model, allows_upload };
    FIELDS.iter().try_for_each(|(path, kind)| change.check_field(path, *kind))?;
    PARAMETERS.iter().try_for_each(|(key, kind)| change.check_parameter(key, *kind))
}

/// The change from the model's own configuration to the one that was sent.
struct Change<'a> {
    sent: &'a ModelConfig,
    own: Option<&'a ModelConfig>,
    model: &'a str,
    allows_upload: bool,
}

impl Change<'_> {
    fn check_field(&self, path: &str, kind: Field) -> Result<(), String> {
        let cure = match kind {
            Field::Name | Field::Data => return Ok(()),
            // Who may send files may run code of its own. Without a configuration of its own, the model says nothing that a client could change.
            Field::Code if self.allows_upload || self.own.is_none() => return Ok(()),
            Field::Script if self.allows_upload || self.own.is_none() || self.sent.backend_name() != "python" => {
                return Ok(());
            }
            Field::Code | Field::Script => {
                "it chooses the code that runs: set it there, or start the server with --allow-model-upload=true"
            }
            Field::Library => "a library runs in the server's process: name it there",
        };
        let own = self.own.map(|own| texts_at(own, path)).unwrap_or_default();
        let new = texts_at(self.sent, path).into_iter().find(|text| !own.contains(text));
        new.map_or(Ok(()), |text| Err(self.refusal(path, Some(&text), own.first().map(String::as_str), cure)))
    }

    fn check_parameter(&self, key: &str, kind: Parameter) -> Result<(), String> {
        match kind {
            Parameter::Free => Ok(()),
            Parameter::Environment if self.allows_upload => Ok(()),
            Parameter::Environment => {
                let cure =
                    "an environment runs as code: set it there, or start the server with --allow-model-upload=true";
                self.refuse_new(key, cure)
            }
            Parameter::Authors(why) => self.refuse_new(key, &format!("{why}: set it there")),
            Parameter::Fixed(why) => self.check_same(key, why),
            Parameter::Threads => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                self.check_threads(key, cores)
            }
            Parameter::Isolation => self.check_isolation(),
            Parameter::Sandbox => self.check_sandbox(key),
        }
    }

    fn own(&self, key: &str) -> Option<&str> {
        self.own.and_then(|own| own.parameter(key))
    }

    /// Refuses a value that the model's own configuration does not have.
    fn refuse_new(&self, key: &str, cure: &str) -> Result<(), String> {
        let new = self.sent.parameter(key).filter(|value| self.own(key) != Some(value));
        new.map_or(Ok(()), |value| Err(self.refusal(key, Some(value), self.own(key), cure)))
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

    /// Refuses any change of this parameter.
    fn check_same(&self, key: &str, why: &str) -> Result<(), String> {
        let (sent, own) = (self.sent.parameter(key), self.own(key));
        if sent == own { Ok(()) } else { Err(self.refusal(key, sent, own, &format!("{why}: leave it as it is"))) }
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
        if is_allowed { Ok(()) } else { Err(self.refusal(ISOLATED, sent, own, cure)) }
    }

    /// Refuses to change a sandbox. A client may add one to a model that has none.
    fn check_sandbox(&self, key: &str) -> Result<(), String> {
        let has_sandbox = self.own(SANDBOX).is_some_and(|own| !["", "off"].contains(&own.trim()));
        // The operator's setting may request a sandbox that the author's other parameters tighten.
        let confines = has_sandbox || (key != SANDBOX && self.own(key).is_some());
        if confines { self.check_same(key, "it confines the model's process") } else { Ok(()) }
    }

    fn refusal(&self, key: &str, sent: Option<&str>, own: Option<&str>, cure: &str) -> String {
        let does = sent.map_or_else(|| format!("does not set {key}"), |value| format!("sets {key} to '{value}'"));
        let own = match (sent, own) {
            (Some(_), None) => "the model's own configuration does not".to_owned(),
            (_, own) => format!("the model's own configuration sets to '{}'", own.unwrap_or_default()),
        };
        format!("the configuration that a load of model '{}' brings {does}, which {own}; {cure}", self.model)
    }
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
        check_change(None, &[("nerite.cost_bound", "input_sizes")], Some("such runs may delay all clients"));
        check_change(Some(&[("nerite.cost_bound", "input_sizes")]), &[("nerite.cost_bound", "input_sizes")], None);
        check_change(Some(&[("nerite.cost_bound", "input_sizes")]), &[], None);
        check_change(None, &[("EXECUTE_TIMEOUT_SECONDS", "0")], Some("sets EXECUTE_TIMEOUT_SECONDS to '0'"));
        check_change(Some(&[("EXECUTE_TIMEOUT_SECONDS", "5")]), &[], Some("does not set EXECUTE_TIMEOUT_SECONDS"));
        check_change(Some(&[("EXECUTE_TIMEOUT_SECONDS", "5")]), &[("EXECUTE_TIMEOUT_SECONDS", "5")], None);
    }

    #[test]
    fn a_client_brings_no_library_and_no_more_threads_than_cores() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (some, many) = (cores.to_string(), (cores + 1).to_string());
        for key in ["intra_op_thread_count", "inter_op_thread_count"] {
            check_change(None, &[(key, &some)], None);
            check_change(None, &[(key, &many)], Some("a client may set at most"));
            check_change(Some(&[(key, &many)]), &[(key, &many)], None);
            check_change(Some(&[(key, &many)]), &[(key, "4096")], Some("a client may set at most"));
        }
        check_change(None, &[("session.intra_op.allow_spinning", "1")], Some("use the cores of all clients"));
        check_change(
            Some(&[("session.intra_op.allow_spinning", "1")]),
            &[("session.intra_op.allow_spinning", "1")],
            None,
        );
        let with = |paths: &[&str]| {
            let mut made = config(&[]);
            made.model_operations.get_or_insert_default().op_library_filename =
                paths.iter().map(ToString::to_string).collect();
            made
        };
        assert_eq!(check(&with(&["a.so"]), Some(&with(&["a.so", "b.so"])), "m", true), Ok(()));
        for own in [None, Some(&with(&["a.so"]))] {
            let text = check(&with(&["a.so", "b.so"]), own, "m", true).unwrap_err();
            assert!(text.contains("sets model_operations.op_library_filename to"), "{text}");
        }
    }

    /// Whether a client that may not send files may send this configuration for a model with that one of its own.
    #[track_caller]
    fn check_code(own: Option<&str>, sent: &str, expected: Option<&str>) {
        let parse = |text: &str| nerite_config::parse_text("c", text.as_bytes()).unwrap();
        let (sent, own) = (parse(sent), own.map(parse));
        let refused = check(&sent, own.as_ref(), "m", false).err();
        assert!(refused.as_deref().unwrap_or_default().contains(expected.unwrap_or_default()), "{refused:?}");
        assert_eq!((refused.is_some(), check(&sent, own.as_ref(), "m", true)), (expected.is_some(), Ok(())));
    }

    #[test]
    fn a_client_chooses_no_code_where_it_may_send_none() {
        let python = "backend: 'python' default_model_filename: 'model.py'";
        check_code(Some(python), python, None);
        check_code(
            Some(python),
            "backend: 'other'",
            Some("sets backend to 'other', which the model's own configuration sets to 'python'; it chooses"),
        );
        let helper = "backend: 'python' default_model_filename: 'helper.py'";
        check_code(Some(python), helper, Some("sets default_model_filename to 'helper.py', which"));
        check_code(
            Some("backend: 'python'"),
            "backend: 'python' cc_model_filenames { key: 'k' value: 'v' }",
            Some("sets cc_model_filenames"),
        );
        check_code(Some("backend: 'b'"), "backend: 'b' runtime: 'libtriton_c.so'", Some("sets runtime to"));
        check_code(Some("backend: 'b' runtime: 'libtriton_c.so'"), "backend: 'b'", None);
        check_code(None, "backend: 'python' default_model_filename: 'a.py'", None);
        check_code(Some("backend: 'onnxruntime'"), "backend: 'onnxruntime' default_model_filename: 'other.onnx'", None);
        check_code(Some(python), "platform: 'ensemble'", None);
    }
}
