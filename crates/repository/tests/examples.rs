//! Can the models that come with the project be read?

use std::path::{Path, PathBuf};

use nerite_repository::{ControlMode, Store, StoreOptions, startup};
use nerite_request::setting::LoadOptions;

/// Reads every model of a repository; gives their names.
#[track_caller]
fn read_all(repository: PathBuf) -> Vec<String> {
    let options = StoreOptions { repositories: vec![repository], auto_complete: true, ..StoreOptions::default() };
    let store = Store::open(options).expect("the repository is there");
    let listing = store.list().expect("it was listed a moment ago");
    let startup = startup(ControlMode::None, &[], &listing).expect("no model is asked for by name");
    for model in &startup.models {
        let source = store.read(model, &LoadOptions::default()).unwrap_or_else(|refused| panic!("{refused}"));
        assert!(!source.versions.is_empty(), "{model} has no version");
        assert_eq!(source.warnings, [], "{model}");
        source.labels(&source.config).unwrap_or_else(|refused| panic!("{model}: {refused}"));
    }
    startup.models
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_examples_can_be_read() {
    assert_eq!(read_all(root().join("examples/models")), ["digits", "identity_fp32", "simple"]);
}

#[test]
fn the_models_of_the_tests_can_be_read_where_they_were_made() {
    let made = root().join("tests/models/generated/conformance");
    // `tests/models/make_models.py` makes them; a fresh checkout has none.
    if made.exists() {
        assert!(read_all(made).contains(&"chain".to_owned()));
    }
}
