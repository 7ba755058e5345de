//! What do the requests of a model version share, and when has the last of them ended?

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;
use nerite_request::Name;

use crate::{DeclaredOutputs, Meter, NoMeter};

/// The part of a model version that its requests share. The version stays loaded while one of them is in flight on any thread.
pub struct ModelVersion {
    name: Name,
    version: Name,
    meter: Arc<dyn Meter>,
    declared: DeclaredOutputs,
    in_flight: AtomicUsize,
    /// Whether a thread waits for the last request. If not, the end of a request takes no lock.
    is_awaited: AtomicBool,
    lock: Mutex<()>,
    ended: Condvar,
}

/// Keeps a request in flight until it is dropped: from the request's admission until its last response was sent.
pub struct InFlight(Arc<ModelVersion>);

impl ModelVersion {
    /// A version with no request in flight, of whose outputs nothing is declared. Each request that ends is reported to `meter`.
    pub fn new(name: impl Into<Name>, version: impl Into<Name>, meter: Arc<dyn Meter>) -> Arc<ModelVersion> {
        ModelVersion::declaring(DeclaredOutputs::default(), name, version, meter)
    }

    /// The same, with outputs that are compared with `declared`.
    pub fn declaring(
        declared: DeclaredOutputs,
        name: impl Into<Name>,
        version: impl Into<Name>,
        meter: Arc<dyn Meter>,
    ) -> Arc<ModelVersion> {
        Arc::new(ModelVersion {
            name: name.into(),
            version: version.into(),
            meter,
            declared,
            in_flight: AtomicUsize::new(0),
            is_awaited: AtomicBool::new(false),
            lock: Mutex::new(()),
            ended: Condvar::new(),
        })
    }

    /// Version 1 of a model of that name whose meter records nothing; for tests.
    pub fn unmetered(name: &str) -> Arc<ModelVersion> {
        ModelVersion::new(name, "1", Arc::new(NoMeter))
    }

    /// Counts one more request as in flight until the returned value is dropped.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        InFlight(Arc::clone(self))
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// As [`ModelVersion::wait`], for at most this time. Returns the number of requests that are still in flight.
    pub fn wait_for(&self, longest: Duration) -> usize {
        self.is_awaited.store(true, Ordering::SeqCst);
        let held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let some = |(): &mut ()| self.in_flight() > 0;
        drop(self.ended.wait_timeout_while(held, longest, some).unwrap_or_else(PoisonError::into_inner));
        self.in_flight()
    }

    /// Waits until no request is in flight.
    pub fn wait(&self) {
        // The thread that ends the last request either sees this flag, or has lowered the count before it is read below.
        self.is_awaited.store(true, Ordering::SeqCst);
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.in_flight() > 0 {
            held = self.ended.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The model's name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The version's number as text.
    pub fn version(&self) -> &Name {
        &self.version
    }

    /// The outputs that its configuration declares.
    pub fn declared(&self) -> &DeclaredOutputs {
        &self.declared
    }

    /// The meter that records the requests of this version.
    pub fn meter(&self) -> &Arc<dyn Meter> {
        &self.meter
    }
}

impl std::ops::Deref for InFlight {
    type Target = Arc<ModelVersion>;

    fn deref(&self) -> &Arc<ModelVersion> {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.0.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.is_awaited.load(Ordering::SeqCst) {
            drop(self.0.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.0.ended.notify_all();
        }
    }
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InFlight({} version {})", self.0.name, self.0.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_the_last_request_returns_after_it() {
        for _ in 0..200 {
            let version = ModelVersion::unmetered("m");
            let requests: Vec<InFlight> = (0..3).map(|_| version.begin()).collect();
            let left = Arc::new(AtomicUsize::new(requests.len()));
            std::thread::scope(|scope| {
                for request in requests {
                    let left = Arc::clone(&left);
                    scope.spawn(move || {
                        left.fetch_sub(1, Ordering::SeqCst);
                        drop(request);
                    });
                }
                version.wait_for(Duration::ZERO);
                version.wait();
                assert_eq!((left.load(Ordering::SeqCst), version.in_flight()), (0, 0));
            });
        }
    }
}
