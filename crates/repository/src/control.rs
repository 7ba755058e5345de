//! Who decides which models are loaded: the repository or its clients?

use nerite_request::Status;

use crate::phrase;
use crate::store::{Listing, PollError};

/// The value of `--model-control-mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlMode {
    /// All models are loaded at start. Nothing changes afterwards.
    #[default]
    None,
    /// All models are loaded at start, and the server follows changes in the repositories.
    Poll,
    /// The models of `--load-model` are loaded at start. Clients load and unload models afterwards.
    Explicit,
    /// The models of `--load-model` are loaded at start and stay. Any other is loaded by its first request, and unloaded when others need its room.
    /// Triton has no such mode.
    Demand,
}

impl ControlMode {
    /// The mode with this name, in upper or lower case.
    pub fn parse(word: &str) -> Option<ControlMode> {
        match word.to_ascii_lowercase().as_str() {
            "none" => Some(ControlMode::None),
            "poll" => Some(ControlMode::Poll),
            "explicit" => Some(ControlMode::Explicit),
            "demand" => Some(ControlMode::Demand),
            _ => None,
        }
    }

    /// The name that the table of options prints at start.
    pub fn name(self) -> &'static str {
        match self {
            ControlMode::None => "MODE_NONE",
            ControlMode::Poll => "MODE_POLL",
            ControlMode::Explicit => "MODE_EXPLICIT",
            ControlMode::Demand => "MODE_DEMAND",
        }
    }

    /// Whether clients may load and unload.
    pub fn check_client_control(self) -> Result<(), Status> {
        let word = match self {
            ControlMode::Explicit | ControlMode::Demand => return Ok(()),
            ControlMode::None => "none",
            ControlMode::Poll => "poll",
        };
        Err(phrase::control_refused(word))
    }
}

/// The models to load before the server listens.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Startup {
    /// Models to load, each once.
    pub models: Vec<String>,
    /// Models that cannot be loaded, even if a client asks.
    pub refused: Vec<PollError>,
}

/// The models to load at start: all in `listing`, or in explicit mode those in `requested`.
pub fn startup(mode: ControlMode, requested: &[String], listing: &Listing) -> Result<Startup, Status> {
    let wildcard = requested.iter().any(|name| name == "*");
    let names_models = matches!(mode, ControlMode::Explicit | ControlMode::Demand);
    if names_models && wildcard && requested.iter().any(|name| name != "*") {
        return Err(phrase::wildcard_not_alone());
    }
    if names_models && !wildcard {
        let mut startup = Startup::default();
        for name in requested {
            if !startup.models.contains(name) {
                startup.models.push(name.clone());
            }
        }
        return Ok(startup);
    }
    let mut startup = Startup::default();
    for (model, places) in listing.models() {
        match places {
            [_] => startup.models.push(model.to_owned()),
            _ => startup.refused.push(PollError::Duplicate { model: model.to_owned() }),
        }
    }
    Ok(startup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(mode: ControlMode, requested: &[&str], expect: &[&str]) {
        let requested: Vec<String> = requested.iter().map(|&name| name.to_owned()).collect();
        let listing = Listing::of([("a", "/r"), ("b", "/r"), ("c", "/r"), ("c", "/s")]);
        let startup = startup(mode, &requested, &listing).expect("no faulty wildcard is asked for");
        assert_eq!(startup.models, expect);
    }

    #[test]
    fn all_models_are_up_unless_clients_decide() {
        check(ControlMode::None, &[], &["a", "b"]);
        check(ControlMode::Poll, &[], &["a", "b"]);
        check(ControlMode::Explicit, &[], &[]);
    }

    #[test]
    fn explicit_mode_takes_names_once_and_a_lone_wildcard() {
        check(ControlMode::Explicit, &["b", "nobody", "b"], &["b", "nobody"]);
        check(ControlMode::Explicit, &["*"], &["a", "b"]);
        check(ControlMode::Explicit, &["*", "*"], &["a", "b"]);
        check(ControlMode::Demand, &[], &[]);
        check(ControlMode::Demand, &["b"], &["b"]);
    }

    #[test]
    fn a_wildcard_beside_a_name_is_refused() {
        let requested = ["*".to_owned(), "a".to_owned()];
        let refused = startup(ControlMode::Explicit, &requested, &Listing::default()).expect_err("two names");
        assert_eq!(refused.message, "Wildcard model name '*' must be the ONLY startup model if specified at all.");
    }

    #[test]
    fn a_model_in_two_repositories_is_refused_by_name() {
        let listing = Listing::of([("c", "/r"), ("c", "/s")]);
        let startup = startup(ControlMode::None, &[], &listing).expect("no wildcard");
        assert_eq!(startup.refused, [PollError::Duplicate { model: "c".to_owned() }]);
    }

    #[test]
    fn only_explicit_mode_lets_clients_load() {
        assert!(ControlMode::Explicit.check_client_control().is_ok());
        assert!(ControlMode::Demand.check_client_control().is_ok());
        for (mode, word) in [(ControlMode::None, "none"), (ControlMode::Poll, "poll")] {
            let refused = mode.check_client_control().expect_err("not explicit").message;
            assert!(
                refused.starts_with("explicit model load / unload is not allowed if polling is enabled; "),
                "{refused}"
            );
            assert!(refused.contains(&format!("--model-control-mode={word}, ")), "{refused}");
        }
    }

    #[test]
    fn modes_are_read_in_any_case() {
        assert_eq!(ControlMode::parse("EXPLICIT"), Some(ControlMode::Explicit));
        assert_eq!(ControlMode::parse("Poll"), Some(ControlMode::Poll));
        assert_eq!(ControlMode::parse("demand"), Some(ControlMode::Demand));
        assert_eq!(ControlMode::parse("none"), Some(ControlMode::None));
        assert_eq!(ControlMode::parse("all"), None);
    }
}
