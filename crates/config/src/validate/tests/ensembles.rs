//! Is an ensemble refused if its tensors do not connect its inputs to its outputs?

use super::parsed;
use crate::{ModelConfig, normalise, validate};

/// An ensemble `m` from `i` to `o` with these steps, and `fields` before them.
fn ensemble(fields: &str, steps: &[(&str, &[&str], &[&str])]) -> ModelConfig {
    let maps = |field: &str, tensors: &[&str]| -> String {
        let entry = |(index, tensor): (usize, &&str)| format!("{field} {{ key: 'T{index}' value: '{tensor}' }} ");
        tensors.iter().enumerate().map(entry).collect()
    };
    let step = |(model, inputs, outputs): &(&str, &[&str], &[&str])| {
        format!("step {{ model_name: '{model}' {} {} }} ", maps("input_map", inputs), maps("output_map", outputs))
    };
    let steps: String = steps.iter().map(step).collect();
    normalise(
        parsed(&format!(
            "name: 'm' {fields} input {{ name: 'i' }} output {{ name: 'o' }} \
             ensemble_scheduling {{ {steps} }}"
        )),
        "m",
    )
}

const ENSEMBLE_ONLY: &str = "platform: 'ensemble'";

#[track_caller]
fn check_steps(steps: &[(&str, &[&str], &[&str])], expect: Result<(), &str>) {
    let found = validate(&ensemble(ENSEMBLE_ONLY, steps)).map_err(|refused| refused.to_string());
    assert_eq!(found.as_ref().map_err(String::as_str).copied(), expect);
}

#[test]
fn an_ensemble_has_steps_and_no_instances() {
    let check = |fields: &str, expect: &str| {
        let config = ensemble(fields, &[("a", &["i"], &["o"])]);
        assert_eq!(validate(&config).unwrap_err().to_string(), expect, "{fields}");
    };
    check("backend: 'python'", "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble");
    check("platform: 'ensemble' instance_group { }", "instance group should not be specified for ensemble 'm'");
    check("platform: 'ensemble' optimization { }", "optimization should not be specified for ensemble 'm'");
    check("platform: 'ensemble' model_warmup { }", "model_warmup can not be specified for ensemble 'm'");
    let schedule = normalise(parsed("name: 'm' platform: 'ensemble'"), "m");
    assert_eq!(
        validate(&schedule).unwrap_err().to_string(),
        "ensemble scheduling must be set for ensemble m whose platform is ensemble"
    );
    check_steps(&[], Err("must specify 'step' for ensemble 'm'"));
}

#[test]
fn each_step_must_be_complete() {
    check_steps(
        &[("a", &["i"], &["o"]), ("", &["i"], &["p"])],
        Err("must specify 'model_name' in step 1 of ensemble 'm'"),
    );
    check_steps(&[("a", &[], &["o"])], Err("must specify 'input_map' in step 0 of ensemble 'm'"));
    check_steps(&[("a", &["i"], &[])], Err("must specify 'output_map' in step 0 of ensemble 'm'"));
    check_steps(
        &[("a", &["i"], &["o"]), ("b", &["i"], &["o"])],
        Err("ensemble tensor 'o' can appear in an output map only once for ensemble 'm' step 1"),
    );
}

#[test]
fn data_must_flow_from_inputs_to_outputs() {
    check_steps(&[("a", &["i"], &["o"])], Ok(()));
    check_steps(&[("b", &["t"], &["o"]), ("a", &["i"], &["t"])], Ok(()));
    check_steps(&[("a", &["i"], &["t", "u"]), ("b", &["t", "u", "i"], &["o"])], Ok(()));
    check_steps(&[("a", &["x"], &["o"])], Err("ensemble input 'i' for ensemble m' is not used"));
    check_steps(&[("a", &["i"], &["x"])], Err("ensemble output 'o' for ensemble m' is not used"));
    check_steps(&[("a", &["i"], &["o", "x"])], Err("ensemble tensor 'x' is unused in ensemble 'm'"));
    check_steps(&[("a", &["i"], &["o"]), ("b", &["u"], &["v"])], Err("ensemble tensor 'u' is unused in ensemble 'm'"));
    check_steps(
        &[("a", &["i", "x"], &["o"])],
        Err("output 'o' for ensemble 'm' is not written: at least one of its depending tensors, \
             'x', is not connected"),
    );
    check_steps(
        &[("a", &["i", "u"], &["t"]), ("b", &["t"], &["u"]), ("c", &["u"], &["o"])],
        Err("output 'o' for ensemble 'm' is not written: at least one of its depending tensors, \
             't', is not connected"),
    );
    // A cycle of one tensor names no other tensor.
    check_steps(&[("a", &["i", "o"], &["o"])], Err("output 'o' for ensemble 'm' is not written"));
}

#[test]
fn the_steps_of_an_ensemble_have_a_bound() {
    let chain = |steps: usize| {
        let step = |at: usize| {
            let (from, to) = (format!("t{at}"), if at + 1 == steps { "o".to_owned() } else { format!("t{}", at + 1) });
            let from = if at == 0 { "i".to_owned() } else { from };
            format!(
                "step {{ model_name: 'a' input_map {{ key: 'I' value: '{from}' }} output_map {{ key: 'O' value: '{to}' }} }} "
            )
        };
        let steps: String = (0..steps).map(step).collect();
        let text = format!(
            "name: 'm' platform: 'ensemble' input {{ name: 'i' }} output {{ name: 'o' }} ensemble_scheduling {{ {steps} }}"
        );
        validate(&normalise(parsed(&text), "m")).map_err(|refused| refused.to_string())
    };
    assert_eq!(chain(4096), Ok(()));
    let refused = "ensemble 'm' has 4097 steps, at most 4096 are possible; give it fewer";
    assert_eq!(chain(4097), Err(refused.to_owned()));
}

#[test]
fn a_step_with_many_inputs_and_outputs_takes_no_more_than_both_together() {
    // Their product is 400 million. A list of that would take gigabytes.
    const MANY: usize = 20_000;
    let names = |first: &str, from: &str| -> Vec<String> {
        std::iter::once(first.to_owned()).chain((1..MANY).map(|at| format!("{from}{at}"))).collect()
    };
    let (inputs, outputs) = (names("i", "a"), names("o", "b"));
    let refs = |names: &[String]| -> Vec<&'static str> { names.iter().map(|name| &*name.clone().leak()).collect() };
    let (inputs, outputs) = (refs(&inputs), refs(&outputs));
    check_steps(
        &[("a", &inputs, &outputs)],
        Err(
            "output 'o' for ensemble 'm' is not written: at least one of its depending tensors, 'a1', is not connected",
        ),
    );
}
