//! What must hold on a machine with a GPU?

use std::path::PathBuf;
use std::sync::Arc;

use nerite_client::{Code, DataType, Error, RegionRef, Request};
use nerite_cuda::{Device, DeviceMemory, Driver, IpcMemory};
use nerite_memory::{Extent, Reason, Slot};
use nerite_shm::OwnedRegion;

use crate::server::Server;
use crate::{bandwidth, metrics, onnx};

/// What is to be checked, and how long.
pub struct Plan {
    /// The driver of this process, the client.
    pub driver: Arc<Driver>,
    /// The driver of the server; the system's if it is not said.
    pub library: Option<PathBuf>,
    /// NVML, for this process and for the server; the system's if it is not said. Its file has NVML's own name.
    pub nvml: Option<PathBuf>,
    /// The library of an ONNX Runtime that has the CUDA provider.
    pub onnxruntime: Option<PathBuf>,
    /// The server's binary.
    pub nerite: PathBuf,
    /// Registrations and unregistrations in a row.
    pub registrations: usize,
    /// Bytes of each copy whose speed is measured.
    pub copy_bytes: usize,
}

/// One check.
#[derive(Debug)]
pub struct Row {
    /// What was checked.
    pub name: &'static str,
    /// What was seen: Err if it should not be so.
    pub seen: Seen,
    /// Whether nothing was checked, for the reason that was seen.
    pub skipped: bool,
}

/// What was seen, or why it should not be so.
pub type Seen = Result<String, String>;

/// Bytes of the tensors that are sent through the model.
const TENSOR_BYTES: usize = 1 << 20;
/// Free memory of a device may move by so much for reasons of others.
const DRIFT_BYTES: u64 = 64 << 20;

/// A server, and a client's memory on a device.
struct Bench<'p> {
    plan: &'p Plan,
    device: Device,
    server: Server,
}

/// Runs all checks.
pub async fn run(plan: &Plan) -> Vec<Row> {
    let device = plan.driver.devices().swap_remove(0);
    let server = match Server::start(plan, None).await {
        Ok(server) => server,
        Err(why) => return vec![Row { name: "a server starts", seen: Err(why), skipped: false }],
    };
    let mut bench = Bench { plan, device, server };
    let mut rows = Vec::new();
    let mut row = |name, seen| rows.push(Row { name, seen, skipped: false });
    row("infer in and out over HTTP, by IPC from a second process", bench.infer(true).await);
    row("infer in and out over gRPC, by IPC from a second process", bench.infer(false).await);
    row("device memory in, page-locked region out", bench.across().await);
    row("double registration", bench.twice().await);
    row("a handle of one's own process", bench.own_handle());
    row("wrong device", bench.wrong_device().await);
    row("bad handles", bench.bad_handles().await);
    row("size against the allocation", bench.size().await);
    row("freed memory", bench.freed().await);
    row("registrations leave nothing behind", bench.many().await);
    row("bandwidth", bandwidth::measure(&bench.device, plan.copy_bytes));
    row("the server is alive at the end", bench.alive());
    rows.push(metrics::run(plan, &bench.device, &bench.server).await);
    rows.extend(onnx::run(plan, &bench.device).await);
    rows
}

