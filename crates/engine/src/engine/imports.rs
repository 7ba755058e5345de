//! Which files outside the models' directories did the served models import?

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use nerite_backend::ImportedState;

use super::Engine;

/// The files that the served models imported.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Imports {
    /// Their paths.
    pub files: BTreeSet<PathBuf>,
    /// The models that imported more files than are followed, and how many more.
    pub unfollowed: BTreeMap<String, u64>,
}

impl Engine {
    /// The files that the versions which take requests imported.
    pub(super) fn imports(&self) -> Imports {
        let mut imports = Imports::default();
        for served in self.all() {
            let imported = served.imported_files();
            imports.files.extend(imported.paths().map(Path::to_owned));
            if imported.unfollowed() > 0 {
                imports.unfollowed.insert(served.identifier().to_owned(), imported.unfollowed());
            }
        }
        imports
    }

    /// Looks at the files that the versions of a model which take requests imported.
    pub(super) fn imports_state(&self, model: &str) -> ImportedState {
        let (mut hash, mut is_changed) = (DefaultHasher::new(), false);
        for served in self.catalog.load().versions(model) {
            let state = served.imported_files().state();
            is_changed |= state.is_changed;
            state.hash.hash(&mut hash);
        }
        ImportedState { hash: hash.finish(), is_changed }
    }
}
