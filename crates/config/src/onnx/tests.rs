//! Does the graph complete the configuration, and must both agree?

#![allow(clippy::unwrap_used)]

use super::*;
use crate::{ModelConfig, parse_text};

fn parsed(text: &str) -> ModelConfig {
    parse_text("p", text.as_bytes()).unwrap()
}

type Tensors<'a> = &'a [(&'a str, DataType, &'a [i64])];

fn graph(inputs: Tensors<'_>, outputs: Tensors<'_>) -> GraphSignature {
    let tensors = |tensors: Tensors<'_>| {
        tensors
            .iter()
            .map(|(name, data_type, dims)| TensorSignature {
                name: (*name).to_owned(),
                data_type: *data_type,
                dims: dims.to_vec(),
            })
            .collect()
    };
    GraphSignature { inputs: tensors(inputs), outputs: tensors(outputs), ..GraphSignature::default() }
}

use DataType::{TypeBool, TypeFp32, TypeInt32, TypeInvalid, TypeString};

fn batching() -> GraphSignature {
    graph(&[("x", TypeFp32, &[-1, 3])], &[("y", TypeString, &[-1])])
}

fn fixed() -> GraphSignature {
    graph(&[("x", TypeFp32, &[2, -1])], &[("y", TypeInt32, &[])])
}

#[track_caller]
fn completes(given: &str, graph: &GraphSignature, expect: &str, notes: &[&str]) {
    let completion = complete_onnx(parsed(&format!("name: 'm' {given}")), graph, 4).unwrap();
    assert_eq!(completion.config, parsed(&format!("name: 'm' {expect}")), "{given}");
    let texts: Vec<String> = completion.notes.iter().map(Note::to_string).collect();
    assert_eq!(texts, notes);
}

#[track_caller]
fn refuses(given: &str, graph: &GraphSignature, expect: &str) {
    let config = parsed(&format!("name: 'm' {given}"));
    let refused = match complete_onnx(config, graph, 4) {
        Ok(completion) => check_onnx(&completion.config, graph).unwrap_err(),
        Err(refused) => refused,
    };
    assert_eq!(refused.to_string(), expect, "{given}");
}

#[track_caller]
fn agrees(given: &str, graph: &GraphSignature) {
    check_onnx(&parsed(&format!("name: 'm' {given}")), graph).unwrap();
}

const FILLED: &str = "autofilled max_batch_size to 4 for model 'm' since its graph supports \
                      batching and the configuration specifies no max_batch_size; specify it to \
                      allow larger batches";
const BATCHING: &str = "input { name: 'x' data_type: TYPE_FP32 dims: 3 } \
                        output { name: 'y' data_type: TYPE_STRING dims: 1 reshape { } }";

#[test]
fn variable_first_dimensions_are_the_batch() {
    completes("", &batching(), &format!("max_batch_size: 4 dynamic_batching {{ }} {BATCHING}"), &[FILLED]);
    completes("max_batch_size: 8", &batching(), &format!("max_batch_size: 8 dynamic_batching {{ }} {BATCHING}"), &[]);
    completes("max_batch_size: 1", &batching(), &format!("max_batch_size: 1 {BATCHING}"), &[]);
    completes(
        "max_batch_size: 8 sequence_batching { }",
        &batching(),
        &format!("max_batch_size: 8 sequence_batching {{ }} {BATCHING}"),
        &[],
    );
}

#[test]
fn without_variable_first_dimensions_there_is_no_batch() {
    completes(
        "",
        &fixed(),
        "input { name: 'x' data_type: TYPE_FP32 dims: [2, -1] } \
         output { name: 'y' data_type: TYPE_INT32 dims: 1 }",
        &[],
    );
    refuses(
        "max_batch_size: 2",
        &fixed(),
        "autofill failed for model 'm': model does not support batching while non-zero \
         max_batch_size is specified",
    );
}

#[test]
fn without_a_default_batch_size_the_dimension_is_kept() {
    let completion = complete_onnx(parsed("name: 'm'"), &batching(), 0).unwrap();
    let expect = parsed(
        "name: 'm' input { name: 'x' data_type: TYPE_FP32 dims: [-1, 3] } \
         output { name: 'y' data_type: TYPE_STRING dims: -1 }",
    );
    assert_eq!(completion.config, expect);
}

