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
    let used =
        |at: usize, used: &Use| format!("{}{}", used.place, if program.plan.is_last(at, *used) { "!" } else { "" });
    let piece = |(at, piece): (usize, &Piece<GraphProto>)| match piece {
        Piece::Plain { graph, inputs, outputs, .. } => {
            let ops: Vec<&str> = graph.node.iter().filter_map(|node| node.op_type.as_deref()).collect();
            let constants = graph.initializer.len();
            let inputs: Vec<String> = inputs.iter().map(|one| used(at, one)).collect();
            format!("{}+{constants}({}) -> {outputs:?}", ops.join(","), inputs.join(" "))
        }
        Piece::Loop(LoopPiece { rounds, condition, carried, captured, body, outputs }) => {
            let carried: Vec<String> = carried.iter().map(|one| used(at, one)).collect();
            let ends = (rounds.map_or(-1, |at| at as i64), condition.map_or(-1, |at| at as i64));
            format!("Loop{ends:?}({} {captured:?}) {{ {} }} -> {outputs:?}", carried.join(" "), shown(body))
        }
        Piece::If { condition, captured, branches, outputs } => {
            let [then, other] = &**branches;
            format!("If {condition} {captured:?} {{ {} }} {{ {} }} -> {outputs:?}", shown(then), shown(other))
        }
    };
    program.pieces.iter().enumerate().map(piece).collect::<Vec<_>>().join("; ")
}

