//! How is a process with a loaded model described, and how is it started?

use std::sync::{Arc, Weak};

use nerite_backend::{Job, LoadStop};
use nerite_request::{Cancel, Status};

use crate::blocks::Blocks;
use crate::calls::{Callees, Calls, Process};
use crate::channel::Channel;
use crate::child::Child;
use crate::os_process::OsProcess;
use crate::overtime::ExecuteLimit;
use crate::plan::Sizes;
use crate::restarts::Restarts;
use crate::shares::Shares;
use crate::supervisor::Supervisor;

/// Starts the process of one instance, and a new one after each death.
pub trait ProcessLauncher: Send + Sync {
    /// The instance's name.
    fn instance(&self) -> &str;

    /// Starts a process and initializes the model in it. If the process may make calls during the initialization, it is passed to `hearing` first.
    fn launch(&self, hearing: &Hearing<'_>) -> Result<Live, Status>;

    /// The counter of the starts after a death.
    fn restarts(&self) -> &Restarts;

    /// Whether its requests may be answered on the channel for calls. This is so for requests of decoupled models, and
    /// for all requests of compiled backends.
    fn is_decoupled(&self) -> bool {
        false
    }

    /// Whether its process reports the responses of a request one by one. Otherwise the server counts those of a decoupled model where it sends them.
    fn reports_responses(&self) -> bool {
        false
    }

    /// How long its process may take to execute a batch. `None` has no limit.
    fn execute_limit(&self) -> Option<ExecuteLimit> {
        None
    }

    /// The error text of a process that does not answer, or does not exist. `why` is a sentence about the reason.
    fn unhealthy(&self, why: &str) -> String;

    /// The error text of a batch that failed as a whole, for this reason.
    fn failed(&self, text: &str) -> String;
}

/// A process with a loaded model.
pub struct Live {
    pub(crate) child: Child,
    pub(crate) shares: Arc<Shares>,
    /// For a process that makes calls: the server's end of the channel, until its calls are read.
    called: Option<(Channel, Supervisor, Callees)>,
    pub(crate) calls: Option<Arc<Calls>>,
    /// Whether its model reports its own readiness.
    decides: bool,
    /// Whether it reads packed batches.
    pub(crate) is_packed: bool,
    /// Whether it ends a run when it is told that the clients have gone.
    ends_runs: bool,
}

/// Lets the server answer the calls of a process before its model is initialized.
pub struct Hearing<'h> {
    pub(crate) launcher: &'h Arc<dyn ProcessLauncher>,
    pub(crate) blocks: &'h Arc<Blocks>,
    pub(crate) sizes: &'h Sizes,
    pub(crate) stop: &'h LoadStop,
}

impl Hearing<'_> {
    /// Ends the start of the process.
    pub fn stop(&self) -> &LoadStop {
        self.stop
    }

    /// Begins to read the calls of a process, if it makes any and they are not read yet.
    pub fn begin(&self, live: &mut Live) -> Result<(), Status> {
        live.hear_calls(self.launcher, self.blocks, self.sizes)
    }
}

impl Live {
    /// A process with an initialized model. `guarded`: whether it maps memory under a guard. Without a guard it gets no memory that the owner may
    /// shrink.
    pub fn new(child: Child, guarded: bool) -> Live {
        Live::starting(child).initialized(guarded)
    }

    /// A process whose model is not initialized yet.
    pub fn starting(child: Child) -> Live {
        let shares = Shares::new(Arc::clone(&child.channel), false);
        Live { child, shares, called: None, calls: None, decides: false, is_packed: false, ends_runs: false }
    }

    /// The same process, whose model is initialized. `guarded` is as for [`Live::new`].
    #[must_use]
    pub fn initialized(mut self, guarded: bool) -> Live {
        self.child.has_model();
        if guarded {
            self.shares.set_guarded();
        }
        self
    }

    /// The process, for its first command.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// The same process, which makes calls on `channel`.
    #[must_use]
    pub fn calling(self, channel: Channel, supervisor: &Supervisor, callees: Callees) -> Live {
        Live { called: Some((channel, supervisor.clone(), callees)), ..self }
    }

    /// The same process, which reads its side channel: the server tells it when the client of a request has gone.
    #[must_use]
    pub fn with_gone_notices(self) -> Live {
        self.child.side.report_gone();
        self
    }

    /// The same process, which reads its side channel and ends a run when its requests are to end early. A request that may run on after its client
    /// has gone does not end the run before that.
    #[must_use]
    pub fn ending_runs(self) -> Live {
        Live { ends_runs: true, ..self.with_gone_notices() }
    }

    /// The flag of a request that the server reports to the process, or that the process may query.
    pub(crate) fn flag_of(&self, job: &Job) -> Cancel {
        if self.ends_runs { job.stop().clone() } else { job.cancel().clone() }
    }

    /// The same process, whose model reports its own readiness by calls if it `decides`.
    #[must_use]
    pub fn deciding(self, decides: bool) -> Live {
        Live { decides, ..self }
    }

    /// The same process, which opens memory of devices itself if it `takes` that.
    #[must_use]
    pub fn taking_devices(self, takes: bool) -> Live {
        if takes {
            self.shares.take_devices();
        }
        self
    }

    /// The same process, which reads and answers packed batches.
    #[must_use]
    pub fn packed(self) -> Live {
        Live { is_packed: true, ..self }
    }

    /// The process, for readiness checks.
    pub(crate) fn started(&self) -> Started {
        let calls = self.calls.as_ref().filter(|_| self.decides);
        Started { os_process: Arc::clone(&self.child.os_process), decides: calls.map(Arc::downgrade) }
    }

    /// Begins to read its calls.
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
            os_process: Arc::clone(&self.child.os_process),
            output: self.child.output.clone(),
            counts_responses: !launcher.reports_responses(),
            callees,
        };
        let heard = Calls::new(channel, process, Arc::clone(sizes)).and_then(|calls| {
            self.calls = Some(Arc::clone(&calls));
            supervisor.hear_calls(calls)
        });
        heard.map_err(|error| Status::unavailable(launcher.unhealthy(&format!("its calls cannot be heard: {error}"))))
    }
}

/// A process, and its calls if its model reports its own readiness.
pub(crate) struct Started {
    pub(crate) os_process: Arc<OsProcess>,
    pub(crate) decides: Option<Weak<Calls>>,
}
