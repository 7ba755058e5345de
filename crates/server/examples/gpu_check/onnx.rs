//! Does an ONNX model run on the GPU, on tensors where they lie?

use std::borrow::Cow;
use std::sync::Arc;

use nerite_client::{DataType, RegionRef, Request, Response, Tensor};
use nerite_cuda::{Device, DeviceMemory};

use crate::checks::{Plan, Row, Seen, expect, read, write};
use crate::server::Server;

/// Numbers of a row of the model's tensors.
const WIDTH: usize = 16;
const ROWS: usize = 8;
const TENSOR_BYTES: usize = ROWS * WIDTH * 4;
/// The places of the tensors in a region, at what the server takes without carrying.
const STRIDE: usize = 1024;
/// Clients at once, and requests of each.
const CLIENTS: usize = 4;
const REQUESTS: usize = 250;
/// Batches of two requests.
const BATCHES: u64 = 100;

/// A server whose model `add` runs on the device.
struct Bench<'d> {
    device: &'d Device,
    server: Server,
}

/// Runs the checks of models on the GPU, or says why not.
pub async fn run(plan: &Plan, device: &Device) -> Vec<Row> {
    let name = "an ONNX model loads on the CUDA provider";
    let Some(library) = &plan.onnxruntime else {
        let text = "not checked: name the library of onnxruntime-gpu with --onnxruntime-library";
        return vec![Row { name, seen: Ok(text.into()), skipped: true }];
    };
    let started = Server::start(plan, Some(library)).await;
    let server = match started {
        Ok(server) => server,
        Err(why) => return vec![Row { name, seen: Err(why), skipped: false }],
    };
    let mut loaded = server.http.load_model("add", None).await;
    if loaded.is_ok() {
        loaded = server.http.load_model("add_batched", None).await;
    }
    let seen = loaded.map(|()| library.display().to_string()).map_err(|error| error.to_string());
    let failed = seen.is_err();
    let mut rows = vec![Row { name, seen, skipped: false }];
    if failed {
        return rows;
    }
    let mut bench = Bench { device, server };
    let mut row = |name, seen| rows.push(Row { name, seen, skipped: false });
    row(
        "an ONNX model on the CUDA provider: inputs and outputs in device memory, 0 bytes cross_device",
        bench.direct().await,
    );
    row("the same with the inputs in the request, or the outputs in the response", bench.one_side().await);
    row("the same at addresses that are carried", bench.unaligned().await);
    row("the same by several clients at once", bench.at_once().await);
    row(
        "requests with memory of their own run in one batch, gathered and scattered on the device",
        bench.batched().await,
    );
    row(
        "a region that is unregistered while its request waits for the batch",
        bench.unregistered_while_waiting().await,
    );
    row("its server is alive at the end", bench.alive());
    rows
}

/// Device memory with both inputs in it, registered.
struct LeaseNotice {
    name: String,
    memory: Arc<DeviceMemory>,
    /// Where the first tensor begins.
    at: usize,
    inputs: [Vec<i32>; 2],
}

impl LeaseNotice {
    fn window(&self, tensor: usize) -> RegionRef {
        let offset = (self.at + tensor * STRIDE) as u64;
        RegionRef { name: self.name.as_str().into(), offset, byte_size: TENSOR_BYTES as u64 }
    }

    /// Writes the inputs, and zeros where the outputs go.
    fn fill(&self) -> Result<(), String> {
        let mut all = vec![0u8; 8 * STRIDE];
        for (tensor, input) in self.inputs.iter().enumerate() {
            let begin = self.at + tensor * STRIDE;
            all[begin..begin + TENSOR_BYTES].copy_from_slice(&bytes(input));
        }
        write(&self.memory, &all)
    }

    /// The request, with inputs and outputs in the memory or not.
    fn request(&self, model: &str, inputs: bool, outputs: bool) -> Result<Request, String> {
        let shape = [ROWS as i64, WIDTH as i64];
        let mut request = Request::new(model);
        for (at, name) in ["INPUT0", "INPUT1"].into_iter().enumerate() {
            request = if inputs {
                request.input_in_window(name, DataType::Int32, &shape, self.window(at))
            } else {
                request.input(Tensor::from_slice(name, &shape, &self.inputs[at]).map_err(|error| error.to_string())?)
            };
        }
        for (at, name) in ["OUTPUT0", "OUTPUT1"].into_iter().enumerate() {
            request = if outputs { request.output_in_window(name, self.window(2 + at)) } else { request.output(name) };
        }
        Ok(request)
    }

