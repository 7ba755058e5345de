//! How are requests read that change the server?

use std::collections::BTreeMap;
use std::sync::Arc;

use nerite_request::Status;
use nerite_request::limits::{Counted, LOAD_FILES_MAX, check_count};
use nerite_request::setting::{LoadOptions, LogChange, TraceChange, log_names};

use super::Chain;
use super::messages::log_settings_request::SettingValue as LogValue;
use super::messages::log_settings_request::setting_value::ParameterChoice as LogChoice;
use super::messages::model_repository_parameter::ParameterChoice;
use super::messages::trace_setting_request::SettingValue as TraceValue;
use super::messages::{ModelRepositoryParameter, RepositoryModelLoadRequest, RepositoryModelUnloadRequest};
use super::read::{Malformed, Read as _};

/// Refuses a load with more parameters than allowed, before they are decoded.
pub fn check_load_parameters(message: &Chain) -> Result<(), Malformed> {
    const PARAMETERS: u32 = 3;
    let (mut cursor, mut count) = (message.cursor(), 0);
    while let Some((number, wire)) = cursor.tag()? {
        count += usize::from(number == PARAMETERS);
        cursor.skip_field(number, wire)?;
    }
    Ok(check_count(Counted::LoadParameters, count, LOAD_FILES_MAX + 1)?)
}

/// The configuration and the files of a load request.
pub fn load_options(request: &mut RepositoryModelLoadRequest) -> Result<LoadOptions, Status> {
    check_repository(&request.repository_name)?;
    let mut options = LoadOptions::default();
    for (key, ModelRepositoryParameter { parameter_choice }) in std::mem::take(&mut request.parameters) {
        let wrong = |kind| Status::invalid(format!("invalid value type for load parameter '{key}', expected {kind}."));
        if key == "config" {
            let Some(ParameterChoice::StringParam(config)) = parameter_choice else {
                return Err(wrong("string_param"));
            };
            options.config = Some(config);
        } else if let Some(path) = key.strip_prefix("file:") {
            let Some(ParameterChoice::BytesParam(content)) = parameter_choice else { return Err(wrong("bytes_param")) };
            options.files.push((path.to_owned(), Arc::new(content)));
        } else {
            return Err(Status::invalid(format!("unrecognized load parameter '{key}'.")));
        }
    }
    Ok(options)
}

/// Whether an unload also unloads the models that only this model needs.
pub fn unload_dependents(request: &RepositoryModelUnloadRequest) -> Result<bool, Status> {
    check_repository(&request.repository_name)?;
    match request.parameters.get("unload_dependents").map(|parameter| &parameter.parameter_choice) {
        None => Ok(false),
        Some(Some(ParameterChoice::BoolParam(value))) => Ok(*value),
        Some(_) => Err(Status::invalid("invalid value type for 'unload_dependents' parameter, expected bool_param.")),
    }
}

/// Refuses a repository name. Repositories have no names here, nor in Triton.
pub fn check_repository(name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Ok(());
    }
    Err(Status::unsupported("'repository_name' specification is not supported"))
}

/// A change of trace settings. An empty list of values resets a setting to its default.
pub fn trace_change(settings: BTreeMap<String, TraceValue>) -> Result<TraceChange, Status> {
    let change = settings.into_iter().map(|(name, TraceValue { value })| {
        if name != "trace_level" && value.len() > 1 {
            return Err(Status::invalid(format!("expect only 1 value for '{name}'")));
        }
        Ok((name, if value.is_empty() { None } else { Some(value) }))
    });
    change.collect()
}

