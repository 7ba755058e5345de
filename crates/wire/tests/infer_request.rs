//! Does our reader of ModelInferRequest agree with a generated protobuf reader?
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use nerite_request::limits::TensorsMax;
use nerite_request::{InferRequest, Parameter, Recycled, Source};
use nerite_tensor::DataType;
use nerite_wire::proto::messages::infer_parameter::ParameterChoice;
use nerite_wire::proto::messages::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use nerite_wire::proto::messages::{InferParameter, InferTensorContents, ModelInferRequest};
use nerite_wire::proto::{Chain, Gather, InferMessage, Malformed};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

fn chain(message: &[u8], cuts: &[usize]) -> Chain {
    let mut gather = Gather::new(message.len());
    let mut rest = Bytes::copy_from_slice(message);
    for cut in cuts {
        gather.push(rest.split_to(cut % (rest.len() + 1))).expect("few bytes");
    }
    gather.push(rest).expect("few bytes");
    gather.finish()
}

fn read(request: &ModelInferRequest, cuts: &[usize]) -> Result<Recycled<InferRequest>, String> {
    let mut message = InferMessage::read(&chain(&request.encode_to_vec(), cuts)).unwrap();
    message.take_infer_request(|_| Ok(())).map_err(|status| status.message)
}

fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

fn choice() -> impl Strategy<Value = ParameterChoice> {
    prop_oneof![
        any::<bool>().prop_map(ParameterChoice::BoolParam),
        any::<i64>().prop_map(ParameterChoice::Int64Param),
        ".{0,9}".prop_map(ParameterChoice::StringParam),
        (-1e9..1e9f64).prop_map(ParameterChoice::DoubleParam),
    ]
}

prop_compose! {
    fn input()(
        name in ".{0,12}",
        datatype in prop::sample::select(DataType::ALL.to_vec()),
        shape in vec(-1i64..9, 0..9),
        region in prop::option::of((".{0,9}", any::<i64>(), any::<i64>())),
    ) -> InferInputTensor {
        let mut input = InferInputTensor { name, datatype: datatype.name().into(), shape, ..Default::default() };
        if let Some((name, offset, size)) = region {
            let entries = [
                ("shared_memory_region", ParameterChoice::StringParam(name)),
                ("shared_memory_offset", ParameterChoice::Int64Param(offset)),
                ("shared_memory_byte_size", ParameterChoice::Int64Param(size)),
            ];
            input.parameters = entries.map(|(key, value)| (key.to_owned(), parameter(value))).into();
        }
        input
    }
}

prop_compose! {
    fn request()(
        model_name in ".{0,300}",
        model_version in "[0-9]{0,3}",
        id in ".{0,20}",
        parameters in prop::collection::btree_map("[a-s]{1,9}", choice().prop_map(parameter), 0..4),
        inputs in vec(input(), 0..4),
        outputs in vec(".{0,9}", 0..4),
        raw in vec(vec(any::<u8>(), 0..3000), 8),
    ) -> ModelInferRequest {
        let raw_input_contents = raw.into_iter().map(Bytes::from).collect();
        let outputs = outputs.into_iter().map(|name| InferRequestedOutputTensor { name, ..Default::default() }).collect();
        ModelInferRequest { model_name, model_version, id, parameters, inputs, outputs, raw_input_contents }
    }
}

#[track_caller]
fn assert_same(infer_request: &InferRequest, request: &ModelInferRequest) {
    assert_eq!(
        (&*infer_request.model, &*infer_request.version, &*infer_request.id),
        (&*request.model_name, &*request.model_version, &*request.id)
    );
    assert_eq!(infer_request.parameters.len(), request.parameters.len());
    for (key, value) in infer_request.parameters.iter() {
        let expect = match request.parameters[key].parameter_choice.clone().unwrap() {
            ParameterChoice::BoolParam(value) => Parameter::Bool(value),
            ParameterChoice::Int64Param(value) => Parameter::Int(value),
            ParameterChoice::StringParam(value) => Parameter::String(value),
            ParameterChoice::DoubleParam(value) => Parameter::Double(value),
            ParameterChoice::Uint64Param(_) => panic!("not made by this test"),
        };
        assert_eq!(value, &expect);
    }
    assert!(
        infer_request.outputs.iter().map(|output| &output.name).eq(request.outputs.iter().map(|output| &output.name))
    );
    assert_eq!(infer_request.inputs.len(), request.inputs.len());
    let mut raw = request.raw_input_contents.iter();
    for (got, sent) in infer_request.inputs.iter().zip(&request.inputs) {
        assert_eq!(
            (&*got.name, got.datatype.name(), got.shape.as_slice()),
            (&*sent.name, sent.datatype.as_str(), sent.shape.as_slice())
        );
        match &got.source {
            Source::Region(region) => {
                assert!(!sent.parameters.is_empty());
                let offset = parameter(ParameterChoice::Int64Param(region.offset as i64));
                assert_eq!(sent.parameters["shared_memory_offset"], offset);
            }
            Source::Inline(buffer) => {
                assert_eq!(buffer.private_bytes().unwrap(), raw.next().unwrap());
                assert!(buffer.is_empty() || buffer.is_aligned(got.datatype.align()));
            }
        }
    }
}

