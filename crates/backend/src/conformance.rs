//! Does a runtime keep the contract?
//!
//! All runtimes share this suite. A runtime's own tests provide a model that it can run, and the results of that model ([`Fixture`]). [`check_runtime`] loads
//! the model and tests each promise that the server relies on. It panics at the first promise that is broken.
//!
//! The promises: every job is answered exactly once and in order. A batch gives the same results as its jobs alone. Only wanted outputs are returned.
//! An output goes into the client's memory if that is large enough. Otherwise the request fails. A cancelled job is answered as cancelled. An error
//! leaves the instance usable. Instances run side by side. Inputs are released before the answer. The times of an execution are in order.

mod alone;
mod graphs;
mod initializers;
pub mod oracle;
mod recording;

use std::sync::Arc;

use nerite_memory::Slot;
use nerite_request::{Code, InferResponse, Recycled, Status, Wanted};
use nerite_tensor::Tensor;

use crate::{Instance, InstanceSpec, LoadContext, LoadStop, ModelFiles, Models, Runtime};
pub use alone::{infer, infer_cancellable};
pub use graphs::{completed, completed_instance, graph_context};
pub use initializers::check_initializers;
use recording::{BatchResults, TestRequest};

/// How often each instance runs while another one runs concurrently.
const ROUNDS: usize = 50;

/// A model and what it computes.
pub struct Fixture {
    /// The model's directory and configuration.
    pub context: LoadContext,
    /// At least two requests that succeed, preferably with different numbers of rows.
    pub cases: Vec<Case>,
    /// Inputs of a request that the model refuses. `None` if it refuses none.
    pub faulty: Option<Vec<Tensor>>,
}

/// A request and its answer.
pub struct Case {
    /// All inputs.
    pub inputs: Vec<Tensor>,
    /// All outputs, in the order of the configuration. The model's outputs must equal them byte for byte.
    pub outputs: Vec<Tensor>,
}

/// Loads the fixture's model and checks every promise.
pub fn check_runtime(runtime: &dyn Runtime, fixture: &Fixture) {
    assert!(!runtime.name().is_empty() && !runtime.engine().is_empty(), "a runtime has a name and an engine");
    assert!(fixture.cases.len() > 1, "a suite needs two cases at least");
    let model = runtime.load(&fixture.context).unwrap_or_else(|e| panic!("the model loads: {e}"));
    let make = |index| {
        let spec =
            InstanceSpec { name: format!("{}_0_{index}", fixture.context.model), index, ..InstanceSpec::default() };
        model.instance(&spec).unwrap_or_else(|e| panic!("instance {index} is made: {e}"))
    };
    let (mut first, mut second) = (make(0), make(1));
    for instance in [&mut *first, &mut *second] {
        answers_every_case(instance, fixture);
        answers_a_batch_in_order(instance, fixture);
        gives_only_what_is_wanted(instance, fixture);
        writes_where_the_client_wants(instance, fixture);
        passes_over_the_cancelled(instance, fixture);
        survives_an_error(instance, fixture);
        answers_no_jobs_with_silence(instance);
    }
    run_side_by_side(first, second, fixture);
    a_dropped_job_is_answered(fixture);
}

fn answers_every_case(instance: &mut dyn Instance, fixture: &Fixture) {
    for case in &fixture.cases {
        let results = BatchResults::run(instance, vec![TestRequest::of(case)]);
        expect_answer(&results.only(), case, &all_names(case));
    }
}

fn answers_a_batch_in_order(instance: &mut dyn Instance, fixture: &Fixture) {
    let results = BatchResults::run(instance, fixture.cases.iter().map(TestRequest::of).collect());
    let ids: Vec<_> = results.responses.iter().flatten().map(|response| response.id.to_string()).collect();
    let expected: Vec<_> = (0..fixture.cases.len()).map(recording::id).collect();
    assert_eq!(ids, expected, "each job of a batch is answered once, in order");
    for (response, case) in results.responses.iter().zip(&fixture.cases) {
        expect_answer(response, case, &all_names(case));
    }
}

fn gives_only_what_is_wanted(instance: &mut dyn Instance, fixture: &Fixture) {
    for case in &fixture.cases {
        for (index, output) in case.outputs.iter().enumerate() {
            let wanted = [(index, Wanted { name: output.name.clone(), slot: None })].into_iter().collect();
            let results = BatchResults::run(instance, vec![TestRequest { wanted, ..TestRequest::of(case) }]);
            expect_answer(&results.only(), case, &[output.name.as_str()]);
        }
    }
}

fn writes_where_the_client_wants(instance: &mut dyn Instance, fixture: &Fixture) {
    for case in &fixture.cases {
        for (index, output) in case.outputs.iter().enumerate() {
            let need = output.data.len();
            for (more, fits) in [(0isize, true), (64, true), (-1, false)] {
                let Some(have) = need.checked_add_signed(more) else { continue };
                let mut slot = Slot::heap(have);
                let place = slot.as_mut_ptr();
                let wanted = [(index, Wanted { name: output.name.clone(), slot: Some(slot) })].into_iter().collect();
                let answer = BatchResults::run(instance, vec![TestRequest { wanted, ..TestRequest::of(case) }]).only();
                if fits {
                    expect_answer(&answer, case, &[output.name.as_str()]);
                    assert_eq!(
                        answer.unwrap_or_default().outputs[0].data.as_ptr(),
                        place.cast_const(),
                        "'{}' lies in its place",
                        output.name
                    );
                } else {
                    let text = format!(
                        "shared memory size specified with the request for output '{}' ({have} bytes) should be at least \
                         {need} bytes to hold the results",
                        output.name
                    );
                    expect_error(&answer, Code::Internal, &text);
                }
            }
        }
    }
}

