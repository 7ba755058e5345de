//! When is a load ended before it is done?
//!
//! The warmup and the start of a model's process may take long, or hang, and only a few loads run at a time. They end when the model is unloaded and
//! when the server stops. If a client sent the configuration, they also end when this client has gone, and the warmup after a time.

use std::sync::{MutexGuard, OnceLock, PoisonError};

use nerite_backend::{LoadStop, now_ns};
use nerite_locks::Mutex;
use nerite_request::{Cancel, Status};

use crate::limits::SENT_WARMUP_MAX;

/// Why a load ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The client that sent the configuration has gone.
    ClientGone,
    /// A client sent the configuration, and the time for such a warmup is over.
    TimeOver,
    /// The model is unloaded.
    Unload,
    /// The server stops.
    Stop,
}

/// Whether a load has to end, and the requests of its warmup that run.
#[derive(Default)]
pub(crate) struct Ending {
    reason: OnceLock<Reason>,
    /// Ends what the load waits for.
    stop: LoadStop,
    /// When the warmup began.
    began_ns: OnceLock<u64>,
    /// The flags of the requests that run.
    run: Mutex<Vec<Cancel>>,
}

impl Ending {
    /// Ends the load. Requests that run are cancelled.
    pub fn end(&self, reason: Reason) {
        // Only the first reason counts.
        let _ = self.reason.set(reason);
        self.stop.stop(&reason.words());
        let run = std::mem::take(&mut *self.run());
        run.iter().for_each(Cancel::cancel);
    }

    /// Notes the flags of the requests that run next. Err: the load has to end.
    pub fn run_begins(&self, model: &str, requests: Vec<Cancel>) -> Result<(), Status> {
        self.began_ns.get_or_init(now_ns);
        let mut run = self.run();
        // The lock is held. If a reason is set after this check, [`Ending::end`] finds the flags.
        self.check(model)?;
        *run = requests;
        Ok(())
    }

    /// Ends what the load waits for, when the load has to end.
    pub fn stop(&self) -> &LoadStop {
        &self.stop
    }

    /// Err: the load has to end.
    pub fn check(&self, model: &str) -> Result<(), Status> {
        match self.reason.get() {
            None => Ok(()),
            Some(reason) => {
                Err(Status::unavailable(format!("the load of model '{model}' was ended: {}", reason.words())))
            }
        }
    }

    /// Ends the warmup if it has taken more than [`SENT_WARMUP_MAX`] at that time.
    pub fn end_if_late(&self, now_ns: u64) {
        if self
            .began_ns
            .get()
            .is_some_and(|began| u128::from(now_ns.saturating_sub(*began)) > SENT_WARMUP_MAX.as_nanos())
        {
            self.end(Reason::TimeOver);
        }
    }

    fn run(&self) -> MutexGuard<'_, Vec<Cancel>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reason {
    fn words(self) -> String {
        match self {
            Reason::ClientGone => "the client that sent the configuration has gone".to_owned(),
            Reason::TimeOver => format!(
                "a client sent the configuration, and the warmup took more than {} s; lower 'count', or put the configuration into the repository",
                SENT_WARMUP_MAX.as_secs()
            ),
            Reason::Unload => "the model is unloaded".to_owned(),
            Reason::Stop => "the server stops".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_that_run_are_cancelled_and_no_others_begin() {
        let (ending, requests) = (Ending::default(), [Cancel::new(), Cancel::new()]);
        assert_eq!(ending.run_begins("m", vec![Cancel::new()]), Ok(()));
        assert_eq!(ending.run_begins("m", requests.to_vec()), Ok(()));
        ending.end(Reason::Unload);
        ending.end(Reason::Stop);
        assert!(requests.iter().all(Cancel::is_cancelled));
        let refused = ending.run_begins("m", Vec::new()).map_err(|status| status.message);
        assert_eq!(refused, Err("the load of model 'm' was ended: the model is unloaded".to_owned()));
    }

    #[test]
    fn a_warmup_is_late_some_time_after_it_began() {
        let ending = Ending::default();
        let after = |ns: u64| now_ns() + SENT_WARMUP_MAX.as_nanos() as u64 + ns;
        ending.end_if_late(after(1));
        assert_eq!(ending.run_begins("m", Vec::new()), Ok(()));
        ending.end_if_late(now_ns());
        assert_eq!(ending.check("m"), Ok(()));
        ending.end_if_late(after(1));
        let refused = ending.check("m").err().map_or_else(String::new, |status| status.message);
        assert!(refused.contains("took more than 600 s; lower 'count'"), "{refused}");
    }
}
