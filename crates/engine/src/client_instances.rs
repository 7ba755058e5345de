//! How many instances may the configurations that one client sent ask for?

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;
use nerite_request::{Peer, Status};

/// Counts the instances of models whose configurations clients sent.
#[derive(Clone, Debug)]
pub struct ClientInstances {
    /// The most instances of one client.
    most: usize,
    counted: Arc<Mutex<Counted>>,
}

/// The instances that are counted, by client.
type Counted = HashMap<Peer, Vec<Counting>>;

/// The instances of one version of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counting {
    model: String,
    version: i64,
    instances: usize,
    /// Two loads of the same version have different values.
    load_ns: u64,
}

/// Counts the instances of one version until it is dropped.
#[derive(Debug)]
pub struct CountedInstances {
    peer: Peer,
    counting: Counting,
    counted: Arc<Mutex<Counted>>,
}

impl ClientInstances {
    /// At most this many instances of each client.
    pub fn at_most(most: usize) -> ClientInstances {
        ClientInstances { most, counted: Arc::default() }
    }

    /// Counts the instances of a version that is about to be loaded. The version with the same number that it replaces does not count: it ends when the new
    /// one is up. Root and the server's own user may load any number.
    pub(crate) fn count(
        &self,
        peer: &Peer,
        (model, version): (&str, i64),
        instances: usize,
        load_ns: u64,
    ) -> Result<Option<CountedInstances>, Status> {
        if peer.is_operator() {
            return Ok(None);
        }
        let counting = Counting { model: model.to_owned(), version, instances, load_ns };
        let mut all = lock(&self.counted);
        let own = all.entry(peer.clone()).or_default();
        let is_other = |one: &&Counting| (one.model.as_str(), one.version) != (model, version);
        let others: usize = own.iter().filter(is_other).map(|one| one.instances).sum();
        if others + instances > self.most {
            return Err(Status::unavailable(format!(
                "the configuration that {peer} sent for model '{model}' asks for {instances} instances of version {version}, {others} of other models \
                 that it sent run, and at most {} may; lower 'count', unload one of them, or start the server with --client-instances-max={}",
                self.most,
                others + instances
            )));
        }
        own.push(counting.clone());
        Ok(Some(CountedInstances { peer: peer.clone(), counting, counted: Arc::clone(&self.counted) }))
    }
}

impl Drop for CountedInstances {
    fn drop(&mut self) {
        let mut all = lock(&self.counted);
        let Some(own) = all.get_mut(&self.peer) else { return };
        if let Some(at) = own.iter().position(|one| *one == self.counting) {
            own.swap_remove(at);
        }
        if own.is_empty() {
            all.remove(&self.peer);
        }
    }
}

fn lock(counted: &Mutex<Counted>) -> MutexGuard<'_, Counted> {
    counted.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ONE: Peer = Peer::User { uid: 4_000_000_001 };
    const OTHER: Peer = Peer::User { uid: 4_000_000_002 };

    #[test]
    fn a_client_has_so_many_instances_and_a_version_that_is_replaced_does_not_count() {
        let all = ClientInstances::at_most(4);
        let count =
            |peer: &Peer, model, version, instances, load_ns| all.count(peer, (model, version), instances, load_ns);
        let first = count(&ONE, "m", 1, 3, 1).unwrap();
        let refused = count(&ONE, "n", 1, 2, 2).unwrap_err().message;
        let text = "asks for 2 instances of version 1, 3 of other models that it sent run, and at most 4 may; lower 'count', unload one of them, or \
                    start the server with --client-instances-max=5";
        assert!(refused.ends_with(text), "{refused}");
        assert!(count(&ONE, "m", 2, 2, 3).is_err());
        let second = count(&ONE, "m", 1, 4, 4).unwrap();
        assert!(count(&OTHER, "n", 1, 4, 5).is_ok());
        assert!(count(&Peer::own(), "n", 1, 5, 6).unwrap().is_none());
        drop(first);
        assert!(count(&ONE, "n", 1, 1, 7).is_err());
        drop(second);
        assert!(count(&ONE, "n", 1, 4, 8).is_ok());
        assert!(lock(&all.counted).is_empty());
    }
}
