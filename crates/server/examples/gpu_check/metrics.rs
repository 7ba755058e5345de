//! Are the metrics of the device there, and right?

use std::sync::Arc;
use std::time::Duration;

use nerite_cuda::{Device, Nvml, NvmlAbsent};

use crate::checks::{Plan, Row, Seen, expect};
use crate::server::Server;

/// How often the page is looked at before the metrics must be there, and the time between two looks.
const LOOKS_MAX: u32 = 100;
const PAUSE: Duration = Duration::from_millis(200);

/// Compares the page of metrics with what NVML tells this process, or says why not.
pub async fn run(plan: &Plan, device: &Device, server: &Server) -> Row {
    let name = "metrics of the device";
    match Nvml::open(plan.nvml.as_deref()) {
        Err(absent @ NvmlAbsent::NoLibrary { .. }) => {
            Row { name, seen: Ok(format!("not checked: {absent}")), skipped: true }
        }
        Err(absent) => Row { name, seen: Err(absent.to_string()), skipped: false },
        Ok(nvml) => Row { name, seen: compare(&nvml, device, server).await, skipped: false },
    }
}

async fn compare(nvml: &Arc<Nvml>, device: &Device, server: &Server) -> Seen {
    let place = device.pci_bus_id().map_err(|error| error.to_string())?;
    let card = nvml.device(&place).map_err(|error| error.to_string())?;
    let (uuid, total) = (card.uuid(), card.memory().map_err(|error| error.to_string())?.total);
    let of = |family: &str| format!("{family}{{gpu_uuid=\"{uuid}\"}}");
    let mut looks = 0;
    let shown = loop {
        match server.metric(&of("nv_gpu_memory_total_bytes")).await {
            Ok(bytes) => break bytes,
            Err(why) if looks == LOOKS_MAX => return Err(why),
            Err(_) => looks += 1,
        }
        tokio::time::sleep(PAUSE).await;
    };
    let used = server.metric(&of("nv_gpu_memory_used_bytes")).await?;
    expect(shown == total && used <= total, || format!("{used} of {shown} bytes are used, NVML says {total}"))?;
    let families = ["nv_gpu_utilization", "nv_gpu_power_usage", "nv_gpu_power_limit", "nv_energy_consumption"];
    let mut lacking = Vec::new();
    for family in families {
        if server.sample(&of(family)).await.is_err() {
            lacking.push(family);
        }
    }
    // Not each GPU has all of them.
    let lacking = if lacking.is_empty() { String::new() } else { format!("; not there: {}", lacking.join(", ")) };
    Ok(format!("{used} of {total} bytes of {uuid} are used{lacking}"))
}
