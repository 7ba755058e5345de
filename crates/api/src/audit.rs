//! Which client changed something of the server, and did the change succeed?
//!
//! If the server has tokens, each change is one line of the log: the client (its token, and its peer as the kernel
//! says), the change, and the outcome. Names are quoted, so that a client cannot write a line of its own, and
//! shortened.

use std::sync::Arc;

use log::Level;
use nerite_access::Token;
use nerite_request::{Peer, Status};

use crate::Api;
use crate::access::{Category, Refused};
use crate::caller::{NAME_BYTES_MAX, cut};
use crate::logging::LogSwitches;

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
        if self.log.shows(Level::Info) {
            log::info!("{}", self.line(outcome, &what()));
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

    /// Writes the line of a change that the client's token does not allow.
    pub(crate) fn audit_refusal(&self, token: &Token, category: Category, allowed: &Result<(), Refused>) {
        if let Err(refused) = allowed {
            // A warning, so that a client that repeats it does not fill the log.
            let (token, peer, category) = (token.name(), self.peer(), category.name());
            log::warn!("audit: token {token}, {peer}: a change ({category}): refused: {}", refused.status.code.name());
        }
    }
}

/// A name that a client chose, quoted and shortened.
pub(crate) fn quoted(name: &str) -> String {
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