#[test]
fn a_list_with_any_entry_is_unchanged() {
    let both = "input { name: 'a' } output { name: 'b' }";
    let skipped = "skipping model configuration auto-complete for 'm': inputs and outputs \
                   already specified";
    completes(both, &batching(), both, &[skipped]);
    completes(
        "max_batch_size: 2 input { name: 'a' }",
        &batching(),
        "max_batch_size: 2 dynamic_batching { } input { name: 'a' } \
         output { name: 'y' data_type: TYPE_STRING dims: 1 reshape { } }",
        &[],
    );
    assert!(!needs_graph(&parsed("batch_input { } output { }")));
    assert!(needs_graph(&parsed("output { }")));
}

#[test]
fn a_completed_configuration_agrees_with_its_graph() {
    for graph in [batching(), fixed(), graph(&[("s", TypeBool, &[])], &[("t", TypeFp32, &[1])])] {
        let completion = complete_onnx(parsed("name: 'm'"), &graph, 4).unwrap();
        check_onnx(&completion.config, &graph).unwrap();
    }
}

const OUT: &str = "output { name: 'y' data_type: TYPE_STRING dims: 1 reshape { } }";

#[test]
fn inputs_must_be_the_graphs() {
    let refuses = |given: &str, expect: &str| {
        refuses(&format!("max_batch_size: 2 {given} {OUT}"), &batching(), expect);
    };
    refuses(
        "input { name: 'x' } input { name: 'z' }",
        "unable to load model 'm', configuration expects 2 inputs, model provides 1",
    );
    refuses("input { name: 'z' }", "unexpected inference input 'z', allowed inputs are: x");
    refuses("input { name: 'x' dims: 3 }", "unsupported datatype TYPE_INVALID for input 'x' for model 'm'");
    refuses(
        "input { name: 'x' data_type: TYPE_INT32 dims: 3 }",
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'x', model \
         provides TYPE_FP32",
    );
    refuses(
        "input { name: 'x' data_type: TYPE_FP32 dims: 4 }",
        "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model \
         configuration specifies 2 dimensions (an initial batch dimension because max_batch_size \
         > 0 followed by the explicit tensor shape, making complete shape [-1,4]); \
         dimension 1 is 3 in the model and 4 in the configuration",
    );
    refuses(
        "input { name: 'x' data_type: TYPE_FP32 dims: 3 optional: true }",
        "unable to load model 'm', configuration expects 0 inputs, model provides 1",
    );
    refuses(
        "input { name: 'x' data_type: TYPE_FP32 dims: 3 allow_ragged_batch: true }",
        "unable to load model 'm', configuration expects model provides input with shape [-1]  for \
         ragged input 'x', model provides [-1,3]",
    );
}

#[test]
fn outputs_must_be_the_graphs() {
    let refuses = |given: &str, expect: &str| {
        let input = "input { name: 'x' data_type: TYPE_FP32 dims: [2, 5] }";
        refuses(&format!("{input} {given}"), &fixed(), expect);
    };
    refuses("output { name: 'z' }", "unexpected inference output 'z', allowed outputs are: y");
    refuses(
        "output { name: 'y' data_type: TYPE_STRING dims: 1 }",
        "unable to load model 'm', configuration expects datatype TYPE_STRING for output 'y', \
         model provides TYPE_INT32",
    );
    refuses(
        "output { name: 'y' data_type: TYPE_INT32 dims: 2 }",
        "unable to load model 'm', scalar tensor 'y', should only provide 1 in the model \
         configuration when the model doesn't support batching. Model configuration provided: [2].",
    );
}

#[test]
fn a_variable_dimension_of_the_graph_may_be_fixed_only_for_inputs() {
    let open = graph(&[("x", TypeFp32, &[-1])], &[("y", TypeFp32, &[-1])]);
    let io = |input: i64, output: i64| {
        format!(
            "input {{ name: 'x' data_type: TYPE_FP32 dims: {input} }} \
             output {{ name: 'y' data_type: TYPE_FP32 dims: {output} }}"
        )
    };
    agrees(&io(5, -1), &open);
    agrees(&io(-1, -1), &open);
    refuses(
        &io(-1, 5),
        &open,
        "model 'm', tensor 'y': the model expects 1 dimensions (shape [-1]) but the model \
         configuration specifies 1 dimensions (shape [5]); dimension 0 is -1 in the model and 5 in the configuration",
    );
}

#[test]
fn strings_of_the_graph_are_named_bytes_and_unknown_types_invalid() {
    let check = |data_type, shown: &str| {
        refuses(
            "input { name: 'x' data_type: TYPE_FP32 dims: 1 } output { name: 'y' }",
            &graph(&[("x", data_type, &[1])], &[]),
            &format!(
                "unable to load model 'm', configuration expects datatype TYPE_FP32 for input 'x', \
                 model provides {shown}"
            ),
        );
    };
    check(TypeString, "TYPE_BYTES");
    check(TypeInvalid, "TYPE_<invalid>");
}

