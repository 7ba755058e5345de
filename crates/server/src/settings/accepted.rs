//! Do the flags without an effect here have values that Triton would accept, and what does the log say of them?
//!
//! A command line that Triton refuses has a mistake, even if the flag has no effect here.

use super::SettingsError;
use crate::flags::{FLAGS, Given, Takes, Values, bad, bool_of};

/// Flags whose value is `<device>:<number>`.
const BY_DEVICE: [&str; 3] = ["cuda-memory-pool-byte-size", "cuda-virtual-address-size", "model-load-gpu-limit"];

/// Switches of endpoints that this server has not. Deployments switch them off.
const ABSENT: [(&str, &str); 2] = [("allow-sagemaker", "SageMaker"), ("allow-vertex-ai", "Vertex AI")];

/// The log line about a flag without an effect here. `None` if the server does what its value asks for.
pub(super) fn note(given: &Given) -> Option<String> {
    let name = given.flag.name;
    let is_always_so = match name {
        "grpc-keepalive-permit-without-calls" => bool_of(&given.value) == Some(true),
        _ => ABSENT.iter().any(|(absent, _)| *absent == name),
    };
    (!is_always_so)
        .then(|| format!("--{name} has no effect: it is for a part of Triton that this server does not have"))
}

/// Refuses a value of another type than the flag's.
pub(super) fn check(values: &Values<'_>) -> Result<(), SettingsError> {
    for flag in FLAGS.iter().filter(|flag| !flag.has_effect()) {
        match flag.takes {
            Takes::Value("<boolean>") => values.bool(flag.name, false).map(|_| ())?,
            Takes::Value("<integer>") => values.int_if_given::<i64>(flag.name).map(|_| ())?,
            _ if BY_DEVICE.contains(&flag.name) => check_by_device(values, flag.name)?,
            _ => {}
        }
    }
    for (flag, of) in ABSENT {
        if values.bool(flag, false)? {
            let text = format!("nerite has no endpoint for {of}; leave the flag out, or set it to false");
            return Err(bad(flag, text).into());
        }
    }
    Ok(())
}

fn check_by_device(values: &Values<'_>, flag: &'static str) -> Result<(), SettingsError> {
    let Some(value) = values.text(flag) else { return Ok(()) };
    let Some((device, number)) = value.split_once(':') else {
        let reason = "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires format \
                      <first>:<second>. Found: ";
        return Err(bad(flag, format!("{reason}{value}")).into());
    };
    let invalid = |part: &str| bad(flag, format!("Invalid option value. Got {part}"));
    device.trim().parse::<i32>().map_err(|_| invalid(device))?;
    number.trim().parse::<f64>().map_err(|_| invalid(number))?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::flags::parse;

    #[track_caller]
    fn check_line(flag: &str, expect: Result<(), &str>) {
        let given = parse(&[flag.to_owned()]).unwrap();
        let found = check(&Values(&given)).map_err(|error| error.to_string());
        let name = flag.split('=').next().unwrap();
        assert_eq!(found, expect.map_err(|text| format!("Bad option: \"{name}\".\n{text}\n")), "{flag}");
    }

    #[test]
    fn values_of_another_type_are_refused() {
        check_line("--enable-peer-access=off", Ok(()));
        check_line("--enable-peer-access=x", Err("invalid value for bool option: x"));
        check_line("--buffer-manager-thread-count=-1", Ok(()));
        check_line("--buffer-manager-thread-count=x", Err("Invalid option value. Got x"));
        check_line("--cuda-memory-pool-byte-size=0:1", Ok(()));
        check_line("--cuda-memory-pool-byte-size=0:x", Err("Invalid option value. Got x"));
        check_line(
            "--cuda-memory-pool-byte-size=x",
            Err(
                "Cannot parse pair option due to incorrect number of inputs.--<pair option> argument requires format <first>:<second>. Found: x",
            ),
        );
        check_line("--model-load-gpu-limit=0:0.8", Ok(()));
        check_line("--model-load-gpu-limit=x:0.8", Err("Invalid option value. Got x"));
        check_line("--repoagent-directory=/x", Ok(()));
    }

    #[test]
    fn endpoints_that_are_not_there_may_be_switched_off() {
        for (flag, of) in ABSENT {
            check_line(&format!("--{flag}=false"), Ok(()));
            let text = format!("nerite has no endpoint for {of}; leave the flag out, or set it to false");
            check_line(&format!("--{flag}=true"), Err(&text));
        }
    }
}
