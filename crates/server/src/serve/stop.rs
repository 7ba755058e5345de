//! How does a server end without losing a request?

use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_api::Api;
use nerite_engine::Engine;
use nerite_shm::Pools;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, timeout_at};

use super::listen::Fronts;
use super::{StartError, host};
use crate::settings::Settings;

/// Rounds of one second that unused tensor memory is kept for the next request.
const POOL_ROUNDS: u32 = 2;
/// Rounds that a returned lease is kept for its session's next request.
const LEASE_ROUNDS: u32 = 3;

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
    let keeping = tokio::spawn(keep_house(Arc::clone(api.pools())));
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

/// Gives memory back to the system that no request used for a while.
async fn keep_house(pools: Arc<Pools>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        pools.trim(LEASE_ROUNDS);
        if nerite_memory::trim_pool(POOL_ROUNDS) > 0 {
            nerite_memory::trim_heap();
        }
    }
}
