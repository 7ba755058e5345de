//! How do all threads share one cache of responses?

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use nerite_locks::Mutex;
use nerite_request::InferResponse;

use crate::limits::FREED_HERE_BYTES_MAX;
use crate::{Inserted, Key, Lru, Stored};

/// The responses that are kept for all models of a server.
#[derive(Debug)]
pub struct ResponseCache {
    lru: Mutex<Lru<Arc<Stored>>>,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    lookup_ns: AtomicU64,
    insertion_ns: AtomicU64,
}

/// The content of a cache, and the counts of look-ups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Bytes that are kept.
    pub bytes: u64,
    /// Bytes that may be kept.
    pub bytes_max: u64,
    /// Responses that are kept.
    pub entries: u64,
    /// Look-ups that found one.
    pub hits: u64,
    /// Look-ups that found none.
    pub misses: u64,
    /// Responses that were evicted for others.
    pub evictions: u64,
    /// Time of all look-ups, in ns.
    pub lookup_ns: u64,
    /// Time of all insertions, in ns.
    pub insertion_ns: u64,
}

/// The outcome of storing a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is kept.
    Yes,
    /// A response with this key is already kept.
    Known,
    /// It has this many bytes, more than the whole cache may have.
    TooLarge(u64),
    /// There is no memory for it now.
    NoRoom,
}

impl ResponseCache {
    /// A cache of this many bytes.
    pub fn new(bytes_max: u64) -> ResponseCache {
        ResponseCache {
            lru: Mutex::new(Lru::new(bytes_max)),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            lookup_ns: AtomicU64::new(0),
            insertion_ns: AtomicU64::new(0),
        }
    }

    /// The response for the first of these keys that has one. It counts as one look-up, whatever the number of keys.
    pub fn find(&self, keys: &[Key]) -> Option<Arc<Stored>> {
        let found = {
            let mut lru = self.lock();
            keys.iter().find_map(|key| lru.get(key).map(Arc::clone))
        };
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Counts the time that a look-up took, the making of its key included.
    pub fn note_lookup(&self, ns: u64) {
        self.lookup_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Keeps a copy of a response. Others are evicted for it.
    pub fn keep(&self, key: Key, response: &InferResponse) -> Kept {
        let begun = Instant::now();
        let kept = self.keep_copy(key, response);
        self.insertion_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        kept
    }

    /// Its content, and the counts of look-ups so far.
    pub fn counts(&self) -> CacheCounts {
        let (bytes, bytes_max, entries) = {
            let lru = self.lock();
            (lru.bytes(), lru.bytes_max(), lru.len() as u64)
        };
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        CacheCounts {
            bytes,
            bytes_max,
            entries,
            hits: count(&self.hits),
            misses: count(&self.misses),
            evictions: count(&self.evictions),
            lookup_ns: count(&self.lookup_ns),
            insertion_ns: count(&self.insertion_ns),
        }
    }

    fn keep_copy(&self, key: Key, response: &InferResponse) -> Kept {
        let bytes = Stored::bytes_of(response);
        {
            // A response is copied only if it can be kept.
            let lru = self.lock();
            if bytes > lru.bytes_max() {
                return Kept::TooLarge(bytes);
            }
            if !lru.takes(&key, bytes) {
                return Kept::Known;
            }
        }
        let Ok(stored) = Stored::copy_of(response) else { return Kept::NoRoom };
        let inserted = self.lock().insert(key, Arc::new(stored), bytes);
        match inserted {
            Inserted::Kept(evicted) => {
                self.give_up(evicted);
                Kept::Yes
            }
            Inserted::Crowded(evicted) => {
                self.give_up(evicted);
                Kept::NoRoom
            }
            Inserted::Known => Kept::Known,
            Inserted::TooLarge => Kept::TooLarge(bytes),
        }
    }

    /// Counts evicted responses, and frees them without the lock.
    fn give_up(&self, evicted: Vec<Arc<Stored>>) {
        self.evictions.fetch_add(evicted.len() as u64, Ordering::Relaxed);
        let bytes: u64 = evicted.iter().map(|stored| stored.output_bytes() as u64).sum();
        if bytes > FREED_HERE_BYTES_MAX {
            // If no thread can be started, they are freed here, when the closure is dropped.
            drop(std::thread::Builder::new().name("nerite-cache".to_owned()).spawn(move || drop(evicted)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lru<Arc<Stored>>> {
        self.lru.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use nerite_memory::Buffer;
    use nerite_request::Output;
    use nerite_tensor::DataType;

    use super::*;
    use crate::KeyWriter;

    fn response(bytes: usize) -> InferResponse {
        let data = Buffer::from(vec![3; bytes]);
        let shape = [bytes as i64].into_iter().collect();
        let output = Output { index: 0, name: "Y".into(), datatype: DataType::Uint8, shape, data, placed: true };
        InferResponse { outputs: vec![output].into(), ..InferResponse::default() }
    }

    #[test]
    fn what_is_found_is_a_copy_that_is_nobodys_place() {
        let (cache, key) = (ResponseCache::new(1 << 20), KeyWriter::new(1).finish());
        let made = response(1000);
        assert_eq!(cache.keep(key, &made), Kept::Yes);
        assert_eq!(cache.keep(key, &made), Kept::Known);
        let found = cache.find(&[KeyWriter::new(2).finish(), key]).expect("it is kept");
        assert!(!found.outputs[0].placed && found.outputs[0].data.as_ptr() != made.outputs[0].data.as_ptr());
        assert_eq!(found.outputs[0].data.private_bytes(), Some(&[3; 1000][..]));
        let counts = cache.counts();
        assert_eq!((counts.entries, counts.hits, counts.misses, counts.evictions), (1, 1, 0, 0));
    }

    #[test]
    fn threads_together_keep_within_its_size() {
        let cache = ResponseCache::new(50_000);
        assert_eq!(cache.keep(KeyWriter::new(0).finish(), &response(60_000)), Kept::TooLarge(60_457));
        std::thread::scope(|scope| {
            for thread in 1..5 {
                let cache = &cache;
                scope.spawn(move || {
                    for number in 0..200 {
                        let key = KeyWriter::new(1000 * thread + number).finish();
                        assert_eq!(cache.keep(key, &response(number as usize * 50)), Kept::Yes);
                        assert!(cache.counts().bytes <= 50_000);
                    }
                });
            }
        });
        let counts = cache.counts();
        assert_eq!(counts.entries + counts.evictions, 800);
    }
}
