//! Does the check of a GPU machine pass where the driver is the stand-in, and say so where there is none?
#![allow(clippy::unwrap_used)]

#[path = "../examples/gpu_check/bandwidth.rs"]
mod bandwidth;
#[path = "../examples/gpu_check/checks.rs"]
mod checks;
#[path = "../examples/gpu_check/metrics.rs"]
mod metrics;
#[path = "../examples/gpu_check/onnx.rs"]
mod onnx;
#[path = "../examples/gpu_check/server.rs"]
mod server;
#[path = "../../cuda/tests/stand_in/compile.rs"]
mod stand_in;

use checks::Plan;
use nerite_cuda::Driver;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_check_passes_over_the_stand_in() {
    let library = stand_in::library();
    let plan = Plan {
        driver: Driver::open(Some(library)).unwrap(),
        library: Some(library.to_owned()),
        nvml: Some(stand_in::nvml("libnvidia-ml.so.1", &[])),
        onnxruntime: None,
        nerite: env!("CARGO_BIN_EXE_nerite").into(),
        registrations: 50,
        copy_bytes: 1 << 20,
    };
    let rows = checks::run(&plan).await;
    // No provider runs over the stand-in, so models on the GPU are not checked here.
    assert_eq!(rows.iter().map(|row| row.skipped).collect::<Vec<_>>(), [&[false; 13][..], &[true]].concat());
    for row in rows {
        assert!(row.seen.is_ok(), "{}: {:?}", row.name, row.seen);
    }
}

/// ONNX Runtime computes, as ever, on the host; the stand-in in front of it has the rules of a provider on a device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_onnx_model_passes_over_the_stand_ins() {
    let Some(real) = nerite_ort::find_library(None) else {
        println!("skipped: no ONNX Runtime on this host (pip install onnxruntime, or set ORT_DYLIB_PATH)");
        return;
    };
    let library = stand_in::library();
    let plan = Plan {
        driver: Driver::open(Some(library)).unwrap(),
        library: Some(library.to_owned()),
        nvml: None,
        onnxruntime: Some(stand_in::provider(&real).to_owned()),
        nerite: env!("CARGO_BIN_EXE_nerite").into(),
        registrations: 0,
        copy_bytes: 0,
    };
    let rows = onnx::run(&plan, &plan.driver.device(0).unwrap()).await;
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert!(row.seen.is_ok(), "{}: {:?}", row.name, row.seen);
    }
}

#[tokio::test]
async fn an_onnx_runtime_that_runs_nothing_on_the_device_is_reported() {
    let library = stand_in::library();
    let plan = Plan {
        driver: Driver::open(Some(library)).unwrap(),
        library: Some(library.to_owned()),
        nvml: None,
        // The embedded engine.
        onnxruntime: Some("none".into()),
        nerite: env!("CARGO_BIN_EXE_nerite").into(),
        registrations: 0,
        copy_bytes: 0,
    };
    let rows = onnx::run(&plan, &plan.driver.device(0).unwrap()).await;
    let error = rows[0].seen.as_ref().unwrap_err();
    assert!(rows.len() == 1 && error.contains("the embedded engine computes on the host"), "{rows:?}");
}

#[tokio::test]
async fn a_server_that_does_not_start_is_reported() {
    let library = stand_in::library();
    let plan = Plan {
        driver: Driver::open(Some(library)).unwrap(),
        library: Some("/nowhere/libcuda.so.1".into()),
        nvml: None,
        onnxruntime: None,
        nerite: env!("CARGO_BIN_EXE_nerite").into(),
        registrations: 0,
        copy_bytes: 0,
    };
    let rows = checks::run(&plan).await;
    assert!(rows.len() == 1 && rows[0].seen.as_ref().is_err_and(|why| why.starts_with("the server ended")), "{rows:?}");
}