impl Bench<'_> {
    fn lend(&self, bytes: usize) -> Result<(Arc<DeviceMemory>, [u8; 64]), String> {
        let memory = DeviceMemory::allocate(&self.device, bytes).map_err(|error| error.to_string())?;
        let handle = memory.ipc_handle().map_err(|error| error.to_string())?;
        Ok((memory, handle.0))
    }

    async fn register(&self, name: &str, handle: &[u8], device: u32, bytes: usize) -> Result<(), Error> {
        self.server.http.register_cuda_region(name, handle, device, bytes as u64).await
    }

    /// Registers what must be taken.
    async fn taken(&self, name: &str, handle: &[u8], bytes: usize) -> Result<(), String> {
        self.register(name, handle, self.device.ordinal(), bytes).await.map_err(|error| error.to_string())
    }

    async fn forget(&self) -> Result<(), String> {
        self.server.http.unregister_cuda_region(None).await.map_err(|error| error.to_string())?;
        match self.server.http.cuda_regions(None).await {
            Ok(regions) if regions.is_empty() => Ok(()),
            left => Err(format!("regions are left: {left:?}")),
        }
    }

    async fn infer(&self, http: bool) -> Seen {
        let (memory, handle) = self.lend(2 * TENSOR_BYTES)?;
        let sent: Vec<u8> = (0..TENSOR_BYTES).map(|n| (n % 251) as u8).collect();
        write(&memory, &sent)?;
        self.taken("a", &handle, 2 * TENSOR_BYTES).await?;
        let carried = "nerite_copied_bytes_total{reason=\"cross_device\"}";
        let before = self.server.metric(carried).await?;
        let request = echo(window("a", 0), window("a", TENSOR_BYTES));
        let answered =
            if http { self.server.http.infer(&request).await } else { self.server.grpc.infer(&request).await };
        answered.map_err(|error| error.to_string())?;
        let carried = self.server.metric(carried).await? - before;
        self.forget().await?;
        let got = read(&memory)?.split_off(TENSOR_BYTES);
        expect(got == sent, || "the output is not the input".into())?;
        expect(carried == 2 * TENSOR_BYTES as u64, || format!("{carried} bytes were carried"))?;
        Ok(format!("{TENSOR_BYTES} bytes each way, {carried} carried"))
    }

    async fn across(&self) -> Seen {
        let key = format!("/nerite-gpu-check-out-{}", std::process::id());
        let mine = OwnedRegion::create(&key, TENSOR_BYTES).map_err(|error| error.to_string())?;
        let (memory, handle) = self.lend(TENSOR_BYTES)?;
        write(&memory, &vec![0x5a; TENSOR_BYTES])?;
        self.taken("a", &handle, TENSOR_BYTES).await?;
        let registered = self.server.http.register_system_region("s", &key, 0, TENSOR_BYTES as u64).await;
        registered.map_err(|error| error.to_string())?;
        let answered = self.server.http.infer(&echo(window("a", 0), window("s", 0))).await;
        let ended = self.server.http.unregister_system_regions().await;
        answered.and(ended).map_err(|error| error.to_string())?;
        self.forget().await?;
        let mut got = vec![0; TENSOR_BYTES];
        mine.buffer(Extent::whole(TENSOR_BYTES)).copy_to(&mut got, Reason::Model);
        expect(got.iter().all(|byte| *byte == 0x5a), || "the output is not the input".into())?;
        Ok(format!("{TENSOR_BYTES} bytes"))
    }

    async fn twice(&self) -> Seen {
        let (_memory, handle) = self.lend(4096)?;
        self.taken("a", &handle, 4096).await?;
        let again = self.register("a", &handle, self.device.ordinal(), 4096).await;
        let error = refused(again, "shared memory region 'a' already in manager")?;
        // Under another name the driver counts the second opening.
        self.taken("b", &handle, 4096).await?;
        self.forget().await?;
        Ok(error)
    }

    fn own_handle(&self) -> Seen {
        let (_memory, handle) = self.lend(4096)?;
        match IpcMemory::open(&self.device, &nerite_cuda::IpcHandle(handle)) {
            Ok(_) => Err("it was opened in the process that made it".into()),
            Err(error) => Ok(error.to_string()),
        }
    }

    async fn wrong_device(&self) -> Seen {
        let (_memory, handle) = self.lend(4096)?;
        let closed = "failed to register shared memory region: invalid args";
        let mut error = refused(self.register("a", &handle, 99, 4096).await, closed)?;
        match self.plan.driver.devices().get(1) {
            None => error.push_str("; a second device was not there to be confused with"),
            Some(other) => error = refused(self.register("a", &handle, other.ordinal(), 4096).await, closed)?,
        }
        self.forget().await.map(|()| error)
    }

    async fn bad_handles(&self) -> Seen {
        let closed = "failed to register shared memory region: invalid args";
        let error = refused(self.register("a", &[7; 64], self.device.ordinal(), 64).await, closed)?;
        let length = "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t";
        refused(self.register("a", &[7; 63], self.device.ordinal(), 64).await, length)?;
        let short = self.server.grpc.register_cuda_region("a", &[7; 63], self.device.ordinal(), 64).await;
        refused(short, length)?;
        self.forget().await.map(|()| error)
    }

    async fn size(&self) -> Seen {
        // A whole block of the driver's, so that its allocation has no more than was asked for.
        const BYTES: usize = 2 << 20;
        let (_memory, handle) = self.lend(BYTES)?;
        let larger = self.register("a", &handle, self.device.ordinal(), BYTES + 1).await;
        let error = refused(larger, "failed to register shared memory region 'a': invalid args")?;
        self.taken("a", &handle, BYTES).await?;
        self.forget().await.map(|()| error)
    }

    /// What the driver does with memory that its owner freed is not said anywhere; the server must live through it.
    async fn freed(&mut self) -> Seen {
        let (memory, handle) = self.lend(2 * TENSOR_BYTES)?;
        drop(memory);
        let closed = "failed to register shared memory region: invalid args";
        let error = refused(self.register("a", &handle, self.device.ordinal(), 64).await, closed)?;
        let (memory, handle) = self.lend(2 * TENSOR_BYTES)?;
        self.taken("a", &handle, 2 * TENSOR_BYTES).await?;
        drop(memory);
        let used = match self.server.http.infer(&echo(window("a", 0), window("a", TENSOR_BYTES))).await {
            Ok(_) => "served".to_owned(),
            Err(error) => format!("refused: {error}"),
        };
        expect(self.server.is_alive(), || "the server died of it".into())?;
        self.forget().await?;
        let after = self.infer(true).await.map_err(|why| format!("afterwards: {why}"))?;
        Ok(format!("registered after: {error}; freed while registered: {used}; afterwards {after}"))
    }

    async fn many(&self) -> Seen {
        let (_memory, handle) = self.lend(4096)?;
        self.taken("a", &handle, 4096).await?;
        self.forget().await?;
        let free = || self.device.free_bytes().map_err(|error| error.to_string());
        let look = || Ok::<_, String>((self.server.descriptors(), self.server.mappings(), free()?));
        let before = look()?;
        for turn in 0..self.plan.registrations {
            self.taken("a", &handle, 4096).await.map_err(|why| format!("turn {turn}: {why}"))?;
            let beyond = self.register("b", &handle, self.device.ordinal(), 1 << 40).await;
            refused(beyond, "failed to register shared memory region 'b': invalid args")?;
            self.forget().await?;
        }
        let after = look()?;
        let lost = before.2.saturating_sub(after.2);
        let text = format!(
            "{} times: descriptors {} before, {} after; mappings {}, {}; {lost} bytes less free on the device",
            self.plan.registrations, before.0, after.0, before.1, after.1
        );
        // Mappings come and go with the server's own threads and heap; a leak would be one for each turn.
        let leaks = after.0 > before.0 + 8 || after.1 > before.1 + 64 || lost > DRIFT_BYTES;
        expect(!leaks, || text.clone())?;
        Ok(text)
    }

    fn alive(&mut self) -> Seen {
        expect(self.server.is_alive(), || "it is not".into())?;
        Ok(format!("{} descriptors", self.server.descriptors()))
    }
}

