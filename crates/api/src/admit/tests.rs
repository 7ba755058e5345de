//! Is each fault refused, in Triton's order and with its text?
#![allow(clippy::unwrap_used)]

use nerite_config::TensorSpec;
use nerite_request::{Code, InferRequestedOutput};
use nerite_tensor::{DataType, Shape};

use super::*;

struct NoRegions;

impl Regions for NoRegions {
    fn buffer(&self, region: &RegionRef) -> Result<Buffer, Status> {
        Err(Status::not_found(format!("no region {}", region.name)))
    }
    fn slot(&self, region: &RegionRef) -> Result<Slot, Status> {
        Err(Status::not_found(format!("no region {}", region.name)))
    }
}

fn spec(name: &str, data_type: DataType, dims: &[i64]) -> TensorSpec {
    TensorSpec {
        name: name.into(),
        data_type: Some(data_type),
        dims: dims.to_vec(),
        reshape: None,
        optional: false,
        ragged: false,
        label_filename: String::new(),
    }
}

fn input(name: &str, datatype: DataType, shape: &[i64], bytes: &[u8]) -> InferInput {
    let source = Source::Inline(Buffer::from(bytes.to_vec()));
    InferInput { name: name.into(), datatype, shape: Shape::from_slice(shape), source }
}

fn pair(batch: i64) -> Vec<InferInput> {
    let bytes = vec![0u8; 16 * batch.max(0) as usize];
    vec![input("A", DataType::Fp32, &[batch, 4], &bytes), input("B", DataType::Fp32, &[batch, 4], &bytes)]
}

#[track_caller]
fn check(inputs: Vec<InferInput>, outputs: &[&str], expected: Result<u32, &str>) {
    let inputs_of_model = [spec("A", DataType::Fp32, &[4]), spec("B", DataType::Fp32, &[-1])];
    let outputs_of_model = [spec("O", DataType::Fp32, &[4]), spec("P", DataType::Fp32, &[4])];
    let contract = Contract { model: "m", batch_max: 8, inputs: &inputs_of_model, outputs: &outputs_of_model };
    let outputs = outputs
        .iter()
        .map(|name| InferRequestedOutput { name: (*name).into(), region: None, session: None, classes: 0 })
        .collect();
    let mut infer_request = InferRequest { inputs: inputs.into(), outputs, ..InferRequest::default() };
    match (admit(&mut infer_request, &contract, &NoRegions), expected) {
        (Ok(admitted), Ok(rows)) => {
            assert_eq!(admitted.rows, rows);
            assert!(!admitted.wanted.is_empty());
        }
        (Err(status), Err(text)) => {
            assert_eq!(status.code, Code::InvalidArg);
            assert!(status.message.starts_with(text), "{}\nshould begin with\n{text}", status.message);
        }
        (got, expected) => panic!("{got:?}, expected {expected:?}"),
    }
}

#[test]
fn a_fitting_request_is_admitted_with_its_rows() {
    check(pair(1), &[], Ok(1));
    check(pair(8), &["P"], Ok(8));
}

#[test]
fn tensors_get_the_indices_and_the_names_of_the_configuration() {
    let long = "an_input_whose_name_is_long_for_a_name";
    let names = ["A", "B", long, "D"];
    let inputs_of_model = names.map(|name| TensorSpec { optional: name != "A", ..spec(name, DataType::Fp32, &[4]) });
    let contract = Contract { model: "m", batch_max: 8, inputs: &inputs_of_model, outputs: &inputs_of_model };
    let inputs = [long, "A"].map(|name| input(name, DataType::Fp32, &[1, 4], &[0; 16])).to_vec();
    let output = |name: &str| InferRequestedOutput { name: name.into(), region: None, session: None, classes: 0 };
    let outputs = [long, "B"].into_iter().map(output).collect();
    let mut infer_request = InferRequest { inputs: inputs.into(), outputs, ..InferRequest::default() };
    let admitted = admit(&mut infer_request, &contract, &NoRegions).unwrap();
    // Outputs keep the client's order.
    let wanted: Vec<_> = admitted.wanted.indexed().map(|(index, output)| (index, output.name.as_str())).collect();
    assert_eq!(wanted, [(2, long), (1, "B")]);
    let found: Vec<_> = (0..names.len()).map(|at| admitted.inputs.at(at).map(|input| input.name.as_str())).collect();
    assert_eq!(found, [Some("A"), None, Some(long), None]);
    // Their text is the configuration's: no copy of it was made.
    let text = inputs_of_model[2].name.as_ptr();
    assert_eq!((admitted.inputs[1].name.as_ptr(), admitted.wanted[0].name.as_ptr()), (text, text));
}