    /// The outputs should be the sum and the difference; `answered` has those that are not in the memory.
    fn check(&self, answered: &Response, outputs: bool) -> Result<(), String> {
        let here = read(&self.memory)?;
        let [a, b] = &self.inputs;
        let sum = a.iter().zip(b).map(|(a, b)| a.wrapping_add(*b)).collect::<Vec<i32>>();
        let difference = a.iter().zip(b).map(|(a, b)| a.wrapping_sub(*b)).collect::<Vec<i32>>();
        for (at, (name, expected)) in [("OUTPUT0", sum), ("OUTPUT1", difference)].into_iter().enumerate() {
            let begin = self.at + (2 + at) * STRIDE;
            let found = if outputs {
                Cow::Borrowed(here.get(begin..begin + TENSOR_BYTES).unwrap_or_default())
            } else {
                answered.output(name).and_then(nerite_client::Output::bytes).map_err(|error| error.to_string())?
            };
            expect(found == bytes(&expected), || format!("{name} is wrong"))?;
        }
        Ok(())
    }
}

impl Bench<'_> {
    /// `seed` makes the numbers differ from those that earlier runs left on the device.
    async fn lend(&self, name: &str, at: usize, seed: i32) -> Result<LeaseNotice, String> {
        let memory = DeviceMemory::allocate(self.device, 8 * STRIDE).map_err(|error| error.to_string())?;
        let handle = memory.ipc_handle().map_err(|error| error.to_string())?;
        let numbers = |step: i32| (0..(ROWS * WIDTH) as i32).map(|n| seed.wrapping_add(n * step)).collect();
        let lent = LeaseNotice { name: name.into(), memory, at, inputs: [numbers(3), numbers(-7)] };
        let ordinal = self.device.ordinal();
        let registered = self.server.http.register_cuda_region(name, &handle.0, ordinal, 8 * STRIDE as u64).await;
        registered.map(|()| lent).map_err(|error| error.to_string())
    }

    async fn crossed(&self) -> Result<u64, String> {
        self.copied("cross_device").await
    }

    /// Asks over one protocol and checks the answer.
    async fn infer(&self, lent: &LeaseNotice, http: bool, inputs: bool, outputs: bool) -> Result<(), String> {
        self.infer_model("add", lent, http, (inputs, outputs)).await
    }

    async fn infer_model(
        &self,
        model: &str,
        lent: &LeaseNotice,
        http: bool,
        (inputs, outputs): (bool, bool),
    ) -> Result<(), String> {
        // What an earlier run left must not pass for the answer.
        lent.fill()?;
        let request = lent.request(model, inputs, outputs)?;
        let answered =
            if http { self.server.http.infer(&request).await } else { self.server.grpc.infer(&request).await };
        lent.check(&answered.map_err(|error| error.to_string())?, outputs)
    }

    async fn direct(&self) -> Seen {
        self.over_both("a", 0, &[(true, true)], 0).await
    }

    async fn one_side(&self) -> Seen {
        self.over_both("b", 0, &[(false, true), (true, false)], 0).await
    }

    async fn unaligned(&self) -> Seen {
        self.over_both("c", 4, &[(true, true)], 4 * TENSOR_BYTES as u64).await
    }

    /// Asks several times each way, where `crossing` bytes cross the bus each time.
    async fn over_both(&self, name: &str, at: usize, ways: &[(bool, bool)], crossing: u64) -> Seen {
        let (before, mut requests) = (self.crossed().await?, 0);
        for seed in [5, 1 << 20, -9] {
            for (inputs, outputs) in ways {
                for http in [true, false] {
                    let lent = self.lend(name, at, seed).await?;
                    let done = self.infer(&lent, http, *inputs, *outputs).await;
                    let gone = self.server.http.unregister_cuda_region(None).await.map_err(|error| error.to_string());
                    done.and(gone)?;
                    requests += 1;
                }
            }
        }
        let crossed = self.crossed().await? - before;
        expect(crossed == requests * crossing, || format!("{crossed} bytes crossed in {requests} requests"))?;
        Ok(format!("{requests} requests, {crossed} bytes crossed"))
    }

    /// Each client has numbers of its own and reads its output the moment it has the answer.
    async fn at_once(&self) -> Seen {
        let before = self.crossed().await?;
        let names: Vec<String> = (0..CLIENTS).map(|client| format!("client{client}")).collect();
        let mut lent = Vec::new();
        for (client, name) in names.iter().enumerate() {
            lent.push(self.lend(name, 0, client as i32 * 1000).await?);
        }
        let client = |lent: LeaseNotice| async move {
            for turn in 0..REQUESTS {
                self.infer(&lent, turn % 2 == 0, true, true).await.map_err(|why| format!("turn {turn}: {why}"))?;
            }
            Ok::<(), String>(())
        };
        let all: [LeaseNotice; CLIENTS] = lent.try_into().map_err(|_| "as many as there are clients".to_owned())?;
        let [a, b, c, d] = all.map(client);
        let (a, b, c, d) = tokio::join!(a, b, c, d);
        a.and(b).and(c).and(d)?;
        self.server.http.unregister_cuda_region(None).await.map_err(|error| error.to_string())?;
        let crossed = self.crossed().await? - before;
        expect(crossed == 0, || format!("{crossed} bytes crossed"))?;
        Ok(format!("{CLIENTS} clients, {REQUESTS} requests each, 0 bytes crossed"))
    }

    async fn copied(&self, reason: &str) -> Result<u64, String> {
        self.server.metric(&format!("nerite_copied_bytes_total{{reason=\"{reason}\"}}")).await
    }

    /// Bytes gathered, scattered and crossed, and runs of the model that batches.
    async fn batch_counts(&self) -> Result<[u64; 4], String> {
        let runs = self.server.metric_of("nv_inference_exec_count", "add_batched").await?;
        let [gathered, scattered] = [self.copied("batch_gather").await?, self.copied("batch_scatter").await?];
        Ok([gathered, scattered, self.crossed().await?, runs])
    }

    /// Two clients ask at the same time, over one protocol each. The model waits for both.
    async fn batched(&self) -> Seen {
        let (one, other) = (self.lend("one", 0, 11).await?, self.lend("other", 0, -1300).await?);
        let before = self.batch_counts().await?;
        for turn in 0..BATCHES {
            let (a, b) = tokio::join!(
                self.infer_model("add_batched", &one, true, (true, true)),
                self.infer_model("add_batched", &other, false, (true, true)),
            );
            a.and(b).map_err(|why| format!("turn {turn}: {why}"))?;
        }
        let after = self.batch_counts().await?;
        self.server.http.unregister_cuda_region(None).await.map_err(|error| error.to_string())?;
        let [gathered, scattered, crossed, runs] = std::array::from_fn(|at| after[at] - before[at]);
        // Two requests of two inputs and two outputs each.
        let bytes = BATCHES * 4 * TENSOR_BYTES as u64;
        let expected = [bytes, bytes, 0, BATCHES];
        let found = format!("{runs} runs, {gathered} bytes gathered, {scattered} scattered, {crossed} crossed");
        expect([gathered, scattered, crossed, runs] == expected, || found.clone())?;
        Ok(format!("{} requests: {found}", 2 * BATCHES))
    }

    /// The first request waits for a second one. Its region is unregistered meanwhile.
    async fn unregistered_while_waiting(&self) -> Seen {
        let (one, other) = (self.lend("one", 0, 17).await?, self.lend("other", 0, 23).await?);
        let first = self.infer_model("add_batched", &one, true, (true, true));
        let second = async {
            self.server.pending("add_batched", 1).await?;
            let gone = self.server.grpc.unregister_cuda_region(Some("one")).await;
            gone.map_err(|error| error.to_string())?;
            self.infer_model("add_batched", &other, false, (true, true)).await
        };
        let (a, b) = tokio::join!(first, second);
        a.map_err(|why| format!("the request that waited: {why}"))?;
        b.map_err(|why| format!("the request beside it: {why}"))?;
        let again = self.infer_model("add_batched", &one, true, (true, true)).await;
        let refused = again.err().ok_or("a request with the region that was unregistered was answered")?;
        self.server.http.unregister_cuda_region(None).await.map_err(|error| error.to_string())?;
        Ok(format!("both answers right; afterwards: {refused}"))
    }

    fn alive(&mut self) -> Seen {
        expect(self.server.is_alive(), || "it is not".into())?;
        Ok(format!("{} descriptors", self.server.descriptors()))
    }
}

fn bytes(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
