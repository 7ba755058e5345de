//! How are changes of the repositories followed, in control mode `poll`?
//!
//! The directories, and the files that models imported from elsewhere, are compared with their last state soon after one of them changed, and at an
//! interval. New and changed models are loaded, removed ones are unloaded. A load that failed is tried again once the model's files change.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nerite_backend::ImportedState;
use nerite_locks::Mutex;
use nerite_repository::{Changed, Coverage, Fingerprint, RepositoryWatch, Store};
use nerite_request::setting::LoadOptions;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::imports::Imports;
use super::parts::Reason;
use super::{Engine, spawn};

/// After a change, the repositories are looked at as soon as nothing has changed for this time. A file that is being copied is written to at shorter
/// intervals.
const QUIET: Duration = Duration::from_millis(200);
/// How often changes are taken from the kernel while files are written to.
const EVENTS_PAUSE: Duration = Duration::from_millis(50);
/// Looks that follow from changes use at most 1/`LOOK_SHARE` of the time of one core, because a model may write to its own directory all the time.
const LOOK_SHARE: u32 = 10;

/// What ends the thread that polls, and the state of [`Engine::poll_now`].
#[derive(Debug, Default)]
pub(crate) struct PollStop {
    /// An eventfd that becomes readable when the thread is to end. Absent until there is a thread.
    stop_event: OnceLock<OwnedFd>,
    /// What the last look by [`Engine::poll_now`] found.
    seen: Mutex<Seen>,
}

impl PollStop {
    pub(crate) fn stop(&self) {
        if let Some(stop_event) = self.stop_event.get() {
            // It fails only if the counter is full, and then the descriptor is readable already.
            let _ = rustix::io::write(stop_event, &1u64.to_ne_bytes());
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

/// The changes since the last look.
#[derive(Clone, Copy, Debug)]
struct Change {
    /// When the newest one was seen.
    seen: Instant,
    /// Whether all changes were seen while models were being loaded. A model may write to its own directory during its load, so such changes count
    /// less.
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

/// Follows changes of the files of repositories by inotify, if the system gives an instance.
#[derive(Debug)]
pub struct FileChanges {
    /// Absent if the system does not give one.
    watch: Option<RepositoryWatch>,
    store: Store,
    /// The files that models imported from elsewhere.
    imported: BTreeSet<PathBuf>,
    /// Whether `imported` has changed since the last look. A file may have changed before it was watched, so another look follows.
    has_new_imports: bool,
    /// Models for which it was logged that they imported more files than are followed.
    unfollowed: BTreeSet<String>,
    /// Whether it was logged that some folders are not watched.
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
            imported: BTreeSet::new(),
            has_new_imports: false,
            unfollowed: BTreeSet::new(),
            is_limit_logged: false,
            follow_after: Instant::now(),
        };
        changes.follow();
        changes
    }

    /// Watches the folders that exist now.
    fn follow(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let began = Instant::now();
        let coverage = watch.follow(&self.store, &self.imported);
        self.follow_after = Instant::now() + began.elapsed().saturating_mul(LOOK_SHARE - 1);
        if let Coverage::Some { watched } = coverage
            && !std::mem::replace(&mut self.is_limit_logged, true)
        {
            log::warn!(
                "changes in {watched} folders of the repositories and of imported files are seen at once, and in the others at each interval; raise \
                 fs.inotify.max_user_watches, give the repositories fewer than {} folders, or import from at most {} others",
                nerite_repository::limits::WATCHED_FOLDERS_MAX,
                nerite_repository::limits::IMPORTED_FOLDERS_MAX
            );
        }
    }

    /// Also watches the files that models imported.
    fn follow_imports(&mut self, imports: Imports) {
        self.unfollowed.retain(|model| imports.unfollowed.contains_key(model));
        for (model, count) in imports.unfollowed {
            if self.unfollowed.insert(model.clone()) {
                log::warn!(
                    "{count} files that model '{model}' imported are not followed: if they change, it is not loaded again; at most {} files are followed, \
                     with paths of at most {} bytes",
                    nerite_backend::limits::IMPORTED_FILES_MAX,
                    nerite_backend::limits::IMPORTED_PATH_BYTES_MAX
                );
            }
        }
        if self.imported != imports.files {
            self.imported = imports.files;
            self.has_new_imports = true;
            self.follow();
        }
    }

    /// Takes the changes since the last call. Returns whether there were any. New folders are watched at once, because a model that is being copied
    /// is still written to them.
    fn take(&mut self) -> bool {
        let changed = self.watch.as_ref().map_or(Changed::Nothing, RepositoryWatch::take_changes);
        if changed == Changed::Folders && Instant::now() >= self.follow_after {
            self.follow();
        }
        changed != Changed::Nothing
    }

    /// Waits until the repositories are to be looked at. Returns whether the thread is to end instead.
    fn wait(&mut self, stop_event: &OwnedFd, last: Look, interval: Duration) -> bool {
        let has_changed = self.take() | std::mem::take(&mut self.has_new_imports);
        let mut change = has_changed.then_some(Change { seen: last.ended, is_of_load: true });
        // The time at which events were last read that are no changes. Other files in the folder of an imported file may be written to all the time.
        let mut last_ignored: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let left = next_look(last, change, interval).saturating_duration_since(now);
            if left.is_zero() {
                return false;
            }
            // While files are written to, each wait takes a fixed time. So a long copy does not wake the thread for each write.
            let last_seen = change.map(|change| change.seen).max(last_ignored);
            let is_fresh = last_seen.is_some_and(|seen| now.duration_since(seen) < EVENTS_PAUSE);
            let (left, watch) = if is_fresh { (left.min(EVENTS_PAUSE), None) } else { (left, self.watch.as_ref()) };
            let is_watched = watch.is_some();
            if ready(stop_event, watch, left) {
                return true;
            }
            if self.take() {
                change = Some(Change { seen: Instant::now(), is_of_load: false });
            } else if is_watched {
                last_ignored = Some(Instant::now());
            }
        }
    }
}

/// Waits until the stop is signalled, something changes, or the time is over. Returns whether the stop was signalled.
fn ready(stop_event: &OwnedFd, watch: Option<&RepositoryWatch>, left: Duration) -> bool {
    let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::from(i32::MAX), tv_nsec: 0 });
    let mut fds = vec![PollFd::new(stop_event, PollFlags::IN)];
    fds.extend(watch.map(|watch| PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN)));
    if poll(&mut fds, Some(&timeout)).is_err() {
        // The system had no memory for the call, or a signal interrupted it.
        #[expect(clippy::disallowed_methods, reason = "this thread serves no connection")]
        thread::sleep(left.min(EVENTS_PAUSE));
    }
    fds.first().is_some_and(|stop_event| !stop_event.revents().is_empty())
}