/// A change of log settings.
pub fn log_change(settings: BTreeMap<String, LogValue>) -> Result<LogChange, Status> {
    let mut change = LogChange::default();
    for (name, LogValue { parameter_choice }) in settings {
        let wrong = |kind| Status::invalid(format!("expect {kind} for '{name}'"));
        let flag = match parameter_choice {
            Some(LogChoice::BoolParam(value)) => Ok(Some(value)),
            _ => Err(wrong("boolean")),
        };
        match name.as_str() {
            // Refused, whatever its type is.
            log_names::FILE => change.file = Some(String::new()),
            log_names::INFO => change.info = flag?,
            log_names::WARNING => change.warning = flag?,
            log_names::ERROR => change.error = flag?,
            log_names::VERBOSE_LEVEL => match parameter_choice {
                Some(LogChoice::Uint32Param(level)) => change.verbose_level = Some(level),
                _ => return Err(wrong("int32")),
            },
            log_names::FORMAT => match parameter_choice {
                Some(LogChoice::StringParam(format)) => change.format = Some(format),
                _ => return Err(wrong("string")),
            },
            _ => {}
        }
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(key: &str, choice: Option<ParameterChoice>) -> BTreeMap<String, ModelRepositoryParameter> {
        [(key.to_owned(), ModelRepositoryParameter { parameter_choice: choice })].into()
    }

    #[track_caller]
    fn check_load(key: &str, choice: ParameterChoice, expect: Result<(), &str>) {
        let parameters = parameter(key, Some(choice));
        let mut request = RepositoryModelLoadRequest { parameters, ..Default::default() };
        let got = load_options(&mut request).map(drop).map_err(|error| error.message);
        assert_eq!(got, expect.map_err(str::to_owned));
    }

    #[test]
    fn load_parameters_are_recognised_by_their_names() {
        let text = || ParameterChoice::StringParam("{}".into());
        let bytes = || ParameterChoice::BytesParam(b"x"[..].into());
        check_load("config", text(), Ok(()));
        check_load("config", bytes(), Err("invalid value type for load parameter 'config', expected string_param."));
        check_load("file:1/a", bytes(), Ok(()));
        check_load("file:1/a", text(), Err("invalid value type for load parameter 'file:1/a', expected bytes_param."));
        check_load("other", text(), Err("unrecognized load parameter 'other'."));
    }

    #[test]
    fn a_repository_name_and_a_wrong_flag_are_refused() {
        let request = RepositoryModelUnloadRequest { repository_name: "r".into(), ..Default::default() };
        assert_eq!(
            unload_dependents(&request).map_err(|e| e.message),
            Err("'repository_name' specification is not supported".into())
        );
        let parameters = parameter("unload_dependents", Some(ParameterChoice::Int64Param(1)));
        let request = RepositoryModelUnloadRequest { parameters, ..Default::default() };
        let text = "invalid value type for 'unload_dependents' parameter, expected bool_param.";
        assert_eq!(unload_dependents(&request).map_err(|e| e.message), Err(text.into()));
        let parameters = parameter("unload_dependents", Some(ParameterChoice::BoolParam(true)));
        let request = RepositoryModelUnloadRequest { parameters, ..Default::default() };
        assert_eq!(unload_dependents(&request), Ok(true));
    }

    #[test]
    fn log_settings_have_their_types() {
        let change = |name: &str, choice| log_change([(name.to_owned(), LogValue { parameter_choice: choice })].into());
        let refused = |name, choice| change(name, choice).map_err(|error| error.message);
        assert_eq!(change("log_info", Some(LogChoice::BoolParam(false))).map(|c| c.info), Ok(Some(false)));
        assert_eq!(refused("log_info", None), Err("expect boolean for 'log_info'".into()));
        let level = Some(LogChoice::BoolParam(true));
        assert_eq!(refused("log_verbose_level", level), Err("expect int32 for 'log_verbose_level'".into()));
        assert_eq!(refused("log_format", None), Err("expect string for 'log_format'".into()));
        assert_eq!(change("log_file", None).map(|c| c.file), Ok(Some(String::new())));
    }

    #[test]
    fn an_empty_list_clears_a_trace_setting() {
        let change = |name: &str, values: &[&str]| {
            let value = values.iter().map(|&value| value.to_owned()).collect();
            trace_change([(name.to_owned(), TraceValue { value })].into()).map_err(|error| error.message)
        };
        assert_eq!(change("trace_rate", &[]), Ok(vec![("trace_rate".into(), None)]));
        assert_eq!(change("trace_rate", &["1", "2"]), Err("expect only 1 value for 'trace_rate'".into()));
        let levels = Some(vec!["TIMESTAMPS".into(), "TENSORS".into()]);
        assert_eq!(change("trace_level", &["TIMESTAMPS", "TENSORS"]), Ok(vec![("trace_level".into(), levels)]));
    }
}