proptest! {
    #[test]
    fn every_request_is_read_as_it_was_written(request in request(), cuts in vec(any::<usize>(), 0..40)) {
        assert_same(&read(&request, &cuts).unwrap(), &request);
    }

    #[test]
    fn unknown_fields_are_skipped(request in request(), cuts in vec(any::<usize>(), 0..9), len in 0usize..300) {
        let mut bytes = vec![0xc2, 0x3e, 0x80 | (len as u8 & 0x7f), (len >> 7) as u8];
        bytes.extend(vec![0xff; len]);
        bytes.extend([0xc0, 0x3e, 5, 0xc3, 0x3e, 0x08, 1, 0xc4, 0x3e]);
        bytes.extend(request.encode_to_vec());
        let mut message = InferMessage::read(&chain(&bytes, &cuts)).unwrap();
        assert_same(&message.take_infer_request(|_| Ok(())).unwrap(), &request);
    }

    #[test]
    fn garbage_never_panics_and_messages_that_protobuf_accepts_are_accepted(
        request in request(), hits in vec((any::<usize>(), any::<u8>()), 0..20), cuts in vec(any::<usize>(), 0..9)
    ) {
        let mut bytes = request.encode_to_vec();
        for (at, value) in hits {
            let len = bytes.len();
            if len > 0 {
                bytes[at % len.min(200)] = value;
            }
        }
        let ours = InferMessage::read(&chain(&bytes, &cuts));
        prop_assert!(ours.is_ok() || ModelInferRequest::decode(bytes.as_slice()).is_err(), "{ours:?}");
        let _ = ours.map(|mut message| message.take_infer_request(|_| Ok(())));
    }

    #[test]
    fn noise_never_panics(bytes in vec(any::<u8>(), 0..400), cuts in vec(any::<usize>(), 0..9)) {
        let _ = InferMessage::read(&chain(&bytes, &cuts)).map(|mut message| message.take_infer_request(|_| Ok(())));
    }
}

fn plain() -> ModelInferRequest {
    let input = InferInputTensor { name: "in".into(), datatype: "INT32".into(), shape: vec![1], ..Default::default() };
    ModelInferRequest {
        model_name: "m".into(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::from_static(&[1, 0, 0, 0])],
        ..Default::default()
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut ModelInferRequest), expect: Result<(), &str>) {
    let mut request = plain();
    change(&mut request);
    assert_eq!(read(&request, &[]).map(drop), expect.map_err(str::to_owned));
}

fn with(key: &str, choice: ParameterChoice) -> impl FnOnce(&mut ModelInferRequest) {
    move |request| drop(request.parameters.insert(key.to_owned(), parameter(choice)))
}

