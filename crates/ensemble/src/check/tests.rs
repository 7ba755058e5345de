//! Are ensembles that fit their models accepted, and all others refused?

use std::sync::Arc;

use nerite_config::parse_text;

use super::*;

fn parsed(text: &str) -> ModelConfig {
    parse_text("p", text.as_bytes()).unwrap_or_else(|refused| panic!("{refused}\nin {text}"))
}

/// A model from `x` to `y`, both FP32 and `[2]`, with `fields` added.
fn model(fields: &str) -> ModelConfig {
    parsed(&format!(
        "input {{ name: 'x' data_type: TYPE_FP32 dims: 2 }} \
         output {{ name: 'y' data_type: TYPE_FP32 dims: 2 }} {fields}"
    ))
}

/// A step that maps these tensors. Its model has as many inputs and outputs.
fn step(model: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)]) -> String {
    let map = |field: &str, pairs: &[(&str, &str)]| {
        let entry = |(key, value): &(&str, &str)| format!("{field} {{ key: '{key}' value: '{value}' }}");
        pairs.iter().map(entry).collect::<Vec<_>>().join(" ")
    };
    format!("step {{ model_name: '{model}' {} {} }} ", map("input_map", inputs), map("output_map", outputs))
}

/// An ensemble `e` from `i` to `o`, both FP32 and `[2]`, with `fields` added.
fn ensemble(fields: &str, steps: &str) -> ModelConfig {
    parsed(&format!(
        "name: 'e' platform: 'ensemble' input {{ name: 'i' data_type: TYPE_FP32 dims: 2 }} \
         output {{ name: 'o' data_type: TYPE_FP32 dims: 2 }} {fields} \
         ensemble_scheduling {{ {steps} }}"
    ))
}

/// Checks that the ensemble fits these models, or why it does not.
#[track_caller]
fn check(ensemble: &ModelConfig, models: &[&ModelConfig], expect: Result<(), &str>) {
    let members: Vec<Arc<ModelConfig>> = models.iter().map(|model| Arc::new((*model).clone())).collect();
    let found = super::check(ensemble, &members);
    assert_eq!(found, expect.map_err(Status::invalid));
}

fn one_step() -> String {
    step("a", &[("x", "i")], &[("y", "o")])
}

#[test]
fn models_that_fit_are_taken() {
    check(&ensemble("", &one_step()), &[&model("")], Ok(()));
    let chain = step("a", &[("x", "i")], &[("y", "t")]) + &step("b", &[("x", "t")], &[("y", "o")]);
    check(&ensemble("", &chain), &[&model(""), &model("")], Ok(()));
    let extra = model("input { name: 'z' data_type: TYPE_BOOL dims: 1 optional: true }");
    check(&ensemble("", &one_step()), &[&extra], Ok(()));
    check(&ensemble("max_batch_size: 4", &one_step()), &[&model("max_batch_size: 8")], Ok(()));
}

#[test]
fn a_batching_ensemble_may_contain_a_model_with_the_batch_in_its_shape() {
    let unbatched = parsed(
        "input { name: 'x' data_type: TYPE_FP32 dims: [-1, 2] } \
         output { name: 'y' data_type: TYPE_FP32 dims: [-1, -1] }",
    );
    check(&ensemble("max_batch_size: 4", &one_step()), &[&unbatched], Ok(()));
    check(
        &ensemble("", &one_step()),
        &[&unbatched],
        Err("in ensemble e, ensemble tensor i: inconsistent shape: [2] is inferred from model e \
             while [-1,2] is inferred from model a"),
    );
}

#[test]
fn a_model_of_smaller_batches_is_refused() {
    check(
        &ensemble("max_batch_size: 4", &one_step()),
        &[&model("max_batch_size: 2")],
        Err("ensemble e allows maximum batch size 4, but it contains model a which only allows \
             maximum batch size to be 2"),
    );
}

#[test]
fn all_inputs_and_no_others_are_mapped() {
    check(
        &ensemble("", &step("a", &[("x", "i"), ("z", "i")], &[("y", "o")])),
        &[&model("")],
        Err("in ensemble e, ensemble tensor i is mapping to non-existing input z in model a"),
    );
    check(
        &ensemble("", &one_step()),
        &[&model("input { name: 'z' data_type: TYPE_BOOL dims: 1 }")],
        Err("in ensemble e, input z in model a is not mapped to any ensemble tensors"),
    );
    check(
        &ensemble("", &step("a", &[("x", "i")], &[("z", "o")])),
        &[&model("")],
        Err("in ensemble e, ensemble tensor o is mapped from non-existing output z in model a"),
    );
}

