//! Which shapes do those who asked a model get its outputs in?
//!
//! The configuration may give an output another shape than the model does (`reshape`). The shape is changed on the way to whoever asked: a client, a
//! step of an ensemble, or a model that made a nested request. The response cache and the states of sequences have the model's own shapes.

use std::sync::Arc;

use nerite_config::{ModelConfig, TensorSpec};
use nerite_memory::{Place, Slot};
use nerite_request::{
    Deliver, InferResponse, InputMemory, PeerAccount, PlaceQuery, PolicyData, Reply, RequestTrace, Response,
    ResponseWindow, Status,
};

use crate::contract::reshaped;

/// The shapes of a model's outputs, as its configuration declares them.
#[derive(Debug)]
pub struct DeclaredShapes {
    batching: bool,
    outputs: Vec<TensorSpec>,
}

impl DeclaredShapes {
    /// `None` for most models, which make the shapes that are declared.
    pub(crate) fn of(config: &ModelConfig) -> Option<DeclaredShapes> {
        let outputs = config.outputs();
        let reshapes = outputs.iter().any(|spec| spec.reshape.is_some());
        reshapes.then(|| DeclaredShapes { batching: config.batches(), outputs })
    }

    /// Gives the outputs of a response their declared shapes.
    pub fn apply(&self, response: &mut InferResponse) {
        let batch = usize::from(self.batching);
        for output in &mut response.outputs {
            let spec = self.outputs.get(output.index);
            let Some((spec, made)) = spec.and_then(|spec| Some((spec, spec.reshape.as_deref()?))) else { continue };
            let own = output.shape.get(batch..).unwrap_or_default();
            let declared = reshaped(own, made, &spec.dims);
            output.shape = output.shape.iter().copied().take(batch).chain(declared).collect();
        }
    }
}

/// Gives responses their declared shapes on the way to `reply`.
pub(crate) struct Declared {
    pub shapes: Arc<DeclaredShapes>,
    pub reply: Reply,
}

impl Deliver for Declared {
    fn deliver(&mut self, mut response: Response) {
        if let Response::Part(tensors) | Response::Final(tensors) = &mut response {
            self.shapes.apply(tensors);
        }
        self.reply.send(response);
    }

    fn refuse(&mut self, why: Status) {
        self.reply.refuse(why);
    }

    fn may_wait(&self) -> bool {
        self.reply.may_wait()
    }

    fn offers_places(&self) -> bool {
        self.reply.offers_places()
    }

    fn takes_shared(&self) -> bool {
        self.reply.takes_shared()
    }

    fn input_memory(&self, output: usize) -> Option<Arc<dyn InputMemory>> {
        self.reply.input_memory(output)
    }

    fn window(&self) -> Option<Arc<ResponseWindow>> {
        self.reply.window()
    }

    fn trace(&self) -> Option<Arc<RequestTrace>> {
        self.reply.trace()
    }

    fn account(&self) -> Option<PeerAccount> {
        self.reply.account()
    }

    fn likely_place(&self, output: &str) -> Option<Place> {
        self.reply.likely_place(output)
    }

    fn policy_data(&self) -> &[PolicyData] {
        self.reply.policy_data()
    }

    fn place(&mut self, query: &PlaceQuery<'_>) -> Result<Option<Slot>, Status> {
        self.reply.place(query)
    }
}

#[cfg(test)]
mod tests {
    use nerite_memory::Buffer;
    use nerite_request::Output;
    use nerite_tensor::{DataType, Shape};

    use super::*;

    #[track_caller]
    fn check(config: &str, made: &[i64], expect: &[i64]) {
        let config = nerite_config::parse_text("", config.as_bytes()).expect("a configuration");
        let shape = Shape::from_slice(made);
        let output = Output {
            index: 0,
            name: "Y".into(),
            datatype: DataType::Fp32,
            shape,
            data: Buffer::empty(),
            placed: false,
        };
        let mut response = InferResponse { outputs: [output].into_iter().collect(), ..InferResponse::default() };
        DeclaredShapes::of(&config).expect("an output is reshaped").apply(&mut response);
        assert_eq!(response.outputs[0].shape.as_slice(), expect);
    }

    #[test]
    fn outputs_get_the_dimensions_that_are_declared() {
        let output = |text: &str| format!("output {{ name: 'Y' data_type: TYPE_FP32 {text} }}");
        let batching = |text: &str| format!("max_batch_size: 4 {}", output(text));
        check(&output("dims: [ 4 ] reshape { shape: [ 2, 2 ] }"), &[2, 2], &[4]);
        check(&batching("dims: [ 4 ] reshape { shape: [ 2, 2 ] }"), &[3, 2, 2], &[3, 4]);
        check(&batching("dims: [ 1 ] reshape { shape: [ ] }"), &[2], &[2, 1]);
        check(&output("dims: [ 1, -1 ] reshape { shape: [ -1 ] }"), &[7], &[1, 7]);
        check(&output("dims: [ -1, 2, -1 ] reshape { shape: [ -1, -1, 2 ] }"), &[5, 6, 2], &[5, 2, 6]);
        // A model may make less than its configuration says.
        check(&batching("dims: [ 1 ] reshape { shape: [ ] }"), &[], &[1]);
    }

    #[test]
    fn most_models_make_the_shapes_that_are_declared() {
        let config = nerite_config::parse_text("", b"output { name: 'Y' data_type: TYPE_FP32 dims: [ 4 ] }");
        assert!(DeclaredShapes::of(&config.expect("a configuration")).is_none());
    }
}
