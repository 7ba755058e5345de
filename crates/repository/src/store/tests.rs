//! Does the store read what is on the disk?

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::Arc;

use nerite_request::Code;
use nerite_request::setting::FileContent;
use tempfile::TempDir;

use super::*;

const CONFIG: &str = "backend: \"identity\"";

/// A folder of repositories.
struct Disk(TempDir);

impl Disk {
    /// Files by path, `{repository}/{model}/…`; a path that ends in `/` is an empty folder.
    fn with(files: &[(&str, &str)]) -> Disk {
        let disk = Disk(TempDir::new().unwrap());
        fs::create_dir(disk.path("r")).unwrap();
        for (path, content) in files {
            disk.write(path, content);
        }
        disk
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, content: &str) {
        let full = self.path(path);
        if path.ends_with('/') {
            fs::create_dir_all(full).unwrap();
        } else {
            fs::create_dir_all(full.parent().unwrap()).unwrap();
            fs::write(full, content).unwrap();
        }
    }

    fn store(&self, repositories: &[&str]) -> Store {
        self.store_with(repositories, |_| {})
    }

    fn store_with(&self, repositories: &[&str], change: impl FnOnce(&mut StoreOptions)) -> Store {
        let repositories = repositories.iter().map(|name| self.path(name)).collect();
        let mut options = StoreOptions { repositories, auto_complete: true, ..StoreOptions::default() };
        change(&mut options);
        Store::open(options).unwrap()
    }

    /// Reads model `m` of repository `r`.
    fn read(&self) -> Result<ModelSource, PollError> {
        self.store(&["r"]).read("m", &LoadOptions::default())
    }
}

fn with_config(json: &str) -> LoadOptions {
    LoadOptions { config: Some(json.to_owned()), ..LoadOptions::default() }
}

fn with_files(json: Option<&str>, files: &[(&str, &str)]) -> LoadOptions {
    let content = |content: &str| -> Arc<dyn FileContent> { Arc::new(content.as_bytes().to_vec()) };
    let files = files.iter().map(|(path, text)| ((*path).to_owned(), content(text))).collect();
    LoadOptions { config: json.map(str::to_owned), files, ..LoadOptions::default() }
}

/// Checks that model `m` of these files is refused with a log line that contains `expect`, and that the client gets the same reason.
#[track_caller]
fn check_refused(files: &[(&str, &str)], expect: &str) {
    let refused = Disk::with(files).read().unwrap_err();
    let line = refused.to_string();
    assert!(line.contains(expect), "{line}");
    // The client gets Triton's sentence, followed by the reason in the log.
    let message = refused.status().message;
    let reason =
        message.strip_prefix("failed to load 'm', failed to poll from model repository: ").expect("Triton's sentence");
    assert!(line.ends_with(reason) || line.ends_with(&format!("{reason}.")), "{line} and {message}");
    assert_eq!(refused.status().code, Status::internal("").code);
}

#[test]
fn a_repository_that_is_missing_stops_the_server() {
    let missing = StoreOptions { repositories: vec!["/no/such/folder".into()], ..StoreOptions::default() };
    let refused = Store::open(missing).unwrap().list().unwrap_err().status();
    assert_eq!(refused, Status::internal("failed to stat file /no/such/folder"));
    let unnamed = Store::open(StoreOptions::default()).unwrap_err().status();
    assert_eq!(unnamed, Status::invalid("--model-repository must be specified"));
    let disk = Disk::with(&[("file", "")]);
    let file = StoreOptions { repositories: vec![disk.path("file")], ..StoreOptions::default() };
    assert!(Store::open(file).unwrap().list().unwrap_err().to_string().starts_with("failed to open directory "));
}