#[test]
fn request_parameters_have_their_types() {
    use ParameterChoice::{BoolParam, DoubleParam, Int64Param, StringParam, Uint64Param};
    check(|_| {}, Ok(()));
    check(with("sequence_id", Int64Param(3)), Ok(()));
    check(with("sequence_id", StringParam("s".repeat(128))), Ok(()));
    check(
        with("sequence_id", StringParam("s".repeat(129))),
        Err("string correlation ID cannot be longer than 128 characters"),
    );
    check(
        with("sequence_id", Uint64Param(3)),
        Err("invalid value type for 'sequence_id' parameter, expected int64_param or string_param."),
    );
    let flag = "invalid value type for 'sequence_start' parameter, expected bool_param.";
    check(with("sequence_start", Int64Param(1)), Err(flag));
    check(with("priority", Uint64Param(u64::MAX)), Ok(()));
    check(with("priority", Int64Param(-1)), Err("invalid value for 'priority', expected value >= 0."));
    let priority = "invalid value type for 'priority' parameter, expected int64_param or uint64_param.";
    check(with("priority", BoolParam(true)), Err(priority));
    let timeout = "invalid value type for 'timeout' parameter, expected int64_param.";
    check(with("timeout", Uint64Param(1)), Err(timeout));
    check(with("triton_enable_empty_final_response", BoolParam(true)), Ok(()));
    let empty = "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.";
    check(with("triton_enable_empty_final_response", StringParam("true".into())), Err(empty));
    let reserved = "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' are allowed: triton_enable_empty_final_response";
    check(with("triton_x", BoolParam(true)), Err(reserved));
    check(with("mine", DoubleParam(0.5)), Ok(()));
    let own = "invalid value type for 'mine' parameter, expected int64_param, bool_param, or string_param.";
    check(with("mine", Uint64Param(1)), Err(own));
    check(|r| drop(r.parameters.insert("mine".into(), InferParameter::default())), Err(own));
}

#[test]
fn an_input_has_one_source() {
    let contents = || Some(InferTensorContents { int_contents: vec![1], ..Default::default() });
    check(|r| r.raw_input_contents.push(Bytes::from_static(b"more")), Ok(()));
    check(|r| r.raw_input_contents.clear(), Err("unable to find data for input tensor 'in' for model 'm' in request."));
    check(
        |r| r.inputs[0].contents = contents(),
        Err("contents field must not be specified when using raw_input_contents for 'in' for model 'm'"),
    );
    check(
        |r| {
            r.raw_input_contents.clear();
            r.inputs[0].contents = contents();
        },
        Ok(()),
    );
    check(
        |r| {
            let region = [
                ("shared_memory_region", ParameterChoice::StringParam("a".into())),
                ("shared_memory_byte_size", ParameterChoice::Int64Param(4)),
            ];
            r.inputs[0].parameters = region.map(|(key, value)| (key.to_owned(), parameter(value))).into();
            r.inputs[0].contents = contents();
        },
        Err("unexpected 'content' provided when using shared memory for input tensor 'in' for model 'm'"),
    );
    check(
        |r| r.inputs[0].datatype = "FP8".into(),
        Err(
            "[request id: <id_unknown>] inference input 'in' data-type is '<invalid>', but model 'm' expects one of its own",
        ),
    );
}

#[track_caller]
fn check_placement(entries: &[(&str, ParameterChoice)], expect: Result<(), &str>) {
    let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), parameter(value.clone())));
    let output = InferRequestedOutputTensor { name: "t".into(), parameters: entries.collect() };
    check(|r| r.outputs.push(output), expect);
}

#[test]
fn a_region_is_named_completely() {
    use ParameterChoice::{Int64Param, StringParam, Uint64Param};
    let region = || ("shared_memory_region", StringParam("r".into()));
    let size = || ("shared_memory_byte_size", Int64Param(4));
    let offset = |choice| ("shared_memory_offset", choice);
    check_placement(&[region(), size()], Ok(()));
    check_placement(&[region(), size(), offset(Int64Param(-1))], Ok(()));
    check_placement(
        &[("shared_memory_region", Int64Param(1)), size()],
        Err("invalid value type for 'shared_memory_region' parameter for tensor 't', expected string_param."),
    );
    check_placement(
        &[offset(Int64Param(1))],
        Err("'shared_memory_offset' can not be specified without 'shared_memory_region' parameter for tensor 't'"),
    );
    check_placement(
        &[size()],
        Err("'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor 't'"),
    );
    check_placement(
        &[region(), size(), offset(Uint64Param(1))],
        Err("invalid value type for 'shared_memory_offset' parameter for tensor 't', expected int64_param."),
    );
    check_placement(
        &[region(), ("shared_memory_byte_size", Uint64Param(1))],
        Err("invalid value type for 'shared_memory_byte_size' parameter for tensor 't', expected int64_param."),
    );
    check_placement(
        &[region()],
        Err("'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 't'"),
    );
    check_placement(
        &[region(), size(), ("classification", Int64Param(1))],
        Err("output can't set both 'shared_memory_region' and 'classification'"),
    );
    check_placement(&[("classification", Int64Param(2))], Ok(()));
    check_placement(
        &[("classification", Int64Param(0))],
        Err("invalid value for 'classification' parameter, expected >= 0"),
    );
    check_placement(
        &[("classification", Uint64Param(1))],
        Err("invalid value type for 'classification' parameter, expected int64_param"),
    );
}

