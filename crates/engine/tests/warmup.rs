//! What may the warmup of a configuration that a client sent take from the server?
#![allow(clippy::unwrap_used)]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use nerite_backend::{Compute, Job, Times};
use nerite_budget::{Budgets, Limits};
use nerite_engine::Engine;
use nerite_repository::ControlMode;
use nerite_request::setting::LoadOptions;
use nerite_request::{Peer, PeerAccount, Status};
use tempfile::TempDir;
use test_engine::{Computing, Setup, bytes_model};

const CLIENT: Peer = Peer::User { uid: 4_000_000_001 };
const MIB: u64 = 1 << 20;
/// What the client may keep beyond its requests.
const KEPT_MAX: u64 = 10 * MIB;

/// A model that counts its runs, and notes what its client is charged while one runs.
#[derive(Clone)]
struct Counting {
    runs: Arc<AtomicUsize>,
    charged: Arc<AtomicUsize>,
    account: PeerAccount,
}

impl Compute for Counting {
    fn compute(&mut self, _: &mut Job, _: &mut Times) -> Result<(), Status> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        self.charged.fetch_max(self.account.retained() as usize, Ordering::SeqCst);
        Ok(())
    }
}

struct Server {
    engine: Arc<Engine>,
    model: Counting,
    _folder: TempDir,
}

/// An engine in whose repository `m` has two instances. Nothing is loaded.
fn server() -> Server {
    let budgets = Budgets::new(Limits::new(0, Some(10 * KEPT_MAX), Some(2 * KEPT_MAX), None));
    let model =
        Counting { runs: Arc::default(), charged: Arc::default(), account: budgets.of_peer(&CLIENT.to_string()) };
    let of_instance = model.clone();
    let mut setup = Setup::new([Arc::new(Computing("counting", move || of_instance.clone())) as _]);
    setup.options.control = ControlMode::Explicit;
    setup.options.budgets = budgets;
    setup.put("m", &bytes_model("counting", "instance_group [{ count: 2 kind: KIND_CPU }]"));
    let (engine, folder) = setup.start();
    Server { engine, model, _folder: folder }
}

/// A sample with one row of so many bytes.
fn sample(count: u64, batch_size: u32, bytes: u64) -> String {
    let input = format!(r#"{{"data_type": "TYPE_UINT8", "dims": [{bytes}], "zero_data": true}}"#);
    format!(r#"{{"name": "w{bytes}", "batch_size": {batch_size}, "count": {count}, "inputs": {{"IN": {input}}}}}"#)
}

/// The configuration of `m` with these samples, as a client sends it.
fn config(batch_max: i32, samples: &[String]) -> String {
    let tensor = |name| format!(r#"[{{"name": "{name}", "data_type": "TYPE_UINT8", "dims": [-1]}}]"#);
    format!(
        r#"{{"name": "m", "backend": "counting", "max_batch_size": {batch_max}, "input": {}, "output": {},
             "instance_group": [{{"count": 2, "kind": "KIND_CPU"}}], "model_warmup": [{}]}}"#,
        tensor("IN"),
        tensor("OUT"),
        samples.join(",")
    )
}

impl Server {
    /// Loads `m` with that configuration.
    fn load(&self, config: String) -> Result<(), Status> {
        let options = LoadOptions { config: Some(config), ..LoadOptions::default() };
        let (to, from) = mpsc::channel();
        self.engine.load("m", options, &CLIENT, move |outcome| to.send(outcome).unwrap());
        from.recv().unwrap()
    }

    #[track_caller]
    fn check_refused(&self, config: String, parts: &[&str]) {
        let refused = self.load(config).unwrap_err().message;
        assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
        assert_eq!(self.model.runs.load(Ordering::SeqCst), 0);
        assert_eq!(self.model.account.retained(), 0, "what is refused leaves nothing");
    }
}

#[test]
fn the_runs_of_a_warmup_have_a_bound() {
    let server = server();
    let max = "at most 100000 are possible; lower 'count'";
    let most = u64::from(u32::MAX);
    let samples = [sample(most, 1, 1)];
    let runs = format!("has count {most}, which makes {} runs on 2 instances", 2 * most);
    server.check_refused(config(0, &samples), &["model 'm': warmup sample 'w1'", &runs, max]);
    let samples = [sample(49_999, 1, 1), sample(2, 1, 2)];
    server.check_refused(config(0, &samples), &["'w2' has count 2, which makes 100002 runs on 2 instances", max]);
    assert_eq!(server.load(config(0, &[sample(5, 1, 1), sample(0, 1, 2)])), Ok(()));
    assert_eq!(server.model.runs.load(Ordering::SeqCst), 12, "a count of 0 is one run");
}

#[test]
fn who_sent_a_configuration_pays_for_the_inputs_of_its_warmup() {
    let server = server();
    // More than any machine has, and more than this client may keep.
    let what = "model 'm': warmup input 'IN' of sample 'w1000000000000' takes 1000000000000 bytes";
    server.check_refused(config(0, &[sample(1, 1, 1_000_000_000_000)]), &[what, "at most 4294967296 are possible"]);
    let bytes = KEPT_MAX + 1;
    let what = format!("warmup input 'IN' of sample 'w{bytes}' takes {bytes} bytes: memory budget of a client");
    server.check_refused(config(0, &[sample(1, 1, bytes)]), &[&what, "use smaller dims"]);
    // Two samples that fit alone, and a batch of many rows.
    server.check_refused(config(0, &[sample(1, 1, 6 * MIB), sample(1, 1, 5 * MIB)]), &["takes 5242880 bytes"]);
    let what = "the batch of 20000 requests of warmup sample 'w1000' takes 60960000 bytes";
    server.check_refused(config(20_000, &[sample(1, 20_000, 1000)]), &[what, "a smaller batch_size"]);
    assert_eq!(server.load(config(0, &[sample(1, 1, 6 * MIB), sample(1, 1, 3 * MIB)])), Ok(()));
    assert!(server.model.charged.load(Ordering::SeqCst) as u64 >= 9 * MIB, "while it runs");
    assert!(server.model.account.retained() < MIB, "the configuration itself");
}

#[test]
fn who_sent_a_configuration_pays_for_its_initial_states_until_the_model_has_gone() {
    let server = server();
    let of_state = |bytes: u64| {
        let state = r#"{"input_name": "S", "output_name": "T", "data_type": "TYPE_UINT8", "dims": [BYTES]}"#;
        let states = state.replace("BYTES", &bytes.to_string());
        config(0, &[]).replacen('{', &format!(r#"{{"sequence_batching": {{"state": [{states}]}},"#), 1)
    };
    let what = "model 'm': state 'S' takes 1000000000000 bytes";
    server.check_refused(of_state(1_000_000_000_000), &[what, "at most 4294967296 are possible; use smaller dims"]);
    server.check_refused(of_state(KEPT_MAX), &["memory budget of a client"]);
    assert_eq!(server.load(of_state(6 * MIB)), Ok(()));
    assert!((6 * MIB..7 * MIB).contains(&server.model.account.retained()));
    let (to, from) = mpsc::channel();
    server.engine.unload("m", false, &Peer::own(), move |outcome| to.send(outcome).unwrap());
    assert_eq!(from.recv().unwrap(), Ok(()));
    assert!(server.engine.stop(std::time::Instant::now() + std::time::Duration::from_mins(1)));
    assert_eq!(server.model.account.retained(), 0);
}
