//! Are NVML's figures read as NVML means them?
//!
//! Against a stand-in, which has NVML's symbols over numbers of its own.
#![allow(clippy::unwrap_used)]

#[path = "stand_in/compile.rs"]
mod stand_in;

use std::path::Path;
use std::sync::Arc;

use nerite_cuda::{Driver, GpuMemory, Nvml, NvmlDevice};

const GIB: u64 = 1 << 30;

/// The two devices of the stand-in with these definitions, by the places that the stand-in driver gives.
fn devices(file: &str, defined: &[&str]) -> Vec<NvmlDevice> {
    let nvml = Nvml::open(Some(&stand_in::nvml(file, defined))).unwrap();
    let driver = Driver::open(Some(stand_in::library())).unwrap();
    driver.devices().iter().map(|device| nvml.device(&device.pci_bus_id().unwrap()).unwrap()).collect()
}

#[track_caller]
fn check_absent(path: &Path, expect: &str) {
    let text = Nvml::open(Some(path)).map(drop).unwrap_err().to_string();
    assert!(text.contains(expect), "{text}");
}

#[test]
fn a_host_without_nvml_is_reported_plainly() {
    check_absent(
        Path::new("libnvidia-ml-of-nowhere.so.1"),
        "no NVML: libnvidia-ml-of-nowhere.so.1: cannot open shared",
    );
    check_absent(Path::new("libc.so.6"), "libc.so.6 is no NVML that can be used: it has no nvmlInit_v2");
    let refuses = stand_in::nvml("libnvml_refuses.so", &["FAIL=\"nvmlInit_v2\"", "CODE=9"]);
    check_absent(&refuses, "NVML does not start: nvmlInit_v2: Unknown Error (9)");
}

#[test]
fn figures_are_those_of_the_device_at_the_place_on_the_bus() {
    let found = devices("libnvml_plain.so", &[]);
    let uuids: Vec<_> = found.iter().map(NvmlDevice::uuid).collect();
    assert_eq!(uuids, ["GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"]);
    let utilization: Vec<_> = found.iter().map(|device| device.utilization_percent().unwrap()).collect();
    assert_eq!(utilization, [25, 50]);
    assert_eq!(found[1].memory().unwrap(), GpuMemory { total: 8 * GIB, used: 2 * GIB });
    assert_eq!((found[1].power_usage_mw().unwrap(), found[1].power_limit_mw().unwrap()), (201_000, 700_000));
    assert_eq!((found[0].energy_mj().unwrap(), found[0].energy_mj().unwrap()), (5_000_000, 5_002_500));
}

#[test]
fn an_older_driver_counts_its_own_memory_as_used() {
    let found = devices("libnvml_old.so", &["OLD"]);
    assert_eq!(found[0].memory().unwrap(), GpuMemory { total: 8 * GIB, used: GIB + GIB / 2 });
}

#[test]
fn what_a_device_does_not_have_is_distinguished_from_what_failed() {
    let fails = |file, code| {
        let found = devices(file, &["FAIL=\"nvmlDeviceGetPowerUsage\"", code, "DEVICE=1"]);
        assert_eq!(found[0].power_usage_mw().unwrap(), 100_500);
        found[1].power_usage_mw().unwrap_err()
    };
    let unsupported = fails("libnvml_unsupported.so", "CODE=3");
    assert!(unsupported.is_unsupported() && unsupported.to_string() == "nvmlDeviceGetPowerUsage: Not Supported (3)");
    let failed = fails("libnvml_fails.so", "CODE=999");
    assert!(!failed.is_unsupported() && failed.to_string() == "nvmlDeviceGetPowerUsage: Unknown Error (999)");
}

#[test]
fn a_place_without_a_gpu_has_no_figures() {
    let nvml: Arc<Nvml> = Nvml::open(Some(&stand_in::nvml("libnvml_places.so", &[]))).unwrap();
    let refused = nvml.device(c"0000:77:00.0").unwrap_err();
    assert_eq!(refused.to_string(), "nvmlDeviceGetHandleByPciBusId_v2: Not Found (6)");
}
