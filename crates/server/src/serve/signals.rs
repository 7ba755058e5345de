//! Which signals does a server take, and what do they mean?

use nerite_watchdog::{FrontEnd, watched};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::StartError;
use super::phase::Signalled;
use crate::file_limit::file_too_large;

/// The line in which Linux reports the signals that the process ignores, as a hexadecimal mask.
const STATUS: &str = "/proc/self/status";
const IGNORED: &str = "SigIgn:";

/// Signals that mean nothing to a server.
const MEANINGLESS: [fn() -> SignalKind; 1] = [SignalKind::user_defined2];

/// After this call, SIGUSR1 and signals without a meaning for a server do not end the process, and neither does a write past the limit of file sizes. A signal
/// that comes while the models load has its effect once the server listens to its signals. Returns SIGUSR1.
pub fn take_harmless() -> Result<Signal, StartError> {
    // The handlers that tokio sets stay for the life of the process, and programs that the server starts do not inherit them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(unreceived)?;
    let _context = runtime.enter();
    let kinds = MEANINGLESS.iter().map(|kind| kind()).chain([file_too_large()]);
    kinds.map(signal).try_for_each(|signal| signal.map(drop)).map_err(unreceived)?;
    signal(SignalKind::user_defined1()).map_err(unreceived)
}

/// The signals that make a server drain or end.
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    drain: Signal,
    /// The terminal was closed. `None` under `nohup`, because such a server is to outlive its terminal. `None` as well if SIGHUP opens the log file anew.
    hangup: Option<Signal>,
}

impl EndSignals {
    /// After this call, these signals and those without a meaning no longer end the process by themselves. `hangup_ends`: whether SIGHUP is one of them.
    /// `drain` is that of [`take_harmless`].
    pub fn listen(hangup_ends: bool, drain: Signal) -> Result<EndSignals, StartError> {
        let receive = |kind| signal(kind).map_err(unreceived);
        for kind in MEANINGLESS {
            let kind = kind();
            let signal = receive(kind)?;
            tokio::spawn(watched(FrontEnd::Server, log_signal(signal, kind.as_raw_value())));
        }
        let is_ignored = || ignores(&std::fs::read_to_string(STATUS).unwrap_or_default(), SignalKind::hangup());
        Ok(EndSignals {
            interrupt: receive(SignalKind::interrupt())?,
            terminate: receive(SignalKind::terminate())?,
            drain,
            hangup: (hangup_ends && !is_ignored()).then(|| receive(SignalKind::hangup())).transpose()?,
        })
    }

    /// What the next one means, and its number.
    pub async fn next(&mut self) -> (Signalled, i32) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        let (signal, kind) = tokio::select! {
            _ = self.interrupt.recv() => (Signalled::End, SignalKind::interrupt()),
            _ = self.terminate.recv() => (Signalled::End, SignalKind::terminate()),
            _ = self.drain.recv() => (Signalled::Drain, SignalKind::user_defined1()),
            _ = hangup => (Signalled::End, SignalKind::hangup()),
        };
        (signal, kind.as_raw_value())
    }
}

/// The sender of such a signal expects an effect, so the log says that there is none.
async fn log_signal(mut signal: Signal, number: i32) {
    while signal.recv().await.is_some() {
        log::warn!("Signal ({number}) received. It means nothing to this server, which goes on.");
    }
}

pub(super) fn unreceived(error: std::io::Error) -> StartError {
    StartError(format!("signals cannot be received: {error}"))
}

/// Whether the process ignores this signal.
fn ignores(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix(IGNORED));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask & (1 << (kind.as_raw_value() - 1)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(mask: &str, ignored: bool) {
        let status = format!("Name:\tnerite\nSigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\n");
        assert_eq!(ignores(&status, SignalKind::hangup()), ignored, "{mask}");
    }

    #[test]
    fn a_server_under_nohup_is_told_by_the_mask_of_ignored_signals() {
        check("0000000000000001", true);
        check("0000000000001001", true);
        check("0000000000001000", false);
        check("nonsense", false);
        assert!(!ignores("", SignalKind::hangup()));
    }
}