#[track_caller]
fn check(graph: &GraphProto, expect: Option<&str>) {
    let program = can_be_cut(graph).then(|| cut(graph)).flatten();
    assert_eq!(program.as_ref().map(shown).as_deref(), expect);
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

#[test]
fn a_graph_stays_whole_if_it_uses_a_name_that_the_cut_would_make() {
    let with = |made: &str| {
        let nodes = vec![
            node("Neg", &["x"], &[made], vec![]),
            adding(&["rounds", "", "c"], "s", "x"),
            node("Add", &["s", made], &["y"], vec![]),
        ];
        graph(&["x", "rounds"], nodes, &["y"], &["c"])
    };
    assert!(cut(&with("d/value")).is_some());
    check(&with("c/value"), None);
    let mut also_constant = with("d/value");
    also_constant.initializer.push(TensorProto { name: Some("c/value".to_owned()), ..TensorProto::default() });
    check(&also_constant, None);
    check(&graph(&["rounds", "c/value"], vec![adding(&["rounds", "", "c"], "y", "c/value")], &["y"], &["c"]), None);
}

#[test]
fn a_graph_stays_whole_if_a_loop_makes_what_was_read_before() {
    let (read, made) = (node("Neg", &["s"], &["y"], vec![]), adding(&["rounds", "", "x"], "s", "x"));
    let with = |nodes| graph(&["x", "rounds"], nodes, &["y"], &[]);
    assert!(cut(&with(vec![made.clone(), read.clone()])).is_some());
    check(&with(vec![read, made]), None);
}

#[test]
fn two_loops_share_the_value_of_a_constant_that_is_a_result_as_well() {
    let nodes = vec![adding(&["rounds", "", "c"], "a", "c"), adding(&["rounds", "", "c"], "b", "c")];
    let body = |places: &str| format!("{{ Identity,Add+1(1! 2!) -> [3, 4] }} -> [Some({places})]");
    let expect = format!("Identity+1() -> [1]; Loop(0, -1)(1 []) {}; Loop(0, -1)(1 []) {}", body("2"), body("3"));
    check(&graph(&["rounds"], nodes, &["a", "b", "c"], &["c"]), Some(&expect));
}

#[test]
fn a_constant_inside_a_round_hides_the_one_around_it() {
    let mut hiding = adding(&["rounds", "", "x"], "s", "c");
    let body = hiding.attribute.first_mut().and_then(|attribute| attribute.g.as_mut());
    let own = TensorProto { name: Some("c".to_owned()), int32_data: vec![1, 2, 3], ..TensorProto::default() };
    body.expect("a loop has a body").initializer.push(own);
    let nodes = vec![hiding, node("Add", &["s", "c"], &["y"], vec![])];
    let program = cut(&graph(&["x", "rounds"], nodes, &["y"], &["c"])).expect("it can be cut");
    let [Piece::Loop(LoopPiece { body, .. }), Piece::Plain { graph: after, .. }] = &program.pieces[..] else {
        panic!("{program:?}");
    };
    let Some(Piece::Plain { graph: round, .. }) = body.pieces.first() else { panic!("{body:?}") };
    let lens = |graph: &GraphProto| graph.initializer.iter().map(|one| one.int32_data.len()).collect::<Vec<_>>();
    assert_eq!((lens(round), lens(after)), (vec![3], vec![0]));
}

/// Three pieces read the constant: two bodies and what comes after them. So it is copied twice.
#[test]
fn a_graph_stays_whole_if_too_many_bytes_of_constants_would_be_copied() {
    let with = |bytes: usize| {
        let nodes = vec![
            adding(&["rounds", "", "x"], "a", "c"),
            adding(&["rounds", "", "x"], "b", "c"),
            node("Sum", &["a", "b", "c"], &["y"], vec![]),
        ];
        let mut whole = graph(&["x", "rounds"], nodes, &["y"], &["c"]);
        whole.initializer.iter_mut().for_each(|one| one.raw_data = Some(RefCell::new(vec![0; bytes])));
        whole
    };
    assert!(cut(&with(COPIED_BYTES_MAX / 2)).is_some());
    assert!(cut(&with(COPIED_BYTES_MAX / 2 + 1)).is_none());
}

#[test]
fn large_weights_are_not_copied_into_the_pieces_that_read_them() {
    let nodes = vec![adding(&["rounds", "", "x"], "a", "c"), node("Add", &["a", "c"], &["y"], vec![])];
    let mut whole = graph(&["x", "rounds"], nodes, &["y"], &["c"]);
    for constant in &mut whole.initializer {
        constant.data_type = Some(rten_onnx::onnx::DataType::FLOAT);
        constant.raw_data = Some(RefCell::new(vec![0; COPIED_BYTES_MAX + 4]));
    }
    assert_eq!(crate::weights::take(&mut whole).len(), COPIED_BYTES_MAX + 16);
    let program = cut(&whole).expect("it can be cut");
    let last = program.pieces.last().expect("it has pieces");
    let Piece::Plain { graph, .. } = last else { panic!("{last:?}") };
    let constant = graph.initializer.first().expect("it reads the constant");
    assert!(constant.raw_data.is_none() && constant.external_data.len() == 3);
}

#[test]
fn only_what_the_wanted_results_are_computed_from_runs() {
    let nodes = vec![
        adding(&["rounds", "", "x"], "a", "x"),
        adding(&["rounds", "", "x"], "b", "x"),
        node("Neg", &["x"], &["c"], vec![]),
        node("Neg", &["b"], &["d"], vec![]),
    ];
    let program = cut(&graph(&["x", "rounds"], nodes, &["a", "b", "c", "d"], &[])).expect("it can be cut");
    let check = |wanted: &[usize], expect: [Option<&[usize]>; 3]| {
        let plan = program.plan_for(|at| wanted.contains(&at));
        assert_eq!([0, 1, 2].map(|piece| plan.inputs(piece)), expect, "{wanted:?}");
        let is_wanted: Vec<usize> = (0..4).filter(|at| plan.wants(*at)).collect();
        assert_eq!(is_wanted, wanted);
    };
    check(&[0, 1, 2, 3], [Some(&[]), Some(&[]), Some(&[0, 1])]);
    check(&[0], [Some(&[]), None, None]);
    check(&[1], [None, Some(&[]), None]);
    check(&[2], [None, None, Some(&[0])]);
    check(&[3], [None, Some(&[]), Some(&[1])]);
    check(&[], [None, None, None]);
    // The input x, at place 0, may be overwritten by the last piece that runs.
    let first = Use { place: 0, is_shared: false };
    let is_last = |wanted: usize| [0, 2].map(|piece| program.plan_for(|at| at == wanted).is_last(piece, first));
    assert_eq!((is_last(0), is_last(2)), ([true, false], [false, true]));
}
