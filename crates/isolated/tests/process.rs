//! Do engines in processes of their own keep the contract, and do other requests survive when such a process does not?
//!
//! The processes are this test program itself. An environment variable makes it a child.
#![expect(clippy::print_stdout, reason = "a test that skips itself says so")]
#![allow(clippy::unwrap_used)]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nerite_backend::conformance::{Case, Fixture, check_runtime, completed, context, graph_context, infer};
use nerite_backend::identity::Identity;
use nerite_backend::{Instance, InstanceSpec, LoadContext, Runtime};
use nerite_config::ModelConfig;
use nerite_isolated::{Isolated, Starter, work};
use nerite_memory::{Buffer, Extent, Reason, copied_bytes};
use nerite_onnx::Embedded;
use nerite_ort::{OnnxRuntime, find_library};
use nerite_request::{Code, InferResponse, Recycled, Status, Wanted};
use nerite_shm::{Options, OwnedRegion, Registry};
use nerite_tensor::{DataType, Shape, Tensor, strings};

const PAGE: usize = 4096;
/// Which runtime a child has. A process without this variable is no child.
const ENGINE: &str = "NERITE_TEST_ENGINE";

/// Tests count copies and children of the whole process, so they take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn engine(name: &str) -> Option<Arc<dyn Runtime>> {
    Some(match name {
        "identity" => Arc::new(Identity),
        "embedded" => Arc::new(Embedded),
        _ => Arc::new(OnnxRuntime::open(&find_library(None)?).unwrap_or_else(|error| panic!("{error}"))),
    })
}

/// Not a test of its own: a child runs it.
#[test]
fn child() {
    let Ok(name) = std::env::var(ENGINE) else { return };
    let ended = work(|_| engine(&name).ok_or_else(|| "there is no ONNX Runtime".to_owned()));
    assert_eq!(format!("{ended:?}"), format!("{:?}", ExitCode::SUCCESS));
}

/// That engine, with children; `None` where this host has no ONNX Runtime.
fn isolated(name: &'static str) -> Option<Isolated> {
    let Some(inner) = engine(name) else {
        println!("skipped: no ONNX Runtime on this host (pip install onnxruntime, or set ORT_DYLIB_PATH)");
        return None;
    };
    let start: Starter = Arc::new(move |_| {
        let mut command = Command::new("/proc/self/exe");
        command.args(["--exact", "child", "--nocapture"]).env(ENGINE, name).stdout(Stdio::null());
        command
    });
    Some(Isolated::over(inner, start))
}

/// Engines that run graphs.
fn onnx() -> impl Iterator<Item = (&'static str, Isolated)> {
    ["embedded", "onnxruntime"].into_iter().filter_map(|name| Some((name, isolated(name)?)))
}

fn with_isolation(config: ModelConfig) -> ModelConfig {
    let text = "parameters { key: 'isolated' value { string_value: 'true' } }";
    let parameters = nerite_config::parse_text("c", text.as_bytes()).unwrap().parameters;
    ModelConfig { parameters: config.parameters.into_iter().chain(parameters).collect(), ..config }
}

/// A graph of crates/onnx/tests/models. Its configuration is completed from the graph, in a process of its own.
fn loading(runtime: &Isolated, graph: &str, rows_max: i32) -> LoadContext {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/models");
    let mut context = graph_context(&folder, graph);
    let config = ModelConfig { max_batch_size: rows_max, ..(*context.config).clone() };
    context.config = Arc::new(with_isolation(config));
    completed(runtime, context).unwrap()
}

/// The model of the examples that adds and subtracts 16 numbers in a row.
fn simple() -> LoadContext {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models/simple");
    let text = std::fs::read(folder.join("config.pbtxt")).unwrap();
    context(&folder, with_isolation(nerite_config::parse_text("simple/config.pbtxt", &text).unwrap()))
}

/// A model that returns its input after this time.
fn identity(delay_ms: u32) -> LoadContext {
    let text = format!(
        "name: 'm' input {{ name: 'x' data_type: TYPE_INT32 dims: [ -1 ] }} output {{ name: 'y' data_type: TYPE_INT32 dims: [ -1 ] }}
         parameters {{ key: 'execute_delay_ms' value {{ string_value: '{delay_ms}' }} }}"
    );
    context(Path::new("m"), with_isolation(nerite_config::parse_text("c", text.as_bytes()).unwrap()))
}

