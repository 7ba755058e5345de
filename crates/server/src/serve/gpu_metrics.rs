//! How busy are the GPUs?
//!
//! ```text
//!   task ──every interval──► thread ── asks NVML ──► GpuFigures ◄── page of metrics
//! ```
//!
//! A driver may take seconds to start, and may never return. So a thread of its own asks it, and the page shows what the thread stored last.

mod figures;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TrySendError, sync_channel};
use std::time::Duration;

use nerite_api::{Api, GpuFigures, GpuMetrics};
use nerite_cuda::{Device, GpuMemory, Nvml, NvmlAbsent, NvmlDevice, NvmlError};
use tokio::time::{MissedTickBehavior, interval};

use self::figures::{EnergyMeter, FAILURES_MAX, Failure, Figure};

/// Measures the figures of `devices` at the interval `every`, until the task is dropped.
pub async fn watch(api: Api, devices: Vec<Device>, every: Duration) {
    // While the thread waits for the driver, at most one look waits for the thread.
    let (request, requests) = sync_channel(1);
    let figures = Arc::clone(api.gpu_figures());
    let work = move || observe(&figures, &devices, &requests);
    if let Err(error) = std::thread::Builder::new().name("nerite-nvml".to_owned()).spawn(work) {
        log::warn!("no thread for the metrics of GPUs: {error}; they are not shown");
        return;
    }
    let mut ticks = interval(every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(TrySendError::Disconnected(())) = request.try_send(()) {
            return;
        }
    }
}

/// Measures the figures on each request, until all figures are dropped.
fn observe(figures: &GpuFigures, devices: &[Device], requests: &Receiver<()>) {
    let mut observed = match Nvml::open(None) {
        Ok(nvml) => find(&nvml, devices),
        Err(absent @ NvmlAbsent::NoLibrary { .. }) => return log::debug!("{absent}; there are no metrics of GPUs"),
        Err(absent) => return log::warn!("{absent}; there are no metrics of GPUs"),
    };
    for gpu in &observed {
        // If the driver does not return from the first look, the age of the figures shows it.
        figures.note(gpu.metrics(), false);
    }
    while observed.iter().any(Observed::has_figures) && requests.recv().is_ok() {
        for gpu in &mut observed {
            let answered = gpu.query();
            if gpu.has_figures() {
                figures.note(gpu.metrics(), answered);
            } else {
                // An age that grows would look like a driver that does not return.
                figures.forget(gpu.card.uuid());
            }
        }
    }
}

/// The cards of these devices. A divided card is several devices, but one for NVML.
fn find(nvml: &Arc<Nvml>, devices: &[Device]) -> Vec<Observed> {
    let mut found: Vec<Observed> = Vec::new();
    for device in devices {
        let card = device.pci_bus_id().map_err(|error| error.to_string());
        match card.and_then(|card| nvml.device(&card).map_err(|error| error.to_string())) {
            Ok(card) if found.iter().any(|gpu| gpu.card.uuid() == card.uuid()) => {}
            Ok(card) => {
                log::info!("Collecting metrics for GPU {}: {}", device.ordinal(), device.name());
                found.push(Observed::new(card));
            }
            Err(error) => log::warn!("there are no metrics of GPU {}: {error}", device.ordinal()),
        }
    }
    found
}

/// A card, and what it last answered.
struct Observed {
    card: NvmlDevice,
    utilization_percent: Figure<u32>,
    memory: Figure<GpuMemory>,
    power_usage_mw: Figure<u32>,
    power_limit_mw: Figure<u32>,
    energy_mj: Figure<u64>,
    energy: EnergyMeter,
    energy_joules: f64,
}

impl Observed {
    fn new(card: NvmlDevice) -> Observed {
        Observed {
            card,
            utilization_percent: Figure::default(),
            memory: Figure::default(),
            power_usage_mw: Figure::default(),
            power_limit_mw: Figure::default(),
            energy_mj: Figure::default(),
            energy: EnergyMeter::default(),
            energy_joules: 0.0,
        }
    }

    /// Whether any figure is still measured.
    fn has_figures(&self) -> bool {
        let Observed { utilization_percent, memory, power_usage_mw, power_limit_mw, energy_mj, .. } = self;
        let of_power = power_usage_mw.is_dropped() && power_limit_mw.is_dropped() && energy_mj.is_dropped();
        !(of_power && utilization_percent.is_dropped() && memory.is_dropped())
    }

    /// Asks for all figures. Returns whether the driver gave any.
    fn query(&mut self) -> bool {
        let card = &self.card;
        let answered = [
            read_figure(&mut self.utilization_percent, card, "utilization", NvmlDevice::utilization_percent),
            read_figure(&mut self.memory, card, "memory", NvmlDevice::memory),
            read_figure(&mut self.power_usage_mw, card, "power usage", NvmlDevice::power_usage_mw),
            read_figure(&mut self.power_limit_mw, card, "power limit", NvmlDevice::power_limit_mw),
            read_figure(&mut self.energy_mj, card, "energy consumption", NvmlDevice::energy_mj),
        ];
        if let Some(now_mj) = self.energy_mj.shown() {
            self.energy_joules = self.energy.joules(now_mj);
        }
        answered.contains(&true)
    }

    fn metrics(&self) -> GpuMetrics {
        let watts = |mw: u32| f64::from(mw) / 1000.0;
        let memory = self.memory.shown();
        GpuMetrics {
            uuid: self.card.uuid().to_owned(),
            utilization: self.utilization_percent.shown().map(|percent| f64::from(percent) / 100.0),
            memory_total_bytes: memory.map(|memory| memory.total),
            memory_used_bytes: memory.map(|memory| memory.used),
            power_usage_watts: self.power_usage_mw.shown().map(watts),
            power_limit_watts: self.power_limit_mw.shown().map(watts),
            energy_joules: self.energy_mj.shown().map(|_| self.energy_joules),
            age_s: 0.0,
        }
    }
}

/// Asks for a figure, unless it is dropped. Returns whether there was an answer. A figure that is dropped is logged once.
fn read_figure<T: Copy>(
    figure: &mut Figure<T>,
    card: &NvmlDevice,
    what: &str,
    read: impl FnOnce(&NvmlDevice) -> Result<T, NvmlError>,
) -> bool {
    if figure.is_dropped() {
        return false;
    }
    let answer = read(card);
    let failure = |error: &NvmlError| if error.is_unsupported() { Failure::Unsupported } else { Failure::Other };
    let dropped = figure.note(answer.as_ref().map(|value| *value).map_err(failure));
    match &answer {
        Err(error) if error.is_unsupported() => log::info!("{} has no metric of its {what}: {error}", card.uuid()),
        Err(error) if dropped => {
            log::warn!("the {what} of {} is no longer shown after {FAILURES_MAX} failures: {error}", card.uuid());
        }
        Err(error) => log::debug!("no {what} of {} this time: {error}", card.uuid()),
        Ok(_) => {}
    }
    answer.is_ok()
}
