//! Which bytes make one request?

use nerite_client::{DataType, Region, RegionRef, grpc, http};
use prost::Message;
use tokio::runtime::Runtime;

use super::args::{Placement, Plan, Protocol};
use super::error::{BenchError, tried};

/// Bytes of a region that no request uses.
const OTHER_BYTES: usize = 4096;

/// One prepared request, and the regions it reads and writes.
pub(crate) struct Payload {
    /// HTTP: head and body. gRPC: the message with its length before it.
    pub(crate) bytes: Vec<u8>,
    regions: Option<Regions>,
}

impl Payload {
    /// Makes and registers the regions, if tensors are sent through them, and writes the request once.
    pub(crate) fn new(
        plan: &Plan,
        server: &(Protocol, String),
        placement: Placement,
        bytes: usize,
    ) -> Result<Payload, BenchError> {
        let (regions, windows) = match placement {
            Placement::Inline => (None, None),
            Placement::Shm => {
                let regions = Regions::new(plan, server, bytes)?;
                let windows = regions.windows(plan.output_bytes.unwrap_or(bytes));
                (Some(regions), Some(windows))
            }
        };
        let bytes = match server.0 {
            Protocol::Http => http_request(plan, &server.1, bytes, windows),
            Protocol::Grpc => grpc_message(plan, bytes, windows),
        };
        Ok(Payload { bytes, regions })
    }

    /// Checks that the results arrived, and unregisters the regions.
    pub(crate) fn end(self) -> Result<(), BenchError> {
        self.regions.map_or(Ok(()), Regions::end)
    }
}

struct Regions {
    runtime: Runtime,
    server: (Protocol, String),
    input: Region,
    output: Region,
    /// Further regions that no request uses. Each has its own object, because Triton 2.51 fails if a key is registered twice.
    others: Vec<Region>,
    bytes: usize,
    echoes: bool,
}

impl Regions {
    fn new(plan: &Plan, server: &(Protocol, String), bytes: usize) -> Result<Regions, BenchError> {
        let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = built.map_err(tried("cannot start a runtime"))?;
        let make = |kind: &str, bytes: usize| {
            // The key serves as the name too.
            Region::create(&format!("nerite_bench_{}_{kind}", std::process::id()), bytes)
        };
        let input = make("in", bytes)?;
        input.edit(0, bytes / 4, |mut place: nerite_client::CellsMut<'_, f32>| place.fill(1.0))?;
        let output = make("out", plan.output_bytes.unwrap_or(bytes))?;
        let others = (0..plan.regions).map(|i| make(&i.to_string(), OTHER_BYTES)).collect::<Result<Vec<_>, _>>()?;
        let (server, echoes) = (server.clone(), plan.output_bytes.is_none());
        let regions = Regions { runtime, server, input, output, others, bytes, echoes };
        regions.runtime.block_on(async {
            let caller = Caller::new(&regions.server)?;
            for region in regions.all() {
                caller.register(region).await?;
            }
            Ok::<(), nerite_client::Error>(())
        })?;
        Ok(regions)
    }

    fn all(&self) -> impl Iterator<Item = &Region> {
        [&self.input, &self.output].into_iter().chain(&self.others)
    }

    fn windows(&self, output_bytes: usize) -> [RegionRef; 2] {
        [(&self.input, self.bytes), (&self.output, output_bytes)].map(|(region, bytes)| RegionRef {
            name: region.key().into(),
            offset: 0,
            byte_size: bytes as u64,
        })
    }

    fn end(self) -> Result<(), BenchError> {
        // An identity's output must be the input. For other models it is only checked that a request succeeded.
        let ones = self.output.view::<u32>(0, self.output.byte_size() / 4)?;
        let written = !self.echoes || ones.iter().all(|value| value == 1.0f32.to_bits());
        self.runtime.block_on(async {
            let caller = Caller::new(&self.server)?;
            for region in self.all() {
                if let Err(reason) = caller.unregister(region.key()).await {
                    eprintln!("nerite-bench: region {} stays registered: {reason}", region.key());
                }
            }
            Ok::<(), nerite_client::Error>(())
        })?;
        if written { Ok(()) } else { Err(BenchError::NotWritten) }
    }
}

/// The client for registering. A new one is made each time, because nothing drives its connection in between.
enum Caller {
    Http(http::Client),
    Grpc(grpc::Client),
}

impl Caller {
    fn new((protocol, address): &(Protocol, String)) -> Result<Caller, nerite_client::Error> {
        match protocol {
            Protocol::Http => http::Client::new(address).map(Caller::Http),
            Protocol::Grpc => grpc::Client::new(address).map(Caller::Grpc),
        }
    }