#[test]
fn an_output_may_let_the_server_choose_its_place() {
    use ParameterChoice::{Int64Param, StringParam};
    let key = "session-0000000000000000000000000000000a-7";
    let place = |entries: &[(&str, ParameterChoice)]| {
        let parameters = entries.iter().map(|(key, choice)| ((*key).to_owned(), parameter(choice.clone()))).collect();
        let output = InferRequestedOutputTensor { name: "t".into(), parameters };
        read(&ModelInferRequest { outputs: vec![output], ..plain() }, &[])
            .map(|infer_request| infer_request.outputs[0].clone())
    };
    let region = || ("shared_memory_region", StringParam(key.into()));
    let size = |bytes| ("shared_memory_byte_size", Int64Param(bytes));
    for entries in [vec![region()], vec![region(), size(0)], vec![region(), ("shared_memory_offset", Int64Param(0))]] {
        let output = place(&entries).unwrap();
        assert_eq!(output.session.map(|session| session.to_string()).as_deref(), Some(key));
        assert_eq!(output.region, None);
    }
    let sized = place(&[region(), size(4)]).unwrap();
    assert!(sized.session.is_none() && sized.region.is_some(), "who knows the size names a place");
    let refused = place(&[region(), ("classification", Int64Param(2))]).unwrap_err();
    assert_eq!(refused, "output can't set both 'shared_memory_region' and 'classification'");
}

#[test]
fn the_number_of_elements_fits_into_64_bits() {
    let shaped = |datatype: &'static str, shape: &'static [i64]| {
        move |r: &mut ModelInferRequest| {
            r.inputs[0].datatype = datatype.into();
            r.inputs[0].shape = shape.to_vec();
        }
    };
    let elements = "element count for tensor 'in' exceeds maximum size of 9223372036854775807";
    let bytes = "byte size for tensor 'in' exceeds maximum size of 9223372036854775807";
    check(shaped("FP32", &[1 << 62, 4]), Err(elements));
    check(shaped("FP32", &[1 << 62, 1]), Err(bytes));
    check(shaped("BYTES", &[1 << 62, 1]), Ok(()));
    check(shaped("FP32", &[-2, 1]), Err("tensor 'in' contains an invalid dimension [-2,1]"));
    check(shaped("BYTES", &[-2, 1]), Err("tensor 'in' contains an invalid dimension in shape [-2,1]"));
    check(shaped("FP32", &[-1, 1]), Ok(()));
}

/// A request with the given number of each item.
fn many(inputs: usize, outputs: usize, parameters: usize, raw: usize) -> ModelInferRequest {
    let name = |n: usize| format!("n{n}");
    ModelInferRequest {
        model_name: "m".into(),
        inputs: (0..inputs)
            .map(|n| InferInputTensor { name: name(n), datatype: "FP32".into(), ..Default::default() })
            .collect(),
        outputs: (0..outputs).map(|n| InferRequestedOutputTensor { name: name(n), ..Default::default() }).collect(),
        parameters: (0..parameters).map(|n| (name(n), parameter(ParameterChoice::BoolParam(true)))).collect(),
        raw_input_contents: vec![Bytes::new(); raw],
        ..Default::default()
    }
}

#[track_caller]
fn check_count(request: &ModelInferRequest, refusal: Option<&str>) {
    let read = InferMessage::read(&chain(&request.encode_to_vec(), &[])).map(drop);
    assert_eq!(read.map_err(|refused| refused.to_string()).err().as_deref(), refusal);
}

