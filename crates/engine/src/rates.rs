//! When may an instance run, if it shares resources with others?
//!
//! [`Limiter`] decides. This file has the lock around it, and notifies the instances that were granted resources.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use nerite_config::ModelConfig;
use nerite_config::proto::ModelInstanceGroup;
use nerite_config::proto::model_instance_group::Kind;
use nerite_locks::Mutex;
use nerite_request::Status;
use nerite_schedule::{Claim, Claimant, InstanceId, Limiter, Resource, ResourceLimits};

/// The resources that instances of all models share, `--rate-limit=execution_count`.
#[derive(Default)]
pub struct RateLimits(Mutex<State>);

#[derive(Default)]
struct State {
    limiter: Limiter,
    pools: HashMap<Claimant, (Weak<dyn Granted>, InstanceId)>,
}

/// A pool whose instances wait for resources.
pub(crate) trait Granted: Send + Sync {
    /// Called when the instance has its resources.
    fn granted(self: Arc<Self>, at: InstanceId);
}

/// The claims of the instances of one model version on shared resources. They are removed when this is dropped.
pub(crate) struct Claims {
    limits: Arc<RateLimits>,
    claimants: Vec<Claimant>,
    /// The resources that each instance needs.
    needs: Vec<Vec<Resource>>,
}

/// Instances that were granted resources. Notify them without holding a lock.
#[must_use]
pub(crate) struct Turns(Vec<(Weak<dyn Granted>, InstanceId)>);