#[test]
fn both_ends_of_a_tensor_agree() {
    let chain = step("a", &[("x", "i")], &[("y", "t")]) + &step("b", &[("x", "t")], &[("y", "o")]);
    let other = |data_type: &str, dims: &str| {
        parsed(&format!(
            "input {{ name: 'x' data_type: {data_type} dims: {dims} }} \
             output {{ name: 'y' data_type: TYPE_FP32 dims: 2 }}"
        ))
    };
    check(
        &ensemble("", &chain),
        &[&model(""), &other("TYPE_INT32", "2")],
        Err("in ensemble e, ensemble tensor t: inconsistent data type: TYPE_FP32 is inferred from \
             model a while TYPE_INT32 is inferred from model b"),
    );
    check(
        &ensemble("", &chain),
        &[&model(""), &other("TYPE_FP32", "3")],
        Err("in ensemble e, ensemble tensor t: inconsistent shape: [2] is inferred from model a \
             while [3] is inferred from model b"),
    );
    check(&ensemble("", &chain), &[&model(""), &other("TYPE_FP32", "-1")], Ok(()));
    // Shapes are shown with the batch dimension.
    let batched = model("max_batch_size: 8");
    let wider = ModelConfig { max_batch_size: 4, ..other("TYPE_FP32", "3") };
    check(
        &ensemble("max_batch_size: 4", &chain),
        &[&batched, &wider],
        Err("in ensemble e, ensemble tensor t: inconsistent shape: [-1,2] is inferred from model a \
             while [-1,3] is inferred from model b"),
    );
}

#[test]
fn answers_of_different_decoupled_models_cannot_be_joined() {
    let many = model("model_transaction_policy { decoupled: true }");
    let one = model("");
    check(&ensemble("", &one_step()), &[&many], Ok(()));
    let chain = step("a", &[("x", "i")], &[("y", "t")]) + &step("b", &[("x", "t")], &[("y", "o")]);
    check(&ensemble("", &chain), &[&many, &one], Ok(()));
    check(&ensemble("", &chain), &[&many, &many], Ok(()));
    let two = model("input { name: 'z' data_type: TYPE_FP32 dims: 2 }");
    let meeting = step("c", &[("x", "t"), ("z", "i")], &[("y", "o")]) + &step("a", &[("x", "i")], &[("y", "t")]);
    check(
        &ensemble("", &meeting),
        &[&two, &many],
        Err("in ensemble e, step of model 'e' receives inputs originated from different decoupled \
             models"),
    );
    check(&ensemble("", &meeting), &[&two, &one], Ok(()));
    let apart = step("a", &[("x", "i")], &[("y", "o")]) + &step("b", &[("x", "i")], &[("y", "p")]);
    check(
        &ensemble("output { name: 'p' data_type: TYPE_FP32 dims: 2 }", &apart),
        &[&many, &one],
        Err("in ensemble e, step of model 'e' receives inputs originated from different decoupled \
             models"),
    );
    // For a tensor that the ensemble does not declare, the error names the model that reads or makes it first.
    let inside = step("a", &[("x", "i")], &[("y", "t")])
        + &step("c", &[("x", "t"), ("z", "i")], &[("y", "u")])
        + &step("b", &[("x", "u")], &[("y", "o")]);
    check(
        &ensemble("", &inside),
        &[&many, &two, &one],
        Err("in ensemble e, step of model 'c' receives inputs originated from different decoupled \
             models"),
    );
    // Two outputs of one decoupled step belong together.
    let pair = model("output { name: 'v' data_type: TYPE_FP32 dims: 2 } model_transaction_policy { decoupled: true }");
    let together =
        step("a", &[("x", "i")], &[("y", "t"), ("v", "u")]) + &step("c", &[("x", "t"), ("z", "u")], &[("y", "o")]);
    check(&ensemble("", &together), &[&pair, &two], Ok(()));
}
