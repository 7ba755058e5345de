//! Does a compiled backend satisfy the contract of all runtimes?
#![allow(clippy::unwrap_used)]

#[path = "support/sample.rs"]
mod sample;

use std::sync::Arc;

use nerite_backend::conformance::{Case, Fixture, check_runtime, context, infer};
use nerite_backend::{Batch, CostBound, Instance, InstanceSpec, LoadContext, Model, Outbox, Runtime};
use nerite_cabi::{CompiledBackend, Options};
use nerite_request::{Parameter, Status, Wanted};

use sample::{backend, config, floats};

fn case(a: &[f32], b: &[f32]) -> Case {
    let pair = |op: fn(f32, f32) -> f32| a.iter().zip(b).map(|(a, b)| op(*a, *b)).collect::<Vec<_>>();
    Case {
        inputs: vec![floats("IN", a), floats("IN1", b)],
        outputs: vec![floats("OUT", &pair(|a, b| a + b)), floats("OUT1", &pair(|a, b| a - b))],
    }
}

/// Runs jobs as the server's pools do: the last responses of a run are sent after it. A backend in C releases its requests after it has answered.
struct AsServed<T>(T);

impl Runtime for AsServed<CompiledBackend> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn engine(&self) -> String {
        self.0.engine()
    }

    fn load(&self, context: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(AsServed(self.0.load(context)?)))
    }
}

impl Model for AsServed<Arc<dyn Model>> {
    fn instance(&self, spec: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(AsServed(self.0.instance(spec)?)))
    }
}

impl Instance for AsServed<Box<dyn Instance>> {
    fn run(&mut self, batch: Batch) {
        drop(Outbox::around(|| self.0.run(batch)));
    }
}

#[test]
fn a_backend_in_c_keeps_the_contract_of_runtimes() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let config = config("max_batch_size: 8 parameters { key: 'mode' value { string_value: 'add_sub' } }");
    let fixture = Fixture {
        context: context(folder.path(), config),
        cases: vec![case(&[1.0, 2.5], &[3.0, -4.0]), case(&[7.0], &[0.5])],
        // IN1 is longer than IN.
        faulty: Some(vec![floats("IN", &[1.0]), floats("IN1", &[1.0, 2.0])]),
    };
    check_runtime(&AsServed(backend), &fixture);
}

#[test]
fn a_model_is_completed_once_and_then_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let bare = nerite_config::parse_text("", b"name: 'm' backend: 'sample'").unwrap();
    let mut context = context(folder.path(), bare);
    context.config = Arc::new(backend.complete(&context).unwrap());
    assert_eq!((context.config.input[0].name.as_str(), context.config.input[0].dims.as_slice()), ("IN", &[4][..]));
    let model = backend.load(&context).unwrap();
    let spec = InstanceSpec { name: "m_0".into(), ..InstanceSpec::default() };
    drop(model.instance(&spec).unwrap());
}

#[test]
fn a_library_that_is_none_is_refused_with_the_loaders_reason() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libtriton_x.so");
    std::fs::write(&path, "no library").unwrap();
    let options = Options { directory: folder.path().to_owned(), auto_complete: false, reports: None };
    let backend = CompiledBackend::new("x", &path, options);
    let refused = backend.load(&context(folder.path(), config(""))).err().unwrap();
    assert!(refused.message.contains("unable to load shared library of backend 'x'"), "{refused}");
    assert!(refused.message.contains("file too short") || refused.message.contains("invalid ELF header"), "{refused}");
}

#[test]
fn the_author_of_a_model_may_say_that_its_runs_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let bound = |text: &str| backend.load(&context(folder.path(), config(text))).unwrap().cost_bound();
    assert_eq!(bound(""), CostBound::Unknown);
    let says = "parameters { key: 'nerite.cost_bound' value { string_value: 'input_sizes' } }";
    assert_eq!(bound(says), CostBound::InputSizes);
}

#[test]
fn an_output_has_one_buffer() {
    let folder = tempfile::tempdir().unwrap();
    let config = config("parameters { key: 'mode' value { string_value: 'place_twice' } }");
    let model = backend(folder.path()).load(&context(folder.path(), config)).unwrap();
    let spec = InstanceSpec { name: "m_0".into(), ..InstanceSpec::default() };
    let mut instance = AsServed(model.instance(&spec).unwrap());
    let wanted = vec![Wanted { name: "OUT".into(), slot: None }];
    let reply = infer(vec![floats("IN", &[3.0, 4.0])], wanted, |batch| instance.run(batch)).unwrap();
    let expected = Parameter::String("allocated buffer for output 'OUT' already exists".into());
    assert_eq!(reply.parameters.get("refused"), Some(&expected));
    assert_eq!(reply.outputs[0].data.cells::<f32>().unwrap().to_vec(), [3.0, 4.0]);
}
