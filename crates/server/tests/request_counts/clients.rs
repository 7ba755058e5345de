//! How is a request of each kind sent?
//!
//! Each request is written to its socket at once, as grpcio and most clients of HTTP do. What a server reads in two pieces may cost more.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use nerite_client::{DataType, Lease, Region, RegionRef, Request, Session, Tensor, http};
use nerite_wire::proto::messages as proto;
use prost::Message as _;
use proto::infer_parameter::ParameterChoice;
use proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use crate::kinds::{INPUT, Kind, Protocol, Tensors};

const REGION: &str = "region";
const REGION_BYTES: usize = 4096;
/// Where outputs begin in the region and in the lease.
const OUTPUT_AT: u64 = 2048;

/// Where a server listens. A Unix socket would wake the server once more when the client reads the answer, if the server sleeps by then.
#[derive(Clone)]
pub struct Addresses {
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    pub session: PathBuf,
}

impl Addresses {
    /// Ports that nobody uses, and a socket in this folder.
    pub fn free(folder: &Path) -> Addresses {
        let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [http, grpc] = held.each_ref().map(|listener| listener.local_addr().unwrap());
        Addresses { http, grpc, session: folder.join("session.sock") }
    }
}

/// A client of one server, with memory that both share. What it spawns runs on the thread that calls.
pub struct Client {
    runtime: Runtime,
    addresses: Addresses,
    http: http::Client,
    session: Session,
    lease: Lease,
    _region: Region,
}

impl Client {
    /// Waits until the server is ready, and connects to it.
    pub fn connect(addresses: &Addresses, mut has_ended: impl FnMut() -> bool) -> Client {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let key = format!("/nerite-request-counts-{}", std::process::id());
        let region = Region::create(&key, REGION_BYTES).unwrap();
        region.write(0, &[1f32; 64]).unwrap();
        let (http, session, lease) = runtime.block_on(async {
            let http = http::Client::new(&format!("http://{}", addresses.http)).unwrap();
            while !http.is_ready().await.is_ok_and(|is_ready| is_ready) {
                assert!(!has_ended(), "the server did not start");
                std::thread::yield_now();
            }
            http.register_system_region(REGION, &key, 0, REGION_BYTES as u64).await.unwrap();
            let session = Session::connect(&addresses.session).await.unwrap();
            session.register_system_region(REGION, &key, 0, REGION_BYTES as u64).await.unwrap();
            let lease = session.borrow(REGION_BYTES).await.unwrap();
            lease.write(0, &[1f32; 64]).unwrap();
            (http, session, lease)
        });
        Client { runtime, addresses: addresses.clone(), http, session, lease, _region: region }
    }

    /// What sends a request of this kind and waits for its response.
    pub fn caller(&self, kind: &Kind) -> Box<dyn FnMut() + '_> {
        let (runtime, request) = (&self.runtime, self.request(kind));
        match kind.protocol {
            Protocol::Http => Box::new(move || drop(runtime.block_on(self.http.infer(&request)).unwrap())),
            Protocol::Grpc => {
                let (connection, message) = (runtime.block_on(open(&self.addresses)), grpc_message(kind));
                Box::new(move || runtime.block_on(call(connection.clone(), message.clone())))
            }
            Protocol::Session => Box::new(move || drop(runtime.block_on(self.session.infer(&request)).unwrap())),
            Protocol::Prepared => {
                let prepared = runtime.block_on(self.session.prepare(&request)).unwrap();
                Box::new(move || drop(runtime.block_on(prepared.call()).unwrap()))
            }
        }
    }

    fn request(&self, kind: &Kind) -> Request {
        let (model, request) = (kind.model, Request::new(kind.model.name));
        let window = |offset: u64, byte_size: u64| match kind.tensors {
            Tensors::Lease => self.lease.window(offset as usize, byte_size as usize),
            _ => RegionRef { name: REGION.into(), offset, byte_size },
        };
        if kind.tensors == Tensors::Inline {
            let ones = Tensor::from_slice(model.input, &[INPUT.len() as i64], &INPUT).unwrap();
            return request.input(ones).output(model.output);
        }
        request
            .input_in_window(model.input, DataType::Fp32, &[INPUT.len() as i64], window(0, size_of_val(&INPUT) as u64))
            .output_in_window(model.output, window(OUTPUT_AT, model.output_bytes))
    }
}

/// The message of a call, behind its length.
fn grpc_message(kind: &Kind) -> Bytes {
    let (model, is_inline) = (kind.model, kind.tensors == Tensors::Inline);
    let data: Vec<u8> = INPUT.iter().flat_map(|number| number.to_le_bytes()).collect();
    let parameters = |offset: u64, byte_size: u64| {
        let place = [
            ("shared_memory_region", ParameterChoice::StringParam(REGION.to_owned())),
            ("shared_memory_offset", ParameterChoice::Int64Param(offset as i64)),
            ("shared_memory_byte_size", ParameterChoice::Int64Param(byte_size as i64)),
        ];
        let place = place.into_iter().filter(|_| !is_inline);
        place.map(|(key, one)| (key.to_owned(), proto::InferParameter { parameter_choice: Some(one) })).collect()
    };
    let input = InferInputTensor {
        name: model.input.to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![INPUT.len() as i64],
        parameters: parameters(0, data.len() as u64),
        contents: None,
    };
    let output = InferRequestedOutputTensor {
        name: model.output.to_owned(),
        parameters: parameters(OUTPUT_AT, model.output_bytes),
    };
    let message = proto::ModelInferRequest {
        model_name: model.name.to_owned(),
        inputs: vec![input],
        outputs: vec![output],
        raw_input_contents: if is_inline { vec![data.into()] } else { Vec::new() },
        ..proto::ModelInferRequest::default()
    };
    let mut framed = vec![0];
    framed.extend_from_slice(&(message.encoded_len() as u32).to_be_bytes());
    message.encode(&mut framed).unwrap();
    framed.into()
}

type Grpc = h2::client::SendRequest<Bytes>;

async fn open(addresses: &Addresses) -> Grpc {
    let socket = TcpStream::connect(addresses.grpc).await.unwrap();
    socket.set_nodelay(true).unwrap();
    let (client, connection) = h2::client::handshake(socket).await.unwrap();
    tokio::spawn(connection);
    client
}

/// One call. Its head and its message are there before the connection's task runs, so they are sent together.
async fn call(client: Grpc, message: Bytes) {
    let head = ::http::Request::post("http://localhost/inference.GRPCInferenceService/ModelInfer")
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let (answer, mut body) = client.ready().await.unwrap().send_request(head.body(()).unwrap(), false).unwrap();
    body.send_data(message, true).unwrap();
    let mut answer = answer.await.unwrap().into_body();
    while let Some(piece) = answer.data().await {
        answer.flow_control().release_capacity(piece.unwrap().len()).unwrap();
    }
    let trailers = answer.trailers().await.unwrap().unwrap();
    assert_eq!(trailers["grpc-status"], "0", "{trailers:?}");
}
