//! Does a model in its own process satisfy the contract, and does the end of a process harm no other request?
#![expect(clippy::print_stdout, reason = "a test that skips itself says so")]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use nerite_backend::conformance::{Case, Fixture, check_runtime, context, infer};
use nerite_backend::{Instance, InstanceSpec, LoadContext, Runtime};
use nerite_config::ModelConfig;
use nerite_memory::{Buffer, Extent, Reason, Slot, copied_bytes};
use nerite_python::Python;
use nerite_request::{Code, InferResponse, Recycled, Status, Wanted};
use nerite_shm::{Options, OwnedRegion, Registry};
use nerite_tensor::{DataType, Shape, Tensor};

const PAGE: usize = 4096;

/// Tests count copies of the whole process, so they run one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A Python with numpy: that of the tests' environment, or the one on the PATH.
fn interpreter() -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    [own, "python3".into()].into_iter().find(|python| {
        let found = Command::new(python).args(["-c", "import numpy"]).output();
        found.is_ok_and(|output| output.status.success())
    })
}

fn loading(python: &Path) -> LoadContext {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/add_sub");
    let config = ModelConfig { name: "add_sub".into(), backend: "python".into(), ..ModelConfig::default() };
    let mut context = context(&folder, config);
    context.settings.insert("interpreter".into(), python.display().to_string());
    context
}

/// Runs the test with a Python, if there is one.
fn with_python(test: impl FnOnce(&Python, LoadContext)) {
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match interpreter() {
        Some(python) => test(&Python::default(), loading(&python)),
        None => println!("skipped: no Python with numpy on this host"),
    }
}

fn instance(runtime: &Python, context: &LoadContext) -> Box<dyn Instance> {
    let spec = InstanceSpec { name: "add_sub_0_0".into(), ..InstanceSpec::default() };
    runtime.load(context).unwrap().instance(&spec).unwrap()
}

fn ints(name: &str, values: &[i32]) -> Tensor {
    let data = Buffer::from_numbers(values.to_vec());
    Tensor { name: name.into(), datatype: DataType::Int32, shape: Shape::from_slice(&[values.len() as i64]), data }
}

fn case(a: &[i32], b: &[i32]) -> Case {
    let each = |f: fn(i32, i32) -> i32| a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect::<Vec<_>>();
    Case {
        inputs: vec![ints("A", a), ints("B", b)],
        outputs: vec![ints("SUM", &each(|a, b| a + b)), ints("DIFFERENCE", &each(|a, b| a - b))],
    }
}

fn sum(instance: &mut dyn Instance, a: &[i32]) -> Result<Recycled<InferResponse>, Status> {
    let wanted = vec![Wanted { name: "SUM".into(), slot: None }];
    infer(vec![ints("A", a), ints("B", &vec![0; a.len()])], wanted, |batch| instance.run(batch))
}

/// The process ID, which the model returns.
fn process(instance: &mut dyn Instance) -> i32 {
    let response = sum(instance, &[-4]).unwrap();
    response.outputs[0].data.numbers::<i32>().unwrap()[0]
}

