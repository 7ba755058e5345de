//! How are GPUs shown as metrics?

use super::page::{Page, Value, escaped};

/// One GPU. A figure that the GPU does not have, or that its driver no longer reports, is `None` and is omitted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuMetrics {
    /// Its identity.
    pub uuid: String,
    /// Share of the last moments in which its processors worked, from 0 to 1.
    pub utilization: Option<f64>,
    /// Bytes of memory.
    pub memory_total_bytes: Option<u64>,
    /// Bytes of memory in use.
    pub memory_used_bytes: Option<u64>,
    /// Power that it draws, in watts.
    pub power_usage_watts: Option<f64>,
    /// Power that it may draw, in watts.
    pub power_limit_watts: Option<f64>,
    /// Energy that it used since the server started, in joules.
    pub energy_joules: Option<f64>,
    /// Seconds since these figures were taken.
    pub age_s: f64,
}

type Read = fn(&GpuMetrics) -> Option<Value>;

/// Triton's families: name, kind, help.
const FAMILIES: [(&str, &str, &str, Read); 6] = [
    ("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0)", |gpu| gpu.utilization.map(Value::Real)),
    ("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", |gpu| {
        gpu.memory_total_bytes.map(Value::Whole)
    }),
    ("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", |gpu| gpu.memory_used_bytes.map(Value::Whole)),
    ("nv_gpu_power_usage", "gauge", "GPU power usage in watts", |gpu| gpu.power_usage_watts.map(Value::Real)),
    ("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", |gpu| {
        gpu.power_limit_watts.map(Value::Real)
    }),
    ("nv_energy_consumption", "counter", "GPU energy consumption in joules since the Triton Server started", |gpu| {
        gpu.energy_joules.map(Value::Real)
    }),
];

/// Writes Triton's families.
pub(super) fn write(page: &mut Page, gpus: &[GpuMetrics]) {
    for (name, kind, help, read) in FAMILIES {
        page.family(name, kind, help, gpus.iter().filter_map(|gpu| Some((labels(gpu), read(gpu)?))));
    }
}

/// Writes nerite's own family.
pub(super) fn write_own(page: &mut Page, gpus: &[GpuMetrics]) {
    page.family(
        "nerite_gpu_metrics_age_seconds",
        "gauge",
        "Seconds since the driver last answered for this GPU; grows while the driver does not return",
        gpus.iter().map(|gpu| (labels(gpu), Value::Real(gpu.age_s))),
    );
}

fn labels(gpu: &GpuMetrics) -> String {
    format!("{{gpu_uuid=\"{}\"}}", escaped(&gpu.uuid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(gpus: &[GpuMetrics], line: &str, there: bool) {
        let mut page = Page { out: String::new() };
        write(&mut page, gpus);
        write_own(&mut page, gpus);
        assert_eq!(page.out.lines().any(|found| found == line), there, "{line}\n{}", page.out);
    }

    fn gpu(uuid: &str) -> GpuMetrics {
        GpuMetrics { uuid: uuid.to_owned(), ..GpuMetrics::default() }
    }

    #[test]
    fn each_gpu_has_the_figures_that_its_driver_gives() {
        let first = GpuMetrics {
            utilization: Some(0.25),
            memory_total_bytes: Some(8 << 30),
            memory_used_bytes: Some(1 << 30),
            power_usage_watts: Some(100.5),
            power_limit_watts: Some(700.0),
            energy_joules: Some(2.5),
            age_s: 1.5,
            ..gpu("GPU-1")
        };
        let gpus = [first, GpuMetrics { utilization: Some(0.0), ..gpu("GPU-2") }];
        check(&gpus, "# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)", true);
        check(&gpus, "# TYPE nv_gpu_utilization gauge", true);
        check(&gpus, "nv_gpu_utilization{gpu_uuid=\"GPU-1\"} 0.25", true);
        check(&gpus, "nv_gpu_utilization{gpu_uuid=\"GPU-2\"} 0", true);
        check(&gpus, "nv_gpu_memory_total_bytes{gpu_uuid=\"GPU-1\"} 8589934592", true);
        check(&gpus, "nv_gpu_memory_used_bytes{gpu_uuid=\"GPU-1\"} 1073741824", true);
        check(&gpus, "nv_gpu_power_usage{gpu_uuid=\"GPU-1\"} 100.5", true);
        check(&gpus, "nv_gpu_power_limit{gpu_uuid=\"GPU-1\"} 700", true);
        check(&gpus, "# TYPE nv_energy_consumption counter", true);
        check(&gpus, "nv_energy_consumption{gpu_uuid=\"GPU-1\"} 2.5", true);
        check(&gpus, "nv_energy_consumption{gpu_uuid=\"GPU-2\"} 0", false);
        check(&gpus, "nerite_gpu_metrics_age_seconds{gpu_uuid=\"GPU-1\"} 1.5", true);
    }

    #[test]
    fn without_gpus_and_without_figures_there_are_no_families() {
        check(&[], "# TYPE nerite_gpu_metrics_age_seconds gauge", false);
        check(&[gpu("GPU-1")], "# TYPE nv_gpu_power_usage gauge", false);
        check(&[gpu("GPU-1")], "# TYPE nerite_gpu_metrics_age_seconds gauge", true);
    }
}
