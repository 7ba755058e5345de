//! Does a server serve from and to memory of devices, over both protocols, and give everything back?
//!
//! The server is the binary, with the stand-in driver (no CUDA) in place of the system's; the client is this process, with
//! device memory of its own.
#![allow(clippy::unwrap_used)]

#[path = "../../client/tests/ports/free.rs"]
mod ports;
#[path = "../../cuda/tests/stand_in/compile.rs"]
mod stand_in;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nerite_client::report::CudaRegionReport;
use nerite_client::{Code, DataType, Error, RegionRef, Request, Response, Tensor, grpc, http};
use nerite_cuda::{Device, DeviceMemory, Driver};
use nerite_memory::{Extent, Reason, Slot};
use nerite_shm::OwnedRegion;
use stand_in::Counts;
use tempfile::TempDir;

const CLOSED: &str = "failed to register shared memory region: invalid args";

struct Server {
    child: Child,
    clients: [AnyClient; 2],
    metrics: http::Client,
    folder: TempDir,
}

/// One of the two protocols.
#[derive(Clone)]
enum AnyClient {
    Http(http::Client),
    Grpc(grpc::Client),
}

impl AnyClient {
    async fn register(&self, name: &str, handle: &[u8], device: u32, bytes: u64) -> Result<(), Error> {
        match self {
            AnyClient::Http(client) => client.register_cuda_region(name, handle, device, bytes).await,
            AnyClient::Grpc(client) => client.register_cuda_region(name, handle, device, bytes).await,
        }
    }

    async fn unregister(&self, name: Option<&str>) {
        match self {
            AnyClient::Http(client) => client.unregister_cuda_region(name).await.unwrap(),
            AnyClient::Grpc(client) => client.unregister_cuda_region(name).await.unwrap(),
        }
    }

    async fn regions(&self, name: Option<&str>) -> Result<Vec<CudaRegionReport>, Error> {
        match self {
            AnyClient::Http(client) => client.cuda_regions(name).await,
            AnyClient::Grpc(client) => client.cuda_regions(name).await,
        }
    }

    async fn infer(&self, request: &Request) -> Result<Response, Error> {
        match self {
            AnyClient::Http(client) => client.infer(request).await,
            AnyClient::Grpc(client) => client.infer(request).await,
        }
    }

    async fn register_system(&self, name: &str, key: &str, bytes: u64) -> Result<(), Error> {
        match self {
            AnyClient::Http(client) => client.register_system_region(name, key, 0, bytes).await,
            AnyClient::Grpc(client) => client.register_system_region(name, key, 0, bytes).await,
        }
    }

    async fn system_status(&self, name: &str) -> Result<(), Error> {
        match self {
            AnyClient::Http(client) => client.system_regions(Some(name)).await.map(drop),
            AnyClient::Grpc(client) => client.system_regions(Some(name)).await.map(drop),
        }
    }
}

