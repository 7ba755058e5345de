//! How are changes of the repositories followed, in control mode `poll`?
//!
//! The directories are compared with their last state soon after a file in them changed, and at an interval. New and changed models are loaded, removed
//! ones are unloaded. A load that failed is tried again once the model's files change.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nerite_locks::Mutex;
use nerite_repository::{Changed, Coverage, Fingerprint, RepositoryWatch, Store};
use nerite_request::setting::LoadOptions;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::parts::Reason;
use super::{Engine, spawn};

/// How long nothing must have changed before the repositories are looked at. A file that is being copied is written to more often than that.
const QUIET: Duration = Duration::from_millis(200);
/// How often changes are taken from the kernel while files are written to.
const BREATHER: Duration = Duration::from_millis(50);
/// Looks that follow changes take at most one part in this many of a core, because a model may write to its own directory all the time.
const LOOK_SHARE: u32 = 10;

/// Ends the thread that polls.
#[derive(Debug, Default)]
pub(crate) struct PollStop {
    /// An eventfd that becomes readable when the thread is to end. Absent until there is a thread.
    bell: OnceLock<OwnedFd>,
    /// What the last look by [`Engine::poll_now`] found.
    seen: Mutex<Seen>,
}

impl PollStop {
    pub(crate) fn stop(&self) {
        if let Some(bell) = self.bell.get() {
            // It fails only if the counter is full, and then the descriptor is readable already.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }
}

/// The last look at the repositories.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// When it and the loads that followed from it ended.
    ended: Instant,
    /// How long it took, and how long the loads took.
    looked: Duration,
    loaded: Duration,
}

/// A change since the last look.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// When the last one was seen.
    seen: Instant,
    /// Whether all of them were seen while models were loaded. A model may write to its own directory when it is loaded, so such changes count less.
    is_of_load: bool,
}

/// When to look at the repositories next.
fn next_look(last: Look, change: Option<Change>, interval: Duration) -> Instant {
    let regular = last.ended + interval;
    let Some(Change { seen, is_of_load }) = change else { return regular };
    let busy = if is_of_load { last.looked + last.loaded } else { last.looked };
    let rested = last.ended + busy.saturating_mul(LOOK_SHARE - 1);
    regular.min(rested.max(seen + QUIET))
}

/// The watch of the repositories, as far as this system has one.
#[derive(Debug)]
pub struct FileChanges {
    /// Absent if the system does not give one.
    watch: Option<RepositoryWatch>,
    store: Store,
    /// Whether the log has been told that some folders are not watched.
    is_limit_logged: bool,
    /// New folders are not watched before this time, so that their walks take at most a tenth of one core.
    follow_after: Instant,
}

impl FileChanges {
    /// Watches the repositories of `store` from now on. Make it before the models are loaded, so that no change after that is missed.
    pub fn of(store: &Store) -> FileChanges {
        let watch = RepositoryWatch::new().inspect_err(|cause| {
            log::warn!(
                "changes of the repositories are seen at each interval only, because the system gives no inotify instance: {cause}; raise \
                 fs.inotify.max_user_instances"
            );
        });
        let mut changes = FileChanges {
            watch: watch.ok(),
            store: store.clone(),
            is_limit_logged: false,
            follow_after: Instant::now(),
        };
        changes.follow();
        changes
    }

    /// Watches the folders that there are now.
    fn follow(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let began = Instant::now();
        let coverage = watch.follow(&self.store);
        self.follow_after = Instant::now() + began.elapsed().saturating_mul(LOOK_SHARE - 1);
        if let Coverage::Some { watched } = coverage
            && !std::mem::replace(&mut self.is_limit_logged, true)
        {
            log::warn!(
                "changes in {watched} folders of the repositories are seen at once, and in the others at each interval; raise \
                 fs.inotify.max_user_watches, or give the repositories fewer than {} folders",
                nerite_repository::limits::WATCHED_FOLDERS_MAX
            );
        }
    }

    /// Takes the changes since the last call. New folders are watched at once: a model that is being copied is still written to in them.
    fn take(&mut self) -> bool {
        let changed = self.watch.as_ref().map_or(Changed::Nothing, RepositoryWatch::take_changes);
        if changed == Changed::Folders && Instant::now() >= self.follow_after {
            self.follow();
        }
        changed != Changed::Nothing
    }

    /// Waits until the repositories are to be looked at. Returns whether the thread is to end instead.
    fn wait(&mut self, bell: &OwnedFd, last: Look, interval: Duration) -> bool {
        let mut change = self.take().then_some(Change { seen: last.ended, is_of_load: true });
        loop {
            let now = Instant::now();
            let left = next_look(last, change, interval).saturating_duration_since(now);
            if left.is_zero() {
                return false;
            }
            // While files are written to, each wait has its time, so that a copy does not wake the thread for each of its pieces.
            let is_fresh = change.is_some_and(|change| now.duration_since(change.seen) < BREATHER);
            let (left, watch) = if is_fresh { (left.min(BREATHER), None) } else { (left, self.watch.as_ref()) };
            if ready(bell, watch, left) {
                return true;
            }
            if self.take() {
                change = Some(Change { seen: Instant::now(), is_of_load: false });
            }
        }
    }
}

