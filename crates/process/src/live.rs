//! What is a process that has its model, and who starts it?

use std::sync::{Arc, Weak};

use nerite_request::Status;

use crate::blocks::Blocks;
use crate::body::Body;
use crate::calls::{Callees, Calls, Process};
use crate::channel::Channel;
use crate::child::Child;
use crate::plan::Sizes;
use crate::shares::Shares;
use crate::supervisor::Supervisor;

/// Starts the process of one instance, as often as there must be another.
pub trait ProcessLauncher: Send + Sync {
    /// The instance's name.
    fn instance(&self) -> &str;

    /// Starts a process and initializes the model in it.
    fn launch(&self) -> Result<Live, Status>;

    /// Whether its model answers a request any number of times, on the channel for calls.
    fn is_decoupled(&self) -> bool {
        false
    }

    /// The process gives no answer, or there is none; `why` is a sentence about it.
    fn unhealthy(&self, why: &str) -> String;

    /// The process failed a batch as a whole, for this reason.
    fn failed(&self, text: &str) -> String;
}

/// A process that has the model.
pub struct Live {
    pub(crate) child: Child,
    pub(crate) shares: Arc<Shares>,
    /// For one that calls: the server's end of the channel, until its calls are heard.
    called: Option<(Channel, Supervisor, Callees)>,
    pub(crate) calls: Option<Arc<Calls>>,
    /// Whether its model says itself whether it is ready.
    decides: bool,
    /// Whether it reads packed batches.
    pub(crate) is_packed: bool,
}

impl Live {
    /// `guarded`: whether it maps memory under a guard. Without one it gets no memory that its owner may shrink.
    pub fn new(mut child: Child, guarded: bool) -> Live {
        child.has_model();
        let shares = Shares::new(Arc::clone(&child.channel), guarded);
        Live { child, shares, called: None, calls: None, decides: false, is_packed: false }
    }

    /// The same, of a process that calls on `channel`.
    #[must_use]
    pub fn calling(self, channel: Channel, supervisor: &Supervisor, callees: Callees) -> Live {
        Live { called: Some((channel, supervisor.clone(), callees)), ..self }
    }

    /// The same, of a process that listens on its side channel: it is told when the client of a request has gone.
    #[must_use]
    pub fn told_who_has_gone(self) -> Live {
        self.child.side.tell_gone();
        self
    }

    /// The same, of a process whose model says itself whether it is ready, by calls, if it `decides`.
    #[must_use]
    pub fn deciding(self, decides: bool) -> Live {
        Live { decides, ..self }
    }

    /// The same, of a process that is told of batches in packed packets, and answers in them.
    #[must_use]
    pub fn packed(self) -> Live {
        Live { is_packed: true, ..self }
    }

    /// The process, for those who ask for readiness.
    pub(crate) fn started(&self) -> Started {
        let calls = self.calls.as_ref().filter(|_| self.decides);
        Started { body: Arc::clone(&self.child.body), decides: calls.map(Arc::downgrade) }
    }

    /// Has its calls heard.
    pub(crate) fn hear_calls(
        &mut self,
        launcher: &Arc<dyn ProcessLauncher>,
        blocks: &Arc<Blocks>,
        sizes: &Sizes,
    ) -> Result<(), Status> {
        let Some((channel, supervisor, callees)) = self.called.take() else { return Ok(()) };
        let process = Process {
            instance: launcher.instance().to_owned(),
            unhealthy: {
                let launcher = Arc::clone(launcher);
                Box::new(move |why| launcher.unhealthy(why))
            },
            shares: Arc::clone(&self.shares),
            blocks: Arc::clone(blocks),
            side: Arc::clone(&self.child.side),
            body: Arc::clone(&self.child.body),
            callees,
        };
        let heard = Calls::new(channel, process, Arc::clone(sizes)).and_then(|calls| {
            self.calls = Some(Arc::clone(&calls));
            supervisor.hear_calls(calls)
        });
        heard.map_err(|error| Status::unavailable(launcher.unhealthy(&format!("its calls cannot be heard: {error}"))))
    }
}

/// A process, and whom to ask whether its model is ready if that has a say.
pub(crate) struct Started {
    pub(crate) body: Arc<Body>,
    pub(crate) decides: Option<Weak<Calls>>,
}