fn instance(runtime: &Isolated, context: &LoadContext) -> Box<dyn Instance> {
    let spec = InstanceSpec { name: "m_0".into(), ..InstanceSpec::default() };
    runtime.load(context).unwrap().instance(&spec).unwrap()
}

fn tensor(name: &str, datatype: DataType, shape: &[i64], data: impl Into<Buffer>) -> Tensor {
    Tensor { name: name.into(), datatype, shape: Shape::from_slice(shape), data: data.into() }
}

fn ints(name: &str, shape: &[i64], values: &[i32]) -> Tensor {
    tensor(name, DataType::Int32, shape, Buffer::from_numbers(values.to_vec()))
}

fn texts(name: &str, shape: &[i64], elements: &[&[u8]]) -> Tensor {
    let mut bytes = Vec::new();
    for element in elements {
        strings::push(&mut bytes, element).unwrap();
    }
    tensor(name, DataType::Bytes, shape, bytes)
}

fn wanted(names: &[&str]) -> Vec<Wanted> {
    names.iter().map(|name| Wanted { name: (*name).into(), slot: None }).collect()
}

fn echo(instance: &mut dyn Instance, values: &[i32]) -> Result<Recycled<InferResponse>, Status> {
    infer(vec![ints("x", &[values.len() as i64], values)], wanted(&["y"]), |batch| instance.run(batch))
}

#[track_caller]
fn check_echo(instance: &mut dyn Instance, values: &[i32]) {
    let response = echo(instance, values).unwrap();
    assert_eq!(response.outputs[0].data.numbers::<i32>().unwrap_or_default(), values);
}

/// Children of this process, including dead ones that were not waited for.
fn children() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of = |path: PathBuf| std::fs::read_to_string(path.join("children")).unwrap_or_default();
    tasks.flat_map(|task| of(task.path()).split_whitespace().map(|n| n.parse().unwrap()).collect::<Vec<_>>()).collect()
}