impl RateLimits {
    /// The operator's limits, each with its name and device.
    pub fn new(limits: impl IntoIterator<Item = (String, Option<u32>, u32)>) -> RateLimits {
        let limits = limits.into_iter().map(|(name, device, count)| ((name, device), count));
        let limiter = Limiter::new(ResourceLimits(limits.collect()));
        RateLimits(Mutex::new(State { limiter, pools: HashMap::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claims {
    /// The claims of the instances of that configuration. `None` if they share nothing. Err: the limits are too low for one of them to ever run.
    pub fn of(limits: &Arc<RateLimits>, config: &ModelConfig) -> Result<Option<Claims>, Status> {
        let wanted = claims(config);
        if wanted.iter().all(|claim| claim.needs.is_empty()) {
            return Ok(None);
        }
        let needs = wanted.iter().map(|claim| claim.needs.iter().map(|(resource, _)| resource.clone()).collect());
        let mut made = Claims { limits: Arc::clone(limits), claimants: Vec::new(), needs: needs.collect() };
        for claim in wanted {
            let added = limits.lock().limiter.add(claim);
            made.claimants.push(added.map_err(|refused| Status::invalid(refused.to_string()))?);
        }
        Ok(Some(made))
    }

    /// Sets the pool that is notified when an instance is granted resources.
    pub fn set_pool(&self, pool: &Weak<dyn Granted>) {
        let mut state = self.limits.lock();
        for (at, claimant) in self.claimants.iter().enumerate() {
            state.pools.insert(*claimant, (Weak::clone(pool), InstanceId(at)));
        }
    }

    /// Whether two instances need the same resource.
    pub fn compete(&self, one: InstanceId, other: InstanceId) -> bool {
        let needs = |at: InstanceId| self.needs.get(at.0).map_or(&[][..], Vec::as_slice);
        needs(one).iter().any(|resource| needs(other).contains(resource))
    }

    /// Requests the resources of an instance. Returns whether it may run now, and other instances that may run now. If it may not, it is notified
    /// later.
    pub fn request(&self, at: InstanceId) -> (bool, Turns) {
        let Some(claimant) = self.claimants.get(at.0) else { return (true, Turns(Vec::new())) };
        let mut state = self.limits.lock();
        let mut granted = state.limiter.request(*claimant);
        let has_own = granted.contains(claimant);
        granted.retain(|one| one != claimant);
        (has_own, state.turns(&granted))
    }

    /// Withdraws the request of an instance. Returns the instances that may run now. `None`, and nothing changes, if the instance has been granted
    /// its resources already and is being notified.
    pub fn give_up(&self, at: InstanceId) -> Option<Turns> {
        let claimant = self.claimants.get(at.0)?;
        let mut state = self.limits.lock();
        let granted = state.limiter.give_up(*claimant)?;
        Some(state.turns(&granted))
    }

    /// Gives back the resources of an instance after its run. Returns the instances that may run now.
    pub fn release(&self, at: InstanceId) -> Turns {
        let Some(claimant) = self.claimants.get(at.0) else { return Turns(Vec::new()) };
        let mut state = self.limits.lock();
        let granted = state.limiter.release(*claimant);
        state.turns(&granted)
    }
}

impl State {
    fn turns(&self, granted: &[Claimant]) -> Turns {
        Turns(granted.iter().filter_map(|claimant| self.pools.get(claimant).cloned()).collect())
    }
}

impl Turns {
    /// Notifies the instances. The caller must hold no lock.
    pub fn notify(self) {
        for (pool, at) in self.0 {
            if let Some(pool) = pool.upgrade() {
                pool.granted(at);
            }
        }
    }

    /// Adds these instances.
    pub fn and(&mut self, more: Turns) {
        self.0.extend(more.0);
    }

    /// No instance.
    pub fn none() -> Turns {
        Turns(Vec::new())
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        let mut turns = Turns::none();
        let mut state = self.limits.lock();
        for claimant in &self.claimants {
            let granted = state.limiter.remove(*claimant);
            state.pools.remove(claimant);
            turns.and(state.turns(&granted));
        }
        drop(state);
        turns.notify();
    }
}

/// The claims of each instance, in the order of [`nerite_backend::InstanceSpec::all`].
fn claims(config: &ModelConfig) -> Vec<Claim> {
    let groups = config.instance_group.iter().filter(|group| !group.passive);
    groups.flat_map(claims_of_group).collect()
}

fn claims_of_group(group: &ModelInstanceGroup) -> Vec<Claim> {
    // An instance on the host counts as one on device 0, as in Triton.
    let devices: Vec<u32> = match group.kind() {
        Kind::Gpu => group.gpus.iter().map(|gpu| u32::try_from(*gpu).unwrap_or(0)).collect(),
        Kind::Auto | Kind::Cpu | Kind::Model => vec![0],
    };
    let on_device = |device: &u32| {
        let Some(limiter) = &group.rate_limiter else { return Claim::default() };
        let need = |resource: &nerite_config::proto::model_rate_limiter::Resource| {
            let device = (!resource.global).then_some(*device);
            (Resource { name: resource.name.clone(), device }, resource.count)
        };
        Claim { needs: limiter.resources.iter().map(need).collect(), priority: limiter.priority }
    };
    let once: Vec<Claim> = devices.iter().map(on_device).collect();
    (0..group.count.max(1)).flat_map(|_| once.clone()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn config(groups: &str) -> ModelConfig {
        nerite_config::parse_text("", groups.as_bytes()).unwrap()
    }

    #[test]
    fn each_instance_claims_the_resources_of_its_group() {
        let text = "instance_group { count: 2 kind: KIND_CPU rate_limiter { priority: 3 resources { name: 'R' count: 4 global: true } } }
                    instance_group { passive: true rate_limiter { resources { name: 'P' count: 9 } } }
                    instance_group { kind: KIND_GPU gpus: [1, 2] rate_limiter { resources { name: 'D' count: 1 } } }";
        let found: Vec<String> = claims(&config(text))
            .iter()
            .map(|claim| {
                let needs: Vec<_> =
                    claim.needs.iter().map(|(of, count)| format!("{count} {}@{:?}", of.name, of.device)).collect();
                format!("{} {}", claim.priority, needs.join(" "))
            })
            .collect();
        assert_eq!(found, ["3 4 R@None", "3 4 R@None", "0 1 D@Some(1)", "0 1 D@Some(2)"]);
    }

    struct RecordingWaker(mpsc::Sender<usize>);

    impl Granted for RecordingWaker {
        fn granted(self: Arc<Self>, at: InstanceId) {
            self.0.send(at.0).unwrap();
        }
    }

    #[test]
    fn a_waiting_instance_is_notified_when_another_model_is_done_or_dropped() {
        let limits = Arc::new(RateLimits::default());
        let one_r =
            config("instance_group { count: 2 kind: KIND_CPU rate_limiter { resources { name: 'R' count: 1 } } }");
        let (first, second) =
            (Claims::of(&limits, &one_r).unwrap().unwrap(), Claims::of(&limits, &one_r).unwrap().unwrap());
        let (to, receiver) = mpsc::channel();
        let waker: Arc<dyn Granted> = Arc::new(RecordingWaker(to));
        second.set_pool(&Arc::downgrade(&waker));
        assert!(first.request(InstanceId(0)).0);
        assert!(!second.request(InstanceId(1)).0 && !second.request(InstanceId(0)).0);
        first.release(InstanceId(0)).notify();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1]);
        second.release(InstanceId(1)).notify();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [0]);
        assert!(!first.request(InstanceId(1)).0 && !second.request(InstanceId(1)).0);
        second.release(InstanceId(0)).notify();
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [0; 0], "it is the other model's turn");
        drop(first);
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_model_that_shares_nothing_has_no_claims() {
        let limits = Arc::new(RateLimits::new([("R".to_owned(), None, 1)]));
        assert!(Claims::of(&limits, &config("instance_group { rate_limiter { priority: 2 } }")).unwrap().is_none());
        let greedy = config("instance_group { rate_limiter { resources { name: 'R' count: 2 } } }");
        let error = Claims::of(&limits, &greedy).err().unwrap();
        assert_eq!(
            error.message,
            "Resource count for \"R\" is limited to 1 which will prevent scheduling of one or more model instances, the minimum \
             required count is 2"
        );
    }
}
