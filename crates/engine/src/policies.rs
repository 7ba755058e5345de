//! On which cores do the instances of a host policy run, and on which NUMA node does their memory lie?
//!
//! Linux gives a new thread or process the cores and the memory policy of the thread that starts it. So each instance is made and run on a thread
//! that is bound to the cores of its host policy, and prefers the memory of its node.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use nerite_config::ModelConfig;
use nerite_config::proto::model_instance_group::Kind;
use nerite_locks::RwLock;
use nerite_memory::MemoryPolicy;
use nerite_request::Status;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The directory in which Linux describes NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

/// The operator's settings for the cores of instances, `--host-policy`: the settings of each policy, by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPolicies(pub BTreeMap<String, BTreeMap<String, String>>);

const NODE: &str = "numa-node";

/// The settings that a policy may have.
pub const HOST_POLICY_SETTINGS: [&str; 2] = [NODE, "cpu-cores"];

/// Cores of this host, and where the new memory of threads on them lies.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Cores {
    set: CpuSet,
    /// `None` to leave the memory policy as it is.
    memory: Option<MemoryPolicy>,
}

/// The cores of each instance of a model version; `None` for all that the server may use.
pub(crate) struct InstanceCores {
    each: RwLock<Vec<Option<Arc<Cores>>>>,
    /// The cores of the thread that loaded the model, with its memory policy if any host policy has a `numa-node`.
    all: Cores,
}

impl HostPolicies {
    /// The cores of each instance, in the order of [`nerite_backend::InstanceSpec::all`]; `None` if no policy sets
    /// them.
    pub(crate) fn cores(&self, config: &ModelConfig) -> Result<Option<InstanceCores>, Status> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let each: Vec<_> = names(config).iter().map(|name| self.cores_of(name)).collect::<Result<_, _>>()?;
        if each.iter().all(Option::is_none) {
            return Ok(None);
        }
        let mut all = Cores::current()?;
        if self.0.values().any(|settings| settings.contains_key(NODE)) {
            all.memory = MemoryPolicy::of_thread().ok();
        }
        Ok(Some(InstanceCores { each: RwLock::new(each), all }))
    }

    fn cores_of(&self, policy: &str) -> Result<Option<Arc<Cores>>, Status> {
        let Some(settings) = self.0.get(policy) else { return Ok(None) };
        let node = settings.get(NODE).map(|node| node_of(node)).transpose()?;
        let ranges = match (settings.get("cpu-cores"), node) {
            (Some(list), _) => ranges(list)?,
            (None, Some(node)) => ranges_of_node(node)?,
            (None, None) => return Ok(None),
        };
        let mut cores = Cores::of(&ranges);
        // A set of cores or a node that does not exist is refused at load, not at the first request.
        cores.check()?;
        if let Some(node) = node {
            cores.memory = memory_of(node)?;
        }
        Ok(Some(Arc::new(cores)))
    }
}

impl InstanceCores {
    /// The cores of one instance.
    pub fn of(&self, at: usize) -> Option<Arc<Cores>> {
        self.each.read().unwrap_or_else(PoisonError::into_inner).get(at).cloned().flatten()
    }

    /// Sets the cores of the instance at this position from now on.
    pub fn put(&self, at: usize, cores: Option<Arc<Cores>>) {
        let mut each = self.each.write().unwrap_or_else(PoisonError::into_inner);
        if each.len() <= at {
            each.resize(at + 1, None);
        }
        each[at] = cores;
    }

    /// Binds this thread to the cores of that instance, and has it prefer the memory of its node.
    pub fn enter(&self, at: usize) {
        let own = self.of(at);
        let cores = own.as_deref().unwrap_or(&self.all);
        // The cores were tried when the model was loaded, so an error here is rare.
        if let Err(error) = cores.apply() {
            log::warn!("an instance cannot run on the cores of its host policy: {error}");
        }
    }

    /// Does `work` on the cores of that instance. Afterwards the thread may use all cores that the model was loaded with.
    pub fn within<T>(&self, at: usize, work: impl FnOnce() -> T) -> T {
        let _back = Back(&self.all);
        self.enter(at);
        work()
    }

    /// Whether all instances have the same cores.
    pub fn is_one(&self) -> bool {
        self.each
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .windows(2)
            .all(|two| matches!(two, [one, next] if one == next))
    }
}

