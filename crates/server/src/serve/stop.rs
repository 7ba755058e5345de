//! How does a server end without losing a request?

use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_api::Api;
use nerite_engine::Engine;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout_at;

use super::listen::Fronts;
use super::{StartError, host, trim};
use crate::settings::Settings;

/// Serves until SIGINT or SIGTERM, then lets requests in flight end. Gives whether all ended in time. A second signal ends
/// the process at once.
pub async fn when_told(
    fronts: Fronts,
    api: &Api,
    engine: &Arc<Engine>,
    settings: &Settings,
) -> Result<bool, StartError> {
    let no_signals = |error| StartError(format!("signals cannot be received: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let keeping = tokio::spawn(trim::keep(Arc::clone(api.pools())));
    let watched = settings.metrics.as_ref().filter(|metrics| metrics.cpu);
    if let Some(metrics) = watched {
        tokio::spawn(host::watch(api.clone(), Duration::from_millis(metrics.interval_ms)));
    }
    let number = either(&mut interrupt, &mut terminate).await;
    log::info!("Signal ({number}) received.");
    keeping.abort();
    let deadline = Instant::now() + Duration::from_secs(settings.exit_timeout_secs);
    let ending = end(fronts, api, engine, deadline);
    tokio::select! {
        clean = ending => {
            if !clean {
                log::error!("Exit timeout expired. Exiting immediately.");
            }
            Ok(clean)
        }
        number = either(&mut interrupt, &mut terminate) => {
            log::warn!("Signal ({number}) received again. Exiting immediately.");
            Ok(false)
        }
    }
}

async fn end(fronts: Fronts, api: &Api, engine: &Arc<Engine>, deadline: Instant) -> bool {
    api.begin_stopping();
    let closed = timeout_at(deadline.into(), fronts.stop()).await.is_ok();
    let engine = Arc::clone(engine);
    let drained = tokio::task::spawn_blocking(move || engine.stop(deadline)).await.unwrap_or(false);
    closed && drained
}

async fn either(interrupt: &mut Signal, terminate: &mut Signal) -> i32 {
    tokio::select! {
        _ = interrupt.recv() => 2,
        _ = terminate.recv() => 15,
    }
}
