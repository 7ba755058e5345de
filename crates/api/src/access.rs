//! Who may call what?

use std::sync::LazyLock;

use nerite_request::Status;
use nerite_watchdog::{Name, doing};

/// The groups of calls that can be put behind a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Category {
    Health,
    Metadata,
    Inference,
    SharedMemory,
    ModelConfig,
    ModelRepository,
    Statistics,
    Trace,
    Logging,
}

impl Category {
    /// All of them.
    pub const ALL: [Category; 9] = [
        Category::Health,
        Category::Metadata,
        Category::Inference,
        Category::SharedMemory,
        Category::ModelConfig,
        Category::ModelRepository,
        Category::Statistics,
        Category::Trace,
        Category::Logging,
    ];

    /// The word for it on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Category::Health => "health",
            Category::Metadata => "metadata",
            Category::Inference => "inference",
            Category::SharedMemory => "shared-memory",
            Category::ModelConfig => "model-config",
            Category::ModelRepository => "model-repository",
            Category::Statistics => "statistics",
            Category::Trace => "trace",
            Category::Logging => "logging",
        }
    }

    /// Tells the watchdog that this thread answers such a call from now on.
    pub fn begins(self) {
        static NAMES: LazyLock<[Name; 9]> = LazyLock::new(|| Category::ALL.map(|category| Name::new(category.name())));
        if let Some(name) = NAMES.get(self as usize) {
            doing(name);
        }
    }
}

/// The protocol a call came by; each has its own access rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Protocol {
    Http,
    Grpc,
}

/// One rule: these calls want this header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restriction {
    /// The protocol it holds for.
    pub protocol: Protocol,
    /// The calls it holds for.
    pub category: Category,
    /// The header, lower-case; for gRPC already with its prefix `triton-grpc-protocol-`.
    pub header: String,
    /// The exact value expected.
    pub value: String,
}

/// Whether a call of `category` may go on; `header` looks one up by its lower-case name.
pub fn check<'h>(
    restrictions: &[Restriction],
    protocol: Protocol,
    category: Category,
    header: impl Fn(&str) -> Option<&'h [u8]>,
) -> Result<(), Status> {
    let rule = restrictions.iter().find(|rule| rule.protocol == protocol && rule.category == category);
    let Some(rule) = rule else { return Ok(()) };
    if header(&rule.header) == Some(rule.value.as_bytes()) {
        return Ok(());
    }
    Err(Status::unavailable(match protocol {
        Protocol::Http => format!("This API is restricted, expecting header '{}'", rule.header),
        Protocol::Grpc => format!("This protocol is restricted, expecting header '{}'", rule.header),
    }))
}

/// Whether a call of `category` may go on that came by neither protocol: where either wants a header, one of them must be
/// there with its value.
pub fn check_any<'h>(
    restrictions: &[Restriction],
    category: Category,
    header: impl Fn(&str) -> Option<&'h [u8]>,
) -> Result<(), Status> {
    let mut rules = restrictions.iter().filter(|rule| rule.category == category).peekable();
    let Some(first) = rules.peek() else { return Ok(()) };
    let expected = &first.header;
    let refused = || Status::unavailable(format!("This protocol is restricted, expecting header '{expected}'"));
    if rules.any(|rule| header(&rule.header) == Some(rule.value.as_bytes())) { Ok(()) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_one(given: Option<&[u8]>, category: Category, passes: bool) {
        let rule = Restriction {
            protocol: Protocol::Http,
            category: Category::Inference,
            header: "infer-key".into(),
            value: "secret".into(),
        };
        let outcome = check(&[rule], Protocol::Http, category, |name| given.filter(|_| name == "infer-key"));
        assert_eq!(outcome.is_ok(), passes, "{given:?} {category:?}");
    }

    #[test]
    fn categories_are_numbered_in_the_order_of_the_list() {
        assert!(Category::ALL.iter().enumerate().all(|(at, category)| *category as usize == at));
    }

    #[test]
    fn a_restricted_call_wants_the_exact_value() {
        check_one(Some(b"secret"), Category::Inference, true);
        check_one(Some(b"Secret"), Category::Inference, false);
        check_one(None, Category::Inference, false);
        check_one(None, Category::Health, true);
    }
}
