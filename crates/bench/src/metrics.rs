//! What do the server's metrics say of copies and of GPUs?

use std::collections::BTreeMap;

use nerite_client::blocking::http::Client;

use crate::options::Metrics;
use crate::results::Gpu;

/// Bytes of tensors that the server has copied, by the reason.
const COPIED: &str = "nerite_copied_bytes_total";

/// Reads the metrics of a server.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    client: Client,
    path: String,
}

/// The metrics at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reading {
    /// `None`: the server does not count copies.
    pub(crate) copied_bytes: Option<f64>,
    gpus: BTreeMap<String, Gpu>,
}

/// The samples of GPUs of a level.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gpus {
    sums: BTreeMap<String, Gpu>,
    samples: usize,
}

impl Reader {
    pub(crate) fn new(options: &Metrics) -> Result<Reader, String> {
        let url = options.url.strip_prefix("http://").unwrap_or(&options.url);
        let (authority, path) = url.split_once('/').map_or((url, "metrics"), |(authority, path)| (authority, path));
        let client = Client::new(authority).map_err(|error| format!("--metrics-url: {error}"))?;
        Ok(Reader { client, path: format!("/{path}") })
    }

    pub(crate) fn read(&self) -> Result<Reading, String> {
        let page = self.client.page(&self.path).map_err(|error| format!("--metrics-url: {error}"))?;
        Ok(Reading::parse(&page))
    }
}

impl Reading {
    fn parse(page: &str) -> Reading {
        let mut sample = Reading::default();
        for line in page.lines().filter_map(nerite_wire::prometheus::Sample::read) {
            if line.name == COPIED {
                *sample.copied_bytes.get_or_insert_default() += line.value;
                continue;
            }
            let Some(uuid) = line.label("gpu_uuid") else { continue };
            let gpu = sample.gpus.entry(uuid.clone()).or_insert_with(|| Gpu {
                uuid,
                utilization: 0.0,
                power_watts: 0.0,
                used_bytes: 0.0,
                total_bytes: 0.0,
            });
            match line.name {
                "nv_gpu_utilization" => gpu.utilization = line.value,
                "nv_gpu_power_usage" => gpu.power_watts = line.value,
                "nv_gpu_memory_used_bytes" => gpu.used_bytes = line.value,
                "nv_gpu_memory_total_bytes" => gpu.total_bytes = line.value,
                _ => {}
            }
        }
        sample
    }
}

impl Gpus {
    pub(crate) fn add(&mut self, sample: &Reading) {
        self.samples += 1;
        for (uuid, now) in &sample.gpus {
            match self.sums.get_mut(uuid) {
                None => drop(self.sums.insert(uuid.clone(), now.clone())),
                Some(sum) => {
                    sum.utilization += now.utilization;
                    sum.power_watts += now.power_watts;
                    sum.used_bytes = sum.used_bytes.max(now.used_bytes);
                    sum.total_bytes = now.total_bytes;
                }
            }
        }
    }

    /// Averages and maxima.
    pub(crate) fn whole(self) -> Vec<Gpu> {
        let samples = self.samples.max(1) as f64;
        let average =
            |gpu: Gpu| Gpu { utilization: gpu.utilization / samples, power_watts: gpu.power_watts / samples, ..gpu };
        self.sums.into_values().map(average).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_add_up_and_gpus_are_averaged() {
        let page = |use_: f64, bytes: u64| {
            format!(
                "# HELP x y\n{COPIED}{{reason=\"a\"}} 3\n{COPIED}{{reason=\"b\"}} 4\nnv_gpu_utilization{{gpu_uuid=\"G\"}} {use_}\n\
                 nv_gpu_memory_used_bytes{{gpu_uuid=\"G\"}} {bytes}\nnv_cpu_utilization 0.5\n"
            )
        };
        let (first, second) = (Reading::parse(&page(0.5, 10)), Reading::parse(&page(0.25, 5)));
        assert_eq!(first.copied_bytes, Some(7.0));
        let mut gpus = Gpus::default();
        gpus.add(&first);
        gpus.add(&second);
        let whole = gpus.whole();
        assert_eq!((whole[0].utilization, whole[0].used_bytes), (0.375, 10.0));
        assert_eq!(Reading::parse("").copied_bytes, None);
    }
}
