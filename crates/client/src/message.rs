//! How are requests and answers converted to and from messages of the gRPC service?

use std::collections::BTreeMap;

use nerite_memory::Buffer;
use nerite_request::{Parameter, Parameters, RegionRef};
use nerite_tensor::{Shape, element_count};
use nerite_wire::proto::messages as proto;
use proto::infer_parameter::ParameterChoice;
use proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use proto::model_infer_response::InferOutputTensor;
use proto::model_repository_parameter::ParameterChoice as RepositoryChoice;

use crate::report::{
    BatchReport, Duration, IndexEntry, ModelReport, ResponseReport, StatisticsReport, SystemRegionReport, TensorReport,
    datatype, version,
};
use crate::request::{Input, Request};
use crate::{Error, Output, Response};

const REGION: &str = "shared_memory_region";
const OFFSET: &str = "shared_memory_offset";
const BYTE_SIZE: &str = "shared_memory_byte_size";

type Choices = BTreeMap<String, proto::InferParameter>;

/// The message of an inference request. Its tensors are shared, not copied. Outputs that the server is to place in leases name `key` as their region.
pub(crate) fn request(request: &Request, key: Option<&str>) -> proto::ModelInferRequest {
    let inline = request.inputs.iter().filter_map(|input| match input {
        Input::Inline(tensor) => Some(tensor.data.clone()),
        Input::Region { .. } => None,
    });
    let outputs = request.outputs.iter().map(|wanted| {
        let mut parameters = wanted.window.as_ref().map(window).unwrap_or_default();
        if let Some(key) = key.filter(|_| wanted.leased) {
            parameters.insert(REGION.to_owned(), string(key));
        }
        if wanted.classes > 0 {
            parameters.insert("classification".to_owned(), int(wanted.classes));
        }
        InferRequestedOutputTensor { name: wanted.name.clone(), parameters }
    });
    proto::ModelInferRequest {
        model_name: request.model.clone(),
        model_version: request.version.clone(),
        id: request.id.clone(),
        parameters: request.parameters.iter().map(|(key, value)| (key.to_owned(), choice(value))).collect(),
        inputs: request.inputs.iter().map(input).collect(),
        outputs: outputs.collect(),
        raw_input_contents: inline.collect(),
    }
}

fn input(input: &Input) -> InferInputTensor {
    let (name, datatype, shape, parameters) = match input {
        Input::Inline(tensor) => (&tensor.name, tensor.datatype, &tensor.shape, BTreeMap::new()),
        Input::Region { name, datatype, shape, window: at } => (name, *datatype, shape, window(at)),
    };
    let (name, datatype, shape) = (name.clone(), datatype.name().to_owned(), shape.to_vec());
    InferInputTensor { name, datatype, shape, parameters, contents: None }
}

fn window(at: &RegionRef) -> Choices {
    let mut parameters =
        BTreeMap::from([(REGION.to_owned(), string(&at.name)), (BYTE_SIZE.to_owned(), int(at.byte_size))]);
    if at.offset > 0 {
        parameters.insert(OFFSET.to_owned(), int(at.offset));
    }
    parameters
}

/// Where an output of a response lies, if its parameters say so.
fn place(parameters: &Choices) -> Option<RegionRef> {
    let number = |key| match parameters.get(key)?.parameter_choice {
        Some(ParameterChoice::Int64Param(value)) => u64::try_from(value).ok(),
        _ => None,
    };
    let Some(ParameterChoice::StringParam(name)) = &parameters.get(REGION)?.parameter_choice else { return None };
    Some(RegionRef { name: name.as_str().into(), offset: number(OFFSET)?, byte_size: number(BYTE_SIZE)? })
}

fn string(value: &str) -> proto::InferParameter {
    proto::InferParameter { parameter_choice: Some(ParameterChoice::StringParam(value.to_owned())) }
}

fn int(value: u64) -> proto::InferParameter {
    proto::InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(value as i64)) }
}

fn choice(value: &Parameter) -> proto::InferParameter {
    let choice = match value {
        Parameter::Bool(value) => ParameterChoice::BoolParam(*value),
        Parameter::Int(value) => ParameterChoice::Int64Param(*value),
        Parameter::String(value) => ParameterChoice::StringParam(value.clone()),
        Parameter::Double(value) => ParameterChoice::DoubleParam(*value),
    };
    proto::InferParameter { parameter_choice: Some(choice) }
}

/// The response in the message. Its tensors share the memory of the message, or are aligned copies.
pub(crate) fn response(message: proto::ModelInferResponse) -> Result<Response, Error> {
    let mut raw = message.raw_output_contents.into_iter();
    let outputs = message.outputs.into_iter().map(|one| output(one, raw.next().unwrap_or_default()));
    Ok(Response {
        outputs: outputs.collect::<Result<_, _>>()?,
        model: message.model_name,
        version: message.model_version,
        id: message.id,
        parameters: parameters(message.parameters),
    })
}

/// An output without bytes lies in a region if its shape has elements, because servers leave the entry of such an output empty.
fn output(message: InferOutputTensor, bytes: bytes::Bytes) -> Result<Output, Error> {
    let datatype = datatype(&message.datatype)?;
    let placed = bytes.is_empty() && element_count(&message.shape).is_ok_and(|elements| elements > 0);
    let data = (!placed).then(|| Buffer::from(bytes).aligned(datatype.align()));
    let leased_at = if placed { place(&message.parameters) } else { None };
    Ok(Output { name: message.name, datatype, shape: Shape::from_vec(message.shape), data, leased_at })
}