/// When it is dropped, it binds this thread to these cores and gives it their memory policy, also if the work panics.
struct Back<'c>(&'c Cores);

impl Drop for Back<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.apply() {
            log::warn!("a thread cannot return to the cores that it ran on: {error}");
        }
    }
}

impl Cores {
    fn of(ranges: &[(usize, usize)]) -> Cores {
        let mut set = CpuSet::new();
        for core in ranges.iter().flat_map(|(first, last)| *first..=*last) {
            set.set(core);
        }
        Cores { set, memory: None }
    }

    /// The cores of this thread.
    fn current() -> Result<Cores, Status> {
        sched_getaffinity(None).map(|set| Cores { set, memory: None }).map_err(unset)
    }

    /// Binds this thread to the cores and gives it the memory policy.
    fn apply(&self) -> io::Result<()> {
        sched_setaffinity(None, &self.set)?;
        self.memory.as_ref().map_or(Ok(()), MemoryPolicy::apply)
    }

    /// Checks that a thread can run on these cores.
    fn check(&self) -> Result<(), Status> {
        let before = Cores::current()?;
        sched_setaffinity(None, &self.set).map_err(unset)?;
        sched_setaffinity(None, &before.set).map_err(unset)
    }
}

fn unset(error: rustix::io::Errno) -> Status {
    Status::internal(format!("Unable to set NUMA thread affinity: {error}; name cores that this process may use"))
}

/// The policy of each instance: the one that its group names, or the one of its kind.
fn names(config: &ModelConfig) -> Vec<String> {
    let mut names = Vec::new();
    for group in config.instance_group.iter().filter(|group| !group.passive) {
        let of_kind: Vec<String> = match group.kind() {
            Kind::Gpu => group.gpus.iter().map(|gpu| format!("gpu_{gpu}")).collect(),
            Kind::Model => vec!["model".to_owned()],
            Kind::Auto | Kind::Cpu => vec!["cpu".to_owned()],
        };
        let of_group = |name: String| if group.host_policy.is_empty() { name } else { group.host_policy.clone() };
        let once: Vec<String> = of_kind.into_iter().map(of_group).collect();
        (0..group.count.max(1)).for_each(|_| names.extend(once.iter().cloned()));
    }
    names
}

/// Parses `0-3,8-11`.
fn ranges(list: &str) -> Result<Vec<(usize, usize)>, Status> {
    let one = |part: &str| {
        let (first, last) = part.split_once('-')?;
        let core = |text: &str| text.trim().parse().ok().filter(|core: &usize| *core < CpuSet::MAX_CPU);
        Some((core(first)?, core(last)?)).filter(|(first, last)| first <= last)
    };
    list.split(',')
        .map(|part| {
            one(part).ok_or_else(|| {
                Status::invalid(format!(
                    "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got {part}"
                ))
            })
        })
        .collect()
}

fn node_of(text: &str) -> Result<u32, Status> {
    let refused = |_| Status::invalid(format!("host policy setting 'numa-node' is the number of a node. Got {text}"));
    text.trim().parse().map_err(refused)
}

/// The memory policy that prefers this node. It is tried out. `None` if the system does not let this process choose
/// one: containers often do not.
fn memory_of(node: u32) -> Result<Option<MemoryPolicy>, Status> {
    let failed = |error: io::Error| Status::internal(format!("Unable to set NUMA memory policy: {error}; node {node}"));
    let wanted = MemoryPolicy::prefer(node).ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    let tried = MemoryPolicy::of_thread().and_then(|before| wanted.apply().and_then(|()| before.apply()));
    match tried {
        Ok(()) => Ok(Some(wanted)),
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported) => {
            log::warn!(
                "host policy setting 'numa-node' chooses cores only, because this process may not choose the node of its memory: \
                 {error}; a container needs the capability SYS_NICE"
            );
            Ok(None)
        }
        Err(error) => Err(failed(error)),
    }
}

