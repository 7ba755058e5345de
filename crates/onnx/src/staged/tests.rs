//! Does a graph give the same results in stages as in a whole run, and can the run be ended between stages?

use std::sync::atomic::AtomicBool;

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
    Staged::new(options.load(bytes).expect("the engine knows it"), proposed, CostBound::InputSizes)
}

/// The numbers of each result.
type Numbers = Vec<Vec<f32>>;

fn run(staged: &Staged, wanted: &[&str], stops: &Stops, is_over: bool) -> Result<(Numbers, Vec<usize>), Fault> {
    run_with(staged, &vec![SIDE as usize; staged.model.input_ids().len()], wanted, stops, is_over)
}

/// The same with matrices of these numbers of rows as the first inputs. Further inputs are left out.
fn run_with(
    staged: &Staged,
    rows: &[usize],
    wanted: &[&str],
    stops: &Stops,
    is_over: bool,
) -> Result<(Numbers, Vec<usize>), Fault> {
    let value = |(at, rows): (usize, &usize)| -> Value {
        let numbers: Vec<f32> =
            (0..rows * SIDE as usize).map(|number| ((number * (at + 2)) % 5) as f32 - 1.5).collect();
        Tensor::from_data(&[*rows, SIDE as usize], numbers).into()
    };
    let given: Vec<Value> = rows.iter().enumerate().map(value).collect();
    let inputs = || staged.model.input_ids().iter().zip(&given).map(|(id, value)| (*id, value.as_view().into()));
    let wanted: Vec<NodeId> = wanted.iter().map(|name| staged.model.find_node(name).expect("a result")).collect();
    let (options, is_over) = (RunOptions::default(), AtomicBool::new(is_over));
    let conditions = Conditions { options: &options, is_over: &is_over };
    let mut times = vec![Duration::ZERO; staged.stops.len() + 1];
    let values = if *stops == Stops::None {
        staged.run(inputs().collect(), &wanted, &conditions)?
    } else {
        let (inputs, mut refused) = (inputs().collect::<Vec<_>>(), Vec::new());
        match staged.in_stages(&inputs, &wanted, stops, &conditions, &mut refused, &mut times)? {
            End::Done(values) => values,
            End::Again | End::GivenUp => Vec::new(),
        }
    };
    let numbers = |value: Value| -> Vec<f32> { Tensor::try_from(value).expect("FP32").to_vec() };
    let stopped = times.iter().enumerate().take(staged.stops.len()).filter(|(_, time)| !time.is_zero());
    Ok((values.into_iter().map(numbers).collect(), stopped.map(|(at, _)| at).collect()))
}

