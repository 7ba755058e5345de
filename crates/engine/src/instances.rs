//! How are the instances of a model made, and changed while it serves requests?
//!
//! They are made in parallel: the processes of several instances start at the same time.

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

/// What an instance is, apart from its name. Two instances with the same signature do the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Signature {
    device: Option<u32>,
    /// Its group, without what says how many instances there are.
    group: ModelInstanceGroup,
}

impl Signature {
    /// The signatures of these instances of a normalised configuration.
    pub fn all(config: &ModelConfig, specs: &[InstanceSpec]) -> Vec<Signature> {
        let of = |spec: &InstanceSpec| {
            let is_own = |group: &&ModelInstanceGroup| {
                let rest = spec.name.strip_prefix(&*group.name).and_then(|rest| rest.strip_prefix('_'));
                rest.is_some_and(|index| index.parse::<i32>().is_ok_and(|index| index < group.count.max(1)))
            };
            let group = config.instance_group.iter().find(is_own).cloned().unwrap_or_default();
            let group = ModelInstanceGroup { name: String::new(), count: 0, gpus: Vec::new(), ..group };
            Signature { device: spec.device, group }
        };
        specs.iter().map(of).collect()
    }
}

/// The change from `present` to `wanted`.
pub(crate) fn change(present: &[Signature], wanted: &[Signature]) -> Change {
    let mut come: Vec<usize> = (0..wanted.len()).collect();
    let mut change = Change::default();
    for (at, signature) in present.iter().enumerate() {
        match come.iter().position(|one| wanted.get(*one) == Some(signature)) {
            Some(place) => {
                come.remove(place);
                change.stay.push(at);
            }
            None => change.go.push(at),
        }
    }
    change.come = come;
    change
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Each word is a group: its name, kind and count, as in `a.cpu.2`, and then the R that an instance needs.
    fn signatures(groups: &str) -> Vec<Signature> {
        let group = |word: &str| {
            let parts: Vec<&str> = word.split('.').collect();
            let kind = if parts[1] == "gpu" { "KIND_GPU gpus: [ 0, 1 ]" } else { "KIND_CPU" };
            let limiter =
                parts.get(3).map(|count| format!("rate_limiter {{ resources {{ name: 'R' count: {count} }} }}"));
            format!(
                "instance_group {{ name: '{}' kind: {kind} count: {} {} }} ",
                parts[0],
                parts[2],
                limiter.unwrap_or_default()
            )
        };
        let text: String = groups.split_whitespace().map(group).collect();
        let config = nerite_config::parse_text("", text.as_bytes()).unwrap();
        Signature::all(&config, &InstanceSpec::all(&config))
    }

    #[track_caller]
    fn check(present: &str, wanted: &str, stay: &[usize], go: &[usize], come: &[usize]) {
        let expect = Change { stay: stay.to_vec(), go: go.to_vec(), come: come.to_vec() };
        assert_eq!(change(&signatures(present), &signatures(wanted)), expect, "{present} → {wanted}");
    }

    #[test]
    fn instances_that_do_the_same_stay_whatever_their_names_are() {
        check("m.cpu.2", "m.cpu.2", &[0, 1], &[], &[]);
        check("m.cpu.1", "m.cpu.3", &[0], &[], &[1, 2]);
        check("m.cpu.3", "m.cpu.1", &[0], &[1, 2], &[]);
        check("a.cpu.1 b.cpu.2", "x.cpu.2 y.cpu.1", &[0, 1, 2], &[], &[]);
        check("a.gpu.1 b.cpu.2", "b.cpu.1 a.gpu.2", &[0, 1, 2], &[3], &[3, 4]);
        check("m.cpu.1.2", "m.cpu.1.8", &[], &[0], &[0]);
        check("m.cpu.1.2 n.cpu.1.4", "m.cpu.1.4 n.cpu.1.4", &[1], &[0], &[1]);
        check("m_1.cpu.1.2 m.cpu.2.3", "m.cpu.2.3 m_1.cpu.1.2", &[0, 1, 2], &[], &[]);
    }
}
