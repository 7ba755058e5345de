//! Is a response the one that its client expects, so that its message can be omitted?

use bytes::Bytes;
use nerite_request::{InferResponse, Status};
use nerite_tensor::DataType;
use prost::Message as _;

use super::messages::ModelInferResponse;

/// The response that a client expects: everything but the bytes of tensors in its own memory.
#[derive(Debug, PartialEq, Eq)]
pub struct ExpectedResponse {
    model: String,
    version: String,
    id: String,
    outputs: Vec<ExpectedOutput>,
}

#[derive(Debug, PartialEq, Eq)]
struct ExpectedOutput {
    name: String,
    datatype: DataType,
    shape: Vec<i64>,
}

impl ExpectedResponse {
    /// Reads an encoded `ModelInferResponse`. Its parameters and tensors are ignored, because a response that has some is never the expected one.
    pub fn read(message: Bytes) -> Result<ExpectedResponse, Status> {
        let fault = |what: String| Status::invalid(format!("the expected response is not understood: {what}"));
        let message = ModelInferResponse::decode(message).map_err(|error| fault(error.to_string()))?;
        let outputs = message.outputs.into_iter().map(|output| {
            let datatype = DataType::from_name(&output.datatype)
                .ok_or_else(|| fault(format!("output '{}' has the datatype '{}'", output.name, output.datatype)))?;
            Ok(ExpectedOutput { name: output.name, datatype, shape: output.shape })
        });
        let outputs = outputs.collect::<Result<_, Status>>()?;
        Ok(ExpectedResponse { model: message.model_name, version: message.model_version, id: message.id, outputs })
    }

    /// Whether `response` has these values, and has no inline tensors, parameters or leases.
    pub fn is(&self, response: &InferResponse) -> bool {
        let InferResponse { model, version, id, parameters, outputs, lease_notices, permit: _ } = response;
        parameters.is_empty()
            && lease_notices.is_empty()
            && (self.model.as_str(), self.version.as_str(), self.id.as_str()) == (&**model, &**version, &**id)
            && self.outputs.len() == outputs.len()
            && self.outputs.iter().zip(outputs).all(|(expected, output)| {
                (output.placed || output.data.is_empty())
                    && expected.datatype == output.datatype
                    && expected.name.as_str() == &*output.name
                    && expected.shape[..] == output.shape[..]
            })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use nerite_memory::Buffer;
    use nerite_request::{Output, Parameter};
    use nerite_tensor::Shape;

    use super::super::messages::model_infer_response::InferOutputTensor;
    use super::*;

    fn response() -> InferResponse {
        let (datatype, shape, data) = (DataType::Int32, Shape::from_slice(&[2]), Buffer::from(vec![0u8; 8]));
        let output = Output { index: 0, name: "Y".into(), datatype, shape, data, placed: true };
        InferResponse {
            model: "m".into(),
            version: "1".into(),
            outputs: vec![output].into(),
            ..InferResponse::default()
        }
    }

    fn expected() -> ExpectedResponse {
        let output = InferOutputTensor {
            name: "Y".into(),
            datatype: "INT32".into(),
            shape: vec![2],
            ..InferOutputTensor::default()
        };
        let message = ModelInferResponse {
            model_name: "m".into(),
            model_version: "1".into(),
            outputs: vec![output],
            ..ModelInferResponse::default()
        };
        ExpectedResponse::read(message.encode_to_vec().into()).unwrap()
    }

    #[track_caller]
    fn check(same: bool, change: impl Fn(&mut InferResponse)) {
        let mut changed = response();
        change(&mut changed);
        assert_eq!(expected().is(&changed), same);
    }

    #[test]
    fn only_an_equal_response_matches() {
        check(true, |_| {});
        check(true, |one| one.outputs[0].data = Buffer::from(vec![9u8; 8]));
        check(false, |one| one.version = "2".into());
        check(false, |one| one.id = "x".into());
        check(false, |one| one.parameters.insert("p", Parameter::Bool(true)));
        check(false, |one| one.outputs[0].shape = Shape::from_slice(&[1, 2]));
        check(false, |one| one.outputs[0].datatype = DataType::Fp32);
        check(false, |one| one.outputs[0].name = "Z".into());
        check(false, |one| one.outputs[0].placed = false);
        check(false, |one| one.outputs.clear());
        check(false, |one| one.outputs.push(one.outputs[0].clone()));
    }

    #[test]
    fn bytes_that_are_not_a_response_are_refused() {
        let refused = ExpectedResponse::read(Bytes::from_static(&[0xff; 9])).unwrap_err();
        assert!(refused.message.starts_with("the expected response is not understood: "), "{refused:?}");
    }
}
