//! Which operators does the engine compute wrongly, and into which others are they rewritten?
//!
//! `ArgMax` and `ArgMin` choose the first of equal values unless the model says `select_last_index`; this version of the engine
//! always chooses the last, and refuses the attribute. Its `TopK` does choose the first, so
//!
//! ```text
//! ArgMax(x) → y                            becomes  TopK(x, k = 1) → _, y
//! ArgMax(x), keepdims = 0 → y              becomes  TopK(x, k = 1) → _, i;  Squeeze(i) → y
//! ArgMax(x), select_last_index = 1 → y     becomes  ArgMax(x) → y
//! ```
//!
//! A convolution without `kernel_shape` has the shape of its weights. This version of the engine takes it for a
//! convolution without dimensions and fails at the first run. A pool without `strides` moves by one. The engine fails
//! there too. Both attributes are added.
//!
//! Check this list with every new version of the engine.

use std::collections::HashMap;

use rten_onnx::onnx::{AttributeProto, AttributeType, DataLocation, GraphProto, NodeProto};

const SELECT_LAST: &str = "select_last_index";
const KERNEL: &str = "kernel_shape";
const STRIDES: &str = "strides";

/// Rewrites the graph's operators, and those of its inner graphs, so that the engine computes them right. Returns
/// whether any changed.
pub fn rewrite(graph: &mut GraphProto) -> bool {
    let mut changed = false;
    let shapes = shapes(graph);
    for node in &mut graph.node {
        if let Some(attribute) = left_out(node, &shapes) {
            changed = true;
            node.attribute.push(attribute);
        }
    }
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        for inner in node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut()) {
            changed |= rewrite(inner);
        }
        match node.op_type.as_deref() {
            Some("ArgMax" | "ArgMin") => {
                changed = true;
                nodes.extend(choosing(node));
            }
            _ => nodes.push(node),
        }
    }
    graph.node = nodes;
    changed
}

/// A constant whose bytes are in a file beside the model's. The engine cannot read the changed bytes of such a graph.
pub fn constant_outside(graph: &GraphProto) -> Option<&str> {
    let outside = graph.initializer.iter().find(|constant| constant.data_location == Some(DataLocation::EXTERNAL));
    outside.map(|constant| constant.name.as_deref().unwrap_or_default())
}

/// The operators that replace an ArgMax or ArgMin.
fn choosing(mut node: NodeProto) -> Vec<NodeProto> {
    if number(&node, SELECT_LAST) == Some(1) {
        node.attribute.retain(|attribute| attribute.name.as_deref() != Some(SELECT_LAST));
        return vec![node];
    }
    let largest = i64::from(node.op_type.as_deref() == Some("ArgMax"));
    let axis = number(&node, "axis").unwrap_or(0);
    let keeps = number(&node, "keepdims") != Some(0);
    let name = node.name.clone().unwrap_or_default();
    let output = node.output.first().cloned().unwrap_or_default();
    let chosen = if keeps { output.clone() } else { format!("{output}/chosen") };
    let choose = NodeProto {
        op_type: Some("TopK".into()),
        name: Some(name.clone()),
        output: vec![format!("{output}/value"), chosen.clone()],
        attribute: vec![integer("axis", axis), integer("k", 1), integer("largest", largest)],
        ..node
    };
    if keeps {
        return vec![choose];
    }
    let axes = integers("axes", vec![axis]);
    let squeeze = NodeProto {
        op_type: Some("Squeeze".into()),
        name: Some(format!("{name}/squeeze")),
        input: vec![chosen],
        output: vec![output],
        attribute: vec![axes],
        domain: None,
    };
    vec![choose, squeeze]
}

/// The attribute that the engine needs and the graph leaves out.
fn left_out(node: &NodeProto, shapes: &HashMap<String, Vec<i64>>) -> Option<AttributeProto> {
    match node.op_type.as_deref()? {
        "Conv" | "ConvInteger" | "ConvTranspose" if attribute(node, KERNEL).is_none() => {
            // Weights have the dimensions output channel, input channel, and those of the kernel.
            let kernel = shapes.get(node.input.get(1)?)?.get(2..)?;
            Some(integers(KERNEL, kernel.to_vec()))
        }
        "AveragePool" | "MaxPool" if attribute(node, STRIDES).is_none() => {
            let dimensions = attribute(node, KERNEL)?.ints.len();
            Some(integers(STRIDES, vec![1; dimensions]))
        }
        _ => None,
    }
}

/// The shapes in the graph: of constants, and of values whose dimensions are all fixed.
fn shapes(graph: &GraphProto) -> HashMap<String, Vec<i64>> {
    let declared = graph.input.iter().chain(&graph.value_info).filter_map(|value| {
        let shape = value.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?;
        let dims: Option<Vec<i64>> = shape.dim.iter().map(|dim| dim.dim_value).collect();
        Some((value.name.clone()?, dims?))
    });
    let constants =
        graph.initializer.iter().filter_map(|constant| Some((constant.name.clone()?, constant.dims.clone())));
    declared.chain(constants).collect()
}

fn integers(name: &str, values: Vec<i64>) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        ints: values,
        r#type: Some(AttributeType::INTS),
        ..AttributeProto::default()
    }
}

fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        i: Some(value),
        r#type: Some(AttributeType::INT),
        ..AttributeProto::default()
    }
}

fn number(node: &NodeProto, name: &str) -> Option<i64> {
    attribute(node, name)?.i
}

fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))
}

#[cfg(test)]
mod tests {
    use rten_onnx::onnx::TensorProto;

    use super::*;

    #[track_caller]
    fn check(op: &str, attributes: &[(&str, i64)], becomes: &[&str]) {
        let node = NodeProto {
            op_type: Some(op.into()),
            name: Some("n".into()),
            input: vec!["x".into()],
            output: vec!["y".into()],
            attribute: attributes.iter().map(|(name, value)| integer(name, *value)).collect(),
            domain: None,
        };
        let mut graph = GraphProto { node: vec![node], ..GraphProto::default() };
        let changed = rewrite(&mut graph);
        let shown: Vec<String> = graph
            .node
            .iter()
            .map(|node| {
                let attribute_texts = node.attribute.iter().map(|one| {
                    let name = one.name.as_deref().unwrap_or_default();
                    one.i.map_or_else(|| format!("{name}={:?}", one.ints), |value| format!("{name}={value}"))
                });
                let attribute_texts: Vec<String> = attribute_texts.collect();
                let op = node.op_type.as_deref().unwrap_or_default();
                format!("{op}({} | {}) -> {}", node.input.join(","), attribute_texts.join(","), node.output.join(","))
            })
            .collect();
        assert_eq!(shown, becomes);
        assert_eq!(changed, op.starts_with("Arg"));
    }

    #[test]
    fn the_first_of_equals_is_chosen_by_another_operator() {
        check("ArgMax", &[], &["TopK(x | axis=0,k=1,largest=1) -> y/value,y"]);
        check("ArgMin", &[("axis", -1)], &["TopK(x | axis=-1,k=1,largest=0) -> y/value,y"]);
        check(
            "ArgMax",
            &[("keepdims", 0), ("axis", 2)],
            &["TopK(x | axis=2,k=1,largest=1) -> y/value,y/chosen", "Squeeze(y/chosen | axes=[2]) -> y"],
        );
        check("ArgMin", &[(SELECT_LAST, 0)], &["TopK(x | axis=0,k=1,largest=0) -> y/value,y"]);
    }

    #[test]
    fn the_last_of_equals_is_what_the_engine_chooses_anyhow() {
        check("ArgMax", &[(SELECT_LAST, 1), ("axis", 1)], &["ArgMax(x | axis=1) -> y"]);
    }

    #[test]
    fn what_the_engine_does_not_reckon_is_written_out() {
        let node = |op: &str, attributes: Vec<AttributeProto>| NodeProto {
            op_type: Some(op.into()),
            input: vec!["x".into(), "w".into()],
            attribute: attributes,
            ..NodeProto::default()
        };
        let weights = TensorProto { name: Some("w".into()), dims: vec![8, 3, 5, 7], ..TensorProto::default() };
        let check = |op: &str, attributes: &[(&str, &[i64])], added: Option<(&str, &[i64])>| {
            let given = attributes.iter().map(|(name, values)| integers(name, values.to_vec())).collect();
            let initializer = vec![weights.clone()];
            let mut graph = GraphProto { node: vec![node(op, given)], initializer, ..GraphProto::default() };
            assert_eq!(rewrite(&mut graph), added.is_some(), "{op}");
            let written = &graph.node.first().expect("it stays").attribute;
            let shown: Vec<_> =
                written.iter().map(|one| (one.name.as_deref().unwrap_or_default(), &one.ints[..])).collect();
            assert_eq!(shown, attributes.iter().copied().chain(added).collect::<Vec<_>>(), "{op}");
        };
        check("Conv", &[("strides", &[2, 2])], Some(("kernel_shape", &[5, 7])));
        check("Conv", &[("kernel_shape", &[5, 7])], None);
        check("MaxPool", &[("kernel_shape", &[2, 2])], Some(("strides", &[1, 1])));
        check("AveragePool", &[("kernel_shape", &[2]), ("strides", &[2])], None);
        check("Relu", &[], None);
    }

    #[test]
    fn other_operators_stay() {
        check("TopK", &[("axis", 1)], &["TopK(x | axis=1) -> y"]);
    }

    #[test]
    fn graphs_inside_operators_are_rewritten_too() {
        let inner = NodeProto { op_type: Some("ArgMax".into()), output: vec!["y".into()], ..NodeProto::default() };
        let body = GraphProto { node: vec![inner], ..GraphProto::default() };
        let attribute = AttributeProto { g: Some(body), ..AttributeProto::default() };
        let outer = NodeProto { op_type: Some("If".into()), attribute: vec![attribute], ..NodeProto::default() };
        let mut graph = GraphProto { node: vec![outer], ..GraphProto::default() };
        assert!(rewrite(&mut graph));
        let body = graph.node.first().and_then(|node| node.attribute.first()).and_then(|one| one.g.as_ref());
        assert_eq!(body.and_then(|body| body.node.first()).and_then(|node| node.op_type.as_deref()), Some("TopK"));
    }
}
