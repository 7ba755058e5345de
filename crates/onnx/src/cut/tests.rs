//! Are graphs cut at their loops, and only there?

use super::*;

fn node(op: &str, inputs: &[&str], outputs: &[&str], inner: Vec<(&str, GraphProto)>) -> NodeProto {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let attribute = |(name, graph): (&str, GraphProto)| AttributeProto {
        name: Some(name.to_owned()),
        g: Some(graph),
        ..AttributeProto::default()
    };
    NodeProto {
        op_type: Some(op.to_owned()),
        input: owned(inputs),
        output: owned(outputs),
        attribute: inner.into_iter().map(attribute).collect(),
        ..NodeProto::default()
    }
}

fn graph(inputs: &[&str], node: Vec<NodeProto>, outputs: &[&str], constants: &[&str]) -> GraphProto {
    let values = |names: &[&str]| names.iter().map(|name| untyped(name)).collect();
    let constant = |name: &&str| TensorProto { name: Some((*name).to_owned()), ..TensorProto::default() };
    GraphProto {
        node,
        initializer: constants.iter().map(constant).collect(),
        input: values(inputs),
        output: values(outputs),
        value_info: Vec::new(),
    }
}

/// A loop whose rounds add `added` to the value that they pass on.
fn adding(inputs: &[&str], output: &str, added: &str) -> NodeProto {
    let body = vec![node("Identity", &["go"], &["on"], vec![]), node("Add", &["sum", added], &["next"], vec![])];
    node("Loop", inputs, &[output], vec![("body", graph(&["i", "go", "sum"], body, &["on", "next"], &[]))])
}

/// The pieces with their places; a last use has an exclamation mark.
fn shown(program: &Program<GraphProto>) -> String {
    let used = |used: &Use| format!("{}{}", used.place, if used.is_last { "!" } else { "" });
    let piece = |piece: &Piece<GraphProto>| match piece {
        Piece::Plain { graph, inputs, outputs } => {
            let ops: Vec<&str> = graph.node.iter().filter_map(|node| node.op_type.as_deref()).collect();
            let constants = graph.initializer.len();
            let inputs: Vec<String> = inputs.iter().map(used).collect();
            format!("{}+{constants}({}) -> {outputs:?}", ops.join(","), inputs.join(" "))
        }
        Piece::Loop(LoopPiece { rounds, condition, carried, captured, body, outputs }) => {
            let carried: Vec<String> = carried.iter().map(used).collect();
            let ends = (rounds.map_or(-1, |at| at as i64), condition.map_or(-1, |at| at as i64));
            format!("Loop{ends:?}({} {captured:?}) {{ {} }} -> {outputs:?}", carried.join(" "), shown(body))
        }
        Piece::If { condition, captured, branches, outputs } => {
            let [then, other] = &**branches;
            format!("If {condition} {captured:?} {{ {} }} {{ {} }} -> {outputs:?}", shown(then), shown(other))
        }
    };
    program.pieces.iter().map(piece).collect::<Vec<_>>().join("; ")
}

#[track_caller]
fn check(graph: &GraphProto, expect: Option<&str>) {
    assert_eq!(cut(graph).as_ref().map(shown).as_deref(), expect);
}

#[test]
fn a_graph_without_loops_is_not_cut() {
    let branch = || graph(&[], vec![node("Neg", &["x"], &["z"], vec![])], &["z"], &[]);
    let choice = node("If", &["c"], &["y"], vec![("then_branch", branch()), ("else_branch", branch())]);
    check(&graph(&["x", "c"], vec![choice], &["y"], &[]), None);
}

#[test]
fn what_is_before_and_after_a_loop_are_pieces() {
    let nodes = vec![
        node("Neg", &["x"], &["before"], vec![]),
        adding(&["rounds", "", "before"], "sum", "x"),
        node("Mul", &["sum", "before"], &["y"], vec![]),
    ];
    check(
        &graph(&["x", "rounds"], nodes, &["y"], &[]),
        Some(
            "Neg+0(0) -> [2]; Loop(1, -1)(2 [0]) { Identity,Add+0(1! 2! 3!) -> [4, 5] } -> [Some(3)]; \
             Mul+0(3! 2!) -> [4]",
        ),
    );
}

#[test]
fn a_constant_is_copied_into_pieces_and_becomes_a_value_where_a_loop_starts_with_it() {
    let nodes = vec![adding(&["rounds", "", "c"], "y", "c")];
    check(
        &graph(&["rounds"], nodes, &["y"], &["c"]),
        Some("Identity+1() -> [1]; Loop(0, -1)(1! []) { Identity,Add+1(1! 2!) -> [3, 4] } -> [Some(2)]"),
    );
}

#[test]
fn a_loop_in_a_branch_cuts_the_branch() {
    let then = graph(&[], vec![adding(&["rounds", "", "x"], "z", "x")], &["z"], &[]);
    let other = graph(&[], vec![node("Neg", &["x"], &["z"], vec![])], &["z"], &[]);
    let choice = node("If", &["c"], &["y"], vec![("then_branch", then), ("else_branch", other)]);
    check(
        &graph(&["x", "c", "rounds"], vec![choice], &["y"], &[]),
        Some(
            "If 1 [[2, 0], [0]] { Loop(0, -1)(1 [1]) { Identity,Add+0(1! 2! 3!) -> [4, 5] } -> [Some(2)] } \
             { Neg+0(0!) -> [1] } -> [Some(3)]",
        ),
    );
}

#[test]
fn a_graph_that_cannot_be_cut_stays_whole() {
    let with = |inner: &str| graph(&["x", "rounds"], vec![adding(&["rounds", "", "x"], "y", inner)], &["y"], &[]);
    assert!(cut(&with("x")).is_some());
    check(&with("unknown"), None);
    let mut outside = with("w");
    outside.initializer.push(TensorProto {
        name: Some("w".to_owned()),
        data_location: Some(DataLocation::EXTERNAL),
        ..TensorProto::default()
    });
    check(&outside, None);
}
