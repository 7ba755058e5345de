//! Do the values that pass a boundary suffice for all operators behind it?

use rten_onnx::onnx::{AttributeProto, TensorProto, ValueInfoProto};

use super::*;

/// Operators as `Op in,in>out,out`, one after the other.
fn graph(inputs: &str, nodes: &str, outputs: &str, constants: &str) -> GraphProto {
    let words =
        |text: &str| -> Vec<String> { text.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect() };
    let values = |text: &str| -> Vec<ValueInfoProto> {
        words(text).into_iter().map(|name| ValueInfoProto { name: Some(name), r#type: None }).collect()
    };
    let node = |text: &str| {
        let (op, sides) = text.trim().split_once(' ').expect("an operator and its values");
        let (read, made) = sides.split_once('>').expect("inputs and outputs");
        NodeProto {
            op_type: Some(op.to_owned()),
            input: words(read),
            output: words(made),
            attribute: Vec::new(),
            ..NodeProto::default()
        }
    };
    let constant = |name: String| TensorProto { name: Some(name), ..TensorProto::default() };
    GraphProto {
        node: nodes.split(';').map(node).collect(),
        initializer: words(constants).into_iter().map(constant).collect(),
        input: values(inputs),
        output: values(outputs),
        value_info: Vec::new(),
    }
}

fn shown(boundaries: &[Boundary]) -> Vec<String> {
    let one = |boundary: &Boundary| {
        let values = boundary.values.iter().map(|(name, bits)| format!("{name}:{bits:b}"));
        values.collect::<Vec<_>>().join(" ")
    };
    boundaries.iter().map(one).collect()
}

#[track_caller]
fn check(graph: &GraphProto, expect: &[&str]) {
    assert_eq!(shown(&boundaries(graph)), expect);
}

#[test]
fn a_small_graph_has_no_boundaries() {
    check(&graph("x", "Neg x>y", "y", ""), &[]);
    check(&graph("x", "Neg x>a; Abs a>b; Neg b>y", "y", ""), &[]);
}

#[test]
fn what_is_read_behind_a_boundary_passes_it() {
    check(&graph("x", "Neg x>a; Abs a>b; Neg b>c; Abs c>y", "y", ""), &["b:1"]);
    // An input, a weight, and a value that is read twice.
    check(&graph("x", "Neg x>a; Abs a>b; Mul b,w>c; Add c,x>d; Add d,x>y", "y", "w"), &["x:1 b:1"]);
    check(&graph("x", "Neg x>a; Abs a>b; Neg b>c; Neg c>d; Abs d>e; Add a,e>y", "y", ""), &["a:1", "a:1 d:1"]);
}

#[test]
fn a_result_passes_all_boundaries_behind_its_operator() {
    let two = graph("x", "Neg x>a; Abs a>y; Neg a>b; Abs b>c; Neg c>d; Abs d>z", "y,z", "");
    check(&two, &["a:11 y:1", "y:1 c:10"]);
}

#[test]
fn what_is_computed_from_constants_alone_passes_none_unless_it_is_drawn() {
    check(&graph("x", "Constant >k; Neg k>l; Neg x>a; Add a,k>b; Abs b>c; Add c,l>y", "y", ""), &["b:1"]);
    check(&graph("x", "RandomNormal >k; Add x,k>a; Abs a>b; Neg b>c; Add c,k>y", "y", ""), &["x:1 k:1"]);
}

#[test]
fn an_inner_graph_reads_from_the_one_around_it() {
    let mut outer = graph("x,c", "Neg x>a; Abs a>b; Neg b>d; If c>y", "y", "");
    let inner = graph("", "Add a,a>z", "z", "");
    let attribute = AttributeProto { name: Some("then_branch".into()), g: Some(inner), ..AttributeProto::default() };
    outer.node.last_mut().expect("four").attribute.push(attribute);
    check(&outer, &["c:1 a:1"]);
}

#[test]
fn a_graph_in_another_order_has_none() {
    check(&graph("x", "Abs a>b; Neg x>a; Neg b>c; Abs c>y", "y", ""), &[]);
}

#[test]
fn a_long_graph_has_so_many_and_where_few_values_pass() {
    let chain = |count: usize| {
        let nodes: Vec<String> = (0..count).map(|at| format!("Neg v{at}>v{}", at + 1)).collect();
        boundaries(&graph("v0", &nodes.join(";"), &format!("v{count}"), "")).len()
    };
    assert_eq!((chain(2), chain(10), chain(256), chain(10_000)), (0, 4, STAGES_MAX - 1, STAGES_MAX - 1));
    // Twenty values at a time are too many.
    let wide: Vec<String> = (0..20).map(|at| format!("Neg x>a{at}")).collect();
    let sums: Vec<String> = (0..20).map(|at| format!("Add a{at},s{at}>s{}", at + 1)).collect();
    let all = graph("x,s0", &[wide, sums].concat().join(";"), "s20", "");
    let most = boundaries(&all).iter().map(|boundary| boundary.values.len()).max();
    assert!(most.is_some_and(|most| most <= PASSED_MAX + 2), "{most:?}");
}
