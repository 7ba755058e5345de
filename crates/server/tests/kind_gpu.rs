//! Is a model that asks for a GPU told what is missing, and does nobody get one who did not ask?
//!
//! The server is the binary. Its driver is the stand-in (no CUDA), or none.
#![allow(clippy::unwrap_used)]

#[path = "../../client/tests/ports/free.rs"]
mod ports;
#[path = "../../cuda/tests/stand_in/compile.rs"]
mod stand_in;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nerite_client::{Request, Tensor, http};

struct Server {
    child: Child,
    http: http::Client,
    metrics: String,
}

impl Server {
    /// With nothing loaded, and this driver.
    async fn start(driver: &Path, onnxruntime: &Path, more: &[&str]) -> Server {
        let [http, grpc, metrics] = ports::free_ports().map(|port| port.to_string());
        let child = Command::new(env!("CARGO_BIN_EXE_nerite"))
            .args(["serve", "--model-control-mode", "explicit", "--session-socket", "off", "--log-error", "false"])
            .args(["--http-port", &http, "--grpc-port", &grpc, "--metrics-port", &metrics])
            .arg("--model-repository")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models"))
            .arg("--onnxruntime-library")
            .arg(onnxruntime)
            .arg("--cuda-library")
            .arg(driver)
            .args(more)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let client = http::Client::new(&format!("http://127.0.0.1:{http}")).unwrap();
        for _ in 0..6000 {
            if matches!(client.is_ready().await, Ok(true)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Server { child, http: client, metrics }
    }

    /// Loads a model of the examples with these instance groups: the group that it then has, or why it is not loaded.
    async fn load(&self, model: &str, backend: &str, groups: &str) -> Result<String, String> {
        let tensors = if backend == "identity" {
            r#", "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
                "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}]"#
        } else {
            ""
        };
        self.load_as(model, &format!(r#"{{"backend": "{backend}", "instance_group": {groups}{tensors}}}"#)).await
    }

    /// Loads a model of the examples with this configuration: its instance groups, or why it is not loaded.
    async fn load_as(&self, model: &str, config: &str) -> Result<String, String> {
        self.http.load_model(model, Some(config)).await.map_err(|error| error.to_string())?;
        let config = self.http.model_config(model, None).await.unwrap();
        let group = config.split_once("\"instance_group\":").unwrap().1;
        Ok(group.split_inclusive(']').next().unwrap().to_owned())
    }
}

impl Server {
    /// The lines of the page of metrics that begin with this.
    fn metrics_lines(&self, begin: &str) -> Vec<String> {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{}", self.metrics)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks that the model's runs are counted for each GPU that these groups name, and without a GPU for the host.
#[track_caller]
fn check_counts(lines: &[String], groups: &str) {
    let counts = |is_gpu: bool| -> Vec<u64> {
        let of_kind = lines.iter().filter(|line| line.contains("gpu_uuid=\"GPU-") == is_gpu);
        of_kind.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    };
    let (gpus, others) = (counts(true), counts(false));
    let has_one_gpu = groups.contains("\"gpus\": [1]");
    let has_host = groups.contains("KIND_CPU");
    assert_eq!(
        (gpus.len(), others.len()),
        (if has_one_gpu { 1 } else { 2 }, usize::from(has_host || !has_one_gpu)),
        "{lines:?}"
    );
    // Groups that only have other numbers of instances leave the statistics as they are.
    let all: u64 = gpus.iter().chain(&others).sum();
    assert!(all >= 8 && all.is_multiple_of(8), "{lines:?}");
    assert!(has_host || others.iter().all(|count| *count == 0), "{lines:?}");
}

const EMBEDDED: &str = "none";

/// What a server with this driver and engine says of `simple` with these groups.
#[track_caller]
fn check_refused(found: &Result<String, String>, part: &str) {
    let error = found.as_ref().unwrap_err();
    assert!(error.contains(part), "{part:?} is not in {error:?}");
}

#[tokio::test]
async fn without_a_driver_the_loader_says_so() {
    let server = Server::start(Path::new("none"), Path::new(EMBEDDED), &[]).await;
    let found = server.load("simple", "onnxruntime", r#"[{"kind": "KIND_GPU"}]"#).await;
    let part = "instance group simple_0 of model simple has kind KIND_GPU but server does not support GPUs: GPUs are switched \
                off by --cuda-library; use KIND_CPU";
    check_refused(&found, part);
}

#[tokio::test]
async fn with_a_driver_the_runtime_says_what_it_lacks() {
    let server = Server::start(stand_in::library(), Path::new(EMBEDDED), &[]).await;
    let found = server.load("simple", "onnxruntime", r#"[{"kind": "KIND_GPU"}]"#).await;
    let part = "instance group simple_0 of model simple has kind KIND_GPU, but the embedded engine computes on the host: \
                install ONNX Runtime with its CUDA provider (pip install onnxruntime-gpu) or name its library with \
                --onnxruntime-library, or use KIND_CPU";
    check_refused(&found, part);
    let found = server.load("identity_fp32", "identity", r#"[{"kind": "KIND_GPU"}]"#).await;
    check_refused(&found, "but backend 'identity' (built in) computes on the host, or use KIND_CPU");
    let found = server.load("simple", "onnxruntime", r#"[{"kind": "KIND_GPU", "gpus": [7]}]"#).await;
    check_refused(&found, "specifies invalid or unsupported gpu id 7.");
    check_refused(&found, "compute compatibility of 6.000000 are: 0, 1");
}

#[tokio::test]
async fn a_gpu_that_is_too_old_is_none() {
    let old = ["--min-supported-compute-capability", "9.5"];
    let server = Server::start(stand_in::library(), Path::new(EMBEDDED), &old).await;
    let found = server.load("simple", "onnxruntime", r#"[{"kind": "KIND_GPU"}]"#).await;
    check_refused(&found, "instance group simple_0 of model simple has kind KIND_GPU but no GPUs are available");
}

#[tokio::test]
async fn who_does_not_ask_for_a_gpu_stays_on_the_host() {
    let server = Server::start(stand_in::library(), Path::new(EMBEDDED), &[]).await;
    for groups in ["[]", "[{}]", r#"[{"kind": "KIND_AUTO", "count": 1}]"#, r#"[{"kind": "KIND_CPU"}]"#] {
        let group = server.load("simple", "onnxruntime", groups).await.unwrap();
        assert!(group.contains("\"KIND_CPU\""), "{groups} became {group}");
    }
}

#[tokio::test]
async fn onnx_runtime_says_whether_its_provider_is_missing_or_does_not_start() {
    let Some(library) = nerite_ort::find_library(None) else {
        println!("skipped: no ONNX Runtime on this host (pip install onnxruntime, or set ORT_DYLIB_PATH)");
        return;
    };
    let server = Server::start(stand_in::library(), &library, &[]).await;
    let found = server.load("simple", "onnxruntime", r#"[{"kind": "KIND_GPU", "count": 2, "gpus": [0, 1]}]"#).await;
    let error = found.unwrap_err();
    // Which of them depends on the library that this host has; over the stand-in none starts.
    let missing = format!("ONNX Runtime at '{}' has no CUDA provider: install", library.display());
    let stopped = "unable to load model 'simple' on device 0, ONNX Runtime's CUDA provider does not start: ";
    assert!(error.contains(&missing) || error.contains(stopped), "{error}");
    assert!(error.contains("or use KIND_CPU"), "{error}");
    server.load("simple", "onnxruntime", r#"[{"kind": "KIND_CPU"}]"#).await.unwrap();
}

/// The provider is a stand-in in front of the host's ONNX Runtime, which computes on the host.
#[tokio::test]
async fn a_model_runs_on_each_of_its_gpus() {
    let Some(real) = nerite_ort::find_library(None) else {
        println!("skipped: no ONNX Runtime on this host (pip install onnxruntime, or set ORT_DYLIB_PATH)");
        return;
    };
    let server = Server::start(stand_in::library(), stand_in::provider(&real), &[]).await;
    for groups in [
        r#"[{"kind": "KIND_GPU", "count": 2, "gpus": [0, 1]}]"#,
        r#"[{"kind": "KIND_GPU"}]"#,
        r#"[{"kind": "KIND_GPU", "gpus": [1]}]"#,
        r#"[{"kind": "KIND_CPU", "count": 1}, {"kind": "KIND_GPU", "gpus": [1]}]"#,
    ] {
        let shown = server.load("simple", "onnxruntime", groups).await.unwrap();
        assert!(!groups.contains("\"KIND_GPU\"}]") || shown.contains("\"gpus\":[0,1]"), "{groups} became {shown}");
        for turn in 0..8 {
            let input = |name| Tensor::from_slice(name, &[1, 16], &[turn; 16]).unwrap();
            let request = Request::new("simple").input(input("INPUT0")).input(input("INPUT1"));
            let answered = server.http.infer(&request).await.unwrap();
            assert_eq!(answered.output("OUTPUT0").unwrap().as_slice::<i32>().unwrap(), [2 * turn; 16]);
        }
        check_counts(&server.metrics_lines("nv_inference_count{"), groups);
    }
    let accelerated = r#"{"backend": "onnxruntime", "instance_group": [{"kind": "KIND_GPU"}], "optimization": {
        "execution_accelerators": {"gpu_execution_accelerator": [{"name": "tensorrt"}]}}}"#;
    check_refused(
        &server.load_as("simple", accelerated).await,
        "unknown Execution Accelerator 'tensorrt' is requested",
    );
}