#[track_caller]
fn only_child() -> i32 {
    let found = children();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

fn kill(process: i32, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

#[test]
fn identity_keeps_the_contract_of_all_runtimes() {
    let _turn = turn();
    let runtime = isolated("identity").unwrap();
    let case = |values: &[i32]| {
        let shape = [values.len() as i64];
        Case { inputs: vec![ints("x", &shape, values)], outputs: vec![ints("y", &shape, values)] }
    };
    let cases = vec![case(&[1, 2, 3]), case(&vec![7; 100_000]), case(&[])];
    check_runtime(&runtime, &Fixture { context: identity(0), cases, faulty: None });
    assert_eq!(children(), [0i32; 0], "processes go with their instances");
}

#[test]
fn engines_keep_the_contract_of_all_runtimes() {
    let _turn = turn();
    let case = |rows: i64, seed: i32| {
        let (a, b): (Vec<i32>, Vec<i32>) = (0..rows as i32 * 16).map(|i| (seed + i, seed * i)).unzip();
        let each = |f: fn(i32, i32) -> i32| a.iter().zip(&b).map(|(a, b)| f(*a, *b)).collect::<Vec<_>>();
        let shape = [rows, 16];
        let outputs = vec![ints("OUTPUT0", &shape, &each(|a, b| a + b)), ints("OUTPUT1", &shape, &each(|a, b| a - b))];
        Case { inputs: vec![ints("INPUT0", &shape, &a), ints("INPUT1", &shape, &b)], outputs }
    };
    for (name, runtime) in onnx() {
        println!("{name}");
        let cases = vec![case(1, 3), case(4, 5), case(1, 7)];
        check_runtime(&runtime, &Fixture { context: simple(), cases, faulty: None });
    }
}

#[test]
fn a_graph_that_refuses_some_rows_and_one_of_strings_keep_the_contract() {
    let _turn = turn();
    let rows = |values: &[i32]| vec![ints("rows", &[values.len() as i64, 1], values)];
    let picked = |values: &[i32], picked: &[f32]| {
        let data = Buffer::from_numbers(picked.to_vec());
        let outputs = vec![tensor("picked", DataType::Fp32, &[values.len() as i64, 1, 2], data)];
        Case { inputs: rows(values), outputs }
    };
    let echoed = |rows: i64, elements: &[&[u8]]| {
        let of = |name| vec![texts(name, &[rows, 2], elements)];
        Case { inputs: of("x"), outputs: of("y") }
    };
    let Some(runtime) = isolated("onnxruntime") else { return };
    let cases = vec![picked(&[3], &[7., 8.]), picked(&[0, 2], &[1., 2., 5., 6.])];
    check_runtime(&runtime, &Fixture { context: loading(&runtime, "pick", 8), cases, faulty: Some(rows(&[4])) });
    let cases = vec![
        echoed(1, &[b"a\0b", b""]),
        echoed(2, &[b"\0", b"\xff\xfe", b"long enough to leave the small string", b"x"]),
    ];
    let faulty = Some(vec![tensor("x", DataType::Bytes, &[1, 2], b"\x01\0\0\0a\x09\0\0\0b".to_vec())]);
    check_runtime(&runtime, &Fixture { context: loading(&runtime, "echo_rows_bytes", 8), cases, faulty });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the kill comes during the run")]
fn a_process_that_dies_fails_its_request_and_no_other() {
    let _turn = turn();
    let runtime = isolated("identity").unwrap();
    // On a busy machine the thread that kills starts late.
    let mut instance = instance(&runtime, &identity(1000));
    check_echo(&mut *instance, &[1]);
    // Not SIGSEGV: the handler of Rust programs ignores one that is sent, and ends the program only for a real one.
    for (signal, name) in [(9, "SIGKILL"), (8, "SIGFPE"), (6, "SIGABRT")] {
        let first = only_child();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            kill(first, &format!("-{signal}"));
        });
        let error = echo(&mut *instance, &[2]).unwrap_err();
        killer.join().unwrap();
        let text = format!(
            "model 'm', isolated instance 'm_0': its process was ended by signal {signal} ({name}) while it had this request; it is \
             started anew"
        );
        assert_eq!((error.code, error.message), (Code::Internal, text));
        check_echo(&mut *instance, &[3]);
        assert_ne!(only_child(), first);
    }
    // A child that dies while it is idle fails no request.
    let idle = only_child();
    kill(idle, "-9");
    while Path::new(&format!("/proc/{idle}")).exists() {
        std::thread::yield_now();
    }
    check_echo(&mut *instance, &[4]);
    drop(instance);
    assert_eq!(children(), [0i32; 0]);
}

#[test]
fn a_worker_without_a_server_does_not_run_on() {
    let _turn = turn();
    let mut alone = Command::new("/proc/self/exe");
    alone.args(["--exact", "child", "--nocapture"]).env(ENGINE, "identity").stdin(Stdio::null());
    let ended = alone.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    assert!(!ended.success() && ended.signal().is_none(), "{ended}");
}

#[test]
fn what_cannot_run_isolated_says_why() {
    let _turn = turn();
    let runtime = isolated("embedded").unwrap();
    let failure = |runtime: &Isolated, context: &LoadContext| {
        let model = runtime.load(context);
        let made = model.and_then(|model| model.instance(&InstanceSpec { name: "m_0".into(), ..Default::default() }));
        made.err().unwrap().message
    };
    let mut context = simple();
    let mut config = (*context.config).clone();
    config.instance_group =
        nerite_config::parse_text("c", b"instance_group { name: 'g' kind: KIND_GPU gpus: 0 }").unwrap().instance_group;
    let on_gpu = LoadContext { config: Arc::new(config), ..context.clone() };
    let error = failure(&runtime, &on_gpu);
    assert!(error.starts_with("model 'simple' is isolated, but its instance 'g_0' is on a GPU, and"), "{error}");

    let garbage = std::env::temp_dir().join(format!("nerite-isolated-garbage-{}", std::process::id()));
    std::fs::create_dir_all(&garbage).unwrap();
    std::fs::write(garbage.join("model.onnx"), b"not a model").unwrap();
    context.version_dir.clone_from(&garbage);
    let inside = engine("embedded").unwrap().load(&context).err().unwrap();
    assert_eq!(failure(&runtime, &context), inside.message, "as within the server");
    std::fs::remove_dir_all(&garbage).unwrap();

    let unstartable = Isolated::over(Arc::new(Embedded), Arc::new(|_| Command::new("/nonexistent/nerite")));
    let error = failure(&unstartable, &simple());
    assert!(
        error.starts_with("unable to load model 'simple': the process of instance 'm_0' cannot be started: "),
        "{error}"
    );
    let ending = Isolated::over(Arc::new(Embedded), Arc::new(|_| Command::new("true")));
    let error = failure(&ending, &simple());
    assert!(error.starts_with("unable to load model 'simple': "), "{error}");
    assert_eq!(children(), [0i32; 0]);
}

/// A region with two inputs of 1,024 numbers and memory for one output, and its registration in a server.
struct RegionFixture {
    mine: OwnedRegion,
    registry: Registry,
}

impl RegionFixture {
    fn new(name: &str) -> RegionFixture {
        let key = format!("/nerite-test-isolated-{name}-{}", std::process::id());
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
            Tensor { name: name.into(), datatype: DataType::Int32, shape: Shape::from_slice(&[64, 16]), data }
        };
        let slot = self.registry.locate("r", 2 * PAGE as u64, PAGE as u64).unwrap().into_slot();
        let wanted = vec![Wanted { name: "OUTPUT0".into(), slot: Some(slot) }];
        infer(vec![input("INPUT0", 0), input("INPUT1", PAGE as u64)], wanted, |batch| instance.run(batch))
    }

    fn object(&self) -> String {
        format!("/dev/shm{}", self.mine.key())
    }
}

