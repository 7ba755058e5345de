//! Which calls may a client make?

use std::sync::LazyLock;

use nerite_request::{Code, Status};
use nerite_watchdog::{Name, doing};
use subtle::ConstantTimeEq;

use crate::codes;

/// The groups of calls for which the operator can require a header.
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
    /// All categories.
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

    /// The category's name on the command line.
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

    /// Tells the watchdog that this thread now handles a call of this category.
    pub fn begins(self) {
        static NAMES: LazyLock<[Name; 9]> = LazyLock::new(|| Category::ALL.map(|category| Name::new(category.name())));
        if let Some(name) = NAMES.get(self as usize) {
            doing(name);
        }
    }
}

/// The protocol of a call. Each has its own access rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Protocol {
    Http,
    Grpc,
}

/// One rule: these calls need this header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restriction {
    /// The protocol that the rule applies to.
    pub protocol: Protocol,
    /// The calls that the rule applies to.
    pub category: Category,
    /// The header in lower case. For gRPC it has the prefix `triton-grpc-protocol-` already.
    pub header: String,
    /// The exact value expected.
    pub value: String,
}

impl Restriction {
    /// Whether a call has the header with the expected value. The time of the comparison depends on the lengths and not on the bytes, so it tells a
    /// client nothing about a value that it guesses.
    fn is_met<'h>(&self, header: impl Fn(&str) -> Option<&'h [u8]>) -> bool {
        header(&self.header).is_some_and(|found| found.ct_eq(self.value.as_bytes()).into())
    }
}

/// Why a client may not make a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The error that the client gets.
    pub status: Status,
    /// Whole seconds after which the client may try again, if waiting helps.
    pub retry_after_s: Option<u64>,
}

impl Refused {
    /// The HTTP status. Triton says 403 where a header of `--http-restricted-api` is missing, and UNAVAILABLE over gRPC.
    pub fn http_status(&self) -> u16 {
        match self.status.code {
            Code::Unavailable => codes::http_status(Code::Denied),
            code => codes::http_status(code),
        }
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused { status, retry_after_s: None }
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Status {
        refused.status
    }
}

/// Whether a call of `category` is allowed. `header` looks up a header by its lower-case name.
pub fn check<'h>(
    restrictions: &[Restriction],
    protocol: Protocol,
    category: Category,
    header: impl Fn(&str) -> Option<&'h [u8]>,
) -> Result<(), Status> {
    let rule = restrictions.iter().find(|rule| rule.protocol == protocol && rule.category == category);
    let Some(rule) = rule else { return Ok(()) };
    if rule.is_met(header) {
        return Ok(());
    }
    Err(Status::unavailable(match protocol {
        Protocol::Http => format!("This API is restricted, expecting header '{}'", rule.header),
        Protocol::Grpc => format!("This protocol is restricted, expecting header '{}'", rule.header),
    }))
}

/// Whether a call of `category` over another protocol than HTTP and gRPC is allowed. If HTTP or gRPC requires a header for
/// it, one of these headers must have its value.
pub fn check_any<'h>(
    restrictions: &[Restriction],
    category: Category,
    header: impl Fn(&str) -> Option<&'h [u8]>,
) -> Result<(), Status> {
    let mut rules = restrictions.iter().filter(|rule| rule.category == category).peekable();
    let Some(first) = rules.peek() else { return Ok(()) };
    let expected = &first.header;
    let refused = || Status::unavailable(format!("This protocol is restricted, expecting header '{expected}'"));
    if rules.any(|rule| rule.is_met(&header)) { Ok(()) } else { Err(refused()) }
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
        for other in ["Secret", "secreT", "secre", "secrets", ""] {
            check_one(Some(other.as_bytes()), Category::Inference, false);
        }
        check_one(None, Category::Inference, false);
        check_one(None, Category::Health, true);
    }
}
