//! What are the operator's settings for Python models?

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use nerite_request::Status;

use crate::limits::EXECUTE_MAX;

/// `--backend-config=python,<key>=<value>`, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// `interpreter`: the Python of models without an environment of their own, if the operator sets one.
    pub(crate) interpreter: Option<PathBuf>,
    /// `stub-timeout-seconds`: how long each phase of a load may take, if the operator sets it.
    pub(crate) phase_max: Option<Duration>,
    /// `execute-timeout-seconds`: how long `execute` may take. `None` has no limit.
    pub(crate) execute_max: Option<Duration>,
    /// `debug`: the model whose processes wait for a debugger.
    pub(crate) debug: Option<Debugged>,
}

/// `MODEL:PORT`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Debugged {
    pub(crate) model: String,
    /// The port of the first instance. Each further one has the next port.
    pub(crate) port: u16,
}

/// The smallest pool that Triton's backend accepts. This server has no pool, but refuses the same values.
const POOL_BYTES_MIN: i64 = 1 << 20;

impl Settings {
    /// Reads the settings. Errors have Triton's texts.
    pub(crate) fn read(settings: &BTreeMap<String, String>) -> Result<Settings, Status> {
        let seconds = number(settings, "stub-timeout-seconds", 1)?;
        if seconds <= 0 {
            return Err(Status::invalid("stub-timeout-seconds can't be smaller than or equal to zero."));
        }
        let phase_max = settings.get("stub-timeout-seconds").map(|_| Duration::from_secs(seconds as u64));
        if number(settings, "shm-default-byte-size", POOL_BYTES_MIN)? < POOL_BYTES_MIN {
            return Err(Status::invalid("shm-default-byte-size can't be smaller than 4 MiBs"));
        }
        if number(settings, "shm-growth-byte-size", POOL_BYTES_MIN)? <= 0 {
            return Err(Status::invalid("shm-growth-byte-size can't be smaller than or equal to zero."));
        }
        if number(settings, "thread-pool-size", 32)? < 1 {
            return Err(Status::invalid("thread-pool-size can't be less than 1."));
        }
        number(settings, "shm_message_queue_size", 1000)?;
        check_prefix(settings.get("shm-region-prefix-name").map(String::as_str))?;
        let interpreter = settings.get("interpreter").map(PathBuf::from);
        let execute_max = match settings.get("execute-timeout-seconds") {
            Some(value) => execute_max("--backend-config=python,execute-timeout-seconds", value)?,
            None => None,
        };
        let debug = settings.get("debug").map(|value| Debugged::read(value)).transpose()?;
        Ok(Settings { interpreter, phase_max, execute_max, debug })
    }
}

impl Debugged {
    fn read(value: &str) -> Result<Debugged, Status> {
        let parts = value.rsplit_once(':').and_then(|(model, port)| Some((model, port.parse().ok()?)));
        match parts {
            Some((model, port @ 1..)) if !model.is_empty() => Ok(Debugged { model: model.to_owned(), port }),
            _ => Err(Status::invalid(format!(
                "--backend-config=python,debug={value}: expected MODEL:PORT, with a port from 1 to 65535"
            ))),
        }
    }

    /// The port of the model's instance with this index.
    pub(crate) fn port_of(&self, index: usize) -> Result<u16, Status> {
        let port = u16::try_from(index).ok().and_then(|index| self.port.checked_add(index));
        port.ok_or_else(|| {
            Status::invalid(format!(
                "--backend-config=python,debug={}:{}: instance {index} would have a port above 65535; choose a lower one",
                self.model, self.port
            ))
        })
    }
}

/// A limit of the time of `execute`. 0 is no limit. `key` names the setting or the parameter.
pub(crate) fn execute_max(key: &str, value: &str) -> Result<Option<Duration>, Status> {
    let seconds = value.trim().parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match seconds {
        Some(at_most) if at_most <= EXECUTE_MAX => Ok(Some(at_most).filter(|at_most| !at_most.is_zero())),
        _ => Err(Status::invalid(format!(
            "{key}={value}: expected seconds from 0 (no limit) to {}, such as 30 or 0.5",
            EXECUTE_MAX.as_secs()
        ))),
    }
}

/// Checks the model's parameter `FORCE_CPU_ONLY_INPUT_TENSORS`. Values other than `yes` and `no` are refused, with Triton's text.
pub(crate) fn check_input_memory(value: Option<&str>) -> Result<(), Status> {
    match value {
        None | Some("yes" | "no") => Ok(()),
        Some(other) => Err(Status::unsupported(format!(
            "Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: {other}'; expected 'yes' or 'no'"
        ))),
    }
}