fn passes_over_the_cancelled(instance: &mut dyn Instance, fixture: &Fixture) {
    let mut requests: Vec<TestRequest> = fixture.cases.iter().map(TestRequest::of).collect();
    requests[0].cancelled = true;
    let results = BatchResults::run(instance, requests);
    expect_error(&results.responses[0], Code::Cancelled, "");
    for (response, case) in results.responses.iter().zip(&fixture.cases).skip(1) {
        expect_answer(response, case, &all_names(case));
    }
}

fn survives_an_error(instance: &mut dyn Instance, fixture: &Fixture) {
    let Some(faulty) = &fixture.faulty else { return };
    let case = &fixture.cases[0];
    let bad = || TestRequest { inputs: faulty.clone(), ..TestRequest::of(case) };
    let alone = BatchResults::run(instance, vec![bad()]).only();
    assert!(alone.is_err(), "faulty inputs are refused");
    // The faulty request shares a batch with others, which must still succeed.
    let results = BatchResults::run(instance, vec![TestRequest::of(case), bad(), TestRequest::of(case)]);
    expect_answer(&results.responses[0], case, &all_names(case));
    assert!(results.responses[1].is_err(), "faulty inputs are refused in a batch");
    expect_answer(&results.responses[2], case, &all_names(case));
    answers_every_case(instance, fixture);
}

fn answers_no_jobs_with_silence(instance: &mut dyn Instance) {
    assert!(BatchResults::run(instance, Vec::new()).responses.is_empty(), "no jobs, no answers");
}

/// Runs each instance on a thread that has not run it before.
fn run_side_by_side(first: Box<dyn Instance>, second: Box<dyn Instance>, fixture: &Fixture) {
    std::thread::scope(|scope| {
        let threads = [first, second].map(|mut instance| {
            scope.spawn(move || (0..ROUNDS).for_each(|_| answers_a_batch_in_order(&mut *instance, fixture)))
        });
        for thread in threads {
            assert!(thread.join().is_ok(), "instances run side by side, on any thread");
        }
    });
}

fn a_dropped_job_is_answered(fixture: &Fixture) {
    let (job, seen) = recording::job(0, TestRequest::of(&fixture.cases[0]));
    drop(job);
    let answers = seen.take();
    assert_eq!(answers.len(), 1, "a dropped job answers itself once");
    let code = answers[0].clone().into_content().and_then(Result::err).map(|error| error.code);
    assert_eq!(code, Some(Code::Internal));
}

#[track_caller]
fn expect_answer(response: &Result<Recycled<InferResponse>, Status>, case: &Case, wanted: &[&str]) {
    let response = response.as_ref().unwrap_or_else(|error| panic!("a result, not '{error}'"));
    let mut names: Vec<_> = response.outputs.iter().map(|output| output.name.as_str()).collect();
    let mut wanted = wanted.to_vec();
    names.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(names, wanted, "the wanted outputs and no others");
    for output in &response.outputs {
        let expected = case.outputs.iter().find(|expected| expected.name == output.name);
        let expected = expected.unwrap_or_else(|| panic!("output '{}' is in the case", output.name));
        assert_eq!((output.datatype, &output.shape), (expected.datatype, &expected.shape), "of '{}'", output.name);
        let bytes = output.data.private_bytes().map(<[u8]>::to_vec);
        assert_eq!(bytes.as_deref(), expected.data.private_bytes(), "bytes of '{}'", output.name);
    }
}

#[track_caller]
fn expect_error(response: &Result<Recycled<InferResponse>, Status>, code: Code, begins: &str) {
    let error = response.as_ref().err().unwrap_or_else(|| panic!("an error {code:?} '{begins}'"));
    assert_eq!(error.code, code, "{error}");
    assert!(error.message.starts_with(begins), "'{error}' does not begin with '{begins}'");
}

fn all_names(case: &Case) -> Vec<&str> {
    case.outputs.iter().map(|output| output.name.as_str()).collect()
}

/// A context for tests: `model_dir` with version 1 in it, on two cores.
pub fn context(model_dir: &std::path::Path, config: nerite_config::ModelConfig) -> LoadContext {
    LoadContext {
        model: config.name.clone(),
        version: 1,
        model_dir: model_dir.to_path_buf(),
        version_dir: model_dir.join("1"),
        config: Arc::new(config),
        settings: std::collections::BTreeMap::new(),
        host_policies: crate::HostPolicySettings::new(),
        cores: 2,
        instances: 2,
        models: Models::none(),
        files: ModelFiles::default(),
        is_sent: false,
        stop: LoadStop::default(),
    }
}

#[cfg(test)]
mod tests;
