//! Do the clients work with a real server?
//!
//! The server is the one of `NERITE_HTTP` and `NERITE_GRPC`, which must serve the model `simple`. Without these variables, the newest binary `nerite` of the
//! target folder is started with `examples/models`. Without a binary, the tests do nothing.

#![allow(clippy::unwrap_used)]

#[path = "ports/free.rs"]
mod ports;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nerite_client::{Code, DataType, Error, Region, Request, Response, Tensor, grpc, http};

struct Server {
    http: String,
    grpc: String,
    child: Option<Child>,
}

/// Clients of the server. The first test that calls this starts the server.
async fn server() -> Option<(http::Client, grpc::Client)> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    let server = SERVER.get_or_init(find).as_ref()?;
    let client = http::Client::new(&server.http).unwrap();
    for _ in 0..12_000 {
        if matches!(client.is_ready().await, Ok(true)) {
            return Some((client, grpc::Client::new(&server.grpc).unwrap()));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} does not become ready (process {:?})", server.http, server.child.as_ref().map(Child::id));
}

fn find() -> Option<Server> {
    let variable = |name| std::env::var(name).ok();
    if let (Some(http), Some(grpc)) = (variable("NERITE_HTTP"), variable("NERITE_GRPC")) {
        return Some(Server { http, grpc, child: None });
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built: Vec<PathBuf> = ["release", "debug"].map(|kind| root.join("target").join(kind).join("nerite")).into();
    let age = |path: &PathBuf| std::fs::metadata(path).and_then(|about| about.modified()).ok();
    let binary = built.iter().filter(|path| age(path).is_some()).max_by_key(|path| age(path))?;
    let [http, grpc, metrics] = ports::free_ports().map(|port| port.to_string());
    // A static is never dropped, so no drop can kill the server. Instead a shell kills it when the pipe from this process is closed.
    let child = Command::new("sh")
        .args(["-c", "\"$@\" & server=$!; cat > /dev/null; kill $server", "sh"])
        .arg(binary)
        .args(["serve", "--model-control-mode", "explicit", "--load-model", "simple", "--load-model", "identity_fp32"])
        .arg("--model-repository")
        .arg(root.join("examples/models"))
        .args(["--http-port", &http, "--grpc-port", &grpc, "--metrics-port", &metrics])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let [http, grpc] = [http, grpc].map(|port| format!("http://127.0.0.1:{port}"));
    Some(Server { http, grpc, child: Some(child) })
}

fn inline() -> Request {
    let counted: Vec<i32> = (0..16).collect();
    let counts = Tensor::from_slice("INPUT0", &[1, 16], &counted).unwrap();
    let ones = Tensor::from_slice("INPUT1", &[1, 16], &[1i32; 16]).unwrap();
    Request::new("simple").id("42").input(counts).input(ones)
}

#[track_caller]
fn check_sums(response: &Response) {
    let (sums, differences): (Vec<i32>, Vec<i32>) = ((1..17).collect(), (-1..15).collect());
    assert_eq!((response.model.as_str(), response.id.as_str()), ("simple", "42"));
    assert_eq!(response.output("OUTPUT0").unwrap().as_slice::<i32>().unwrap(), sums);
    assert_eq!(response.output("OUTPUT1").unwrap().as_slice::<i32>().unwrap(), differences);
}

/// A region with a name that no other test uses, not even one that runs at the same time.
fn region(bytes: usize) -> (Region, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("client_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    (Region::create(&format!("/{name}"), bytes).unwrap(), name)
}

#[tokio::test]
async fn inline_tensors_come_back_added_over_both_protocols() {
    let Some((http, grpc)) = server().await else { return };
    check_sums(&http.infer(&inline()).await.unwrap());
    check_sums(&grpc.infer(&inline()).await.unwrap());
}

#[tokio::test]
async fn a_region_serves_inputs_and_outputs_over_both_protocols() {
    let Some((http, grpc)) = server().await else { return };
    let (made, name) = region(4096);
    made.write(0, &[3i32; 16]).unwrap();
    made.write(64, &[4i32; 16]).unwrap();
    let registered = made.register(&http, &name).await.unwrap();
    let request = Request::new("simple")
        .input_in_region("INPUT0", DataType::Int32, &[1, 16], &registered, 0)
        .and_then(|request| request.input_in_region("INPUT1", DataType::Int32, &[1, 16], &registered, 64))
        .unwrap()
        .output_in_region("OUTPUT0", &registered, 128, 64)
        .output("OUTPUT1");
    for _ in 0..2 {
        registered.write(128, &[0i32; 16]).unwrap();
        let by_http = http.infer(&request).await.unwrap();
        assert!(by_http.output("OUTPUT0").unwrap().is_placed());
        assert_eq!(by_http.output("OUTPUT1").unwrap().as_slice::<i32>().unwrap(), [-1; 16]);
        assert_eq!(registered.view::<i32>(128, 16).unwrap().to_vec(), [7; 16]);
        registered.write(128, &[0i32; 16]).unwrap();
        let by_grpc = grpc.infer(&request).await.unwrap();
        assert!(by_grpc.output("OUTPUT0").unwrap().is_placed());
        assert_eq!(registered.view::<i32>(128, 16).unwrap().to_vec(), [7; 16]);
    }
    registered.unregister().await.unwrap();
    let gone = http.infer(&request).await.expect_err("the region is unknown now");
    assert_eq!(gone.code(), Some(Code::NotFound), "{gone}");
}

#[tokio::test]
async fn a_region_is_listed_while_its_guard_lives() {
    let Some((http, grpc)) = server().await else { return };
    let (made, name) = region(8192);
    let registered = made.register(&grpc, &name).await.unwrap();
    let listed = http.system_regions(Some(&name)).await.unwrap();
    assert_eq!(listed, grpc.system_regions(Some(&name)).await.unwrap());
    assert_eq!((listed[0].byte_size, listed[0].key.as_str()), (8192, format!("/{name}").as_str()));
    drop(registered);
    // The guard unregisters in the background, and this loop waits for it.
    for _ in 0..1000 {
        match grpc.system_regions(Some(&name)).await {
            Err(Error::Refused(status)) if status.code == Code::NotFound => return,
            looked => drop(looked.unwrap()),
        }
        tokio::task::yield_now().await;
    }
    panic!("region {name} is still registered");
}

#[tokio::test]
async fn both_protocols_tell_the_same_of_server_and_models() {
    let Some((http, grpc)) = server().await else { return };
    assert!(http.is_live().await.unwrap() && grpc.is_live().await.unwrap());
    assert!(grpc.is_ready().await.unwrap());
    assert_eq!(http.server_metadata().await.unwrap(), grpc.server_metadata().await.unwrap());
    for (model, ready) in [("simple", true), ("nothing_of_this_name", false)] {
        assert_eq!(http.is_model_ready(model, None).await.unwrap(), ready, "{model}");
        assert_eq!(grpc.is_model_ready(model, None).await.unwrap(), ready, "{model}");
    }
    let metadata = http.model_metadata("simple", Some(1)).await.unwrap();
    assert_eq!(metadata, grpc.model_metadata("simple", Some(1)).await.unwrap());
    assert_eq!(metadata.inputs[0].datatype, DataType::Int32);
    assert!(http.model_config("simple", None).await.unwrap().contains("\"max_batch_size\":8"));
    let config = grpc.model_config("simple", None).await.unwrap().config.unwrap();
    assert_eq!(config.max_batch_size, 8);
    let index = http.repository_index(false).await.unwrap();
    assert!(index.iter().any(|entry| entry.name == "simple" && entry.state == "READY"), "{index:?}");
    assert_eq!(index, grpc.repository_index(false).await.unwrap());
    check_sums(&http.infer(&inline().version(1)).await.unwrap());
    let counted = |all: Vec<nerite_client::report::StatisticsReport>| all.iter().map(|one| one.inference_count).sum();
    let (by_http, by_grpc): (u64, u64) = (
        counted(http.statistics(Some("simple")).await.unwrap()),
        counted(grpc.statistics(Some("simple")).await.unwrap()),
    );
    assert!(by_http >= 1 && by_grpc >= by_http, "{by_http} {by_grpc}");
}

#[tokio::test]
async fn refusals_come_with_their_kind_and_words() {
    let Some((http, grpc)) = server().await else { return };
    let request = Request::new("nothing_of_this_name");
    for refused in [http.infer(&request).await, grpc.infer(&request).await] {
        let error = refused.expect_err("no such model");
        // Over HTTP, Triton first refuses a request without inputs. So the codes differ, but both are refusals of the server.
        assert!(matches!(error, Error::Refused(_)), "{error}");
    }
    let only_one = Request::new("simple").input(Tensor::from_slice("INPUT0", &[1, 16], &[0i32; 16]).unwrap());
    for refused in [http.infer(&only_one).await, grpc.infer(&only_one).await] {
        let error = refused.expect_err("an input is missing");
        assert_eq!(error.code(), Some(Code::InvalidArg));
        assert!(error.to_string().contains("expected 2 inputs but got 1 inputs for model 'simple'"), "{error}");
    }
}

#[tokio::test]
async fn a_stream_answers_in_order_and_survives_a_refusal() {
    let Some((_, grpc)) = server().await else { return };
    let mut stream = grpc.stream();
    stream.send(&inline()).await.unwrap();
    stream.send(&Request::new("nothing_of_this_name").id("no")).await.unwrap();
    stream.send(&inline()).await.unwrap();
    stream.finish();
    let mut ids = Vec::new();
    while let Some(reply) = stream.next().await.unwrap() {
        match reply.outcome {
            Ok(response) => check_sums(&response),
            Err(error) => assert!(error.to_string().contains("nothing_of_this_name"), "{error}"),
        }
        ids.push(reply.id);
    }
    ids.sort();
    assert_eq!(ids, ["42", "42", "no"]);
}

#[tokio::test]
async fn many_callers_share_one_client() {
    let Some((http, grpc)) = server().await else { return };
    let callers: Vec<_> = (0..16)
        .map(|i| {
            let (http, grpc) = (http.clone(), grpc.clone());
            tokio::spawn(async move {
                for _ in 0..8 {
                    let response = if i % 2 == 0 { http.infer(&inline()).await } else { grpc.infer(&inline()).await };
                    check_sums(&response.unwrap());
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
}

#[tokio::test]
async fn large_tensors_travel_whole() {
    let Some((http, grpc)) = server().await else { return };
    if !http.is_model_ready("identity_fp32", None).await.unwrap() {
        return;
    }
    let values: Vec<f32> = (0..1_000_003).map(|i| i as f32).collect();
    let tensor = Tensor::from_slice("INPUT0", &[values.len() as i64], &values).unwrap();
    let request = Request::new("identity_fp32").input(tensor);
    for response in [http.infer(&request).await, grpc.infer(&request).await] {
        assert!(response.unwrap().output("OUTPUT0").unwrap().as_slice::<f32>().unwrap() == values);
    }
}