#[test]
fn a_batch_needs_a_variable_first_dimension() {
    refuses(
        "max_batch_size: 2 input { name: 'x' data_type: TYPE_FP32 dims: -1 } \
         output { name: 'y' data_type: TYPE_INT32 dims: 1 }",
        &fixed(),
        "model 'm', tensor 'x': for the model to support batching the shape should have at least \
         1 dimension and the first dimension must be -1; but shape expected by the model is [2,-1]",
    );
}

#[test]
fn inputs_that_the_server_makes_are_counted_and_checked() {
    let sequence = "max_batch_size: 2 input { name: 'x' data_type: TYPE_FP32 dims: 3 } \
                    output { name: 'y' data_type: TYPE_FP32 dims: 3 } \
                    sequence_batching { control_input { name: 'start' control { \
                    kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } } \
                    state { input_name: 'in' output_name: 'out' } }";
    let with_start = |start: (&'static str, DataType, &'static [i64])| {
        graph(
            &[("x", TypeFp32, &[-1, 3]), start, ("in", TypeFp32, &[-1, 1])],
            &[("y", TypeFp32, &[-1, 3]), ("out", TypeFp32, &[-1, 1])],
        )
    };
    agrees(sequence, &with_start(("start", TypeInt32, &[-1, 1])));
    refuses(
        sequence,
        &with_start(("begin", TypeInt32, &[-1, 1])),
        "configuration specified sequence control 'start', but model does not provide that input",
    );
    refuses(
        sequence,
        &with_start(("start", TypeInt32, &[-1, 2])),
        "unable to load model 'm', sequence control 'start' in model has dims [2] but dims [1] is \
         expected",
    );
    refuses(
        sequence,
        &with_start(("start", TypeFp32, &[-1, 1])),
        "unable to load model 'm', sequence control 'start', the model expects data-type FLOAT \
         but the model configuration specifies data-type TYPE_INT32",
    );
}

/// A graph with the inputs `x`, and `w`, which has an initialiser.
fn overridable() -> GraphSignature {
    let initializers = graph(&[("w", TypeFp32, &[3])], &[]).inputs;
    GraphSignature { initializers, ..graph(&[("x", TypeFp32, &[-1])], &[("y", TypeFp32, &[-1])]) }
}

#[test]
fn an_input_with_an_initializer_may_be_listed_as_optional() {
    let x = "input { name: 'x' data_type: TYPE_FP32 dims: -1 }";
    let y = "output { name: 'y' data_type: TYPE_FP32 dims: -1 }";
    let w = |rest: &str| format!("{x} {y} input {{ name: 'w' data_type: TYPE_FP32 dims: 3 {rest} }}");
    agrees(&format!("{x} {y}"), &overridable());
    agrees(&w("optional: true"), &overridable());
    refuses(&w(""), &overridable(), "unable to load model 'm', configuration expects 2 inputs, model provides 1");
    refuses(
        &w("optional: true").replace("TYPE_FP32 dims: 3", "TYPE_INT32 dims: 3"),
        &overridable(),
        "unable to load model 'm', configuration expects datatype TYPE_INT32 for input 'w', model provides TYPE_FP32",
    );
    refuses(
        &w("optional: true").replace("'w'", "'v'"),
        &overridable(),
        "unexpected inference input 'v', allowed inputs are: w, x",
    );
    refuses(
        &w("optional: true").replace("dims: 3", "dims: 4"),
        &overridable(),
        "model 'm', tensor 'w': the model expects 1 dimensions (shape [3]) but the model configuration specifies 1 \
         dimensions (shape [4]); dimension 0 is 3 in the model and 4 in the configuration",
    );
    refuses(
        &format!(
            "max_batch_size: 2 {}",
            w("optional: true").replace("'x' data_type: TYPE_FP32 dims: -1", "'x' data_type: TYPE_FP32 dims: []")
        ),
        &overridable(),
        "unable to load model 'm', optional input 'w' is not supported for models that support batching",
    );
    refuses(
        &format!("{y} {}", x.replace("dims: -1", "dims: -1 optional: true")),
        &overridable(),
        "unable to load model 'm', configuration expects 0 inputs, model provides 1",
    );
}

#[test]
fn an_input_with_an_initializer_is_not_filled_in() {
    let filled = complete_onnx(parsed("name: 'm'"), &overridable(), 0).unwrap().config;
    assert_eq!(filled.input.iter().map(|input| input.name.as_str()).collect::<Vec<_>>(), ["x"]);
}