/// The cores of a node, from Linux's list: `0-3,8`.
fn ranges_of_node(number: u32) -> Result<Vec<(usize, usize)>, Status> {
    let file = Path::new(NODES).join(format!("node{number}/cpulist"));
    let list = std::fs::read_to_string(&file).map_err(|error| {
        Status::invalid(format!(
            "host policy setting 'numa-node' is {number}, and {} cannot be read: {error}",
            file.display()
        ))
    })?;
    let parts = list.trim().split(',').filter(|part| !part.is_empty());
    let whole: Vec<String> =
        parts.map(|part| if part.contains('-') { part.to_owned() } else { format!("{part}-{part}") }).collect();
    ranges(&whole.join(","))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn config(groups: &str) -> ModelConfig {
        nerite_config::parse_text("", groups.as_bytes()).unwrap()
    }

    fn policies(list: &[(&str, &str, &str)]) -> HostPolicies {
        let mut policies = HostPolicies::default();
        for (policy, setting, value) in list {
            let settings = policies.0.entry((*policy).to_owned()).or_default();
            settings.insert((*setting).to_owned(), (*value).to_owned());
        }
        policies
    }

    #[test]
    fn groups_without_a_policy_have_that_of_their_kind() {
        let text = "instance_group { count: 2 kind: KIND_CPU } instance_group { kind: KIND_CPU host_policy: 'p' }
                    instance_group { kind: KIND_GPU gpus: [0, 3] } instance_group { passive: true }";
        assert_eq!(names(&config(text)), ["cpu", "cpu", "p", "gpu_0", "gpu_3"]);
    }

    #[track_caller]
    fn check_list(list: &str, expect: Result<&[(usize, usize)], &str>) {
        let found = ranges(list).map_err(|refused| refused.message);
        let expect = expect.map(<[_]>::to_vec).map_err(|part| {
            format!("host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got {part}")
        });
        assert_eq!(found, expect);
    }

    #[test]
    fn cores_are_ranges() {
        check_list("0-3", Ok(&[(0, 3)]));
        check_list("0-0,5-7", Ok(&[(0, 0), (5, 7)]));
        check_list("abc", Err("abc"));
        check_list("1", Err("1"));
        check_list("0,1", Err("0"));
        check_list("3-0", Err("3-0"));
        check_list("0-99999999", Err("0-99999999"));
    }

    #[test]
    fn work_for_an_instance_runs_on_its_cores_and_the_thread_goes_back() {
        let before = Cores::current().unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|core| before.set.is_set(*core)).unwrap();
        let one = format!("{first}-{first}");
        let found = policies(&[("p", "cpu-cores", &one)]);
        let groups = config("instance_group { kind: KIND_CPU } instance_group { kind: KIND_CPU host_policy: 'p' }");
        let cores = found.cores(&groups).unwrap().unwrap();
        assert!(cores.within(0, Cores::current).unwrap() == before && !cores.is_one());
        let inside =
            cores.within(1, || std::thread::scope(|scope| scope.spawn(Cores::current).join().unwrap())).unwrap();
        assert!(inside == Cores::of(&[(first, first)]) && Cores::current().unwrap() == before);
    }

    #[test]
    fn work_for_an_instance_of_a_node_prefers_its_memory_and_the_thread_goes_back() {
        let groups = config("instance_group { kind: KIND_CPU } instance_group { kind: KIND_CPU host_policy: 'n' }");
        let before = MemoryPolicy::of_thread();
        // The test needs a system with NUMA nodes, and the right to choose one.
        if !Path::new(NODES).join("node0").exists() || memory_of(0).unwrap().is_none() {
            return;
        }
        let cores = policies(&[("n", NODE, "0")]).cores(&groups).unwrap().unwrap();
        let preferred = MemoryPolicy::prefer(0).unwrap();
        assert_eq!(cores.within(0, MemoryPolicy::of_thread).unwrap(), *before.as_ref().unwrap());
        let started =
            cores.within(1, || std::thread::scope(|scope| scope.spawn(MemoryPolicy::of_thread).join().unwrap()));
        assert_eq!(started.unwrap(), preferred);
        assert_eq!(MemoryPolicy::of_thread().unwrap(), before.unwrap());
    }

    #[test]
    fn instances_without_a_policy_run_anywhere_and_impossible_policies_are_refused() {
        let groups = config("instance_group { kind: KIND_CPU host_policy: 'q' }");
        assert!(policies(&[("p", "cpu-cores", "0-0")]).cores(&groups).unwrap().is_none());
        let refused = |list| policies(list).cores(&groups).err().unwrap().message;
        assert!(refused(&[("q", "cpu-cores", "1022-1023")]).starts_with("Unable to set NUMA thread affinity: "));
        assert!(refused(&[("q", "numa-node", "4000")]).contains("node4000/cpulist cannot be read"));
        assert!(refused(&[("q", "numa-node", "first")]).ends_with("Got first"));
    }
}