#[test]
fn a_repository_with_files_and_no_model_is_told_where_a_model_lies() {
    let warnings = |files: &[(&str, &str)]| {
        let disk = Disk::with(files);
        let at = disk.path("r").display().to_string();
        let warnings = disk.store(&["r"]).warnings();
        warnings.iter().map(|warning| warning.to_string().replace(&at, "r")).collect::<Vec<_>>()
    };
    let expect =
        |file: &str| vec![format!("repository 'r' has files, and no model: a model lies at r/<model>/1/{file}")];
    assert_eq!(warnings(&[("r/model.py", ""), ("r/config.pbtxt", "")]), expect("model.py"));
    assert_eq!(warnings(&[("r/net.onnx", "")]), expect("model.onnx"));
    assert!(warnings(&[]).is_empty());
    assert!(warnings(&[("r/.gitkeep", "")]).is_empty());
    assert!(warnings(&[("r/model.py", ""), ("r/m/1/model.py", "")]).is_empty());
}

#[test]
fn directories_are_listed_by_name_links_included_and_files_not() {
    let disk = Disk::with(&[
        ("r/b/", ""),
        ("r/a/", ""),
        ("r/file", ""),
        ("r/..data/", ""),
        ("r/..2026_11_23/", ""),
        ("r/.../", ""),
        ("s/b/", ""),
        ("away/", ""),
    ]);
    symlink(disk.path("away"), disk.path("r/linked")).unwrap();
    symlink(disk.path("nowhere"), disk.path("r/dangling")).unwrap();
    let listing = disk.store(&["r", "s"]).list().unwrap();
    let listed: Vec<(&str, usize)> = listing.models().map(|(model, places)| (model, places.len())).collect();
    assert_eq!(listed, [("...", 1), ("a", 1), ("b", 2), ("linked", 1)]);
}

#[test]
fn names_that_cannot_be_models_are_refused_before_the_disk_is_asked() {
    let store = Disk::with(&[]).store_after_drop();
    let text = |name: &str| store.read(name, &LoadOptions::default()).unwrap_err().status();
    for blank in ["", " ", "\t"] {
        assert_eq!(text(blank), Status::invalid("Model name cannot be empty. Please enter a valid name to deploy."));
    }
    for name in ["..", " ..", "../m", "a/b", "/m"] {
        let sentence = format!("invalid model name '{name}', model name must not contain path traversal characters");
        assert_eq!(text(name), Status::invalid(sentence));
    }
}

impl Disk {
    /// A store whose repository is gone.
    fn store_after_drop(self) -> Store {
        self.store(&["r"])
    }
}

#[test]
fn a_model_must_be_in_one_repository() {
    let disk = Disk::with(&[("r/m/config.pbtxt", CONFIG), ("r/twin/", ""), ("s/twin/", ""), ("r/file", "")]);
    let store = disk.store(&["r", "s"]);
    let read = |name: &str| store.read(name, &LoadOptions::default());
    assert!(read("m").is_ok());
    for name in ["nobody", ".", "file", "nul\0"] {
        let line = format!("failed to poll model '{name}': model not found in any model repository.");
        assert_eq!(read(name).unwrap_err().to_string(), line);
    }
    let line = "failed to poll model 'twin': not unique across all model repositories";
    assert_eq!(read("twin").unwrap_err().to_string(), line);
    assert_eq!(read("twin").unwrap_err().status().code, Code::Internal);
}

#[test]
fn a_model_is_read_with_defaults_filled() {
    let disk = Disk::with(&[
        ("r/m/config.pbtxt", "backend: \"identity\" max_batch_size: 4 version_policy { latest { num_versions: 2 } }"),
        ("r/m/1/", ""),
        ("r/m/3/", ""),
        ("r/m/10/", ""),
        ("r/m/02/", ""),
        ("r/m/old/", ""),
        ("r/m/warmup/", ""),
        ("r/m/4", "a file"),
    ]);
    let source = disk.read().unwrap();
    assert_eq!(source.config.name, "m");
    assert_eq!(source.versions, [3, 10]);
    assert!(source.config_given && !source.overridden && !source.directory.is_made());
    assert!(source.config.optimization.is_some());
    let warnings: Vec<String> = source.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "ignore version directory '02' which contains leading zeros in its directory name",
            "ignore version directory 'old' which fails to convert to integral number",
        ]
    );
}