#[test]
fn each_fault_has_its_text() {
    let id = "[request id: <id_unknown>] ";
    check(
        pair(9),
        &[],
        Err(&format!("{id}inference request batch-size must be <= 8 for 'm', got 9; to raise it, set max_batch_size")),
    );
    check(pair(1), &["X"], Err("unexpected inference output 'X' for model 'm', allowed outputs are: ['O','P']"));
    check(pair(1), &["O", "O"], Err(&format!("{id}output 'O' already exists in request")));
    let mut twice = pair(1);
    twice.push(twice[0].clone());
    check(twice, &[], Err(&format!("{id}input 'A' already exists in request")));
    check(
        pair(1)[..1].to_vec(),
        &[],
        Err(&format!(
            "{id}expected 2 inputs but got 1 inputs for model 'm'. Got input(s) ['A'], but missing required input(s) \
             ['B']. Please provide all required input(s)."
        )),
    );
    let mut stranger = pair(1);
    stranger[1].name = "C".into();
    check(stranger.clone(), &[], Err("unexpected inference input 'C' for model 'm', allowed inputs are: ['A','B']"));
    let surplus = [pair(1), stranger[1..].to_vec()].concat();
    check(
        surplus,
        &[],
        Err(&format!(
            "{id}expected 2 inputs but got 3 inputs for model 'm'. Got input(s) ['A','B','C'], but the model has only input(s) \
             ['A','B']."
        )),
    );
    let mut uneven = pair(1);
    uneven[1] = pair(2)[1].clone();
    check(uneven, &[], Err(&format!("{id}input 'B' batch size does not match other inputs for 'm'")));
    let mut shapeless = pair(1);
    shapeless[0].shape.clear();
    check(shapeless, &[], Err(&format!("{id}input 'A' has no shape but model requires batch dimension for 'm'")));
    let mut wrong_type = pair(1);
    wrong_type[0].datatype = DataType::Int32;
    check(wrong_type, &[], Err(&format!("{id}inference input 'A' data-type is 'INT32', but model 'm' expects 'FP32'")));
    let mut wrong_shape = pair(1);
    wrong_shape[0].shape[1] = 5;
    check(
        wrong_shape,
        &[],
        Err(&format!("{id}unexpected shape for input 'A' for model 'm'. Expected [-1,4], got [1,5]. NOTE: ")),
    );
    let mut open = pair(1);
    open[1].shape[1] = -1;
    check(
        open,
        &[],
        Err(&format!("{id}All input dimensions should be specified for input 'B' for model 'm', got [1,-1]")),
    );
    let mut short = pair(1);
    short[0] = input("A", DataType::Fp32, &[1, 4], &[0; 15]);
    check(short, &[], Err(&format!("{id}input byte size mismatch for input 'A' for model 'm'. Expected 16, got 15")));
    check(pair(0), &[], Err(&format!("{id}input byte size mismatch for input 'A' for model 'm'. Expected 16, got 0")));
}

#[test]
fn a_raw_body_takes_the_shape_that_fits_it() {
    let inputs = [spec("I", DataType::Fp32, &[-1, 2])];
    let contract = Contract { model: "m", batch_max: 0, inputs: &inputs, outputs: &inputs };
    let mut infer_request =
        InferRequest { raw_input: Some(Box::new(Buffer::from(vec![0; 24]))), ..InferRequest::default() };
    let admitted = admit(&mut infer_request, &contract, &NoRegions).unwrap();
    assert_eq!(&admitted.inputs[0].shape[..], &[3, 2]);
    let mut odd = InferRequest { raw_input: Some(Box::new(Buffer::from(vec![0; 23]))), ..InferRequest::default() };
    assert!(admit(&mut odd, &contract, &NoRegions).is_err());
}

fn many_inputs(count: usize) -> Vec<InferInput> {
    (0..count).map(|n| input(&format!("n{n}"), DataType::Fp32, &[1, 4], &[0; 16])).collect()
}

#[test]
fn many_tensors_have_the_same_errors_as_few() {
    let id = "[request id: <id_unknown>] ";
    let mut repeated = many_inputs(4096);
    repeated[4000].name = "n17".into();
    check(repeated, &[], Err(&format!("{id}input 'n17' already exists in request")));
    check(
        many_inputs(4096),
        &[],
        Err(&format!("{id}expected 2 inputs but got 4096 inputs for model 'm'. Got input(s) ['n0','n1',")),
    );
    let mut names: Vec<String> = (0..4096).map(|n| format!("o{n}")).collect();
    check(pair(1), &names.iter().map(String::as_str).collect::<Vec<_>>(), Err("unexpected inference output 'o0' for"));
    names[4095] = "o9".into();
    let repeated: Vec<_> = names.iter().map(String::as_str).collect();
    check(pair(1), &repeated, Err(&format!("{id}output 'o9' already exists in request")));
}

#[test]
fn more_tensors_than_any_model_has_are_refused_by_number() {
    let text = "a request has at most 4096 inputs, got 4097; send each input that the model's configuration names once";
    check(many_inputs(4097), &[], Err(text));
    let names: Vec<String> = (0..4097).map(|n| format!("o{n}")).collect();
    let text =
        "a request has at most 4096 outputs, got 4097; ask for each output that the model's configuration names once";
    check(pair(1), &names.iter().map(String::as_str).collect::<Vec<_>>(), Err(text));
}

#[test]
fn a_model_of_many_tensors_takes_them_all() {
    let specs: Vec<_> = (0..5000).map(|n| spec(&format!("n{n}"), DataType::Fp32, &[4])).collect();
    let contract = Contract { model: "m", batch_max: 8, inputs: &specs, outputs: &specs };
    let mut infer_request = InferRequest { inputs: many_inputs(5000).into(), ..InferRequest::default() };
    let admitted = admit(&mut infer_request, &contract, &NoRegions).unwrap();
    assert_eq!((admitted.inputs.len(), admitted.wanted.len()), (5000, 5000));
}
