//! Which inputs, trace and client does a nested request get from the requests that a model's process is running?

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nerite_locks::Mutex;
use nerite_memory::{Buffer, Extent};
use nerite_request::{Client, RequestTrace, SequenceOwner};

use super::lock;
use crate::packets::SegmentOffset;
use crate::plan::Planned;

/// The clients and inputs of the requests that a process has. Inputs are noted from its first request to another model on, because most processes make
/// none.
#[derive(Default)]
pub(crate) struct BatchInputs {
    is_wanted: AtomicBool,
    /// The owner of the sequences of a batch that was not noted. The first nested request of the process needs it.
    owner: AtomicU64,
    /// Whether any request is noted. If not, no lock is taken.
    has_noted: AtomicBool,
    noted: Mutex<HashMap<u64, (Client, Vec<Buffer>)>>,
    /// Whether any request was traced. If not, no lock is taken.
    has_traces: AtomicBool,
    traces: Mutex<HashMap<u64, Arc<RequestTrace>>>,
}

impl BatchInputs {
    /// Begins to note inputs.
    pub(crate) fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Notes the inputs of a batch, if needed. The process has no other requests.
    pub(crate) fn add(&self, planned: &[Planned]) {
        self.add_traces(planned);
        if self.is_wanted.load(Ordering::Relaxed) {
            self.note(planned);
        } else {
            let owner = Client::of_all(planned.iter().map(|one| one.job.client())).owner;
            self.owner.store(owner.number(), Ordering::Relaxed);
        }
    }

    /// Notes the clients of requests that may go on after their batch, and their inputs, if needed.
    pub(crate) fn add_open(&self, planned: &[Planned]) {
        self.add_traces(planned);
        self.note(planned);
    }

    fn add_traces(&self, planned: &[Planned]) {
        for Planned { number, job, .. } in planned {
            if let Some(trace) = job.responder().trace() {
                self.has_traces.store(true, Ordering::Relaxed);
                lock(&self.traces).insert(*number, Arc::clone(trace));
            }
        }
    }

    fn note(&self, planned: &[Planned]) {
        self.has_noted.store(true, Ordering::Relaxed);
        let is_wanted = self.is_wanted.load(Ordering::Relaxed);
        let mut noted = lock(&self.noted);
        for Planned { number, job, inputs, .. } in planned {
            let shared = job.inputs().iter().map(|input| &input.data).filter(|data| data.share().is_some());
            let buffers = shared.cloned().chain(inputs.iter().map(crate::blocks::Block::buffer));
            noted.insert(*number, (job.client(), buffers.filter(|_| is_wanted).collect()));
        }
    }

    /// Removes requests that the process does not have any more.
    pub(crate) fn remove(&self, numbers: &[u64]) {
        if self.has_traces.load(Ordering::Relaxed) {
            let mut traces = lock(&self.traces);
            let ended: Vec<_> = numbers.iter().filter_map(|number| traces.remove(number)).collect();
            drop((traces, ended));
        }
        if self.has_noted.load(Ordering::Relaxed) {
            let mut noted = lock(&self.noted);
            for number in numbers {
                noted.remove(number);
            }
        }
    }

    /// Removes all, because the process has answered its batch or has ended.
    pub(crate) fn clear(&self) {
        if self.has_traces.swap(false, Ordering::Relaxed) {
            let ended = std::mem::take(&mut *lock(&self.traces));
            drop(ended);
        }
        self.owner.store(SequenceOwner::SERVER.number(), Ordering::Relaxed);
        if self.has_noted.swap(false, Ordering::Relaxed) {
            lock(&self.noted).clear();
        }
    }

    /// The trace of a request, for a nested request of it.
    pub(crate) fn trace(&self, number: u64) -> Option<Arc<RequestTrace>> {
        lock(&self.traces).get(&number).map(|trace| trace.child())
    }

    /// The client of all requests that the process has, or the server itself if they have several clients. The process does not say for which of its
    /// requests it makes a nested one.
    pub(crate) fn client(&self) -> Client {
        let noted = lock(&self.noted);
        if noted.is_empty() {
            let owner = SequenceOwner::of_number(self.owner.load(Ordering::Relaxed));
            return Client { owner, ..Client::default() };
        }
        Client::of_all(noted.values().map(|(client, _)| *client))
    }

    /// Bytes within one of the inputs.
    pub(crate) fn find(&self, location: SegmentOffset, bytes: usize) -> Option<Buffer> {
        let noted = lock(&self.noted);
        noted.values().flat_map(|(_, buffers)| buffers).find_map(|buffer| part(buffer, location, bytes))
    }
}

/// The bytes at that offset, if they lie within this memory.
pub(crate) fn part(whole: &Buffer, location: SegmentOffset, bytes: usize) -> Option<Buffer> {
    let window = whole.share()?;
    if window.share.mark().number() != location.segment {
        return None;
    }
    let extent = Extent::new(location.offset.checked_sub(window.offset)?, bytes, whole.len()).ok()?;
    Some(whole.slice(extent))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_request::{Peer, Reply, SequenceScope};

    use super::*;
    use crate::plan::tests::{job_of, nobody, plan};

    fn client(uid: u32, flow: u64) -> Client {
        let owner = SequenceScope::User.owner_of(&Peer::User { uid: 4_000_000_000 + uid });
        Client { peer: uid.into(), flow, owner }
    }

    fn planned(number: u64, client: Client) -> Planned {
        let (shares, blocks) = nobody();
        let job = job_of(client, Vec::new(), Vec::new(), Reply::closed());
        Planned { number, ..plan(job, &shares, &blocks, &HashMap::new()).0 }
    }

    #[test]
    fn the_first_nested_request_of_a_process_has_the_owner_of_its_batch() {
        let found = BatchInputs::default();
        let batch = [planned(1, client(1, 1)), planned(2, client(1, 2))];
        found.add(&batch);
        found.want();
        assert_eq!(found.client(), Client { owner: client(1, 0).owner, ..Client::default() });
        found.clear();
        assert_eq!(found.client(), Client::default());
        found.add(&batch[..1]);
        assert_eq!(found.client(), client(1, 1));
        found.clear();
        found.add(&[planned(3, client(1, 1)), planned(4, client(2, 1))]);
        assert_eq!(found.client(), Client::default());
    }

    #[test]
    fn open_requests_of_several_owners_are_of_none_from_the_first_on() {
        let found = BatchInputs::default();
        found.add_open(&[planned(1, client(1, 1))]);
        assert_eq!(found.client(), client(1, 1));
        found.add_open(&[planned(2, client(2, 1))]);
        assert_eq!(found.client(), Client::default());
        found.remove(&[1]);
        assert_eq!(found.client(), client(2, 1));
        found.remove(&[2]);
        assert_eq!(found.client(), Client::default());
    }
}
