//! What is gained when requests of several clients run as one batch?

use std::path::Path;
use std::time::{Duration, Instant};

use nerite_client::{Error, Request, Tensor, http};

use super::digits::{PIXELS, Sample};
use super::{DemoError, DemoOptions};

/// The digits' net without dynamic batching.
const ALONE: &str = "digits_one_by_one";
const BATCHED: &str = "digits";
const CLIENTS: usize = 16;
const TIME: Duration = Duration::from_secs(1);

/// Writes the net of `models` a second time, without dynamic batching, into `repository`.
pub(super) fn write_alone(models: &Path, repository: &Path) -> std::io::Result<()> {
    let (from, to) = (models.join(BATCHED), repository.join(ALONE));
    std::fs::create_dir_all(to.join("1"))?;
    std::fs::copy(from.join("1/model.onnx"), to.join("1/model.onnx"))?;
    std::fs::copy(from.join("labels.txt"), to.join("labels.txt"))?;
    std::fs::write(to.join("config.pbtxt"), without_batching(&std::fs::read_to_string(from.join("config.pbtxt"))?))
}

fn without_batching(config: &str) -> String {
    config.replace("dynamic_batching { }", "").replace("name: \"digits\"", &format!("name: \"{ALONE}\""))
}

/// Sends single digits from several clients at once to both, and prints how many a second were answered.
pub(super) async fn measure(options: &DemoOptions, samples: &[Sample]) -> Result<(), DemoError> {
    let alone = rate(options, ALONE, samples).await?;
    let batched = rate(options, BATCHED, samples).await?;
    println!(
        "\n{CLIENTS} clients at once, a digit each: {:.0} a second in batches of {:.1}; one by one {:.0} a second.",
        batched.per_second, batched.rows_per_run, alone.per_second
    );
    Ok(())
}

struct Rate {
    per_second: f64,
    rows_per_run: f64,
}

async fn rate(options: &DemoOptions, model: &str, samples: &[Sample]) -> Result<Rate, DemoError> {
    let client = http::Client::new(&options.http_url)?;
    let (rows, runs) = counts(&client, model).await?;
    let since = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for sample in samples.iter().cycle().take(CLIENTS) {
        let values = sample.pixels.map(f32::from);
        let request = Request::new(model).input(Tensor::from_slice("image", &[1, PIXELS as i64], &values)?);
        clients.spawn(send(http::Client::new(&options.http_url)?, request));
    }
    let mut answered = 0;
    while let Some(done) = clients.join_next().await {
        answered += done.map_err(|reason| DemoError::System { what: "a client ended", reason: reason.into() })??;
    }
    let seconds = since.elapsed().as_secs_f64();
    let (rows, runs) = counts(&client, model).await.map(|(more, all)| (more - rows, all - runs))?;
    Ok(Rate { per_second: answered as f64 / seconds, rows_per_run: rows as f64 / runs.max(1) as f64 })
}

/// One client: asks again and again until its time is over. How many answers it got.
async fn send(client: http::Client, request: Request) -> Result<u64, Error> {
    let (since, mut answered) = (Instant::now(), 0);
    while since.elapsed() < TIME {
        client.infer(&request).await?;
        answered += 1;
    }
    Ok(answered)
}

/// Rows and runs of a model since it was loaded.
async fn counts(client: &http::Client, model: &str) -> Result<(u64, u64), DemoError> {
    let reports = client.statistics(Some(model)).await?;
    Ok(reports.iter().fold((0, 0), |sum, one| (sum.0 + one.inference_count, sum.1 + one.execution_count)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_copy_has_a_name_of_its_own_and_no_batching() {
        let text = super::without_batching("name: \"digits\"\nmax_batch_size: 64\ndynamic_batching { }\n");
        assert_eq!(text, "name: \"digits_one_by_one\"\nmax_batch_size: 64\n\n");
    }
}