/// Checks that the results are those of a whole run, whichever are wanted. Returns how often a run that wanted all of them was interrupted.
#[track_caller]
fn check(inputs: &[&str], nodes: &str, outputs: &[&str]) -> usize {
    let (staged, whole) = (load(graph(inputs, nodes, outputs)), load(graph(inputs, nodes, outputs)));
    let of_whole = |wanted: &[&str]| {
        let ids: Vec<NodeId> = wanted.iter().map(|name| whole.model.find_node(name).expect("a result")).collect();
        assert!(!ids.is_empty());
        let mut uncut = Staged::new(load(graph(inputs, nodes, outputs)).model, Proposed::default(), CostBound::Unknown);
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

/// The engine makes one operator each of `MatMul` and `Add`, of `Transpose` and `MatMul`, and of the operators of `Silu`. It removes `Identity`.
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
    let [x, y] = ["x", "y"].map(|name| staged.model.find_node(name).expect("it is there"));
    let can_be_ended = |rows: usize| staged.can_be_ended([(x, [rows, 4].into_iter())].into_iter(), [y].into_iter());
    assert!(can_be_ended(4));
    drop(run(&staged, &["y"], &Stops::None, false).expect("it runs"));
    assert!(!can_be_ended(4) && can_be_ended(5), "runs of that class are quick");
}

/// The boundaries that are known to be of no use for some results.
fn refused(staged: &Staged) -> Vec<usize> {
    let is_refused = |stop: &Stop| stop.refused_for.iter().any(|of| of.load(Ordering::Relaxed) != 0);
    staged.stops.iter().enumerate().filter(|(_, stop)| is_refused(stop)).map(|(at, _)| at).collect()
}

/// A graph `MatMul x,w>a; Relu a>c; MatMul c,w>d; Relu d>y` of any number of rows. It declares that the value `c` has this shape.
fn declaring(c: Vec<i64>) -> Staged {
    let mut graph = graph(&["x"], "MatMul x,w>a; Relu a>c; MatMul c,w>d; Relu d>y", &["y"]);
    let named = |dim: i64| match dim {
        0 => Dimension { dim_value: None, dim_param: Some("n".into()) },
        dim => Dimension { dim_value: Some(dim), dim_param: None },
    };
    let of = |name: &str, dims: Vec<i64>| {
        let mut value = declared(name, 0);
        let tensor = value.r#type.as_mut().and_then(|kind| kind.tensor_type.as_mut()).expect("a tensor");
        tensor.shape = Some(TensorShapeProto { dim: dims.into_iter().map(named).collect() });
        value
    };
    (graph.input, graph.value_info) = (vec![of("x", vec![0, SIDE])], vec![of("c", c)]);
    let mut options = ModelOptions::with_all_ops();
    options.enable_optimization(false).shape_inference(ShapeInferenceMode::Off);
    let staged = load_by(graph, &options);
    assert_eq!(staged.stops.len(), 1);
    staged
}

/// Some exporters declare inner values wrongly. The engine compares what it is given, unless it has inferred the shape itself.
#[test]
fn a_run_whose_inner_values_are_declared_wrongly_is_done_whole() {
    let (wrong, right) = (declaring(vec![SIDE; 3]), declaring(vec![0, SIDE]));
    let numbers = |staged: &Staged| run(staged, &["y"], &Stops::None, false).expect("it runs").0;
    assert_eq!(numbers(&wrong), numbers(&right));
}

#[test]
fn a_request_that_a_declaration_does_not_fit_takes_no_stages_from_others() {
    let staged = declaring(vec![SIDE, SIDE]);
    drop(run_with(&staged, &[2], &["y"], &Stops::None, false).expect("it runs whole"));
    assert_eq!(refused(&staged), Vec::<usize>::new());
    let (_, stops) = run(&staged, &["y"], &Stops::All, false).expect("it runs");
    assert_eq!(stops, [0]);
}

#[test]
fn a_request_without_an_input_takes_no_stages_from_others() {
    let two = "MatMul x,w>a; Relu a>c; MatMul c,w>d; Sigmoid d>e; Add e,v>f; MatMul f,w>g; Tanh g>h; Add h,a>y";
    let staged = load(graph(&["x", "v"], two, &["y"]));
    assert!(matches!(run_with(&staged, &[4], &["y"], &Stops::None, false), Err(Fault::Failed(_))));
    assert_eq!(refused(&staged), Vec::<usize>::new());
    let (_, stops) = run(&staged, &["y"], &Stops::All, false).expect("it runs");
    assert_eq!(stops, [0, 1, 2]);
}

/// The engine makes one operator of `MatMul` and `Add`. Of three boundaries, one lies between these.
#[test]
fn a_long_run_is_interrupted_though_some_boundaries_are_of_no_use() {
    let layer = |at: usize| format!("MatMul x{at},w>a{at}; Add a{at},b>c{at}; Relu c{at}>x{}", at + 1);
    let layers: Vec<String> = (0..10).map(layer).collect();
    let staged = load(graph(&["x0"], &layers.join(";"), &["x10"]));
    let (_, usable) = run(&staged, &["x10"], &Stops::All, false).expect("it runs");
    assert!((5..staged.stops.len()).contains(&usable.len()), "{usable:?} of {}", staged.stops.len());
    let mut times = vec![Duration::ZERO; staged.stops.len() + 1];
    for at in usable.iter().chain([&staged.stops.len()]) {
        times[*at] = Duration::from_millis(15);
    }
    let class = staged.pace.classifier().class();
    staged.pace.note(class, &times, true);
    let stops = staged.pace.stops(class);
    assert_eq!(stops, Stops::Behind(usable.clone()));
    assert_eq!(run(&staged, &["x10"], &stops, false).expect("it runs").1, usable);
}

/// Six boundaries at which a value is missing, and two without a fault. The engine runs up to the six, and continues from none of them.
#[test]
fn a_run_begins_anew_a_few_times_only_and_the_next_runs_find_the_rest() {
    let layer = |at: usize| format!("MatMul x{at},w>a{at}; Add a{at},x0>x{}", at + 1);
    let layers: Vec<String> = (0..9).map(layer).collect();
    let graph = || graph(&["x0"], &layers.join(";"), &["x9"]);
    let mut proposed = Proposed::of(&graph());
    assert_eq!(proposed.boundaries.len(), 8);
    proposed.boundaries.iter_mut().take(6).for_each(|boundary| boundary.values.retain(|(name, _)| name != "x0"));
    let whole = load(graph());
    let staged = Staged::new(load(graph()).model, proposed, CostBound::Unknown);
    let of_whole = run(&whole, &["x9"], &Stops::Behind(Vec::new()), false).expect("it runs").0;
    for found in [&[0, 1, 2][..], &[0, 1, 2, 3, 4, 5], &[0, 1, 2, 3, 4, 5]] {
        assert_eq!(run(&staged, &["x9"], &Stops::None, false).expect("it runs").0, of_whole);
        assert_eq!(refused(&staged), found);
    }
    assert_eq!(run(&staged, &["x9"], &Stops::All, false).expect("it runs"), (of_whole, vec![6, 7]));
}

#[test]
fn what_is_refused_for_a_result_is_refused_for_more_and_not_for_others() {
    let stop = Stop { values: Vec::new(), refused_for: Default::default() };
    stop.refuse(0b10);
    assert_eq!([0b10, 0b11, 0b01].map(|bits| stop.is_refused(bits)), [true, true, false]);
    // No more than a few sets are kept, and the first remain.
    (3..20).for_each(|at| stop.refuse(1 << at));
    assert_eq!([0b10, 1 << 3, 1 << 19].map(|bits| stop.is_refused(bits)), [true, true, false]);
}

#[test]
fn a_run_whose_time_shapes_do_not_tell_can_always_be_ended() {
    let chain = graph(&["x"], "MatMul x,w>a; Relu a>c; MatMul c,w>d; Relu d>y", &["y"]);
    let proposed = Proposed::of(&chain);
    let staged = Staged::new(load(chain).model, proposed, CostBound::Unknown);
    drop(run(&staged, &["y"], &Stops::None, false).expect("it runs"));
    assert!(matches!(run(&staged, &["y"], &Stops::None, true), Err(Fault::Stopped)));
    let nothing = std::iter::empty::<(NodeId, std::vec::IntoIter<usize>)>();
    assert!(staged.can_be_ended(nothing, std::iter::empty()));
}
