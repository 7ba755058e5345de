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
    pools: HashMap<Claimant, Weak<dyn Granted>>,
}

/// A pool whose instances wait for resources.
pub(crate) trait Granted: Send + Sync {
    /// Called when an instance has its resources.
    fn granted(self: Arc<Self>);
}

/// The claim of one instance on shared resources. It is removed when this is dropped.
pub(crate) struct Claimed {
    limits: Arc<RateLimits>,
    claim: Claim,
    claimant: Claimant,
}

/// The claims of the instances of one model version.
pub(crate) struct Claims {
    limits: Arc<RateLimits>,
    /// By the number of the instance.
    claimed: Vec<Option<Claimed>>,
    /// The pool that is notified when an instance is granted resources.
    pool: Option<Weak<dyn Granted>>,
}

/// Pools with instances that were granted resources. Notify them without holding a lock.
#[must_use]
pub(crate) struct Turns(Vec<Weak<dyn Granted>>);

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

impl Claimed {
    /// Adds the claim of an instance. Err: the limits are too low for it to ever run.
    pub fn new(limits: &Arc<RateLimits>, claim: Claim) -> Result<Claimed, Status> {
        let mut state = limits.lock();
        let added = state.limiter.add(claim.clone());
        let claimant = added.map_err(|refused| Status::invalid(refused.to_string()))?;
        log::debug!("{}", state.limiter.resource_map());
        drop(state);
        Ok(Claimed { limits: Arc::clone(limits), claim, claimant })
    }

    /// Adds the claims of these instances of a configuration, if any of its instances shares resources.
    pub fn of(limits: &Arc<RateLimits>, config: &ModelConfig, places: &[usize]) -> Result<Vec<Claimed>, Status> {
        let wanted = claims(config);
        if wanted.iter().all(|claim| claim.needs.is_empty()) {
            return Ok(Vec::new());
        }
        places.iter().filter_map(|at| wanted.get(*at)).map(|claim| Claimed::new(limits, claim.clone())).collect()
    }

    /// Removes the claim. Returns the pools with instances that may run now.
    fn remove(&self) -> Turns {
        let mut state = self.limits.lock();
        let was_there = state.pools.remove(&self.claimant).is_some();
        let granted = state.limiter.remove(self.claimant);
        if was_there {
            log::debug!("{}", state.limiter.resource_map());
        }
        state.turns(&granted)
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.remove().notify();
    }
}

impl Claims {
    /// The claims of the instances of that configuration. `None` if they share nothing. Err: the limits are too low for one of them to ever run.
    pub fn of(limits: &Arc<RateLimits>, config: &ModelConfig) -> Result<Option<Claims>, Status> {
        let wanted = claims(config);
        if wanted.iter().all(|claim| claim.needs.is_empty()) {
            return Ok(None);
        }
        let claimed = wanted.into_iter().map(|claim| Claimed::new(limits, claim).map(Some));
        Ok(Some(Claims { limits: Arc::clone(limits), claimed: claimed.collect::<Result<_, Status>>()?, pool: None }))
    }

    /// Sets the pool that is notified when an instance is granted resources.
    pub fn set_pool(&mut self, pool: Weak<dyn Granted>) {
        let mut state = self.limits.lock();
        for claimed in self.claimed.iter().flatten() {
            state.pools.insert(claimed.claimant, Weak::clone(&pool));
        }
        drop(state);
        self.pool = Some(pool);
    }

    /// Adds the claim of an instance that is added.
    pub fn put(&mut self, at: InstanceId, claimed: Claimed) {
        if let Some(pool) = &self.pool {
            self.limits.lock().pools.insert(claimed.claimant, Weak::clone(pool));
        }
        if self.claimed.len() <= at.0 {
            self.claimed.resize_with(at.0 + 1, || None);
        }
        self.claimed[at.0] = Some(claimed);
    }

    /// Removes the claim of an instance that is removed. Returns the pools with instances that may run now.
    pub fn remove(&mut self, at: InstanceId) -> Turns {
        let claimed = self.claimed.get_mut(at.0).and_then(Option::take);
        claimed.map_or_else(Turns::none, |claimed| claimed.remove())
    }