fn check_prefix(prefix: Option<&str>) -> Result<(), Status> {
    match prefix {
        Some("") => Err(Status::invalid("shm-region-prefix-name must at least contain one character.")),
        Some(name) if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-') => {
            Err(Status::invalid("Invalid shared memory region name: contains invalid characters"))
        }
        _ => Ok(()),
    }
}

fn number(settings: &BTreeMap<String, String>, key: &str, default: i64) -> Result<i64, Status> {
    let Some(value) = settings.get(key) else { return Ok(default) };
    value.trim().parse().map_err(|_| Status::invalid(format!("--backend-config=python,{key}={value}: not a number")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[track_caller]
    fn check(key: &str, value: &str, refused: Option<&str>) {
        let settings = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let found = Settings::read(&settings).map_err(|status| status.message).err();
        assert_eq!(found.as_deref(), refused, "{key}={value}");
    }

    #[test]
    fn inputs_are_forced_to_the_host_or_not() {
        for (value, refused) in [
            (None, None),
            (Some("yes"), None),
            (Some("no"), None),
            (Some("Yes"), Some("Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: Yes'; expected 'yes' or 'no'")),
            (Some(""), Some("Incorrect value for FORCE_CPU_ONLY_INPUT_TENSORS: '; expected 'yes' or 'no'")),
        ] {
            let found = check_input_memory(value).err();
            assert_eq!(found.as_ref().map(|status| status.message.as_str()), refused, "{value:?}");
            assert!(found.is_none_or(|status| status.code == nerite_request::Code::Unsupported), "{value:?}");
        }
    }

    #[test]
    fn settings_are_refused_in_tritons_words() {
        check("stub-timeout-seconds", "0", Some("stub-timeout-seconds can't be smaller than or equal to zero."));
        check("stub-timeout-seconds", "5", None);
        check("stub-timeout-seconds", "x", Some("--backend-config=python,stub-timeout-seconds=x: not a number"));
        check("shm-default-byte-size", "1048575", Some("shm-default-byte-size can't be smaller than 4 MiBs"));
        check("shm-default-byte-size", "16777216", None);
        check("shm-growth-byte-size", "0", Some("shm-growth-byte-size can't be smaller than or equal to zero."));
        check("thread-pool-size", "0", Some("thread-pool-size can't be less than 1."));
        check("shm_message_queue_size", "10", None);
        check("shm-region-prefix-name", "", Some("shm-region-prefix-name must at least contain one character."));
        check("shm-region-prefix-name", "a/b", Some("Invalid shared memory region name: contains invalid characters"));
        check("shm-region-prefix-name", "prefix-1", None);
        check("interpreter", "/opt/python/bin/python3", None);
    }

    #[test]
    fn loads_have_a_limit_if_the_operator_sets_one() {
        let of = |settings: BTreeMap<String, String>| Settings::read(&settings).map(|settings| settings.phase_max);
        assert_eq!(of(BTreeMap::new()), Ok(None));
        assert_eq!(of([("stub-timeout-seconds".into(), "7".into())].into()), Ok(Some(Duration::from_secs(7))));
    }

    #[test]
    fn a_limit_of_execute_is_in_seconds() {
        let found = |value: &str| execute_max("KEY", value).map_err(|status| status.message);
        assert_eq!(found("1.5"), Ok(Some(Duration::from_millis(1500))));
        assert_eq!(found("0"), Ok(None));
        for wrong in ["", "x", "-1", "nan", "inf", "1e9"] {
            let text = format!("KEY={wrong}: expected seconds from 0 (no limit) to 86400, such as 30 or 0.5");
            assert_eq!(found(wrong), Err(text));
        }
        check("execute-timeout-seconds", "5", None);
    }

    #[test]
    fn a_debugged_model_has_a_port() {
        for wrong in ["m", "m:", ":1", "m:0", "m:65536", "m:x"] {
            let text =
                format!("--backend-config=python,debug={wrong}: expected MODEL:PORT, with a port from 1 to 65535");
            check("debug", wrong, Some(&text));
        }
        let debug = Debugged::read("a:b:65534").unwrap();
        assert_eq!(debug, Debugged { model: "a:b".to_owned(), port: 65_534 });
        assert_eq!((debug.port_of(1).unwrap(), debug.port_of(2).is_err()), (65_535, true));
    }
}
