//! What is gained when requests of several clients run as one batch?

use std::path::Path;
use std::time::{Duration, Instant};

use nerite_client::{Error, Request, Tensor, http};

use super::wide_layer::{self, INPUT, LAYERS, WIDTH};
use super::{DemoError, DemoOptions};

/// The same model without dynamic batching and with it.
const ALONE: &str = "wide_one_by_one";
const BATCHED: &str = "wide_batched";
const CLIENTS: usize = 16;
/// The two models are measured in turns, so that other programs that run now and then affect both.
const ROUNDS: u32 = 3;
const ROUND: Duration = Duration::from_millis(400);

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
    let [mut alone, mut batched] = [Count::default(), Count::default()];
    for _ in 0..ROUNDS {
        alone.add(&round(options, ALONE).await?);
        batched.add(&round(options, BATCHED).await?);
    }
    println!(
        "\n{CLIENTS} clients at once, a row each for {LAYERS} layers of {WIDTH} by {WIDTH} weights:\n\
         {:.0} a second in batches of {:.1}; one by one {:.0} a second.",
        batched.per_second(),
        batched.rows_per_run(),
        alone.per_second()
    );
    Ok(())
}

/// The answers, rows and runs of a period of time.
#[derive(Default)]
struct Count {
    answered: u64,
    took: Duration,
    rows: u64,
    runs: u64,
}

impl Count {
    fn add(&mut self, more: &Count) {
        self.answered += more.answered;
        self.took += more.took;
        self.rows += more.rows;
        self.runs += more.runs;
    }

    fn per_second(&self) -> f64 {
        self.answered as f64 / self.took.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn rows_per_run(&self) -> f64 {
        self.rows as f64 / self.runs.max(1) as f64
    }
}

async fn round(options: &DemoOptions, model: &str) -> Result<Count, DemoError> {
    let client = http::Client::new(&options.http_url)?;
    let (rows, runs) = counts(&client, model).await?;
    let since = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let row = vec![number as f32; WIDTH];
        let request = Request::new(model).input(Tensor::from_slice(INPUT, &[1, WIDTH as i64], &row)?);
        clients.spawn(send(http::Client::new(&options.http_url)?, request));
    }
    let mut answered = 0;
    while let Some(done) = clients.join_next().await {
        answered += done.map_err(|reason| DemoError::System { what: "a client ended", reason: reason.into() })??;
    }
    let took = since.elapsed();
    let (rows, runs) = counts(&client, model).await.map(|(more, all)| (more - rows, all - runs))?;
    Ok(Count { answered, took, rows, runs })
}

/// Runs one client, which repeats the request until its time is over. Returns the number of answers.
async fn send(client: http::Client, request: Request) -> Result<u64, Error> {
    let (since, mut answered) = (Instant::now(), 0);
    while since.elapsed() < ROUND {
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
    use super::*;

    #[test]
    fn rounds_add_up() {
        let mut all = Count::default();
        assert_eq!((all.per_second(), all.rows_per_run()), (0.0, 0.0));
        for rows in [30, 10] {
            all.add(&Count { answered: rows, took: Duration::from_millis(500), rows, runs: 5 });
        }
        assert_eq!((all.per_second(), all.rows_per_run()), (40.0, 4.0));
    }
}
