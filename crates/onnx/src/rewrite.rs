//! Which operators does the engine get wrong as they are written, and how are they written so that it gets them right?
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
//! To be asked again with every new version of the engine.

use rten_onnx::onnx::{AttributeProto, AttributeType, DataLocation, GraphProto, NodeProto};

const SELECT_LAST: &str = "select_last_index";

/// Writes the graph's operators, and those of the graphs inside them, as the engine gets them right. Says whether any changed.
pub fn rewrite(graph: &mut GraphProto) -> bool {
    let mut changed = false;
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

/// A constant whose bytes are in a file beside the model's: such a graph cannot be handed to the engine as changed bytes.
pub fn constant_outside(graph: &GraphProto) -> Option<&str> {
    let outside = graph.initializer.iter().find(|constant| constant.data_location == Some(DataLocation::EXTERNAL));
    outside.map(|constant| constant.name.as_deref().unwrap_or_default())
}

/// What an ArgMax or ArgMin becomes.
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
    let axes = AttributeProto {
        name: Some("axes".into()),
        ints: vec![axis],
        r#type: Some(AttributeType::INTS),
        ..AttributeProto::default()
    };
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

fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        i: Some(value),
        r#type: Some(AttributeType::INT),
        ..AttributeProto::default()
    }
}

fn number(node: &NodeProto, name: &str) -> Option<i64> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))?.i
}

#[cfg(test)]
mod tests {
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
                let said = node.attribute.iter().map(|one| {
                    let name = one.name.as_deref().unwrap_or_default();
                    one.i.map_or_else(|| format!("{name}={:?}", one.ints), |value| format!("{name}={value}"))
                });
                let said: Vec<String> = said.collect();
                let op = node.op_type.as_deref().unwrap_or_default();
                format!("{op}({} | {}) -> {}", node.input.join(","), said.join(","), node.output.join(","))
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
    fn other_operators_stay() {
        check("TopK", &[("axis", 1)], &["TopK(x | axis=1) -> y"]);
    }

    #[test]
    fn graphs_inside_operators_are_mended_too() {
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