    async fn register(&self, region: &Region) -> Result<(), nerite_client::Error> {
        let (name, bytes) = (region.key(), region.byte_size() as u64);
        match self {
            Caller::Http(client) => client.register_system_region(name, region.key(), 0, bytes).await,
            Caller::Grpc(client) => client.register_system_region(name, region.key(), 0, bytes).await,
        }
    }

    async fn unregister(&self, name: &str) -> Result<(), nerite_client::Error> {
        match self {
            Caller::Http(client) => client.unregister_system_region(name).await,
            Caller::Grpc(client) => client.unregister_system_region(name).await,
        }
    }
}

fn shape(plan: &Plan, bytes: usize) -> Vec<i64> {
    let elements = (bytes / 4) as i64;
    if plan.batch { vec![1, elements] } else { vec![elements] }
}

fn ones(bytes: usize) -> Vec<u8> {
    1.0f32.to_le_bytes().repeat(bytes / 4)
}

fn http_request(plan: &Plan, address: &str, bytes: usize, windows: Option<[RegionRef; 2]>) -> Vec<u8> {
    let region = |window: &RegionRef| {
        format!(r#"{{"shared_memory_region":"{}","shared_memory_byte_size":{}}}"#, window.name, window.byte_size)
    };
    let (from, to, tensor) = match &windows {
        Some([from, to]) => (region(from), region(to), Vec::new()),
        None => (format!(r#"{{"binary_data_size":{bytes}}}"#), r#"{"binary_data":true}"#.to_owned(), ones(bytes)),
    };
    let (input, output, shape) = (&plan.input, &plan.output, shape(plan, bytes));
    let json = format!(
        r#"{{"inputs":[{{"name":"{input}","shape":{shape:?},"datatype":"FP32","parameters":{from}}}],"outputs":[{{"name":"{output}","parameters":{to}}}]}}"#
    );
    let host = if address.starts_with("unix:") { "localhost" } else { address };
    let parts = if windows.is_some() {
        "Content-Type: application/json\r\n".to_owned()
    } else {
        format!("Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {}\r\n", json.len())
    };
    let mut request = format!(
        "POST /v2/models/{}/infer HTTP/1.1\r\nHost: {host}\r\n{parts}Content-Length: {}\r\n\r\n{json}",
        plan.model,
        json.len() + tensor.len()
    )
    .into_bytes();
    request.extend(tensor);
    request
}

fn grpc_message(plan: &Plan, bytes: usize, windows: Option<[RegionRef; 2]>) -> Vec<u8> {
    use grpc::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
    use grpc::proto::{InferParameter, ModelInferRequest, infer_parameter::ParameterChoice};

    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let region = |window: &RegionRef| {
        let size = parameter(ParameterChoice::Int64Param(window.byte_size as i64));
        let name = parameter(ParameterChoice::StringParam(window.name.to_string()));
        [("shared_memory_byte_size".to_owned(), size), ("shared_memory_region".to_owned(), name)].into()
    };
    let [from, to] = windows.as_ref().map(|[from, to]| [region(from), region(to)]).unwrap_or_default();
    let input = InferInputTensor {
        name: plan.input.clone(),
        datatype: DataType::Fp32.name().to_owned(),
        shape: shape(plan, bytes),
        parameters: from,
        contents: None,
    };
    let message = ModelInferRequest {
        model_name: plan.model.clone(),
        inputs: vec![input],
        outputs: vec![InferRequestedOutputTensor { name: plan.output.clone(), parameters: to }],
        raw_input_contents: if windows.is_some() { vec![] } else { vec![ones(bytes).into()] },
        ..ModelInferRequest::default()
    };
    // One byte says that nothing is compressed, four the length.
    let mut framed = vec![0];
    framed.extend((message.encoded_len() as u32).to_be_bytes());
    framed.extend(message.encode_to_vec());
    framed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inline_http_request_says_where_its_tensor_begins() {
        let request = http_request(&Plan::default(), "a:1", 64, None);
        let text = String::from_utf8_lossy(&request);
        let (head, body) = text.split_once("\r\n\r\n").expect("head and body");
        let length = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name)).expect("the header");
            line.trim_start_matches(':').trim().parse::<usize>().expect("a number")
        };
        let json_len = length("Inference-Header-Content-Length");
        assert_eq!(length("Content-Length"), json_len + 64);
        assert!(body.as_bytes()[..json_len].ends_with(b"}]}"), "{body}");
    }

    #[test]
    fn a_grpc_message_carries_its_length() {
        let framed = grpc_message(&Plan::default(), 64, None);
        let (head, message) = framed.split_at(5);
        assert_eq!((head[0], u32::from_be_bytes([head[1], head[2], head[3], head[4]])), (0, message.len() as u32));
        let read = grpc::proto::ModelInferRequest::decode(message).expect("a message");
        assert_eq!((read.model_name.as_str(), read.raw_input_contents[0].len()), ("identity_fp32", 64));
    }
}