#[test]
fn a_specific_version_that_is_missing_is_warned_of() {
    let policy = "backend: \"identity\" version_policy { specific { versions: [1, 5] } }";
    let source = Disk::with(&[("r/m/config.pbtxt", policy), ("r/m/1/", ""), ("r/m/2/", "")]).read().unwrap();
    assert_eq!(source.versions, [1]);
    assert_eq!(source.warnings, [Warning::MissingVersion { model: "m".to_owned(), version: 5 }]);
    let nothing = Disk::with(&[("r/m/config.pbtxt", policy)]).read().unwrap();
    assert!(nothing.facts().versions.is_empty());
}

#[test]
fn a_model_without_configuration_is_told_by_its_files() {
    let files = [("r/m/1/model.py", ""), ("r/m/2/model.onnx", "")];
    let source = Disk::with(&files).read().unwrap();
    assert_eq!(source.config.backend, "python");
    assert!(!source.config_given);
    let disk = Disk::with(&files);
    let refused = disk.store_with(&["r"], |options| options.auto_complete = false).read("m", &LoadOptions::default());
    let path = disk.path("r/m/config.pbtxt");
    let reason = format!("failed to open text file for read {}: No such file or directory", path.display());
    let line = format!("Poll failed for model directory 'm': {reason}");
    assert_eq!(refused.unwrap_err().to_string(), line);
}

#[test]
fn what_is_wrong_before_loading_is_in_the_log_and_the_answer() {
    check_refused(
        &[("r/m/config.pbtxt", "max_batch_size: [")],
        "Poll failed for model directory 'm': failed to read text proto",
    );
    check_refused(
        &[("r/m/config.pbtxt", "name: \"n\" backend: \"identity\"")],
        "Poll failed for model directory 'm': unexpected directory name 'm' for model 'n', directory name must equal model name",
    );
    check_refused(&[("r/m/1/", "")], "Invalid model name: Could not determine backend for model 'm'");
    let form = "Expected model name of the form 'model.<backend_name>'.";
    let refused = Disk::with(&[("r/m/1/", "")]).read().unwrap_err();
    assert!(!refused.to_string().contains("version directory"), "{refused}");
    let missing = "'m' has no version directory: a model lies at m/1/";
    check_refused(&[("r/m/model.py", "")], &format!("{form} {missing}model.py"));
    check_refused(&[("r/m/labels/", ""), ("r/m/net.onnx", "")], &format!("{form} {missing}model.onnx"));
    check_refused(
        &[("r/m/config.pbtxt", "backend: \"identity\" max_batch_size: -1")],
        "'max_batch_size' must be non-negative value for m",
    );
    check_refused(&[("r/m/config.pbtxt/", "")], "failed to open text file for read ");
}

#[test]
fn inputs_are_checked_early_only_if_nobody_completes_them() {
    let disk = Disk::with(&[("r/m/config.pbtxt", "backend: \"identity\" input { name: \"x\" data_type: TYPE_INT32 }")]);
    assert!(disk.read().is_ok());
    let strict = disk.store_with(&["r"], |options| options.auto_complete = false);
    assert!(strict.read("m", &LoadOptions::default()).unwrap_err().to_string().contains("must specify 'dims'"));
}

#[test]
fn a_named_configuration_wins_where_it_is() {
    let disk = Disk::with(&[
        ("r/m/config.pbtxt", "backend: \"identity\" max_batch_size: 1"),
        ("r/m/configs/big.pbtxt", "backend: \"identity\" max_batch_size: 64"),
    ]);
    let size = |name: &str| {
        let store = disk.store_with(&["r"], |options| name.clone_into(&mut options.config_name));
        store.read("m", &LoadOptions::default()).unwrap().config.max_batch_size
    };
    assert_eq!(size("big"), 64);
    assert_eq!(size("small"), 1);
    assert_eq!(size(""), 1);
}

