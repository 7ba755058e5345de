//! Are invalid inputs and outputs refused?

use super::parsed;
use crate::validate_tensors;

/// Checks that `validate_tensors` refuses `fields`, in a model `m` without batching unless they set it.
#[track_caller]
fn check_tensors(fields: &str, expect: &str) {
    let config = parsed(&format!("name: 'm' {fields}"));
    assert_eq!(validate_tensors(&config).unwrap_err().to_string(), expect, "{fields}");
}

#[track_caller]
fn tensors_pass(fields: &str) {
    validate_tensors(&parsed(&format!("name: 'm' {fields}"))).unwrap();
}

#[test]
fn inputs_and_outputs_must_be_complete() {
    for way in ["input", "output"] {
        let check = |fields: &str, expect: &str| {
            check_tensors(&format!("{way} {{ {fields} }}"), &format!("model {way} {expect} for m"));
        };
        check("", "must specify 'name'");
        check("name: 'x'", "'x' must specify 'data_type'");
        check("name: 'x' data_type: 99", "'x' must specify 'data_type'");
        check("name: 'x' data_type: TYPE_BOOL", "'x' must specify 'dims'");
        for dim in ["0", "-2"] {
            check(
                &format!("name: 'x' data_type: TYPE_BOOL dims: [1, {dim}]"),
                "'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension",
            );
        }
    }
    tensors_pass("input { name: 'x' data_type: TYPE_BOOL dims: [1, -1] }");
}

#[test]
fn a_reshape_must_keep_the_elements() {
    let tensor = |dims: &str, reshape: &str| {
        format!("output {{ name: 'x' data_type: TYPE_BOOL dims: {dims} reshape {{ {reshape} }} }}")
    };
    let check = |dims: &str, reshape: &str, expect: &str| {
        let fields = tensor(dims, &format!("shape: {reshape}"));
        check_tensors(&fields, &format!("model output 'x' {expect} for m"));
    };
    let sizes = "has different size for dims and reshape";
    check("4", "0", "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension");
    check("4", "[2, 3]", sizes);
    check("4", "-1", sizes);
    check("-1", "4", sizes);
    check("[2, -1]", "[3, -1]", sizes);
    check("[-1, -1]", "-1", "has different number of variable-size dimensions for dims and reshape");
    check("[9223372036854775807, 2]", "1", "has an element count that exceeds 9223372036854775807");
    check_tensors(
        &tensor("1", ""),
        "model output 'x' cannot have empty reshape for non-batching model as scalar tensors are \
         not supported for m",
    );
    check_tensors(
        &format!("max_batch_size: 1 {}", tensor("2", "")),
        "model output 'x' has different size for dims and reshape for m",
    );
    tensors_pass(&format!("max_batch_size: 1 {}", tensor("[1, 1]", "")));
    tensors_pass(&tensor("[2, 4, -1, 6]", "shape: [8, -1, 1, 6]"));
    tensors_pass(&tensor("[4]", "shape: [2, 2]"));
}

#[test]
fn formats_must_be_valid() {
    let x = "name: 'x' data_type: TYPE_BOOL dims:";
    check_tensors(&format!("input {{ {x} 1 format: FORMAT_NHWC }}"), "model input NHWC/NCHW require 3 dims for m");
    tensors_pass(&format!("input {{ {x} [1, 2, 3] format: FORMAT_NCHW }}"));
    check_tensors(
        &format!("output {{ {x} 1 is_shape_tensor: true }}"),
        "shape tensors are only supported for TensorRT platform for m",
    );
    tensors_pass(&format!("platform: 'tensorrt_plan' input {{ {x} 1 is_shape_tensor: true }}"));
    check_tensors(
        &format!("input {{ {x} 1 is_non_linear_format_io: true }}"),
        "Non-linear IO format is only supported for the TensorRT platform for m",
    );
    check_tensors(
        &format!("platform: 'tensorrt_plan' output {{ {x} 1 is_non_linear_format_io: true }}"),
        "Non-linear IO format output requires 3 dims for m",
    );
}

#[test]
fn tensors_for_batches_must_name_others() {
    let check = |fields: &str, expect: &str| {
        let x = "name: 'x' data_type: TYPE_BOOL dims: 1";
        let fields = format!("input {{ {x} }} output {{ {x} }} {fields}");
        check_tensors(&fields, &format!("{expect} for m"));
    };
    check(
        "batch_input { kind: BATCH_ITEM_SHAPE }",
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0",
    );
    check(
        "batch_input { source_input: 'x' data_type: TYPE_INT64 }",
        "batch input data type must be TYPE_INT32 or TYPE_FP32",
    );
    check("batch_input { source_input: 'z' data_type: TYPE_INT32 }", "unknown source input name 'z'");
    check("batch_input { kind: 77 }", "unknown batch input kind '77'");
    check(
        "batch_output { source_input: ['x', 'x'] }",
        "batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 2",
    );
    check("batch_output { source_input: 'z' }", "unknown source input name 'z'");
    check("batch_output { source_input: 'x' target_name: 'z' }", "unknown target output name 'z'");
    check(
        "batch_output { source_input: 'x' target_name: ['x', 'x'] }",
        "target output name 'x' can only be specified once",
    );
}
