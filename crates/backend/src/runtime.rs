//! Which interfaces do runtimes, models and instances implement?

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nerite_config::ModelConfig;
use nerite_config::proto::ModelInstanceGroup;
use nerite_config::proto::model_instance_group::Kind;
use nerite_request::report::MemoryUsage;
use nerite_request::{InputMemory, Status};
use smallvec::SmallVec;

use crate::{CustomMetrics, DeviceAccess, ImportedFiles, Job, LoadStop, Meter, ModelFiles, Models, Readiness};

/// A way to run models: ONNX Runtime, the embedded engine, identity. A `config.pbtxt` names it as `backend`.
pub trait Runtime: Send + Sync {
    /// The name in `config.pbtxt`.
    fn name(&self) -> &str;

    /// The library that does the work and its version, for the log and for `nerite doctor`.
    fn engine(&self) -> String;

    /// The instance groups that the runtime prefers, the best one first. They apply to settings that the model's author left out. This is called before
    /// [`Runtime::complete`].
    fn preferred_groups(&self, _context: &LoadContext) -> Result<Vec<ModelInstanceGroup>, Status> {
        Ok(Vec::new())
    }

    /// Completes a configuration from the model's own files, as Triton's auto-complete does. The instance groups of the configuration are complete
    /// already. The default completes nothing.
    fn complete(&self, context: &LoadContext) -> Result<ModelConfig, Status> {
        Ok((*context.config).clone())
    }

    /// Frees memory that was not used during the last `rounds_max` calls of this function. It is called at intervals.
    fn trim(&self, _rounds_max: u32) {}

    /// Whether it makes instances on GPUs. The error says what is missing and what to do, as part of the sentence `…, but {this}, or use KIND_CPU`.
    fn offers_gpus(&self) -> Result<(), String> {
        Err(format!("backend '{}' ({}) computes on the host", self.name(), self.engine()))
    }

    /// Whether a load leaves the model's files as they are. Code of the model's author may change permissions and links of the files in each load,
    /// and with them the change times (`ctime`). If the contents of files change during a load, the load is always repeated. If only these other
    /// values change, it is repeated only if this returns `true`.
    fn leaves_files_unchanged(&self) -> bool {
        false
    }

    /// How a request to this model may end the process that the model runs in, as a clause; `None` if no way is known. The configuration is complete.
    fn danger(&self, _context: &LoadContext) -> Result<Option<String>, Status> {
        Ok(None)
    }

    /// Checks whether a model fits the other models that it sends requests to. These are loaded already. This is called before any version of the model is
    /// loaded.
    fn check_models(&self, _config: &ModelConfig, _models: &Models) -> Result<(), Status> {
        Ok(())
    }

    /// Called if the configuration of a version was completed, but the version is not loaded. The runtime drops what it kept for this version.
    fn give_up(&self, _context: &LoadContext) {}

    /// Reads one version of a model, checks it against its configuration and makes it ready for instances.
    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status>;
}

/// Finds code in a model's own directory.
pub trait ModelSuppliedRuntime: Send + Sync {
    /// The runtime in the model's directory, if there is one.
    fn find(&self, config: &ModelConfig, model_dir: &Path, version_dir: &Path) -> Option<Arc<dyn Runtime>>;

    /// Sets the registry for the custom metrics of such runtimes.
    fn count_in(&self, _metrics: &Arc<CustomMetrics>) {}
}

/// The settings of `--host-policy`, by the names of the policies.
pub type HostPolicySettings = BTreeMap<String, BTreeMap<String, String>>;

/// The directory of a model and the settings of its author.
#[derive(Clone, Debug)]
pub struct LoadContext {
    /// The model's name.
    pub model: String,
    /// The version being loaded.
    pub version: i64,
    /// The model's directory: labels, warmup data and the versions.
    pub model_dir: PathBuf,
    /// The version's directory: the model's files.
    pub version_dir: PathBuf,
    /// The normalised configuration.
    pub config: Arc<ModelConfig>,
    /// The settings of `--backend-config` for this backend and for all (`default-max-batch-size` …).
    pub settings: BTreeMap<String, String>,
    /// The operator's settings of each host policy, by the policy's name.
    pub host_policies: HostPolicySettings,
    /// Processor cores that this process may use.
    pub cores: usize,
    /// Instances of this model that will run side by side.
    pub instances: usize,
    /// The models of this server, for a model that makes nested requests.
    pub models: Models,
    /// The files that the load has examined.
    pub files: ModelFiles,
    /// Whether files or the configuration came with the load request.
    pub is_sent: bool,
    /// Ends the load.
    pub stop: LoadStop,
}