    /// Whether two instances need the same and have the same priority.
    pub fn are_alike(&self, one: InstanceId, other: InstanceId) -> bool {
        let claim = |at: InstanceId| self.claimed.get(at.0)?.as_ref().map(|claimed| &claimed.claim);
        claim(one) == claim(other)
    }

    /// Requests the resources of an instance, after it has given back those of its last run. Returns the pools with instances that may run now.
    pub fn request(&self, at: InstanceId) -> Turns {
        self.change(at, Limiter::request)
    }

    /// Gives back the resources of an instance after its run. Returns the pools with instances that may run now.
    pub fn release(&self, at: InstanceId) -> Turns {
        self.change(at, Limiter::release)
    }

    /// Withdraws the request of an instance, which may have been granted. Returns the pools with instances that may run now.
    pub fn decline(&self, at: InstanceId) -> Turns {
        self.change(at, Limiter::decline)
    }

    /// Whether an instance has its resources.
    pub fn has(&self, at: InstanceId) -> bool {
        let claimed = self.claimed.get(at.0).and_then(Option::as_ref);
        claimed.is_none_or(|claimed| self.limits.lock().limiter.has(claimed.claimant))
    }

    fn change(&self, at: InstanceId, change: impl FnOnce(&mut Limiter, Claimant) -> Vec<Claimant>) -> Turns {
        let Some(claimed) = self.claimed.get(at.0).and_then(Option::as_ref) else { return Turns::none() };
        let mut state = self.limits.lock();
        let mut granted = change(&mut state.limiter, claimed.claimant);
        // The caller looks at this instance itself.
        granted.retain(|one| *one != claimed.claimant);
        state.turns(&granted)
    }
}

impl State {
    fn turns(&self, granted: &[Claimant]) -> Turns {
        Turns(granted.iter().filter_map(|claimant| self.pools.get(claimant).cloned()).collect())
    }
}

impl Turns {
    /// Notifies the pools. The caller must hold no lock.
    pub fn notify(self) {
        self.0.iter().filter_map(Weak::upgrade).for_each(Granted::granted);
    }

    /// Adds these pools.
    pub fn and(&mut self, more: Turns) {
        self.0.extend(more.0);
    }

    /// No pool.
    pub fn none() -> Turns {
        Turns(Vec::new())
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

    struct RecordingWaker(mpsc::Sender<()>);

    impl Granted for RecordingWaker {
        fn granted(self: Arc<Self>) {
            self.0.send(()).unwrap();
        }
    }

    #[test]
    fn a_waiting_pool_is_notified_when_another_model_is_done_or_dropped() {
        let limits = Arc::new(RateLimits::default());
        let one_r =
            config("instance_group { count: 2 kind: KIND_CPU rate_limiter { resources { name: 'R' count: 1 } } }");
        let of = || Claims::of(&limits, &one_r).unwrap().unwrap();
        let (first, mut second) = (of(), of());
        let (to, receiver) = mpsc::channel();
        let waker: Arc<dyn Granted> = Arc::new(RecordingWaker(to));
        second.set_pool(Arc::downgrade(&waker));
        let notified = || receiver.try_iter().count();
        let request = |claims: &Claims, at: usize| {
            claims.request(InstanceId(at)).notify();
            claims.has(InstanceId(at))
        };
        assert!(request(&first, 0) && !request(&second, 1) && !request(&second, 0));
        first.release(InstanceId(0)).notify();
        assert!((notified(), second.has(InstanceId(1)), second.has(InstanceId(0))) == (1, true, false));
        second.release(InstanceId(1)).notify();
        assert!((notified(), second.has(InstanceId(0))) == (1, true));
        assert!(!request(&first, 1) && !request(&second, 1));
        second.release(InstanceId(0)).notify();
        assert!((notified(), first.has(InstanceId(1))) == (0, true), "it is the other model's turn");
        drop(first);
        assert!((notified(), second.has(InstanceId(1))) == (1, true));
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