/// The state of each model's files when its load was last tried.
type Seen = HashMap<String, SeenFiles>;

#[derive(Debug)]
struct SeenFiles {
    /// The files in its directory; `None` if they could not be read.
    own: Option<Fingerprint>,
    /// The files that it imported from elsewhere, as [`ImportedState::hash`].
    imported: u64,
    /// The models that an ensemble is made of, as [`ModelSource::needs`].
    needs: Vec<(String, String)>,
}

/// The files of a model that changed since its load was last tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FilesChanged {
    No,
    /// Files in its directory only, or a model that it is made of lies in another repository now.
    Own,
    /// Files that it imported from elsewhere. All versions are to be loaded, because the files in its directory may be the same.
    Imported,
}

/// Which files of a model changed. `imports` is the present state of what the served versions imported.
fn files_changed(last: Option<&SeenFiles>, now: &SeenFiles, imports: ImportedState) -> FilesChanged {
    // Imported files are not tried again in the state in which a load was tried.
    let is_tried = last.is_some_and(|last| last.imported == now.imported);
    if imports.is_changed && !is_tried {
        FilesChanged::Imported
    } else if last.is_none_or(|last| (&last.own, &last.needs) != (&now.own, &now.needs)) {
        FilesChanged::Own
    } else {
        FilesChanged::No
    }
}