fn maps_of(process: i32) -> String {
    std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap()
}

#[test]
fn a_region_is_read_and_written_where_it_lies() {
    let _turn = turn();
    for (name, runtime) in onnx() {
        let (fixture, mut instance) = (RegionFixture::new("place"), instance(&runtime, &simple()));
        let copied = || Reason::ALL.iter().map(|reason| copied_bytes(*reason)).sum::<u64>();
        let before = copied();
        let response = fixture.infer(&mut *instance).unwrap();
        // Copies of the child count here too: the embedded engine copies two inputs out of memory that others can
        // write, and copies its output into the region.
        assert_eq!(copied() - before, if name == "embedded" { 3 * PAGE as u64 } else { 0 }, "{name}");
        assert!(response.outputs[0].placed);
        let sum = fixture.mine.buffer(Extent::new(2 * PAGE, PAGE, 3 * PAGE).unwrap());
        assert_eq!(sum.cells::<i32>().unwrap().to_vec(), [42; 1024]);
        drop(response);
        assert!(maps_of(only_child()).contains(&fixture.object()));
        fixture.registry.unregister_system("r").unwrap();
        while maps_of(only_child()).contains(&fixture.object()) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_region_cut_short_fails_its_request_and_the_process_lives() {
    let _turn = turn();
    for (_, runtime) in onnx() {
        let (fixture, mut instance) = (RegionFixture::new("short"), instance(&runtime, &simple()));
        let before = only_child();
        for left in [0, PAGE as u64, 2 * PAGE as u64 + 100] {
            fixture.infer(&mut *instance).unwrap();
            let object = std::fs::File::options().write(true).open(fixture.object()).unwrap();
            object.set_len(left).unwrap();
            let response = fixture.infer(&mut *instance);
            if left > 2 * PAGE as u64 {
                // Its last page is still there.
                response.unwrap();
            } else {
                let error = response.unwrap_err();
                let text = format!(
                    "shared memory region 'r' can no longer be used: its object '{}' was 12288 bytes when registered and has {left} \
                     now (touched at offset ",
                    fixture.mine.key()
                );
                assert!(error.message.starts_with(&text), "{error}");
                assert_eq!(error.code, Code::InvalidArg);
            }
            assert_eq!(only_child(), before);
            object.set_len(3 * PAGE as u64).unwrap();
            let _ = fixture.registry.unregister_system("r");
            fixture.registry.register_system("r", fixture.mine.key(), 0, 3 * PAGE as u64).unwrap();
            fixture.fill();
        }
        fixture.infer(&mut *instance).unwrap();
    }
}