impl LoadContext {
    /// How long a phase of the load may take: `set` by the operator, else `sent` for what came with a load request. The models of the
    /// operator's repositories have no limit of their own.
    pub fn phase_max(&self, set: Option<Duration>, sent: Duration) -> Option<Duration> {
        set.or_else(|| self.is_sent.then_some(sent))
    }
}

/// What bounds how long one run occupies the thread that calls [`Instance::begin`]. The server reads it once, when the model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostBound {
    /// The shapes and bytes of the inputs, and which outputs are wanted. Whatever values a client sends, a run takes about as long
    /// as an earlier one of the same sizes.
    InputSizes,
    /// The timeout of the call. Another thread or process does the work. After the timeout, the caller leaves the rest to another thread.
    Timeout,
    /// No bound is known before the run.
    #[default]
    Unknown,
}

/// One version of a model, ready to be run.
pub trait Model: Send + Sync {
    /// What bounds the time of a run. Without a bound, runs never happen on a front thread.
    fn cost_bound(&self) -> CostBound {
        CostBound::Unknown
    }

    /// Makes one instance. Instances of one model run concurrently, each on one thread at a time.
    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status>;

    /// The memory that the model and its instances use, as far as it is known.
    fn memory_usage(&self) -> Vec<MemoryUsage> {
        Vec::new()
    }

    /// How often processes of the model's instances were restarted after they died. 0 if the model runs in no process of its own.
    fn restarts(&self) -> u64 {
        0
    }

    /// The files outside the model's directory that its instances imported, as far as they are known.
    fn imported_files(&self) -> ImportedFiles {
        ImportedFiles::default()
    }

    /// Whether the instances choose by themselves the data that a request has for their host policy ([`nerite_request::PolicyData`]).
    fn reads_policy_data(&self) -> bool {
        false
    }

    /// Which tensors this instance reads in place, also on devices, and which outputs it writes in place. All others are staged on the host.
    fn takes_device_memory(&self, _: &InstanceSpec) -> DeviceAccess {
        DeviceAccess::Host
    }
}

/// Which instance is to be made.
#[derive(Clone, Debug, Default)]
pub struct InstanceSpec {
    /// Its name: `{group}_{index}`.
    pub name: String,
    /// Its position among all instances of the model, from 0.
    pub index: usize,
    /// The device that it computes on. `None` for the host.
    pub device: Option<u32>,
    /// Ends the load that makes it.
    pub stop: LoadStop,
}

impl InstanceSpec {
    /// The instances of a normalised configuration, in Triton's order: `{group}_{i}` for each instance of each group, on each of the group's GPUs.
    /// Passive instances never run, so none is made.
    pub fn all(config: &ModelConfig) -> Vec<InstanceSpec> {
        let mut specs: Vec<InstanceSpec> = Vec::new();
        for group in config.instance_group.iter().filter(|group| !group.passive) {
            let gpus: Vec<Option<u32>> = match group.kind() {
                Kind::Gpu => group.gpus.iter().map(|gpu| u32::try_from(*gpu).ok()).collect(),
                Kind::Auto | Kind::Cpu | Kind::Model => vec![None],
            };
            for i in 0..group.count.max(1) {
                let name = format!("{}_{i}", group.name);
                let on = |(at, device)| {
                    let (name, index, stop) = (name.clone(), specs.len() + at, LoadStop::default());
                    InstanceSpec { name, index, device, stop }
                };
                let made: Vec<_> = gpus.iter().copied().enumerate().map(on).collect();
                specs.extend(made);
            }
        }
        specs
    }
}

/// A descriptor that an instance waits for.
pub type Awaited = Arc<dyn AsFd + Send + Sync>;

