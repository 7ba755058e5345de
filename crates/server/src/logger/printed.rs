//! What does the log say about a line that a model's process printed?

use std::fmt::{Display, Formatter, Result};

use log::Record;
use nerite_python::PRINTED_TARGET;

/// Where such a line is from.
pub(super) struct Printed {
    pub(super) model: String,
    /// The model's instance, if the process runs one.
    pub(super) instance: Option<u64>,
    pub(super) stream: &'static str,
}

impl Printed {
    /// `None` if the line is of the server itself.
    pub(super) fn of(record: &Record<'_>) -> Option<Printed> {
        if record.target() != PRINTED_TARGET {
            return None;
        }
        let value = |key| record.key_values().get(log::kv::Key::from_str(key));
        let model = value("model").map(|model| model.to_string()).unwrap_or_default();
        let instance = value("instance").and_then(|instance| instance.to_u64());
        let is_error = value("stream").is_some_and(|stream| stream.to_string() == "stderr");
        Some(Printed { model, instance, stream: if is_error { "stderr" } else { "stdout" } })
    }
}

impl Display for Printed {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "model '{}'", self.model)?;
        self.instance.map_or(Ok(()), |instance| write!(f, " instance {instance}"))
    }
}

#[cfg(test)]
mod tests {
    use log::Level;

    use super::*;

    #[track_caller]
    fn check(target: &str, values: &[(&str, log::kv::Value<'_>)], expect: Option<(&str, &str)>) {
        let mut record = Record::builder();
        let record = record.level(Level::Info).target(target).key_values(&values).build();
        let found = Printed::of(&record).map(|printed| (printed.to_string(), printed.stream));
        assert_eq!(found, expect.map(|(whose, stream)| (whose.to_owned(), stream)));
    }

    #[test]
    fn a_printed_line_names_its_model_its_instance_and_its_stream() {
        let (model, stderr) = (("model", "m".into()), ("stream", "stderr".into()));
        check(
            PRINTED_TARGET,
            &[model.clone(), ("instance", 1u64.into()), stderr.clone()],
            Some(("model 'm' instance 1", "stderr")),
        );
        check(PRINTED_TARGET, &[model.clone(), ("stream", "stdout".into())], Some(("model 'm'", "stdout")));
        check("nerite_server", &[model, stderr], None);
    }
}
