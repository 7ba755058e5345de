//! How many requests were refused before a model saw them, and why?
//!
//! Errors that a model's queue or run has are in the model's own counts.

use std::sync::atomic::{AtomicU64, Ordering};

use nerite_request::Code;

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// It brought no token, or one that is not known.
    Unauthenticated,
    /// Its token does not allow the call or the model.
    Denied,
    /// It lacks the header of a restricted group of calls.
    Restricted,
    /// The quota of its token is used up.
    Quota,
    /// It named a model or a version that is not there.
    UnknownModel,
}

/// The values of the label `reason`, in the order of [`RefusalReason`].
const NAMES: [&str; 5] = ["unauthenticated", "denied", "restricted", "quota", "unknown_model"];

/// The refusals so far.
#[derive(Debug, Default)]
pub(crate) struct Refusals([AtomicU64; NAMES.len()]);

impl Refusals {
    /// Counts one refusal.
    pub fn count(&self, refusal: RefusalReason) {
        if let Some(count) = self.0.get(refusal as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The counts, by the names of the reasons.
    pub fn report(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(&self.0).map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }
}

/// The reason of a refusal by headers, tokens and quotas. `None` for codes that such a refusal does not have.
pub(crate) fn of_entry(code: Code) -> Option<RefusalReason> {
    match code {
        Code::Unauthenticated => Some(RefusalReason::Unauthenticated),
        Code::Denied => Some(RefusalReason::Denied),
        // As in [`Refused::http_status`](crate::Refused::http_status).
        Code::Unavailable => Some(RefusalReason::Restricted),
        Code::Exhausted => Some(RefusalReason::Quota),
        Code::Unknown
        | Code::Internal
        | Code::NotFound
        | Code::InvalidArg
        | Code::Unsupported
        | Code::AlreadyExists
        | Code::Cancelled => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(refusal: RefusalReason, name: &str) {
        let refusals = Refusals::default();
        refusals.count(refusal);
        let counted: Vec<_> = refusals.report().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(name, 1)]);
    }

    #[test]
    fn each_refusal_has_its_name() {
        check(RefusalReason::Unauthenticated, "unauthenticated");
        check(RefusalReason::Denied, "denied");
        check(RefusalReason::Restricted, "restricted");
        check(RefusalReason::Quota, "quota");
        check(RefusalReason::UnknownModel, "unknown_model");
    }

    #[test]
    fn a_missing_header_is_told_from_a_missing_scope() {
        assert_eq!(of_entry(Code::Unavailable), Some(RefusalReason::Restricted));
        assert_eq!(of_entry(Code::Denied), Some(RefusalReason::Denied));
        assert_eq!(of_entry(Code::Internal), None);
    }
}
