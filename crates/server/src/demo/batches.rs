//! What is gained when requests of several clients run as one batch?

use std::path::Path;

use nerite_bench::Measured;

use super::wide_layer::{self, LAYERS, WIDTH};
use super::{DemoError, DemoOptions, bench};

/// The same model without dynamic batching and with it.
const ALONE: &str = "wide_one_by_one";
const BATCHED: &str = "wide_batched";
const CLIENTS: usize = 16;
/// The two models are measured in turns, so that other programs that run now and then affect both.
const ROUNDS: u32 = 3;
/// Requests of a round, so that a slow machine has whole batches too.
const REQUESTS: u32 = 96;

/// Writes both models into `repository`.
pub(super) fn write_models(repository: &Path) -> std::io::Result<()> {
    let model = wide_layer::model();
    for (name, is_batched) in [(ALONE, false), (BATCHED, true)] {
        let folder = repository.join(name);
        std::fs::create_dir_all(folder.join("1"))?;
        std::fs::write(folder.join("1/model.onnx"), &model)?;
        std::fs::write(folder.join("config.pbtxt"), wide_layer::config(name, is_batched))?;
    }
    Ok(())
}

/// Sends single rows from several clients at once to both, and prints how many a second were answered.
pub(super) async fn measure(options: &DemoOptions) -> Result<(), DemoError> {
    let [mut alone, mut batched, mut executions] = [0.0; 3];
    for _ in 0..ROUNDS {
        alone += round(options, ALONE).await?.per_second;
        let Measured { per_second, rows_per_execution, .. } = round(options, BATCHED).await?;
        batched += per_second;
        executions += rows_per_execution.map_or(0.0, |rows| per_second / rows);
    }
    println!(
        "\n{CLIENTS} clients at once, a row each for {LAYERS} layers of {WIDTH} by {WIDTH} weights:\n\
         {:.0} a second in batches of {:.1}; one by one {:.0} a second.",
        batched / f64::from(ROUNDS),
        batched / executions,
        alone / f64::from(ROUNDS)
    );
    Ok(())
}

async fn round(options: &DemoOptions, model: &str) -> Result<Measured, DemoError> {
    let load = format!("--concurrency-range {CLIENTS} --request-count {REQUESTS}");
    bench(format!("-m {model} -u {} {load}", options.http_url)).await
}