/// Whether one of the process's threads may still have its files. The first thread is a zombie from its end to that of the last one.
fn lives(process: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    threads > 1 || std::fs::read_to_string(format!("/proc/{process}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Kills a process and waits until its files are closed.
fn kill(process: i32) {
    assert!(Command::new("kill").args(["-9", &process.to_string()]).status().unwrap().success());
    while lives(process) {
        std::thread::yield_now();
    }
}

fn maps_of(process: i32) -> String {
    std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap()
}

#[test]
fn python_keeps_the_contract_of_all_runtimes() {
    with_python(|runtime, context| {
        let cases = vec![case(&[1, 2, 3], &[4, 5, 6]), case(&[7; 5000], &[1; 5000]), case(&[], &[])];
        let faulty = Some(vec![ints("A", &[-1]), ints("B", &[0])]);
        check_runtime(runtime, &Fixture { context, cases, faulty });
    });
}

#[test]
fn a_process_that_dies_fails_only_its_request() {
    with_python(|runtime, context| {
        let mut instance = instance(runtime, &context);
        let first = process(&mut *instance);
        let error = sum(&mut *instance, &[-2]).unwrap_err();
        assert_eq!(error.code, Code::Internal);
        let text = "Stub process 'add_sub_0_0' is not healthy. (its process was ended by signal 9 (SIGKILL) while it had this request; it is \
                    started anew)";
        assert_eq!(error.message, text);
        let second = process(&mut *instance);
        assert_ne!(first, second);
        // A process that dies while it is idle fails no request.
        let health = instance.readiness().unwrap();
        assert_eq!((health.fault(), health.processes()), (None, 2));
        kill(second);
        while health.processes() == 2 {
            // It is reaped, and another one is started, although there is no request.
            std::thread::yield_now();
        }
        assert!(!Path::new(&format!("/proc/{second}")).exists());
        let last = process(&mut *instance);
        assert_ne!(last, second);
        assert_eq!((health.fault(), health.processes()), (None, 3), "the request took the process that was there");
        drop(instance);
        assert!(!Path::new(&format!("/proc/{last}")).exists(), "it goes with its instance");
    });
}

/// Begins a run with a short time limit, as a front thread does, and ends it as a worker would.
fn begin(instance: &mut dyn Instance, a: i32, done_at_once: bool) -> Result<Recycled<InferResponse>, Status> {
    let wanted = vec![Wanted { name: "SUM".into(), slot: None }];
    infer(vec![ints("A", &[a]), ints("B", &[0])], wanted, |batch| {
        let done = instance.begin(batch, Duration::from_micros(250));
        assert!(!done || done_at_once, "it was not to be done in that time");
        if !done {
            instance.finish();
        }
    })
}

#[test]
fn a_slow_or_dead_process_is_left_to_a_worker() {
    with_python(|runtime, context| {
        let mut instance = instance(runtime, &context);
        for _ in 0..50 {
            assert_eq!(begin(&mut *instance, 1, true).map(drop), Ok(()));
        }
        assert_eq!(begin(&mut *instance, -5, false).map(drop), Ok(()));
        let process = process(&mut *instance);
        kill(process);
        assert_eq!(begin(&mut *instance, 1, false).map(drop), Ok(()), "it did not have the request");
        let error = begin(&mut *instance, -6, false).unwrap_err();
        assert!(error.message.contains("(its process has closed the channel to the server while it had"), "{error}");
        assert_eq!(begin(&mut *instance, 1, false).map(drop), Ok(()));
        // The process had asked for memory for the request, so the request is not given to the next process.
        let error = begin(&mut *instance, -10, false).unwrap_err();
        assert!(
            error.message.contains("(its process was ended by signal 9 (SIGKILL) while it had this request;"),
            "{error}"
        );
        assert_eq!(begin(&mut *instance, 1, false).map(drop), Ok(()));
    });
}

#[test]
fn inputs_that_a_model_keeps_do_not_change() {
    with_python(|runtime, context| {
        let mut instance = instance(runtime, &context);
        let mut last = |a: &[i32]| sum(&mut *instance, a).unwrap().outputs[0].data.numbers::<i32>().unwrap().to_vec();
        let keep = -8;
        for value in 1..20 {
            last(&[keep, value]);
        }
        assert_eq!(last(&[-9, 0]), [-9 + (1..20).sum::<i32>(), (1..20).sum()]);
        // Now it has dropped all of them, and their memory is used again.
        for value in 1..20 {
            assert_eq!(last(&[5, value]), [5, value]);
        }
    });
}

#[test]
fn processes_that_a_model_started_end_with_its_process() {
    with_python(|runtime, context| {
        for killed in [false, true] {
            let mut instance = instance(runtime, &context);
            let started = sum(&mut *instance, &[-7]).unwrap().outputs[0].data.numbers::<i32>().unwrap()[0];
            assert!(lives(started));
            if killed {
                assert!(sum(&mut *instance, &[-2]).is_err());
            } else {
                drop(instance);
            }
            while lives(started) {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn an_exception_fails_the_batch_in_tritons_words() {
    with_python(|runtime, context| {
        let mut instance = instance(runtime, &context);
        let before = process(&mut *instance);
        let error = sum(&mut *instance, &[-3]).unwrap_err();
        let begins = "Failed to process the request(s) for model 'add_sub_0_0', message: ValueError: A begins with -3\n\nAt:\n  ";
        assert!(error.message.starts_with(begins), "{error}");
        assert!(error.message.ends_with("): execute\n"), "{error}");
        assert_eq!(process(&mut *instance), before);
    });
}

/// A region with A at 0, B at 4096 and space for SUM at 8192, and its buffers in the server.
struct RegionFixture {
    mine: OwnedRegion,
    registry: Registry,
}

impl RegionFixture {
    fn new(name: &str) -> RegionFixture {
        let key = format!("/nerite-test-python-{name}-{}", std::process::id());
        let mine = OwnedRegion::create(&key, 3 * PAGE).unwrap();
        let registry = Registry::new(Options::default());
        registry.register_system("r", &key, 0, 3 * PAGE as u64).unwrap();
        let fixture = RegionFixture { mine, registry };
        fixture.fill();
        fixture
    }

    fn fill(&self) {
        for (at, value) in [(0, 20i32), (PAGE, 22)] {
            let values = Buffer::from_numbers(vec![value; 1024]);
            self.mine.slot(Extent::new(at, PAGE, 3 * PAGE).unwrap()).fill_from(0, &values, Reason::Model).unwrap();
        }
    }

    fn infer(&self, instance: &mut dyn Instance) -> Result<Recycled<InferResponse>, Status> {
        let input = |name: &str, at| {
            let data = self.registry.locate("r", at, PAGE as u64).unwrap().into_buffer();
            Tensor { name: name.into(), datatype: DataType::Int32, shape: Shape::from_slice(&[1024]), data }
        };
        let slot: Slot = self.registry.locate("r", 2 * PAGE as u64, PAGE as u64).unwrap().into_slot();
        let wanted = vec![Wanted { name: "SUM".into(), slot: Some(slot) }];
        infer(vec![input("A", 0), input("B", PAGE as u64)], wanted, |batch| instance.run(batch))
    }

    fn object(&self) -> String {
        format!("/dev/shm{}", self.mine.key())
    }
}

#[test]
fn a_region_is_read_and_written_where_it_lies() {
    with_python(|runtime, context| {
        let (fixture, mut instance) = (RegionFixture::new("place"), instance(runtime, &context));
        let copied = || Reason::ALL.iter().map(|reason| copied_bytes(*reason)).sum::<u64>();
        let before = copied();
        let response = fixture.infer(&mut *instance).unwrap();
        assert_eq!(copied() - before, 0);
        assert!(response.outputs[0].placed);
        let sum = fixture.mine.buffer(Extent::new(2 * PAGE, PAGE, 3 * PAGE).unwrap());
        assert_eq!(sum.cells::<i32>().unwrap().to_vec(), [42; 1024]);
        drop(response);
        let process = process(&mut *instance);
        assert!(maps_of(process).contains(&fixture.object()));
        fixture.registry.unregister_system("r").unwrap();
        // With its next request the process learns that it has to unmap it. It does so on a thread of its own.
        assert_eq!(sum_of(&mut *instance), 3);
        let is_unmapped = || !maps_of(process).contains(&fixture.object());
        assert!((0..500).any(|_| is_unmapped() || pause()));
    });
}

#[expect(clippy::disallowed_methods, reason = "a test's thread serves nobody")]
fn pause() -> bool {
    std::thread::sleep(Duration::from_millis(20));
    false
}

fn sum_of(instance: &mut dyn Instance) -> i32 {
    sum(instance, &[3]).unwrap().outputs[0].data.numbers::<i32>().unwrap()[0]
}

#[test]
fn a_region_cut_short_fails_its_request_and_the_process_lives() {
    with_python(|runtime, context| {
        let (fixture, mut instance) = (RegionFixture::new("short"), instance(runtime, &context));
        let before = process(&mut *instance);
        for left in [0, PAGE as u64 + 100] {
            fixture.infer(&mut *instance).unwrap();
            let object = std::fs::File::options().write(true).open(fixture.object()).unwrap();
            object.set_len(left).unwrap();
            let error = fixture.infer(&mut *instance).unwrap_err();
            let text = format!(
                "shared memory region 'r' can no longer be used: its object '{}' was 12288 bytes when registered and has {left} \
                 now (touched at offset ",
                fixture.mine.key()
            );
            assert!(error.message.starts_with(&text), "{error}");
            assert_eq!(error.code, Code::InvalidArg);
            assert_eq!(process(&mut *instance), before);
            object.set_len(3 * PAGE as u64).unwrap();
            fixture.registry.register_system("r", fixture.mine.key(), 0, 3 * PAGE as u64).unwrap();
            fixture.fill();
        }
        fixture.infer(&mut *instance).unwrap();
    });
}
