//! Does a graph give the same in stages as whole, and does it end between them?

use rten::{ModelOptions, ShapeInferenceMode};
use rten_onnx::onnx::{AttributeProto, DataType as Onnx, Dimension, ModelProto, NodeProto, OperatorSetIdProto};
use rten_onnx::onnx::{TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor, ValueInfoProto};
use rten_tensor::Tensor;
use rten_tensor::prelude::*;

use super::*;

/// The length of each side of all matrices.
const SIDE: i64 = 4;

fn declared(name: &str, rank: usize) -> ValueInfoProto {
    let dim = vec![Dimension { dim_value: Some(SIDE), dim_param: None }; rank];
    let tensor = TypeProtoTensor { elem_type: Some(Onnx::FLOAT), shape: Some(TensorShapeProto { dim }) };
    ValueInfoProto {
        name: Some(name.to_owned()),
        r#type: Some(TypeProto { tensor_type: Some(tensor), ..TypeProto::default() }),
    }
}

/// Operators as `Op in,in>out`, over matrices. The weights are `w` and `b`.
fn graph(inputs: &[&str], nodes: &str, outputs: &[&str]) -> GraphProto {
    let words = |text: &str| text.split(',').map(str::to_owned).collect();
    let node = |text: &str| {
        let (op, sides) = text.trim().split_once(' ').expect("an operator and its values");
        let (read, made) = sides.split_once('>').expect("inputs and outputs");
        let perm = AttributeProto { name: Some("perm".into()), ints: vec![1, 0], ..AttributeProto::default() };
        NodeProto {
            op_type: Some(op.to_owned()),
            name: Some(format!("make {made}")),
            input: words(read),
            output: words(made),
            attribute: (op == "Transpose").then_some(perm).into_iter().collect(),
            ..NodeProto::default()
        }
    };
    let weight = |name: &str, dims: &[i64]| TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(Onnx::FLOAT),
        float_data: (0..dims.iter().product()).map(|at| 0.1 * (at % 7) as f32 - 0.25).collect(),
        ..TensorProto::default()
    };
    GraphProto {
        node: nodes.split(';').map(node).collect(),
        initializer: vec![weight("w", &[SIDE, SIDE]), weight("b", &[SIDE])],
        input: inputs.iter().map(|name| declared(name, 2)).collect(),
        output: outputs.iter().map(|name| ValueInfoProto { name: Some((*name).to_owned()), r#type: None }).collect(),
        value_info: Vec::new(),
    }
}

fn load(graph: GraphProto) -> Staged {
    load_by(graph, &ModelOptions::with_all_ops())
}

fn load_by(graph: GraphProto, options: &ModelOptions) -> Staged {
    let proposed = Proposed::of(&graph);
    let opset_import = vec![OperatorSetIdProto { version: Some(17), ..OperatorSetIdProto::default() }];
    let model = ModelProto { ir_version: Some(8), graph: Some(graph), opset_import, ..ModelProto::default() };
    let bytes = model.write_buf().expect("it is small");
    Staged::new(options.load(bytes).expect("the engine knows it"), proposed)
}

/// The numbers of results, and at which of the boundaries a run with all stages was interrupted.
type Numbers = Vec<Vec<f32>>;

fn run(staged: &Staged, wanted: &[&str], stops: &Stops, is_over: bool) -> Result<(Numbers, Vec<usize>), Fault> {
    let value = |seed: usize| -> Value {
        let numbers: Vec<f32> = (0..SIDE as usize * SIDE as usize).map(|at| ((at * seed) % 5) as f32 - 1.5).collect();
        Tensor::from_data(&[SIDE as usize, SIDE as usize], numbers).into()
    };
    let given: Vec<Value> = (0..staged.model.input_ids().len()).map(|at| value(at + 2)).collect();
    let inputs = || staged.model.input_ids().iter().zip(&given).map(|(id, value)| (*id, value.as_view().into()));
    let wanted: Vec<NodeId> = wanted.iter().map(|name| staged.model.find_node(name).expect("a result")).collect();
    let (options, is_over) = (RunOptions::default(), AtomicBool::new(is_over));
    let conditions = Conditions { options: &options, is_over: &is_over };
    let mut times = vec![Duration::ZERO; staged.stops.len() + 1];
    let values = match stops {
        Stops::None => staged.run(inputs().collect(), &wanted, &conditions)?,
        _ => match staged.in_stages(&inputs().collect::<Vec<_>>(), &wanted, stops, &conditions, &mut times)? {
            End::Done(values) => values,
            End::Unusable => Vec::new(),
        },
    };
    let numbers = |value: Value| -> Vec<f32> { Tensor::try_from(value).expect("FP32").to_vec() };
    let stopped = times.iter().enumerate().take(staged.stops.len()).filter(|(_, time)| !time.is_zero());
    Ok((values.into_iter().map(numbers).collect(), stopped.map(|(at, _)| at).collect()))
}

/// Checks that the results are those of a whole run, whichever are wanted. Returns how often a run was interrupted that wanted all.
#[track_caller]
fn check(inputs: &[&str], nodes: &str, outputs: &[&str]) -> usize {
    let (staged, whole) = (load(graph(inputs, nodes, outputs)), load(graph(inputs, nodes, outputs)));
    let of_whole = |wanted: &[&str]| {
        let ids: Vec<NodeId> = wanted.iter().map(|name| whole.model.find_node(name).expect("a result")).collect();
        assert!(!ids.is_empty());
        let mut uncut = Staged::new(load(graph(inputs, nodes, outputs)).model, Proposed::default());
        uncut.stops.clear();
        run(&uncut, wanted, &Stops::None, false).expect("it runs").0
    };
    let mut subsets: Vec<Vec<&str>> = outputs.iter().map(|one| vec![*one]).collect();
    subsets.push(outputs.iter().rev().copied().collect());
    subsets.push(outputs.to_vec());
    let mut stopped = 0;
    for wanted in &subsets {
        let (numbers, stops) = run(&staged, wanted, &Stops::All, false).expect("it runs");
        assert_eq!(numbers, of_whole(wanted), "{wanted:?}");
        let (numbers, _) = run(&staged, wanted, &Stops::Behind(vec![1]), false).expect("it runs");
        assert_eq!(numbers, of_whole(wanted), "{wanted:?}, once");
        stopped = stops.len();
    }
    stopped
}

#[test]
fn results_are_the_same_in_stages() {
    let chain = "MatMul x,w>a; Relu a>c; MatMul c,w>d; Sigmoid d>e; Add e,x>f; MatMul f,w>g; Tanh g>h; Add h,f>y";
    assert_eq!(check(&["x"], chain, &["y"]), 3);
    let two = "MatMul x,w>a; Relu a>y; MatMul y,w>d; Sigmoid d>e; Add e,v>f; MatMul f,w>g; Tanh g>h; Add h,a>z";
    assert_eq!(check(&["x", "v"], two, &["y", "z"]), 3);
}

/// `MatMul` and `Add`, `Transpose` and `MatMul`, and what makes `Silu` become one operator each; `Identity` vanishes.
#[test]
fn boundaries_at_values_that_the_optimiser_removes_are_skipped() {
    let fused = "MatMul x,w>a; Add a,b>c; Sigmoid c>d; Mul c,d>e; Transpose e>f; MatMul f,w>g; Identity g>h; Relu h>i; \
                 Add i,x>j; MatMul j,w>k; Add k,b>l; Identity l>y";
    let stopped = check(&["x"], fused, &["y"]);
    assert!((1..5).contains(&stopped), "{stopped} of 5");
}

#[test]
fn a_run_that_is_told_to_end_has_no_results() {
    let staged = load(graph(&["x"], "MatMul x,w>a; Relu a>c; MatMul c,w>d; Relu d>y", &["y"]));
    assert!(matches!(run(&staged, &["y"], &Stops::All, true), Err(Fault::Stopped)));
    assert!(matches!(run(&staged, &["y"], &Stops::None, true), Err(Fault::Stopped)), "its first run has stages");
    assert!(staged.can_be_ended(16));
    drop(run(&staged, &["y"], &Stops::None, false).expect("it runs"));
    assert!(!staged.can_be_ended(16) && staged.can_be_ended(17), "runs of that size are quick");
}

/// Some exporters declare inner values wrongly. The engine compares what it is given, unless it has inferred the shape itself.
#[test]
fn a_graph_whose_inner_values_are_declared_wrongly_runs_whole() {
    let mut wrong = graph(&["x"], "MatMul x,w>a; Relu a>c; MatMul c,w>d; Relu d>y", &["y"]);
    wrong.value_info.push(declared("c", 3));
    let mut options = ModelOptions::with_all_ops();
    options.enable_optimization(false).shape_inference(ShapeInferenceMode::Off);
    let staged = load_by(wrong, &options);
    assert_eq!(staged.stops.len(), 1);
    let right = load(graph(&["x"], "MatMul x,w>a; Relu a>c; MatMul c,w>d; Relu d>y", &["y"]));
    let numbers = |staged: &Staged| run(staged, &["y"], &Stops::None, false).expect("it runs").0;
    assert_eq!(numbers(&staged), numbers(&right));
    assert!(staged.stops.iter().all(|stop| stop.is_unusable.load(Ordering::Relaxed)));
}