fn echo(input: RegionRef, output: RegionRef) -> Request {
    let request = Request::new("echo").input_in_window("IN", DataType::Uint8, &[TENSOR_BYTES as i64], input);
    request.output_in_window("OUT", output)
}

fn window(name: &str, offset: usize) -> RegionRef {
    RegionRef { name: name.into(), offset: offset as u64, byte_size: TENSOR_BYTES as u64 }
}

/// Fills the memory's beginning.
pub fn write(memory: &Arc<DeviceMemory>, bytes: &[u8]) -> Result<(), String> {
    let mut slot = memory.slot(Extent::whole(memory.len()));
    slot.write(0, bytes, Reason::CrossDevice).map_err(|error| error.to_string())
}

/// All of the memory.
pub fn read(memory: &Arc<DeviceMemory>) -> Result<Vec<u8>, String> {
    let mut home = Slot::heap(memory.len());
    let all = memory.buffer(Extent::whole(memory.len()));
    home.fill_from(0, &all, Reason::CrossDevice).map_err(|error| error.to_string())?;
    Ok(home.filled().into_buffer().private_bytes().map(<[u8]>::to_vec).unwrap_or_default())
}

/// Err with the text if it does not hold.
pub fn expect(holds: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(text()) }
}

/// The server's words, if it refused with these.
fn refused<T>(result: Result<T, Error>, begins: &str) -> Seen {
    match result {
        Ok(_) => Err(format!("not refused: {begins}")),
        Err(Error::Refused(status)) if status.code != Code::Internal && status.message.starts_with(begins) => {
            Ok(status.message)
        }
        Err(error) => Err(error.to_string()),
    }
}
