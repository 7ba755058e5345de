//! What does one token allow, and how much of that is used?

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use nerite_locks::Mutex;

use crate::bookings::{BookedBucket, Booking};
use crate::bucket::Rate;
use crate::pattern::Pattern;
use crate::scope::Scope;
use crate::secret::SecretHash;

/// One token of the file, or the rules for requests without one. When the file is read again, new ones are made. Tokens of the same name share their
/// used amounts.
#[derive(Debug)]
pub struct Token {
    pub(crate) name: String,
    /// `None` for requests without a token.
    pub(crate) secret: Option<SecretHash>,
    pub(crate) scopes: u8,
    /// `None` for all models.
    pub(crate) models: Option<Vec<Pattern>>,
    pub(crate) requests: Option<Rate>,
    pub(crate) bytes: Option<Rate>,
    pub(crate) generation: u64,
    pub(crate) buckets: Arc<Buckets>,
    pub(crate) used: Arc<Used>,
}

/// The buckets of a token. They are kept when the file is read again. Each peer without a token has its own.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    /// When the bucket of requests will be full again, in ns.
    requests_full_at: AtomicU64,
    bytes: Mutex<BookedBucket>,
}

impl Buckets {
    /// Whether all buckets are full, so that new ones would be equal.
    pub(crate) fn are_full(&self, now_ns: u64) -> bool {
        self.requests_full_at.load(Ordering::Relaxed) <= now_ns && self.bytes().is_full(now_ns)
    }

    fn bytes(&self) -> MutexGuard<'_, BookedBucket> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The used amounts of the token of a name. They are kept when the file is read again.
#[derive(Debug, Default)]
pub(crate) struct Used {
    pub(crate) passed: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) limited: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
}

/// How often the token of a name was used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Its name.
    pub name: String,
    /// Calls that it allowed.
    pub passed: u64,
    /// Calls that it does not allow.
    pub denied: u64,
    /// Calls beyond its quotas.
    pub limited: u64,
    /// Bytes of tensors in messages from its clients.
    pub bytes_in: u64,
    /// Bytes of tensors in messages to its clients.
    pub bytes_out: u64,
}

/// What a quota counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Requests.
    Requests,
    /// Bytes of tensors in messages.
    Bytes,
}

/// A quota that is used up for now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the quota of token '{token}' is used up: {per_second} {quota} per second, at most {burst} at once; try again in {} ms",
    .wait_ns.div_ceil(1_000_000)
)]
pub struct OverQuota {
    /// The token's name.
    pub token: String,
    /// The quota that is used up.
    pub quota: Quota,
    /// The amount that is released per second.
    pub per_second: u64,
    /// The amount that may be used at once.
    pub burst: u64,
    /// Time until more may be used, in ns.
    pub wait_ns: u64,
}

impl Token {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has a quota.
    pub(crate) fn has_quota(&self) -> bool {
        self.requests.is_some() || self.bytes.is_some()
    }

    /// The same rules and counts, with these buckets.
    pub(crate) fn with_buckets(&self, buckets: &Arc<Buckets>) -> Token {
        Token {
            name: self.name.clone(),
            secret: self.secret,
            scopes: self.scopes,
            models: self.models.clone(),
            requests: self.requests,
            bytes: self.bytes,
            generation: self.generation,
            buckets: Arc::clone(buckets),
            used: Arc::clone(&self.used),
        }
    }

    /// Whether it stands for requests without a token.
    pub fn is_anonymous(&self) -> bool {
        self.secret.is_none()
    }

    /// Whether it has one of these scopes.
    pub fn has_any(&self, scopes: &[Scope]) -> bool {
        scopes.iter().any(|scope| self.scopes & scope.bit() != 0)
    }

    /// Whether it allows requests to this model.
    pub fn allows_model(&self, model: &str) -> bool {
        self.models.as_ref().is_none_or(|models| models.iter().any(|pattern| pattern.is_match(model)))
    }

    /// Whether there are models that it does not allow.
    pub fn has_list(&self) -> bool {
        self.models.is_some()
    }

    /// Takes one request out of its quotas. Bytes of earlier requests must be paid for first. `booking` is what was booked for this request already.
    pub fn take_request(&self, booking: Booking, now_ns: u64) -> Result<(), OverQuota> {
        let taken = self.check_bytes(booking, now_ns).and_then(|()| self.take(now_ns));
        let count = if taken.is_ok() { &self.used.passed } else { &self.used.limited };
        count.fetch_add(1, Ordering::Relaxed);
        taken
    }

