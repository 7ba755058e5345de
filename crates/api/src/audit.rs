//! Which client changed something of the server, and did the change succeed?
//!
//! If the server has tokens, each change is one line of the log: the client (its token, and its peer as the kernel
//! says), the change, and the outcome. Names are quoted, so that a client cannot write a line of its own, and
//! shortened. Whether the lines are shown depends on the command line only: a client that may change the settings of
//! the log cannot turn them off.

use std::sync::Arc;

use log::Level;
use nerite_access::Token;
use nerite_request::{Peer, Status};

use crate::Api;
use crate::access::{Category, Refused};
use crate::caller::{NAME_BYTES_MAX, cut};
use crate::logging::LogSwitches;

/// The target of audit lines. The logger asks [`LogSwitches::shows_audit`] for it.
pub const AUDIT_TARGET: &str = "nerite_audit_line";
/// The most bytes of the name of what was changed, and of the error.
const TEXT_BYTES_MAX: usize = 512;

/// The client of a change. The change may end after the client has gone.
pub(crate) struct Auditor {
    token: Option<Arc<Token>>,
    peer: Peer,
    log: Arc<LogSwitches>,
}

impl Auditor {
    /// Writes the line of a change. `what` is called only if the line is written.
    pub(crate) fn note<T>(&self, outcome: &Result<T, Status>, what: impl FnOnce() -> String) {
        if self.log.shows_audit(Level::Info) {
            log::info!(target: AUDIT_TARGET, "{}", self.line(outcome, &what()));
        }
    }

    fn line<T>(&self, outcome: &Result<T, Status>, what: &str) -> String {
        let token = self.token.as_ref().map_or("-", |token| token.name());
        let outcome = match outcome {
            Ok(_) => "done".to_owned(),
            Err(status) => format!("refused: {}: {:?}", status.code.name(), cut(&status.message, TEXT_BYTES_MAX)),
        };
        format!("audit: token {token}, {}: {}: {outcome}", self.peer, cut(what, TEXT_BYTES_MAX))
    }
}

impl Api {
    /// `None` if the server has no tokens.
    pub(crate) fn auditor(&self) -> Option<Auditor> {
        self.inner.options.tokens.as_ref()?;
        Some(Auditor { token: self.token(), peer: self.peer().clone(), log: Arc::clone(&self.inner.log) })
    }

    /// Writes the line of a change. `what` is called only if the line is written.
    pub(crate) fn audit<T>(&self, outcome: &Result<T, Status>, what: impl FnOnce() -> String) {
        if let Some(auditor) = self.auditor() {
            auditor.note(outcome, what);
        }
    }

    /// Writes the line of one of the operator's calls that changes something: an audit line if the server has tokens. Otherwise it is a line of the log
    /// like others, and is written only if the call succeeded.
    pub fn note_operator_change<T>(&self, outcome: &Result<T, Status>, what: &str) {
        match self.auditor() {
            Some(auditor) => auditor.note(outcome, || format!("as operator: {what}")),
            None if outcome.is_ok() => log::info!("{} as operator: {what}: done", self.peer()),
            None => {}
        }
    }

    /// Writes the line of a change that the client's token does not allow.
    pub(crate) fn audit_refusal(&self, token: &Token, category: Category, allowed: &Result<(), Refused>) {
        if let Err(refused) = allowed {
            let refusal = self.refusal("a change", category, refused);
            log::warn!(target: AUDIT_TARGET, "audit: token {}, {refusal}", token.name());
        }
    }

    /// Writes the line of a call that is or may be a change, and whose token is not known.
    pub(crate) fn audit_unknown(&self, category: Category, is_change: bool, refused: &Refused) {
        let what = if is_change { "a change" } else { "a call that may be a change" };
        // No token can have this name. The logger limits lines by their place in the code. These lines have their own place, so many of them do not suppress
        // the lines of known tokens.
        let refusal = self.refusal(what, category, refused);
        log::warn!(target: AUDIT_TARGET, "audit: token (unknown), {refusal}");
    }

    /// The text of a warning about a refusal. The logger limits repeated warnings, so a client that repeats the call does not fill the log.
    fn refusal(&self, what: &str, category: Category, refused: &Refused) -> String {
        let (peer, category, code) = (self.peer(), category.name(), refused.status.code.name());
        format!("{peer}: {what} ({category}): refused: {code}")
    }
}

/// A name that a client chose, quoted and shortened, for a line of the log.
pub fn quoted(name: &str) -> String {
    format!("{:?}", cut(name, NAME_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use nerite_request::setting::LogSettings;

    use super::*;

    #[test]
    fn what_a_client_chose_is_quoted_and_cut() {
        let settings = LogSettings {
            file: String::new(),
            info: true,
            warning: false,
            error: false,
            verbose_level: 0,
            format: "default".into(),
        };
        let log = Arc::new(LogSwitches::new(settings));
        let auditor = Auditor { token: None, peer: Peer::User { uid: 7 }, log };
        let long = "é".repeat(100_000);
        assert_eq!(quoted(&long).len(), NAME_BYTES_MAX + 2);
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        let refused: Result<(), _> = Err(Status::invalid(&*long));
        assert!(auditor.line(&refused, &long).len() < 2 * TEXT_BYTES_MAX + 100);
        assert_eq!(auditor.line(&Ok(()), "load model \"a\""), "audit: token -, user 7: load model \"a\": done");
    }
}