/// One concurrent execution of a model. It is called by one thread at a time, but not always by the same thread.
pub trait Instance: Send {
    /// Answers every job of the batch, now or later.
    fn run(&mut self, batch: Batch);

    /// As [`Instance::run`], on a thread that has other work. An instance that waits, for example for another process, waits at most `timeout`. It
    /// returns `false` if there is no answer after this time. Another thread then calls [`Instance::finish`].
    fn begin(&mut self, batch: Batch, _timeout: Duration) -> bool {
        self.run(batch);
        true
    }

    /// Waits for the work that [`Instance::begin`] has left.
    fn finish(&mut self) {}

    /// A descriptor that becomes readable when the work that [`Instance::begin`] has left can be done. `None` if only a thread can wait for that.
    fn awaited(&self) -> Option<Awaited> {
        None
    }

    /// As [`Instance::finish`], but does not wait: returns `false` if the answer has not arrived, or if it needs a thread that may wait.
    fn go_on(&mut self) -> bool {
        false
    }

    /// Describes the requests that the instance keeps after their run, for the log: each request, and since when it is kept. Called while the instance does
    /// not run.
    fn kept_requests(&self) -> Vec<String> {
        Vec::new()
    }

    /// Reports whether the instance can take a request. `None` for an instance that always can.
    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        None
    }

    /// As [`Readiness::is_down`]. It is called while the instance does not run.
    fn is_down(&self) -> bool {
        false
    }

    /// The input memory of the process that its model runs in. `None` if the model runs in this process, or if its process
    /// always gets copies.
    fn input_memory(&self) -> Option<Arc<dyn InputMemory>> {
        None
    }
}

/// Jobs in the order of their arrival. A single job, which is the usual case, needs no allocation.
pub type Jobs = SmallVec<[Job; 1]>;

/// Jobs that run together.
pub struct Batch {
    /// The jobs, in the order of their arrival.
    pub jobs: Jobs,
    /// The meter to which the times of the execution are reported.
    pub meter: Arc<dyn Meter>,
}

impl Batch {
    /// Rows of all jobs.
    pub fn rows(&self) -> u64 {
        self.jobs.iter().map(|job| u64::from(job.rows())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(groups: &str, expected: &[(&str, Option<u32>)]) {
        let config = nerite_config::parse_text("config.pbtxt", groups.as_bytes()).expect("a configuration");
        let specs = InstanceSpec::all(&config);
        let found: Vec<_> = specs.iter().map(|spec| (spec.name.as_str(), spec.device)).collect();
        assert_eq!(found, expected, "{groups}");
        assert!(specs.iter().enumerate().all(|(at, spec)| spec.index == at), "{specs:?}");
    }

    #[test]
    fn each_group_gives_its_number_on_each_of_its_gpus() {
        check("", &[]);
        check("instance_group { name: 'm' kind: KIND_CPU count: 2 }", &[("m_0", None), ("m_1", None)]);
        check("instance_group { name: 'm' kind: KIND_MODEL }", &[("m_0", None)]);
        check("instance_group { name: 'm' kind: KIND_CPU passive: true }", &[]);
        check(
            "instance_group { name: 'g' kind: KIND_GPU count: 2 gpus: [0, 3] } instance_group { name: 'c' kind: KIND_CPU count: 1 }",
            &[("g_0", Some(0)), ("g_0", Some(3)), ("g_1", Some(0)), ("g_1", Some(3)), ("c_0", None)],
        );
    }

    #[test]
    fn only_what_came_with_a_load_request_has_a_limit_that_the_operator_did_not_set() {
        let of = |is_sent: bool, set: Option<u64>| {
            let context = crate::conformance::context(Path::new("m"), ModelConfig::default());
            let (set, sent) = (set.map(Duration::from_secs), Duration::from_secs(30));
            LoadContext { is_sent, ..context }.phase_max(set, sent).map(|at_most| at_most.as_secs())
        };
        assert_eq!([of(false, None), of(true, None)], [None, Some(30)]);
        assert_eq!([of(false, Some(5)), of(true, Some(5))], [Some(5), Some(5)]);
    }
}
