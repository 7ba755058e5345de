//! How are the instances of a model made, and changed while it serves requests?
//!
//! They are made in parallel: the processes of several instances start at the same time.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::Builder;

use nerite_backend::{Adapted, Batch, BatchAdapter, DeviceAccess, Instance, InstanceSpec, Model, Staged};
use nerite_config::ModelConfig;
use nerite_config::proto::ModelInstanceGroup;
use nerite_locks::Mutex;
use nerite_memory::Staging;
use nerite_request::Status;

use crate::policies::InstanceCores;
use crate::progress::Progress;

/// The factory of the instances of one model version.
#[derive(Clone)]
pub(crate) struct Maker {
    pub model: Arc<dyn Model>,
    /// Copies tensors of devices for models on the host.
    pub staging: Option<Arc<dyn Staging>>,
    /// Instances that may be made at the same time.
    pub threads: usize,
    /// The cores on which they are made and run. `None` for all cores.
    pub cores: Option<Arc<InstanceCores>>,
    /// The instance groups that the backend prefers.
    pub preferred: Arc<[ModelInstanceGroup]>,
    /// The model's configuration.
    pub config: Arc<ModelConfig>,
}

type InstanceResult = Result<Box<dyn Instance>, Status>;

/// The number of the next instance, and the results so far.
struct Made {
    next: AtomicUsize,
    is_over: AtomicBool,
    results: Vec<Mutex<Option<InstanceResult>>>,
}

impl Maker {
    /// Makes the instances of these specs, in their order. The first error, or the end of the load, ends it.
    pub fn make(&self, specs: &[InstanceSpec], progress: &Progress) -> Result<Vec<Box<dyn Instance>>, Status> {
        progress.instances(0, specs.len());
        let stop = |spec: &InstanceSpec| InstanceSpec { stop: progress.ending().stop().clone(), ..spec.clone() };
        let specs: Vec<InstanceSpec> = specs.iter().map(stop).collect();
        let made = Made {
            next: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            results: specs.iter().map(|_| Mutex::new(None)).collect(),
        };
        let count = AtomicUsize::new(0);
        let report = || progress.instances(count.fetch_add(1, Ordering::AcqRel) + 1, specs.len());
        let work = || self.work(&specs, &made, &report);
        std::thread::scope(|scope| {
            for _ in 1..self.threads.min(specs.len()) {
                // If the system refuses a thread, the other threads make more instances each.
                if Builder::new().name("nerite-instance".to_owned()).spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        let all = made.results.into_iter().map(|one| one.into_inner().unwrap_or_else(PoisonError::into_inner));
        // After an error the remaining instances are not made. They are ignored, and the error is returned.
        let (made, missing): (Vec<_>, Vec<_>) = all.partition(Option::is_some);
        let made = made.into_iter().flatten().collect::<Result<Vec<_>, Status>>()?;
        if missing.is_empty() { Ok(made) } else { Err(Status::internal("an instance was not made")) }
    }

    fn work(&self, specs: &[InstanceSpec], made: &Made, report: &dyn Fn()) {
        while !made.is_over.load(Ordering::Acquire) {
            let at = made.next.fetch_add(1, Ordering::AcqRel);
            let (Some(spec), Some(place)) = (specs.get(at), made.results.get(at)) else { return };
            let one = catch_unwind(AssertUnwindSafe(|| self.one(spec))).unwrap_or_else(|_| {
                Err(Status::internal(format!("the runtime panicked over instance '{}'", spec.name)))
            });
            match &one {
                Ok(_) => report(),
                Err(_) => made.is_over.store(true, Ordering::Release),
            }
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(one);
        }
    }

    fn one(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        let instance = match &self.cores {
            Some(cores) => cores.within(spec.index, || self.model.instance(spec))?,
            None => self.model.instance(spec)?,
        };
        let instance = if self.model.reads_policy_data() {
            instance
        } else {
            let policy = self.config.host_policy(&spec.name, spec.device);
            Box::new(Adapted::new(instance, HostPolicy { name: policy })) as Box<dyn Instance>
        };
        Ok(match (&self.staging, self.model.takes_device_memory(spec)) {
            (None, _) | (_, DeviceAccess::Everywhere) => instance,
            (Some(staging), access) => Box::new(Staged::over(instance, Arc::clone(staging), access)),
        })
    }
}

/// Chooses the data that requests have for the host policy of an instance.
struct HostPolicy {
    name: String,
}

impl BatchAdapter for HostPolicy {
    fn adapt(&self, mut batch: Batch) -> Option<Batch> {
        batch.jobs.iter_mut().for_each(|job| job.choose_data(&self.name));
        Some(batch)
    }
}

/// Which instances stay, are removed and are added.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// The positions of the present instances that stay.
    pub stay: Vec<usize>,
    /// The positions of the present instances that are removed.
    pub go: Vec<usize>,
    /// The positions of the wanted instances that are added.
    pub come: Vec<usize>,
}

/// The change from `present` to `wanted`. Two instances are the same if their names and devices are equal.
pub(crate) fn change(present: &[InstanceSpec], wanted: &[InstanceSpec]) -> Change {
    let mut left: BTreeMap<(&str, Option<u32>), Vec<usize>> = BTreeMap::new();
    for (at, spec) in wanted.iter().enumerate().rev() {
        left.entry((&spec.name, spec.device)).or_default().push(at);
    }
    let mut change = Change::default();
    for (at, spec) in present.iter().enumerate() {
        match left.get_mut(&(spec.name.as_str(), spec.device)).and_then(Vec::pop) {
            Some(_) => change.stay.push(at),
            None => change.go.push(at),
        }
    }
    change.come = left.into_values().flatten().collect();
    change.come.sort_unstable();
    change
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(names: &str) -> Vec<InstanceSpec> {
        let spec = |(index, name): (usize, &str)| {
            let (name, device) =
                name.split_once('@').map_or((name, None), |(name, device)| (name, device.parse().ok()));
            InstanceSpec { name: name.to_owned(), index, device, ..InstanceSpec::default() }
        };
        names.split_whitespace().enumerate().map(spec).collect()
    }

    #[track_caller]
    fn check(present: &str, wanted: &str, stay: &[usize], go: &[usize], come: &[usize]) {
        let expect = Change { stay: stay.to_vec(), go: go.to_vec(), come: come.to_vec() };
        assert_eq!(change(&specs(present), &specs(wanted)), expect, "{present} → {wanted}");
    }

    #[test]
    fn instances_of_the_same_name_and_device_stay() {
        check("m_0 m_1", "m_0 m_1", &[0, 1], &[], &[]);
        check("m_0", "m_0 m_1 m_2", &[0], &[], &[1, 2]);
        check("m_0 m_1 m_2", "m_0", &[0], &[1, 2], &[]);
        check("a_0 b_0", "b_0 c_0", &[1], &[0], &[1]);
        check("m_0@0 m_0@1", "m_0@1 m_0", &[1], &[0], &[1]);
        check("m_0 m_0", "m_0", &[0], &[1], &[]);
    }
}