fn parameters(choices: Choices) -> Parameters {
    let mut read = Parameters::new();
    for (key, value) in choices {
        let value = match value.parameter_choice {
            Some(ParameterChoice::BoolParam(value)) => Parameter::Bool(value),
            Some(ParameterChoice::Int64Param(value)) => Parameter::Int(value),
            Some(ParameterChoice::Uint64Param(value)) => Parameter::Int(value as i64),
            Some(ParameterChoice::StringParam(value)) => Parameter::String(value),
            Some(ParameterChoice::DoubleParam(value)) => Parameter::Double(value),
            None => continue,
        };
        read.insert(key, value);
    }
    read
}

pub(crate) fn model(message: proto::ModelMetadataResponse) -> Result<ModelReport, Error> {
    let tensors = |list: Vec<proto::model_metadata_response::TensorMetadata>| {
        let tensor = |one: proto::model_metadata_response::TensorMetadata| {
            Ok(TensorReport { name: one.name, datatype: datatype(&one.datatype)?, shape: one.shape })
        };
        list.into_iter().map(tensor).collect::<Result<Vec<_>, Error>>()
    };
    Ok(ModelReport {
        name: message.name,
        versions: message.versions.iter().map(|text| version(text)).collect::<Result<_, _>>()?,
        platform: message.platform,
        inputs: tensors(message.inputs)?,
        outputs: tensors(message.outputs)?,
    })
}

pub(crate) fn index_entry(message: proto::repository_index_response::ModelIndex) -> IndexEntry {
    IndexEntry { name: message.name, version: message.version, state: message.state, reason: message.reason }
}

pub(crate) fn system_region(message: proto::system_shared_memory_status_response::RegionStatus) -> SystemRegionReport {
    let (name, key, offset) = (message.name, message.key, message.offset);
    SystemRegionReport { name, key, offset, byte_size: message.byte_size }
}

pub(crate) fn statistics(message: proto::ModelStatistics) -> Result<StatisticsReport, Error> {
    let whole = message.inference_stats.unwrap_or_default();
    let batch = |one: proto::InferBatchStatistics| BatchReport {
        batch_size: one.batch_size,
        compute_input: duration(one.compute_input),
        compute_infer: duration(one.compute_infer),
        compute_output: duration(one.compute_output),
    };
    Ok(StatisticsReport {
        version: version(&message.version)?,
        name: message.name,
        last_inference_ms: message.last_inference,
        inference_count: message.inference_count,
        execution_count: message.execution_count,
        success: duration(whole.success),
        fail: duration(whole.fail),
        queue: duration(whole.queue),
        compute_input: duration(whole.compute_input),
        compute_infer: duration(whole.compute_infer),
        compute_output: duration(whole.compute_output),
        cache_hit: duration(whole.cache_hit),
        cache_miss: duration(whole.cache_miss),
        batches: message.batch_stats.into_iter().map(batch).collect(),
        responses: responses(message.response_stats),
        ..StatisticsReport::default()
    })
}

fn responses(entries: impl IntoIterator<Item = (String, proto::InferResponseStatistics)>) -> Vec<ResponseReport> {
    let one = |(index, statistics): (String, proto::InferResponseStatistics)| {
        Some(ResponseReport {
            index: index.parse().ok()?,
            compute_infer: duration(statistics.compute_infer),
            compute_output: duration(statistics.compute_output),
            success: duration(statistics.success),
            fail: duration(statistics.fail),
            empty_response: duration(statistics.empty_response),
            cancel: duration(statistics.cancel),
        })
    };
    let mut all: Vec<_> = entries.into_iter().filter_map(one).collect();
    all.sort_by_key(|one| one.index);
    all
}

fn duration(message: Option<proto::StatisticDuration>) -> Duration {
    message.map(|one| Duration { count: one.count, ns: one.ns }).unwrap_or_default()
}

pub(crate) fn load_parameter(key: &str, value: &str) -> (String, proto::ModelRepositoryParameter) {
    let choice = RepositoryChoice::StringParam(value.to_owned());
    (key.to_owned(), proto::ModelRepositoryParameter { parameter_choice: Some(choice) })
}

pub(crate) fn unload_parameter(dependents: bool) -> (String, proto::ModelRepositoryParameter) {
    let choice = RepositoryChoice::BoolParam(dependents);
    ("unload_dependents".to_owned(), proto::ModelRepositoryParameter { parameter_choice: Some(choice) })
}

#[cfg(test)]
mod tests {
    use nerite_tensor::DataType;

    use super::*;
    use crate::Tensor;

    #[test]
    fn only_inline_inputs_take_an_entry_of_raw_contents() {
        let window = RegionRef { name: "in".into(), offset: 64, byte_size: 8 };
        let inference = Request::new("simple")
            .version(2)
            .input_in_window("A", DataType::Int32, &[1, 2], window)
            .input(Tensor::from_slice("B", &[1, 2], &[7i32, 8]).expect("two of two"));
        let message = request(&inference, None);
        assert_eq!((message.model_version.as_str(), message.raw_input_contents.len()), ("2", 1));
        let keys: Vec<&str> = message.inputs[0].parameters.keys().map(String::as_str).collect();
        assert_eq!(keys, ["shared_memory_byte_size", "shared_memory_offset", "shared_memory_region"]);
        assert!(message.inputs[1].parameters.is_empty());
    }

    #[track_caller]
    fn check(shape: &[i64], bytes: &[u8], placed: bool) {
        let message = InferOutputTensor { datatype: "INT8".into(), shape: shape.to_vec(), ..Default::default() };
        let read = output(message, bytes.to_vec().into()).expect("INT8");
        assert_eq!(read.is_placed(), placed, "{shape:?}");
    }

    #[test]
    fn an_output_without_bytes_is_elsewhere_unless_it_is_empty() {
        check(&[2], b"ab", false);
        check(&[2], b"", true);
        check(&[2, 0], b"", false);
    }
}