    fn check_bytes(&self, booking: Booking, now_ns: u64) -> Result<(), OverQuota> {
        let Some(rate) = self.bytes else { return Ok(()) };
        match self.buckets.bytes().wait(rate, booking, now_ns) {
            0 => Ok(()),
            wait_ns => Err(self.over(Quota::Bytes, rate, wait_ns)),
        }
    }

    fn take(&self, now_ns: u64) -> Result<(), OverQuota> {
        let Some(rate) = self.requests else { return Ok(()) };
        let take = |full_at_ns| rate.take(full_at_ns, 1, now_ns).ok();
        let taken = self.buckets.requests_full_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|full_at_ns| {
            let wait_ns = rate.take(full_at_ns, 1, now_ns).err().unwrap_or(1);
            self.over(Quota::Requests, rate, wait_ns)
        })
    }

    fn over(&self, quota: Quota, Rate { per_second, burst }: Rate, wait_ns: u64) -> OverQuota {
        OverQuota { token: self.name.clone(), quota, per_second, burst, wait_ns }
    }

    /// The ns in which its quota of bytes gives this many; 0 without one.
    pub fn time_of(&self, bytes: u64) -> u64 {
        self.bytes.map_or(0, |rate| rate.time_of(bytes))
    }

    /// Whether it has a quota of bytes.
    pub fn limits_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    /// Takes the bytes of a message out of its quota before they come, so that messages that come at the same time cannot use the same bytes. `None`: their number
    /// is not announced. [`Token::note_bytes_in`] or [`Token::end_booking`] ends the booking.
    pub fn book_bytes(&self, announced: Option<u64>, now_ns: u64) -> Result<Booking, OverQuota> {
        let Some(rate) = self.bytes else { return Ok(Booking::default()) };
        let booked = self.buckets.bytes().book(rate, announced, now_ns);
        booked.map_err(|wait_ns| {
            self.used.limited.fetch_add(1, Ordering::Relaxed);
            self.over(Quota::Bytes, rate, wait_ns)
        })
    }

    /// Books `bytes` in place of fewer. The missing ones are owed.
    pub fn extend(&self, booking: Booking, bytes: u64, now_ns: u64) -> Booking {
        self.bytes.map_or(booking, |rate| self.buckets.bytes().extend(rate, booking, bytes, now_ns))
    }

    /// Ends a booking: takes `bytes` in place of those that were booked. What is missing is owed. What was booked and did not come is returned, unless the bucket has filled
    /// meanwhile: an open booking is no saved-up quota.
    pub fn end_booking(&self, booking: Booking, bytes: u64, now_ns: u64) {
        self.bytes.iter().for_each(|rate| self.buckets.bytes().end(*rate, booking, bytes, now_ns));
    }

    /// Counts bytes of a received message, and takes them out of its quota, in place of those that were booked.
    pub fn note_bytes_in(&self, booking: Booking, bytes: u64, now_ns: u64) {
        self.used.bytes_in.fetch_add(bytes, Ordering::Relaxed);
        if booking.time_ns > 0 || bytes > 0 {
            self.end_booking(booking, bytes, now_ns);
        }
    }

    /// Counts bytes of answers. The answers exist already, so bytes beyond the quota are owed.
    pub fn note_bytes_out(&self, bytes: u64, now_ns: u64) {
        self.used.bytes_out.fetch_add(bytes, Ordering::Relaxed);
        if let Some(rate) = self.bytes.filter(|_| bytes > 0) {
            self.buckets.bytes().owe(rate, bytes, now_ns);
        }
    }

    /// Notes a call that it does not allow.
    pub fn note_denied(&self) {
        self.used.denied.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Used { passed, denied, limited, bytes_in, bytes_out, .. } = &*self.used;
        Counts {
            name: self.name.clone(),
            passed: read(passed),
            denied: read(denied),
            limited: read(limited),
            bytes_in: read(bytes_in),
            bytes_out: read(bytes_out),
        }
    }
}

impl std::fmt::Display for Quota {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Quota::Requests => "requests",
            Quota::Bytes => "bytes of tensors",
        })
    }
}
