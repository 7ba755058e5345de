//! Do instances share the data that the model's `initialize` loaded, and is a process that dies replaced?
#![expect(clippy::print_stdout, reason = "a test that skips itself says so, and tells what it measured")]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use nerite_backend::conformance::{context, infer};
use nerite_backend::{Instance, InstanceSpec, LoadContext, Model, Runtime};
use nerite_config::ModelConfig;
use nerite_config::proto::ModelParameter;
use nerite_python::Python;
use nerite_request::{Code, Status, Wanted};

/// The bytes that the model loads.
const WEIGHTS_BYTES: u64 = 64 << 20;

/// A Python with numpy: that of the tests' environment, or the one on the PATH.
fn interpreter() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    [own, "python3".into()].into_iter().find(|python| {
        let found = Command::new(python).args(["-c", "import numpy"]).output();
        found.is_ok_and(|output| output.status.success())
    })
}

/// Runs the test with a model with these parameters, if there is a Python.
fn with_model(parameters: &[(&str, &str)], test: impl FnOnce(&Python, LoadContext)) {
    let Some(python) = interpreter() else {
        println!("skipped: no Python with numpy on this host");
        return;
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/shared");
    let parameter =
        |(key, value): &(&str, &str)| ((*key).to_owned(), ModelParameter { string_value: (*value).to_owned() });
    let config = ModelConfig {
        name: "shared".into(),
        backend: "python".into(),
        parameters: parameters.iter().map(parameter).collect(),
        ..ModelConfig::default()
    };
    let mut context = context(&folder, config);
    context.settings.insert("interpreter".into(), python.display().to_string());
    test(&Python::default(), context);
}

fn instance(model: &Arc<dyn Model>, index: usize) -> Result<Box<dyn Instance>, Status> {
    model.instance(&InstanceSpec { name: format!("shared_0_{index}"), index, ..InstanceSpec::default() })
}

/// The answer of an instance about itself.
#[derive(Debug, PartialEq, Eq)]
struct Facts {
    process: i32,
    parent: i32,
    /// The process in which `initialize` ran.
    initialized_in: i32,
    /// The last character of the name that `initialize_instance` was given.
    index: i32,
}

fn facts(instance: &mut dyn Instance) -> Facts {
    let wanted = vec![Wanted { name: "NUMBERS".into(), slot: None }];
    let response = infer(Vec::new(), wanted, |batch| instance.run(batch)).unwrap();
    let [sum, process, parent, initialized_in, index] = *response.outputs[0].data.numbers::<i32>().unwrap() else {
        panic!("five numbers")
    };
    assert_eq!(sum, 4096);
    Facts { process, parent, initialized_in, index }
}

fn kill(process: i32) {
    assert!(Command::new("kill").args(["-9", &process.to_string()]).status().unwrap().success());
    while Path::new(&format!("/proc/{process}")).exists() {
        // It is reaped, although there is no request for it.
        std::thread::yield_now();
    }
}

/// Bytes of a line of the process's memory, such as `Pss`.
fn memory_of(process: i32, line: &str) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let found = rollup.lines().find_map(|one| one.strip_prefix(line)?.strip_prefix(':')).unwrap();
    found.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
#[ignore = "alone: reads Pss and Private_Dirty of processes"]
fn another_instance_needs_no_copy_of_the_weights() {
    with_model(&[("SHARE_INITIALIZE", "yes")], |runtime, context| {
        let model = runtime.load(&context).unwrap();
        let mut instances = Vec::new();
        for count in [1, 2, 4] {
            while instances.len() < count {
                instances.push(instance(&model, instances.len()).unwrap());
            }
            let all: Vec<Facts> = instances.iter_mut().map(|instance| facts(&mut **instance)).collect();
            assert!(all.iter().all(|one| one.parent == all[0].parent && one.initialized_in == one.parent));
            assert!(all.iter().map(|one| one.index).eq(0..count as i32), "{all:?}");
            let private: Vec<u64> = all.iter().map(|one| memory_of(one.process, "Private_Dirty")).collect();
            let template = memory_of(all[0].parent, "Pss");
            let whole: u64 = template + all.iter().map(|one| memory_of(one.process, "Pss")).sum::<u64>();
            println!("{count} instances: {} MiB, of which each alone {private:?} B", whole >> 20);
            assert!(private.iter().all(|bytes| *bytes < WEIGHTS_BYTES / 4), "{private:?}");
            assert!(whole < 2 * WEIGHTS_BYTES + count as u64 * WEIGHTS_BYTES / 4, "{whole} bytes");
        }
    });
}

#[test]
fn without_share_initialize_each_instance_initializes_itself() {
    for parameters in [&[][..], &[("SHARE_INITIALIZE", "no")]] {
        with_model(parameters, |runtime, context| {
            let model = runtime.load(&context).unwrap();
            let one = facts(&mut *instance(&model, 0).unwrap());
            assert_eq!((one.initialized_in, one.index), (one.process, -1));
            assert!(one.parent == std::process::id() as i32);
        });
    }
}

#[test]
fn a_process_that_dies_is_replaced() {
    with_model(&[("SHARE_INITIALIZE", "yes")], |runtime, context| {
        let model = runtime.load(&context).unwrap();
        let mut pair = [instance(&model, 0).unwrap(), instance(&model, 1).unwrap()];
        let [first, second] = pair.each_mut().map(|instance| facts(&mut **instance));
        kill(first.process);
        let again = facts(&mut *pair[0]);
        assert_ne!(again.process, first.process);
        assert_eq!((again.parent, again.index), (first.parent, 0), "the same template, and the name of the instance");

        kill(first.parent);
        assert_eq!(facts(&mut *pair[1]).process, second.process, "an instance lives on without its template");
        kill(second.process);
        let after = facts(&mut *pair[1]);
        assert!(after.parent != first.parent && after.initialized_in == after.parent, "{after:?}");
        drop(pair);
        assert!(!Path::new(&format!("/proc/{}", after.process)).exists());
        drop(model);
        while Path::new(&format!("/proc/{}", after.parent)).exists() {
            std::thread::yield_now();
        }
    });
}

#[track_caller]
fn check_refused(parameters: &[(&str, &str)], device: Option<u32>, words: &str) {
    with_model(parameters, |runtime, context| {
        let spec = InstanceSpec { name: "shared_0_0".into(), device, ..InstanceSpec::default() };
        let made = runtime.load(&context).and_then(|model| model.instance(&spec));
        let refused = made.err().unwrap();
        assert!(refused.message.contains(words), "{refused}");
        assert!(matches!(refused.code, Code::InvalidArg | Code::Internal), "{refused}");
    });
}

#[test]
fn a_model_that_cannot_be_forked_is_refused() {
    let yes = ("SHARE_INITIALIZE", "yes");
    check_refused(&[yes, ("THREAD", "")], None, "initialize left threads running (worker)");
    check_refused(&[yes], Some(0), "what was loaded to a GPU does not survive that");
    check_refused(
        &[("SHARE_INITIALIZE", "1")],
        None,
        "Incorrect value for SHARE_INITIALIZE: 1, expected 'yes' or 'no'",
    );
}