#[test]
fn a_request_with_too_many_items_is_refused() {
    check_count(&many(4096, 4096, 4096, 4096), None);
    let once = "that the model's configuration names once";
    check_count(
        &many(6000, 0, 0, 0),
        Some(&format!("a request has at most 4096 inputs, got 6000; send each input {once}")),
    );
    let outputs = format!("a request has at most 4096 outputs, got 4097; ask for each output {once}");
    check_count(&many(1, 4097, 0, 0), Some(&outputs));
    let parameters = "a request has at most 4096 parameters, got 5000; send large data as an input";
    check_count(&many(1, 0, 5000, 0), Some(parameters));
    let raw = format!("a request has at most 4096 raw input contents, got 9999; send each input {once}");
    check_count(&many(1, 0, 0, 9999), Some(&raw));
    let mut wide = many(1, 0, 0, 0);
    wide.inputs[0].shape = vec![1; 5000];
    let text = "a request has at most 4096 dimensions in one shape, got 5000; send the shape that the model's configuration \
                describes";
    check_count(&wide, Some(text));
    let mut odd = many(1, 1, 0, 0);
    odd.outputs[0].parameters = many(0, 0, 300, 0).parameters;
    let text = "a request has at most 256 parameters of one tensor, got 257; send large data as an input";
    check_count(&odd, Some(text));
    odd = many(1, 0, 0, 0);
    odd.inputs[0].parameters = many(0, 0, 300, 0).parameters;
    check_count(&odd, Some(text));
}

#[test]
fn a_model_with_more_inputs_accepts_more_if_it_is_named_first() {
    let message = many(5000, 1, 0, 5000).encode_to_vec();
    let of_model = |model: &str, _: &str| match model {
        "m" => Ok::<_, Malformed>(TensorsMax::of_model(5000, 1)),
        _ => Err(Malformed::Contents),
    };
    let mut read = InferMessage::read_for(&chain(&message, &[]), of_model).unwrap();
    assert_eq!(read.take_infer_request(|_| Ok(())).unwrap().inputs.len(), 5000);
    let more = many(5001, 1, 0, 0).encode_to_vec();
    let refused = InferMessage::read_for(&chain(&more, &[]), of_model).map(drop).unwrap_err().to_string();
    assert!(refused.starts_with("a request has at most 5000 inputs, got 5001; "), "{refused}");
    // A model that cannot be asked ends the decoding.
    let of_none = |_: &str, _: &str| Err(Malformed::Contents);
    assert_eq!(InferMessage::read_for(&chain(&more, &[]), of_none).map(drop), Err(Malformed::Contents));
}

#[test]
fn the_last_value_of_a_repeated_parameter_counts() {
    let mut bytes = many(0, 0, 1000, 0).encode_to_vec();
    let last = [("n7".to_owned(), parameter(ParameterChoice::Int64Param(7)))].into();
    bytes.extend(ModelInferRequest { parameters: last, ..Default::default() }.encode_to_vec());
    let infer_request = InferMessage::read(&chain(&bytes, &[])).unwrap().take_infer_request(|_| Ok(())).unwrap();
    assert_eq!((infer_request.parameters.len(), infer_request.parameters.get("n7")), (1000, Some(&Parameter::Int(7))));
}

#[test]
fn an_input_that_comes_twice_is_the_error_whatever_form_it_has() {
    const TWICE: &str = "[request id: <id_unknown>] input 'B' already exists in request";
    let without_size = [("shared_memory_region".to_owned(), parameter(ParameterChoice::StringParam("r".to_owned())))];
    let named = |name: &str| InferInputTensor {
        name: name.to_owned(),
        datatype: "INT32".to_owned(),
        shape: vec![1],
        contents: Some(InferTensorContents { int_contents: vec![7], ..Default::default() }),
        ..Default::default()
    };
    let faulty =
        |name: &str| InferInputTensor { contents: None, parameters: without_size.clone().into(), ..named(name) };
    let output = InferRequestedOutputTensor { name: "O".to_owned(), parameters: without_size.clone().into() };
    let message = |inputs: Vec<InferInputTensor>, outputs| {
        let request = ModelInferRequest { model_name: "m".to_owned(), inputs, outputs, ..Default::default() };
        read(&request, &[]).map(drop).unwrap_err()
    };
    for inputs in [
        vec![named("A"), named("B"), faulty("B")],
        vec![named("A"), faulty("B"), named("B")],
        vec![faulty("A"), named("B"), named("B")],
    ] {
        assert_eq!(message(inputs, Vec::new()), TWICE);
    }
    assert_eq!(message(vec![named("A"), named("B"), named("B")], vec![output]), TWICE);
    let alone = message(vec![named("A"), faulty("B"), named("C")], Vec::new());
    assert!(alone.starts_with("'shared_memory_byte_size' must be specified along with"), "{alone}");
}