impl Server {
    /// With two models of the examples, on the embedded engine and on identity, both of which compute on the host.
    async fn start(more: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let [http, grpc, metrics] = ports::free_ports().map(|port| port.to_string());
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models");
        let child = Command::new(env!("CARGO_BIN_EXE_nerite"))
            .args([
                "serve",
                "--model-control-mode",
                "explicit",
                "--load-model",
                "simple",
                "--load-model",
                "identity_fp32",
            ])
            .args(["--onnxruntime-library", "none", "--session-socket", "off"])
            .args(["--http-port", &http, "--grpc-port", &grpc, "--metrics-port", &metrics])
            .arg("--model-repository")
            .arg(models)
            .args(more)
            .env("NERITE_CUDA_LIBRARY", stand_in::library())
            .env("STAND_IN_COUNTS", folder.path().join("counts"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let address = |port: &str| format!("http://127.0.0.1:{port}");
        let client = http::Client::new(&address(&http)).unwrap();
        for _ in 0..6000 {
            if matches!(client.is_ready().await, Ok(true)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(client.is_ready().await.unwrap());
        let clients = [AnyClient::Http(client), AnyClient::Grpc(grpc::Client::new(&address(&grpc)).unwrap())];
        Server { child, clients, metrics: http::Client::new(&address(&metrics)).unwrap(), folder }
    }

    fn counts(&self) -> Counts {
        stand_in::counts(&self.folder.path().join("counts"))
    }

    /// A metric's value, by its name with labels.
    async fn metric(&self, name: &str) -> u64 {
        let page = self.metrics.page("/metrics").await.unwrap();
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in\n{page}"))
    }

    async fn carried(&self) -> u64 {
        self.metric("nerite_copied_bytes_total{reason=\"cross_device\"}").await
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn device(ordinal: u32) -> Device {
    Driver::open(Some(stand_in::library())).unwrap().device(ordinal).unwrap()
}

/// Device memory of these numbers, and its handle.
fn lend(ordinal: u32, numbers: &[i32]) -> (Arc<DeviceMemory>, [u8; 64]) {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let memory = DeviceMemory::allocate(&device(ordinal), bytes.len()).unwrap();
    memory.slot(Extent::whole(bytes.len())).write(0, &bytes, Reason::Model).unwrap();
    let handle = memory.ipc_handle().unwrap().0;
    (memory, handle)
}

fn numbers_of(memory: &Arc<DeviceMemory>) -> Vec<i32> {
    let mut home = Slot::heap(memory.len());
    home.fill_from(0, &memory.buffer(Extent::whole(memory.len())), Reason::Model).unwrap();
    home.filled().into_buffer().numbers::<i32>().unwrap().to_vec()
}

fn window(name: &str, offset: u64, byte_size: u64) -> RegionRef {
    RegionRef { name: name.into(), offset, byte_size }
}

/// INPUT0 and INPUT1 of `simple`, its outputs where asked.
fn simple(in0: RegionRef, in1: RegionRef) -> Request {
    let request = Request::new("simple").input_in_window("INPUT0", DataType::Int32, &[1, 16], in0);
    request.input_in_window("INPUT1", DataType::Int32, &[1, 16], in1)
}

#[track_caller]
fn check_refused<T>(result: Result<T, Error>, code: Code, begins: &str, part: &str) {
    let Err(Error::Refused(status)) = result else { panic!("not refused: {begins}") };
    let (found, message) = (status.code, status.message);
    // HTTP tells 400 for several codes, and the client takes the commonest.
    let same = found == code || (code == Code::AlreadyExists && found == Code::InvalidArg);
    assert!(same && message.starts_with(begins) && message.contains(part), "{found:?}: {message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_go_in_and_out_through_device_memory_over_both_protocols() {
    let server = Server::start(&[]).await;
    let (input, input_handle) = lend(0, &(0..32).collect::<Vec<_>>());
    let (output, output_handle) = lend(1, &[0; 40]);
    for (turn, client) in server.clients.iter().enumerate() {
        let turn = turn as i32;
        client.register("in", &input_handle, 0, 128).await.unwrap();
        client.register("out", &output_handle, 1, 160).await.unwrap();
        output.slot(Extent::whole(160)).write(0, &[0; 160], Reason::Model).unwrap();
        input.slot(Extent::whole(4)).write(0, &turn.to_le_bytes(), Reason::Model).unwrap();
        let before = server.carried().await;
        let request = simple(window("in", 0, 64), window("in", 64, 64))
            .output_in_window("OUTPUT0", window("out", 0, 64))
            .output_in_window("OUTPUT1", window("out", 64, 96));
        client.infer(&request).await.unwrap();
        assert_eq!(server.carried().await - before, 4 * 64);
        let sums = |at: i32| if at == 0 { turn + 16 } else { 2 * at + 16 };
        let expect: Vec<i32> = (0..16).map(sums).chain([turn - 16]).chain([-16; 15]).chain([0; 8]).collect();
        assert_eq!(numbers_of(&output), expect);

        // In on the device, out with the answer; and the other way round.
        let answer = client.infer(&simple(window("in", 64, 64), window("in", 64, 64))).await.unwrap();
        assert_eq!(answer.output("OUTPUT0").unwrap().as_slice::<i32>().unwrap()[..2], [32, 34]);
        let floats = Tensor::from_slice("INPUT0", &[4], &[1f32, 2.0, 3.0, 4.0]).unwrap();
        let request = Request::new("identity_fp32").input(floats).output_in_window("OUTPUT0", window("out", 128, 16));
        client.infer(&request).await.unwrap();
        assert_eq!(numbers_of(&output)[32..36], [1f32, 2.0, 3.0, 4.0].map(|n| n.to_bits() as i32));
        let request = Request::new("identity_fp32")
            .input_in_window("INPUT0", DataType::Fp32, &[4], window("out", 128, 16))
            .output_in_window("OUTPUT0", window("out", 144, 16));
        client.infer(&request).await.unwrap();
        assert_eq!(numbers_of(&output)[36..], numbers_of(&output)[32..36]);

        let mut regions = client.regions(None).await.unwrap();
        regions.sort_by(|a, b| a.name.cmp(&b.name));
        let region = |name: &str, device_id, byte_size| CudaRegionReport { name: name.into(), device_id, byte_size };
        assert_eq!(regions, [region("in", 0, 128), region("out", 1, 160)]);
        assert_eq!(server.metric("nerite_shm_regions{kind=\"cuda\"}").await, 2);
        client.unregister(Some("in")).await;
        assert_eq!(client.regions(None).await.unwrap(), [region("out", 1, 160)]);
        client.unregister(None).await;
        assert_eq!((client.regions(None).await.unwrap(), server.counts().imports), (vec![], 0));
    }
    let counts = server.counts();
    // All inputs come through the pool, and the outputs of runtimes that ask for a place; the embedded engine makes its own.
    assert_eq!((counts.pinned_to_host, counts.pinned_to_device), (counts.to_host, 4 * 16));
    assert_eq!(server.metric("nv_pinned_memory_pool_total_bytes").await, 268_435_456);
    assert_eq!(server.metric("nv_pinned_memory_pool_used_bytes").await, 0);
    assert!(counts.to_host > 0 && counts.pinned > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_registered_or_used_is_reported_and_nothing_stays_open() {
    let server = Server::start(&["--pinned-memory-pool-byte-size=0", "--page-lock-client-memory=false"]).await;
    let (memory, handle) = lend(0, &[7; 128]);
    let (_other, handle_of_one) = lend(1, &[7; 128]);
    let (freed, freed_handle) = lend(0, &[7; 128]);
    drop(freed);
    let key = format!("/nerite-server-cuda-{}", std::process::id());
    let _object = OwnedRegion::create(&key, 4096).unwrap();
    for client in &server.clients {
        let refused = |name, handle, device, bytes| client.register(name, handle, device, bytes);
        let length = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t";
        check_refused(refused("a", &handle[..63], 0, 64).await, Code::InvalidArg, length, "63 bytes, a handle has 64");
        check_refused(refused("a", &[], 0, 64).await, Code::InvalidArg, length, "0 bytes, a handle has 64");
        let missing = "there is no device 9; the server sees 0 (Stand-in device 0";
        check_refused(refused("a", &handle, 9, 64).await, Code::InvalidArg, CLOSED, missing);
        let elsewhere = "the handle is for memory of device 1, not of device 0";
        check_refused(refused("a", &handle_of_one, 0, 64).await, Code::InvalidArg, CLOSED, elsewhere);
        check_refused(refused("a", &freed_handle, 0, 64).await, Code::InvalidArg, CLOSED, "CUDA_ERROR_INVALID_VALUE");
        let size = "failed to register shared memory region 'a': invalid args";
        let large = "the allocation has 512 bytes, asked for 513";
        check_refused(refused("a", &handle, 0, 513).await, Code::InvalidArg, size, large);
        assert_eq!(server.counts().imports, 0);

        client.register("a", &handle, 0, 128).await.unwrap();
        let taken = "shared memory region 'a' already in manager";
        check_refused(refused("a", &handle, 0, 128).await, Code::AlreadyExists, taken, "on device 0");
        check_refused(client.register_system("a", &key, 64).await, Code::AlreadyExists, taken, "");
        client.register_system("s", &key, 64).await.unwrap();
        check_refused(
            refused("s", &handle, 0, 128).await,
            Code::AlreadyExists,
            "shared memory region 's' already",
            &key,
        );
        let kind = "The region named 'a' is registered as CUDA shared memory, not system shared memory";
        check_refused(client.system_status("a").await, Code::NotFound, kind, "");
        let kind = "The region named 's' is registered as system shared memory, not CUDA shared memory";
        check_refused(client.regions(Some("s")).await, Code::NotFound, kind, "");
        let unknown = "Unable to find cuda shared memory region: 'b'";
        check_refused(client.regions(Some("b")).await, Code::NotFound, unknown, "");

        let outside = client.infer(&simple(window("a", 0, 64), window("a", 128, 64))).await;
        check_refused(outside, Code::InvalidArg, "Invalid offset for shared memory region: 'a'", "");
        let beyond = client.infer(&simple(window("a", 0, 64), window("a", 65, 64))).await;
        check_refused(beyond, Code::InvalidArg, "Invalid offset + byte size for shared memory region: 'a'", "");
        let small = simple(window("a", 0, 64), window("a", 0, 64)).output_in_window("OUTPUT0", window("a", 0, 63));
        let text =
            "shared memory size specified with the request for output 'OUTPUT0' (63 bytes) should be at least 64";
        check_refused(client.infer(&small).await, Code::Internal, text, "");
        assert_eq!(numbers_of(&memory), [7; 128]);
        // Without a pool, transfers go through the heap.
        client.infer(&simple(window("a", 0, 64), window("a", 64, 64))).await.unwrap();
        client.unregister(Some("s")).await;
        client.unregister(Some("a")).await;
        match client {
            AnyClient::Http(client) => client.unregister_system_regions().await.unwrap(),
            AnyClient::Grpc(client) => client.unregister_system_regions().await.unwrap(),
        }
        let counts = server.counts();
        assert_eq!((counts.imports, counts.pinned, counts.locked), (0, 0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "alone: counts descriptors of the server"]
async fn a_thousand_registrations_leave_nothing_open() {
    let server = Server::start(&[]).await;
    let (_memory, handle) = lend(0, &[7; 128]);
    // Connections and the first context stay.
    for client in &server.clients {
        client.register("a", &handle, 0, 128).await.unwrap();
        client.unregister(None).await;
    }
    let before = (server.descriptors(), server.counts().held());
    for turn in 0..1000 {
        let client = &server.clients[turn % 2];
        client.register("a", &handle, 0, 128).await.unwrap();
        check_refused(
            client.register("b", &handle, 0, 1 << 20).await,
            Code::InvalidArg,
            "failed to register shared memory region 'b': invalid args",
            "",
        );
        client.unregister(Some("a")).await;
    }
    assert_eq!((server.descriptors(), server.counts().held()), before);
    assert_eq!(server.counts().imports, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn system_regions_are_page_locked_while_they_are_registered() {
    let server = Server::start(&[]).await;
    let key = format!("/nerite-server-locked-{}", std::process::id());
    let _object = OwnedRegion::create(&key, 4096).unwrap();
    server.clients[0].register_system("s", &key, 4096).await.unwrap();
    assert_eq!(server.counts().locked, 1);
    let AnyClient::Grpc(client) = &server.clients[1] else { panic!("the second client speaks gRPC") };
    client.unregister_system_regions().await.unwrap();
    assert_eq!(server.counts().locked, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_gpu_every_call_answers_as_a_triton_built_without() {
    let server = Server::start(&["--cuda-library=none"]).await;
    let text = "failed to register CUDA shared memory region: 'a', GPUs not supported";
    for client in &server.clients {
        check_refused(client.register("a", &[7; 64], 0, 64).await, Code::InvalidArg, text, "");
        check_refused(client.register("a", &[7; 3], 0, 64).await, Code::InvalidArg, text, "");
        assert_eq!(client.regions(None).await.unwrap(), []);
        let unknown = "Unable to find cuda shared memory region: 'a'";
        check_refused(client.regions(Some("a")).await, Code::NotFound, unknown, "");
        client.unregister(Some("a")).await;
        client.unregister(None).await;
    }
    assert_eq!(server.metric("nv_pinned_memory_pool_total_bytes").await, 0);
    assert_eq!(server.metric("nerite_shm_regions{kind=\"cuda\"}").await, 0);
}

#[test]
fn a_driver_that_is_named_must_be_there() {
    let missing = PathBuf::from("/nowhere/libcuda.so.1");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nerite"));
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models");
    command.args(["serve", "--cuda-library"]).arg(&missing).arg("--model-repository").arg(repository);
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("no CUDA driver: /nowhere/libcuda.so.1: cannot open shared object file"), "{stderr}");
}
