//! Is a load repeated during which the rights or times of the model's files change?
#![allow(clippy::unwrap_used)]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nerite_backend::identity::Identity;
use nerite_backend::{LoadContext, Model, Runtime};
use nerite_request::Status;
use test_engine::Setup;

/// Its first loads change the rights of a file of the model.
struct Changing {
    changes: u32,
    leaves_files_unchanged: bool,
    loads: AtomicU32,
}

impl Runtime for Changing {
    fn name(&self) -> &'static str {
        "changing"
    }

    fn engine(&self) -> String {
        "none".to_owned()
    }

    fn leaves_files_unchanged(&self) -> bool {
        self.leaves_files_unchanged
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        let load = self.loads.fetch_add(1, Ordering::Relaxed);
        if load < self.changes {
            change(&context.version_dir.join("weights"));
        }
        Identity.load(context)
    }
}

/// Changes the rights of a file until that is another time for it. The clock of the file system has steps.
fn change(path: &Path) {
    let changed_at = || fs::metadata(path).map(|found| (found.ctime(), found.ctime_nsec())).unwrap();
    let before = changed_at();
    for mode in [0o600, 0o644].into_iter().cycle().take_while(|_| changed_at() == before) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
}

/// Checks how often a model is loaded whose rights change in its first loads, and whether it is up then.
#[track_caller]
fn check(leaves_files_unchanged: bool, changes: u32, expect: (u32, bool)) {
    let runtime = Arc::new(Changing { changes, leaves_files_unchanged, loads: AtomicU32::new(0) });
    let setup = Setup::new([Arc::<Changing>::clone(&runtime) as _]);
    fs::write(setup.put("m", "backend: 'changing'").join("weights"), "1").unwrap();
    let (_engine, failed, _folder) = setup.try_start();
    assert_eq!((runtime.loads.load(Ordering::Relaxed), failed.is_empty()), expect, "{changes} changes: {failed:?}");
}

#[test]
fn a_load_whose_own_code_may_change_rights_is_not_repeated_for_that() {
    check(false, 9, (1, true));
}

#[test]
fn a_load_that_changes_no_files_itself_is_repeated_some_times_if_they_change() {
    check(true, 0, (1, true));
    check(true, 1, (2, true));
    check(true, 9, (3, false));
}
