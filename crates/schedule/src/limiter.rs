//! Which instances of all models may run together, if they share resources?
//!
//! An instance claims its resources before each execution and gives them back afterwards. Among the waiting instances, the one with the smallest
//! product of its executions and its priority is first. So an instance of priority 2 runs half as often as one of priority 1, as in Triton. If the
//! first one cannot have all its resources, those behind it may not take any of them, so it does not starve. Instances that need other resources pass
//! it. A new instance starts with the count of executions of its competitors.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// An instance of some model, by a unique number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claimant(pub u64);

/// A resource of one device, or of all devices together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    /// Its name.
    pub name: String,
    /// The device. `None` for a resource that instances on all devices share.
    pub device: Option<u32>,
}

/// The resources of an instance for each execution, and its priority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The amount of each resource.
    pub needs: Vec<(Resource, u32)>,
    /// 1 is served most often. 0 means 1.
    pub priority: u32,
}

/// The operator's limits. Each is for one device, or for all devices if it names none. If there is no limit at all, the amount of each resource is
/// the largest claim for it. If there are limits, the amount of a resource without one is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceLimits(pub BTreeMap<(String, Option<u32>), u32>);

/// Why an instance could never run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimError {
    /// The limit of a resource is less than the instance needs.
    Limited {
        /// The resource.
        name: String,
        /// The limit.
        limit: u32,
        /// The amount it needs.
        needed: u32,
    },
    /// A resource of one device has the same name as a shared one.
    TwoKinds {
        /// The resource.
        name: String,
    },
}

impl std::fmt::Display for ClaimError {
    /// Triton's texts.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ClaimError::Limited { name, limit, needed } => write!(
                f,
                "Resource count for \"{name}\" is limited to {limit} which will prevent scheduling of one or more model instances, \
                 the minimum required count is {needed}"
            ),
            ClaimError::TwoKinds { name } => write!(
                f,
                "Resource \"{name}\" is present as both global and device-specific resource in the model configuration."
            ),
        }
    }
}

impl std::error::Error for ClaimError {}

/// The resources of all instances.
#[derive(Debug, Default)]
pub struct Limiter {
    limits: ResourceLimits,
    last: u64,
    claimants: HashMap<Claimant, Entry>,
    /// The waiting instances, in the order in which they are served.
    waiting: BTreeSet<(u64, u64, Claimant)>,
    /// The number of instances that have begun to wait.
    arrived: u64,
    used: HashMap<Resource, u64>,
}

#[derive(Debug)]
struct Entry {
    claim: Claim,
    /// Its executions, counted from those that its competitors had when it was added.
    executions: u64,
    state: EntryState,
}

