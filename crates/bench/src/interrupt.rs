//! Does the user want to end the measurement?

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

/// Whether Ctrl-C was pressed, or the program was told to end. What was measured until then is reported, and the shared memory is given back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches for SIGINT and SIGTERM from now on.
    pub(crate) fn watch() -> Result<Interrupt, String> {
        let interrupt = Interrupt::default();
        let flag = Arc::clone(&interrupt.0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
        let thread = std::thread::Builder::new().name("bench-signals".to_owned()).spawn(move || {
            // Without signals the measurement goes on as it would otherwise.
            if runtime.block_on(stop_signal()).is_ok() {
                flag.store(true, Ordering::Relaxed);
            }
        });
        thread.map(|_| interrupt).map_err(|error| format!("no thread for signals: {error}"))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns when a user wants this program to end, by SIGINT or SIGTERM. Fails if the system does not deliver signals.
pub async fn stop_signal() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed,
        _ = terminate.recv() => Ok(()),
    }
}