/// Waits until the bell rings, something changes, or the time is over. Returns whether the bell rang.
fn ready(bell: &OwnedFd, watch: Option<&RepositoryWatch>, left: Duration) -> bool {
    let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
    let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
    fds.extend(watch.map(|watch| PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)));
    if poll(&mut fds, Some(&timeout)).is_err() {
        // The system has no memory for it, or a signal came.
        #[expect(clippy::disallowed_methods, reason = "this thread serves no connection")]
        thread::sleep(left.min(BREATHER));
    }
    fds.first().is_some_and(|bell| !bell.revents().is_empty())
}

/// The state of each model's files when its load was last tried; `None` if they could not be read.
type Seen = HashMap<String, Option<Fingerprint>>;

impl Engine {
    /// Looks at the repositories after each of their `changes` and at this interval, on a new thread, until the engine stops.
    pub fn poll_every(self: &Arc<Self>, interval: Duration, mut changes: FileChanges) -> io::Result<()> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (engine, stop) = (Arc::downgrade(self), Arc::clone(&self.poll_stop));
        stop.bell.set(bell).map_err(|_| io::Error::other("the repositories are polled already"))?;
        spawn("nerite-poll", move || {
            let Some(bell) = stop.bell.get() else { return };
            let mut seen = Seen::new();
            let mut last = Look { ended: Instant::now(), looked: Duration::ZERO, loaded: Duration::ZERO };
            while !changes.wait(bell, last, interval) {
                let Some(engine) = engine.upgrade() else { return };
                let began = Instant::now();
                changes.follow();
                let looked = engine.poll_once(&mut seen).saturating_duration_since(began);
                last = Look { ended: Instant::now(), looked, loaded: began.elapsed().saturating_sub(looked) };
            }
        })
    }

    /// Looks at the repositories once, and follows what changed since the last such look.
    pub fn poll_now(self: &Arc<Self>) {
        let mut seen = self.poll_stop.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.poll_once(&mut seen);
    }

    /// Looks at the repositories, and loads and unloads what changed. Returns the time at which the look was over and the loads began.
    fn poll_once(self: &Arc<Self>, seen: &mut Seen) -> Instant {
        let listing = match self.store().list() {
            Ok(listing) => listing,
            Err(error) => {
                log::error!("the repositories cannot be polled: {error}");
                return Instant::now();
            }
        };
        let gone = self.lifecycle().vanished(&listing);
        for model in &gone {
            if let Err(error) = self.unload_now(model, false) {
                log::error!("{}", error.message);
            }
        }
        seen.retain(|model, _| listing.places(model).len() == 1);
        let (mut changed, mut ensembles) = (Vec::new(), Vec::new());
        for (model, _) in listing.models().filter(|(_, places)| places.len() == 1) {
            let source = self.store().read(model, &LoadOptions::default());
            let fingerprint = source.as_ref().ok().map(|source| source.fingerprint.clone());
            if source.as_ref().is_ok_and(|source| !source.needs().is_empty()) {
                ensembles.push(model.to_owned());
            }
            if seen.get(model) != Some(&fingerprint) {
                seen.insert(model.to_owned(), fingerprint);
                changed.push(model.to_owned());
            }
        }
        let looked = Instant::now();
        if changed.is_empty() && gone.is_empty() {
            return looked;
        }
        // The missing part of an ensemble may be among the changed models.
        changed.extend(ensembles.into_iter().filter(|model| self.served(model).is_empty()));
        changed.sort_unstable();
        changed.dedup();
        let tried = Arc::new(changed.iter().cloned().collect());
        for wave in self.waves(&changed) {
            self.load_wave(&wave, &Reason::requested(Arc::clone(&tried)));
        }
        looked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_leads_to_a_look_when_all_is_quiet_but_not_too_often() {
        let ended = Instant::now();
        let at = |millis: u64| Duration::from_millis(millis);
        let interval = at(15_000);
        #[rustfmt::skip]
        let cases = [
            // the look took, its loads took, a change after their end, the next look after their end
            (at(10), at(0), None, 15_000),
            (at(10), at(0), Some(1_000), 1_200),
            (at(10), at(0), Some(0), 200),
            // A change that comes again and again moves the look, but not beyond the interval.
            (at(10), at(0), Some(14_700), 14_900),
            (at(10), at(0), Some(14_900), 15_000),
            // A look that took a second is followed by nine without one.
            (at(1_000), at(0), Some(500), 9_000),
            (at(1_000), at(0), Some(9_500), 9_700),
            (at(2_000), at(0), Some(0), 15_000),
            // The loads are not part of the look.
            (at(10), at(60_000), Some(1_000), 1_200),
        ];
        for (looked, loaded, changed, expected) in cases {
            let change = changed.map(|after| Change { seen: ended + at(after), is_of_load: false });
            let next = next_look(Look { ended, looked, loaded }, change, interval);
            assert_eq!(next - ended, at(expected), "{looked:?}, {loaded:?}, {changed:?}");
        }
    }

    #[test]
    fn a_model_that_writes_to_its_directory_when_it_is_loaded_is_not_loaded_all_the_time() {
        let (ended, at) = (Instant::now(), Duration::from_millis);
        for (loaded, expected) in [(at(100), at(990)), (at(1_000), at(9_090)), (at(60_000), at(15_000))] {
            let change = Some(Change { seen: ended, is_of_load: true });
            let next = next_look(Look { ended, looked: at(10), loaded }, change, at(15_000));
            assert_eq!(next - ended, expected, "{loaded:?}");
        }
    }
}