impl Entry {
    fn turn(&self) -> u64 {
        self.executions.saturating_mul(u64::from(self.claim.priority.max(1)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    Idle,
    /// Waits, at this place in the order.
    Waits(u64, u64),
    Runs,
}

impl Limiter {
    /// A limiter without instances.
    pub fn new(limits: ResourceLimits) -> Limiter {
        Limiter { limits, ..Limiter::default() }
    }

    /// Adds an instance. Err: the limits are too low for it to ever run.
    pub fn add(&mut self, claim: Claim) -> Result<Claimant, ClaimError> {
        for (resource, count) in &claim.needs {
            let all = self.claimants.values().flat_map(|entry| &entry.claim.needs).chain(&claim.needs);
            if all
                .clone()
                .any(|(other, _)| other.name == resource.name && other.device.is_some() != resource.device.is_some())
            {
                return Err(ClaimError::TwoKinds { name: resource.name.clone() });
            }
            if let Some(limit) = self.limits.of(resource).filter(|limit| limit < count) {
                return Err(ClaimError::Limited { name: resource.name.clone(), limit, needed: *count });
            }
        }
        self.last += 1;
        let claimant = Claimant(self.last);
        let executions = self.initial_turn(&claim) / u64::from(claim.priority.max(1));
        self.claimants.insert(claimant, Entry { claim, executions, state: EntryState::Idle });
        Ok(claimant)
    }

    /// The product of executions and priority that a new instance begins with. If it began with 0, it would always be first, until it had run as
    /// often as the others since the server's start. Idle instances may be far behind the competing ones, so they count only if no instance competes.
    fn initial_turn(&self, claim: &Claim) -> u64 {
        let shares = |entry: &&Entry| {
            entry.claim.needs.iter().any(|(resource, _)| claim.needs.iter().any(|(needed, _)| needed == resource))
        };
        let competitors = || self.claimants.values().filter(shares);
        let competing = competitors().filter(|entry| entry.state != EntryState::Idle).map(Entry::turn).min();
        competing.or_else(|| competitors().map(Entry::turn).min()).unwrap_or(0)
    }

    /// Removes an instance. Returns the instances that may run now.
    pub fn remove(&mut self, claimant: Claimant) -> Vec<Claimant> {
        let granted = self.release(claimant);
        self.claimants.remove(&claimant);
        granted
    }

    /// Requests the resources of an instance. If it has those of its last run, it gives them back first, as one decision: the instance and those that
    /// wait get them in their order. Returns the instances that may run now. If it is not among them, it waits.
    pub fn request(&mut self, claimant: Claimant) -> Vec<Claimant> {
        self.free(claimant);
        let Some(entry) = self.claimants.get_mut(&claimant) else { return Vec::new() };
        self.arrived += 1;
        let turn = entry.turn();
        entry.state = EntryState::Waits(turn, self.arrived);
        self.waiting.insert((turn, self.arrived, claimant));
        self.grant()
    }

    /// Gives back the resources of an instance, or withdraws its request. Returns the instances that may run now.
    pub fn release(&mut self, claimant: Claimant) -> Vec<Claimant> {
        if self.free(claimant) { self.grant() } else { Vec::new() }
    }

    /// As [`Limiter::release`], for an instance that has not run since it was granted its resources.
    pub fn decline(&mut self, claimant: Claimant) -> Vec<Claimant> {
        if let Some(entry) = self.claimants.get_mut(&claimant).filter(|entry| entry.state == EntryState::Runs) {
            entry.executions -= 1;
        }
        self.release(claimant)
    }

    /// Whether an instance has its resources.
    pub fn has(&self, claimant: Claimant) -> bool {
        self.claimants.get(&claimant).is_some_and(|entry| entry.state == EntryState::Runs)
    }

    /// Makes an instance idle. Returns whether it was not.
    fn free(&mut self, claimant: Claimant) -> bool {
        let Some(entry) = self.claimants.get_mut(&claimant) else { return false };
        match std::mem::replace(&mut entry.state, EntryState::Idle) {
            EntryState::Idle => return false,
            EntryState::Waits(turn, arrived) => {
                self.waiting.remove(&(turn, arrived, claimant));
            }
            EntryState::Runs => {
                for (resource, count) in &entry.claim.needs {
                    if let Some(used) = self.used.get_mut(resource) {
                        *used -= u64::from(*count);
                    }
                }
            }
        }
        true
    }

    /// Instances that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Grants resources to waiting instances, in their order.
    fn grant(&mut self) -> Vec<Claimant> {
        let mut granted = Vec::new();
        // Resources that are kept for instances further ahead, which cannot run yet.
        let mut kept: BTreeSet<&Resource> = BTreeSet::new();
        let totals = self.totals();
        for (turn, arrived, claimant) in &self.waiting {
            let Some(entry) = self.claimants.get(claimant) else { continue };
            let used = &mut self.used;
            let is_free = |(resource, count): &(Resource, u32)| {
                let in_use = used.get(resource).copied().unwrap_or(0);
                !kept.contains(resource) && in_use + u64::from(*count) <= totals.get(resource).copied().unwrap_or(0)
            };
            if entry.claim.needs.iter().all(is_free) {
                for (resource, count) in &entry.claim.needs {
                    *used.entry(resource.clone()).or_default() += u64::from(*count);
                }
                granted.push((*turn, *arrived, *claimant));
            } else {
                kept.extend(entry.claim.needs.iter().map(|(resource, _)| resource));
            }
        }
        for one in &granted {
            self.waiting.remove(one);
            if let Some(entry) = self.claimants.get_mut(&one.2) {
                entry.state = EntryState::Runs;
                entry.executions += 1;
            }
        }
        granted.into_iter().map(|(_, _, claimant)| claimant).collect()
    }

    /// The amounts of all resources, as Triton logs them.
    pub fn resource_map(&self) -> String {
        let mut devices: BTreeMap<Option<u32>, BTreeMap<String, u64>> = BTreeMap::new();
        for (Resource { name, device }, count) in self.totals() {
            devices.entry(device).or_default().insert(name, count);
        }
        let mut text = String::from("\nMax Resource Map===>\n");
        for (device, resources) in devices {
            let device = device.map_or_else(|| "GLOBAL".to_owned(), |device| device.to_string());
            text += &format!("\tDevice: {device}\n");
            for (name, count) in resources {
                text += &format!("\t\tResource: {name}\t Count: {count}\n");
            }
        }
        text
    }

    /// The amount of each resource that some instance needs.
    fn totals(&self) -> HashMap<Resource, u64> {
        let mut totals: HashMap<Resource, u64> = HashMap::new();
        for (resource, count) in self.claimants.values().flat_map(|entry| &entry.claim.needs) {
            let total = totals.entry(resource.clone()).or_default();
            let count = self.limits.of(resource).unwrap_or(*count);
            *total = u64::from(count).max(*total);
        }
        totals
    }
}

impl ResourceLimits {
    /// The limit of a resource. `None` if the claims of the instances decide.
    fn of(&self, resource: &Resource) -> Option<u32> {
        if self.0.is_empty() {
            return None;
        }
        let exact = |device| self.0.get(&(resource.name.clone(), device)).copied();
        let any = || self.0.iter().find(|((name, _), _)| *name == resource.name).map(|(_, limit)| *limit);
        let found = match resource.device {
            Some(device) => exact(Some(device)).or_else(|| exact(None)),
            // As in Triton, a limit of one device also limits the shared resource.
            None => exact(None).or_else(any),
        };
        Some(found.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests;