impl Engine {
    /// Looks at the repositories after each of their `changes` and at this interval, on a new thread, until the engine stops.
    pub fn poll_every(self: &Arc<Self>, interval: Duration, mut changes: FileChanges) -> io::Result<()> {
        let stop_event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (engine, stop) = (Arc::downgrade(self), Arc::clone(&self.poll_stop));
        stop.stop_event.set(stop_event).map_err(|_| io::Error::other("the repositories are polled already"))?;
        spawn("nerite-poll", move || {
            let Some(stop_event) = stop.stop_event.get() else { return };
            let mut seen = Seen::new();
            let mut last = Look { ended: Instant::now(), looked: Duration::ZERO, loaded: Duration::ZERO };
            match engine.upgrade() {
                Some(engine) => changes.follow_imports(engine.imports()),
                None => return,
            }
            while !changes.wait(stop_event, last, interval) {
                let Some(engine) = engine.upgrade() else { return };
                let began = Instant::now();
                changes.follow();
                let looked = engine.poll_once(&mut seen).saturating_duration_since(began);
                changes.follow_imports(engine.imports());
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
            if let Err(error) = self.unload_now(model, false, None) {
                log::error!("{}", error.message);
            }
        }
        seen.retain(|model, _| listing.places(model).len() == 1);
        let (mut changed, mut ensembles) = (Vec::new(), Vec::new());
        let mut anew = BTreeSet::new();
        for (model, _) in listing.models().filter(|(_, places)| places.len() == 1) {
            let source = self.store().read(model, &LoadOptions::default());
            let imports = self.imports_state(model);
            let fingerprint = source.as_ref().ok().map(|source| source.fingerprint.clone());
            let needs = source.map(|source| source.needs).unwrap_or_default();
            if !needs.is_empty() {
                ensembles.push(model.to_owned());
            }
            let now = SeenFiles { own: fingerprint, imported: imports.hash, needs };
            let change = files_changed(seen.get(model), &now, imports);
            seen.insert(model.to_owned(), now);
            if change != FilesChanged::No {
                changed.push(model.to_owned());
            }
            if change == FilesChanged::Imported {
                anew.insert(model.to_owned());
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
            let (anew, others): (Vec<_>, Vec<_>) = wave.into_iter().partition(|model| anew.contains(model));
            self.load_wave(&others, &Reason::requested(Arc::clone(&tried)));
            self.load_wave(&anew, &Reason::changed_import(Arc::clone(&tried)));
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
            // Repeated changes delay the look, but not beyond the interval.
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

    #[test]
    fn changed_imports_load_a_model_once() {
        let own = |shared| Some(Fingerprint { shared, ..Fingerprint::default() });
        let seen = |shared, imported| SeenFiles { own: own(shared), imported, needs: Vec::new() };
        #[rustfmt::skip]
        let cases = [
            // the last look, its own files now, the imported files now, whether these differ from those that were imported
            (None,             1, 5, false, FilesChanged::Own),
            (None,             1, 5, true,  FilesChanged::Imported),
            (Some(seen(1, 5)), 1, 5, false, FilesChanged::No),
            (Some(seen(1, 5)), 2, 5, false, FilesChanged::Own),
            (Some(seen(1, 5)), 1, 6, true,  FilesChanged::Imported),
            (Some(seen(1, 5)), 2, 6, true,  FilesChanged::Imported),
            // Other files are imported since the last load.
            (Some(seen(1, 5)), 1, 6, false, FilesChanged::No),
            // The load of this state failed.
            (Some(seen(1, 6)), 1, 6, true,  FilesChanged::No),
            (Some(seen(1, 6)), 2, 6, true,  FilesChanged::Own),
        ];
        for (last, shared, hash, is_changed, expected) in cases {
            let found = files_changed(last.as_ref(), &seen(shared, hash), ImportedState { hash, is_changed });
            assert_eq!(found, expected, "{last:?}, {shared}, {hash}, {is_changed}");
        }
        let linked =
            |repository: &str| SeenFiles { needs: vec![("m".to_owned(), repository.to_owned())], ..seen(1, 5) };
        let changed =
            |now| files_changed(Some(&linked("a::m")), &linked(now), ImportedState { hash: 5, is_changed: false });
        assert_eq!((changed("a::m"), changed("b::m")), (FilesChanged::No, FilesChanged::Own));
    }
}
