//! For which device is a run counted?
//!
//! As in Triton, the metrics of a model whose instances compute on several devices are counted for each GPU. Such a model's instances say for each
//! run which device they compute on. A model on one device, or on the host, needs none of this.

use std::collections::BTreeMap;
use std::sync::Arc;

use nerite_backend::{
    Adapted, Batch, BatchAdapter, Instance, InstanceSpec, Meter, Outcome, RequestTimes, ResponseDurations, Times,
};
use nerite_request::report::StatisticsReport;

use crate::stats::Stats;

/// The most GPUs of one model that are counted separately.
const DEVICES_MAX: usize = 64;

/// The GPUs of a model whose instances compute on several devices. Empty otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Devices(Arc<[(u32, String)]>);

impl Devices {
    /// The devices of these instances, with the identity of each GPU.
    pub(crate) fn of(specs: &[InstanceSpec], gpu_uuids: &BTreeMap<u32, String>) -> Devices {
        let mut devices: Vec<Option<u32>> = specs.iter().map(|spec| spec.device).collect();
        devices.sort_unstable();
        devices.dedup();
        if devices.len() < 2 {
            return Devices::default();
        }
        let known = devices.into_iter().flatten().filter_map(|device| Some((device, gpu_uuids.get(&device)?.clone())));
        Devices(known.take(DEVICES_MAX).collect())
    }

    /// How many GPUs are counted separately.
    pub(crate) fn count(&self) -> u8 {
        self.0.len() as u8
    }

    /// Wraps the instances, so that each counts its runs for its device.
    pub(crate) fn counting(
        &self,
        instances: Vec<Box<dyn Instance>>,
        specs: &[InstanceSpec],
        stats: &Arc<Stats>,
    ) -> Vec<Box<dyn Instance>> {
        let counting = |(instance, spec): (Box<dyn Instance>, &InstanceSpec)| match self.number(spec.device) {
            None => instance,
            Some(device) => {
                let meter: Arc<dyn Meter> = Arc::new(OnDevice { stats: Arc::clone(stats), device });
                Box::new(Adapted::new(instance, DeviceCount { device, meter })) as Box<dyn Instance>
            }
        };
        instances.into_iter().zip(specs).map(counting).collect()
    }

    /// The model's own number of a device, from 1 on.
    fn number(&self, device: Option<u32>) -> Option<u8> {
        let at = self.0.iter().position(|(known, _)| Some(*known) == device)?;
        u8::try_from(at + 1).ok()
    }

    /// Adds the identity of the GPUs to a report.
    pub(crate) fn name(&self, report: &mut StatisticsReport) {
        let StatisticsReport { name, version, namespace, by_device, .. } = report;
        let uuids = std::iter::once("").chain(self.0.iter().map(|(_, uuid)| uuid.as_str()));
        for (part, uuid) in by_device.iter_mut().zip(uuids) {
            (part.name, part.version, part.namespace) = (name.clone(), *version, namespace.clone());
            uuid.clone_into(&mut part.gpu_uuid);
        }
    }
}

/// Counts the runs of an instance for its device.
struct DeviceCount {
    device: u8,
    meter: Arc<dyn Meter>,
}

impl BatchAdapter for DeviceCount {
    fn adapt(&self, mut batch: Batch) -> Option<Batch> {
        batch.jobs.iter_mut().for_each(|job| job.runs_on(self.device));
        Some(Batch { meter: Arc::clone(&self.meter), ..batch })
    }
}

/// Counts batches for a device. A request names its device itself.
struct OnDevice {
    stats: Arc<Stats>,
    device: u8,
}

impl Meter for OnDevice {
    fn request(&self, times: &RequestTimes, outcome: Outcome) {
        self.stats.request(times, outcome);
    }

    fn first_response(&self, arrived: u64, device: u8) {
        self.stats.first_response(arrived, device);
    }

    fn response(&self, index: u64, durations: &ResponseDurations) {
        self.stats.response(index, durations);
    }

    fn batch(&self, rows: u64, times: &Times) {
        self.stats.batch_on(self.device, rows, times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(groups: &str, expect: &[(u32, &str)]) {
        let config = nerite_config::parse_text("config.pbtxt", groups.as_bytes()).expect("a configuration");
        let gpu_uuids = [(0, "GPU-a".to_owned()), (1, "GPU-b".to_owned())].into();
        let devices = Devices::of(&InstanceSpec::all(&config), &gpu_uuids);
        let found: Vec<(u32, &str)> = devices.0.iter().map(|(device, uuid)| (*device, uuid.as_str())).collect();
        assert_eq!(found, expect, "{groups}");
    }

    #[test]
    fn gpus_are_distinguished_where_a_model_has_several_devices() {
        check("instance_group { name: 'g' kind: KIND_GPU count: 2 gpus: [1, 0] }", &[(0, "GPU-a"), (1, "GPU-b")]);
        check(
            "instance_group { name: 'c' kind: KIND_CPU count: 1 } instance_group { name: 'g' kind: KIND_GPU count: 1 gpus: [1] }",
            &[(1, "GPU-b")],
        );
        check("instance_group { name: 'g' kind: KIND_GPU count: 2 gpus: [1] }", &[]);
        check("instance_group { name: 'c' kind: KIND_CPU count: 2 }", &[]);
        check("instance_group { name: 'g' kind: KIND_GPU count: 1 gpus: [1, 7] }", &[(1, "GPU-b")]);
    }
}