#[test]
fn a_sent_configuration_replaces_the_file() {
    let disk = Disk::with(&[("r/m/config.pbtxt", "max_batch_size: ["), ("r/m/1/", "")]);
    let store = disk.store(&["r"]);
    let source = store.read("m", &with_config(r#"{"backend":"identity","max_batch_size":3}"#)).unwrap();
    assert_eq!((source.config.max_batch_size, source.versions.clone()), (3, vec![1]));
    assert!(source.overridden && source.config_given && !source.facts().has_sent_files);
    for json in ["{", r#"{"no_such_field":1}"#, r#"{"max_batch_size":"many"}"#, "[]"] {
        let refused = store.read("m", &with_config(json)).unwrap_err();
        let line = refused.to_string();
        assert!(line.starts_with("Poll failed for model directory 'm': Invalid config override: "), "{line}");
        let message = refused.status().message;
        assert!(
            message.starts_with("failed to load 'm', failed to poll from model repository: Invalid config"),
            "{message}"
        );
    }
}

#[test]
fn sent_files_make_a_model_that_the_repository_has_no_part_in() {
    let disk = Disk::with(&[("r/m/config.pbtxt", CONFIG), ("r/m/1/", ""), ("r/m/9/", "")]);
    let store = disk.store(&["r"]);
    let load = with_files(Some(r#"{"backend":"identity"}"#), &[("2/weights", "x"), ("labels.txt", "a\nb\n")]);
    for name in ["m", "sent"] {
        let source = store.read(name, &load).unwrap();
        assert_eq!(source.versions, [2]);
        assert!(source.overridden && source.directory.is_made());
        let path = source.directory.version(2).join("weights");
        assert_eq!(fs::read(&path).unwrap(), b"x");
        drop(source);
        assert!(!path.exists());
    }
}

#[test]
fn sent_files_need_a_sent_configuration_and_stay_inside() {
    let store = Disk::with(&[]).store_after_drop();
    let line = |load: LoadOptions| store.read("m", &load).unwrap_err().to_string();
    assert_eq!(
        line(with_files(None, &[("1/model.onnx", "x")])),
        "Poll failed for model directory 'm': Load parameter 'config' must be specified for model file override"
    );
    assert_eq!(
        line(with_files(Some(r#"{"backend":"identity"}"#), &[("1/../../x", "")])),
        "Poll failed for model directory 'm': Invalid file parameter 'file:1/../../x' with normalized path '../x' must \
         stay within model directory."
    );
}

#[test]
fn an_ensemble_says_what_it_is_made_of() {
    let map = "input_map { key: \"x\" value: \"x\" } output_map { key: \"y\" value: \"y\" }";
    let config = format!(
        "platform: \"ensemble\" ensemble_scheduling {{ step {{ model_name: \"b\" {map} }} \
         step {{ model_name: \"a\" input_map {{ key: \"x\" value: \"y\" }} output_map {{ key: \"y\" value: \"z\" }} }} \
         step {{ model_name: \"b\" input_map {{ key: \"x\" value: \"z\" }} output_map {{ key: \"y\" value: \"w\" }} }} }} \
         input {{ name: \"x\" data_type: TYPE_FP32 dims: 1 }} output {{ name: \"w\" data_type: TYPE_FP32 dims: 1 }}"
    );
    let source = Disk::with(&[("r/m/config.pbtxt", &config), ("r/m/1/", "")]).read().unwrap();
    assert_eq!(source.facts().needs, ["b", "a"]);
}

#[test]
fn labels_are_read_from_the_models_directory_alone() {
    let config = |file: &str| {
        format!(
            "backend: \"identity\" output {{ name: \"y\" data_type: TYPE_FP32 dims: 2 label_filename: \"{file}\" }} \
             output {{ name: \"z\" data_type: TYPE_FP32 dims: 2 }}"
        )
    };
    let labels = |file: &str| {
        let disk =
            Disk::with(&[("r/m/config.pbtxt", &config(file)), ("r/m/names.txt", "cat\ndog\n"), ("r/out.txt", "x")]);
        let source = disk.read().unwrap();
        source.labels(&source.config)
    };
    let found = labels("names.txt").unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["y"]);
    assert_eq!(&found["y"][..], ["cat", "dog"]);
    let refused = labels("../out.txt").unwrap_err();
    assert_eq!(
        refused,
        Status::unsupported("label file path '../out.txt' for output 'y' in model 'm' is outside model directory")
    );
    let missing = labels("none.txt").unwrap_err();
    assert_eq!(missing.code, Code::Internal);
    assert!(missing.message.starts_with("failed to open text file for read "), "{missing}");
    assert!(missing.message.ends_with("none.txt: No such file or directory"), "{missing}");
}

/// Checks which of versions 1 and 2 differ after `change`.
#[track_caller]
fn check_changed(change: impl FnOnce(&Disk), expect: &[i64]) {
    let disk = Disk::with(&[("r/m/config.pbtxt", CONFIG), ("r/m/1/model.py", "a"), ("r/m/2/sub/weights", "a")]);
    let before = disk.read().unwrap().fingerprint;
    change(&disk);
    let after = disk.read().unwrap().fingerprint;
    let changed: Vec<i64> = [1, 2].into_iter().filter(|&version| !before.same_version(&after, version)).collect();
    assert_eq!(changed, expect);
}

#[test]
fn a_fingerprint_tells_which_versions_changed() {
    check_changed(|_| {}, &[]);
    check_changed(|disk| disk.write("r/m/1/model.py", "ab"), &[1]);
    check_changed(|disk| disk.write("r/m/2/sub/more", ""), &[2]);
    check_changed(|disk| fs::rename(disk.path("r/m/2/sub"), disk.path("r/m/2/bus")).unwrap(), &[2]);
    check_changed(|disk| fs::remove_dir_all(disk.path("r/m/1")).unwrap(), &[1]);
    check_changed(|disk| disk.write("r/m/3/model.py", "a"), &[]);
    check_changed(|disk| disk.write("r/m/labels.txt", "a"), &[1, 2]);
    check_changed(|disk| disk.write("r/m/config.pbtxt", "backend: \"identity\" max_batch_size: 1"), &[1, 2]);
}

/// Whether a version must be reloaded, and whether what is served changed, if this replaces a configuration that asks for one instance.
#[track_caller]
fn check_configured(after: &str, reloads: bool, serves_otherwise: bool) {
    check_changes("backend: \"identity\" instance_group { count: 1 }", after, reloads, serves_otherwise);
}

/// The same if this replaces that one.
#[track_caller]
fn check_changes(before: &str, after: &str, reloads: bool, serves_otherwise: bool) {
    let disk = Disk::with(&[("r/m/config.pbtxt", before), ("r/m/1/", "")]);
    let before = disk.read().unwrap().fingerprint;
    disk.write("r/m/config.pbtxt", after);
    let after = disk.read().unwrap().fingerprint;
    assert_eq!((!before.same_version(&after, 1), before.served != after.served), (reloads, serves_otherwise));
}

#[test]
fn instances_and_the_version_policy_change_without_a_reload() {
    check_configured("# the same\nbackend: \"identity\" instance_group { count: 1 }", false, false);
    check_configured("backend: \"identity\" instance_group { count: 3 }", false, true);
    check_configured("backend: \"identity\" instance_group { count: 1 } version_policy { all { } }", false, true);
    check_configured("backend: \"identity\" instance_group { count: 1 kind: KIND_GPU }", true, true);
    check_configured("backend: \"identity\" instance_group { count: 1 } max_batch_size: 2", true, false);
    let sequences =
        |count: u32| format!("backend: \"identity\" sequence_batching {{ }} instance_group {{ count: {count} }}");
    check_configured(&sequences(1), true, false);
    check_changes(&sequences(1), &sequences(2), false, true);
    let oldest = sequences(2).replace("{ }", "{ oldest { max_candidate_sequences: 4 } }");
    check_changes(&sequences(2), &oldest, true, false);
}

#[test]
fn what_python_leaves_behind_is_no_change() {
    check_changed(|disk| disk.write("r/m/1/__pycache__/model.pyc", "x"), &[]);
}

#[test]
fn a_new_time_alone_is_a_change() {
    let touch = |disk: &Disk| {
        let file = fs::File::options().write(true).open(disk.path("r/m/1/model.py")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    };
    check_changed(touch, &[1]);
}

#[test]
fn a_file_that_keeps_its_length_and_time_has_another_state_and_no_other_fingerprint() {
    let disk = Disk::with(&[("r/m/config.pbtxt", CONFIG), ("r/m/1/model.py", "a")]);
    let model = disk.path("r/m/1/model.py");
    let modified = fs::metadata(&model).unwrap().modified().unwrap();
    let put = |path: &Path| {
        fs::write(path, "b").unwrap();
        fs::File::options().write(true).open(path).unwrap().set_modified(modified).unwrap();
    };
    let states = || {
        let source = disk.read().unwrap();
        (source.fingerprint, source.file_states)
    };
    let before = states();
    assert_eq!(states(), before, "nothing was touched");
    put(&disk.path("r/beside"));
    fs::rename(disk.path("r/beside"), &model).unwrap();
    let replaced = states();
    assert_eq!((&replaced.0, replaced.1 == before.1), (&before.0, false), "another file");
    // The clock of the file system is coarse.
    let changed_at = || fs::metadata(&model).map(|found| (found.ctime(), found.ctime_nsec())).unwrap();
    let step = changed_at();
    while changed_at() == step {
        put(&model);
    }
    let written = states();
    assert_eq!((&written.0, written.1 == replaced.1), (&before.0, false), "other bytes");
}

#[test]
fn links_count_as_what_they_lead_to_and_a_ring_of_them_is_refused() {
    let relink = |disk: &Disk| symlink(disk.path("r/m/config.pbtxt"), disk.path("r/m/1/linked")).unwrap();
    check_changed(relink, &[1]);
    check_changed(|disk| symlink(disk.path("nowhere"), disk.path("r/m/1/dangling")).unwrap(), &[1]);
    let disk = Disk::with(&[("r/m/config.pbtxt", CONFIG), ("r/m/1/", "")]);
    symlink(disk.path("r/m"), disk.path("r/m/1/again")).unwrap();
    let line = disk.read().unwrap_err().to_string();
    assert!(line.contains("folders within folders"), "{line}");
}

#[test]
fn a_sent_configuration_file_is_not_the_models_own_configuration() {
    let sent =
        with_config(r#"{"backend":"identity","parameters":{"nerite.cost_bound":{"string_value":"input_sizes"}}}"#);
    let own = "backend: \"identity\" parameters { key: \"nerite.cost_bound\" value { string_value: \"input_sizes\" } }";
    let disk = Disk::with(&[("r/m/config.pbtxt", own), ("r/m/1/", "")]);
    let store = disk.store_with(&["r"], |options| options.allow_upload = true);
    store.read("m", &sent).unwrap();
    let content: std::sync::Arc<dyn nerite_request::setting::FileContent> =
        std::sync::Arc::new(own.as_bytes().to_vec());
    let files = LoadOptions { files: vec![("config.pbtxt".to_owned(), content)], ..sent };
    let line = store.read("m", &files).unwrap_err().to_string();
    assert!(line.contains("sets nerite.cost_bound to 'input_sizes', which the model's own"), "{line}");
}

#[test]
fn a_sent_configuration_names_no_environment_unless_files_may_be_sent() {
    let sent = |path: &str| {
        with_config(&format!(
            r#"{{"backend":"identity","parameters":{{"EXECUTION_ENV_PATH":{{"string_value":"{path}"}}}}}}"#
        ))
    };
    let own = "backend: \"identity\" parameters { key: \"EXECUTION_ENV_PATH\" value { string_value: \"/own\" } }";
    let disk = Disk::with(&[("r/m/config.pbtxt", own), ("r/m/1/", "")]);
    disk.store(&["r"]).read("m", &sent("/own")).unwrap();
    let line = disk.store(&["r"]).read("m", &sent("/other")).unwrap_err().to_string();
    assert!(
        line.contains("sets EXECUTION_ENV_PATH to '/other', which the model's own configuration sets to '/own'"),
        "{line}"
    );
    disk.store_with(&["r"], |options| options.allow_upload = true).read("m", &sent("/other")).unwrap();
}
