//! Which model gains from batches, and how is its file written?
//!
//! A few matrix products. For a single row the time goes into reading the weights from memory, and several rows that run as one read them once. The digits'
//! net is so small that each of its requests runs on the thread that read it, and waits for no other. Here a run takes much longer than a request costs
//! besides, so that requests wait for each other on slow machines as well.

/// The numbers in a row that comes in, and in one that goes out.
pub(super) const WIDTH: usize = 2048;
/// The products of a run. All have the same weights.
pub(super) const LAYERS: usize = 4;
/// The name of its input.
const INPUT: &str = "row";
const OUTPUT: &str = "product";
const WEIGHTS: &str = "weights";
/// The number of the element type FP32 in ONNX.
const FLOAT: u64 = 1;

/// The bytes of `model.onnx`: `row [rows, WIDTH] × weights [WIDTH, WIDTH] × weights …`.
pub(super) fn model() -> Vec<u8> {
    let between = |at: usize| match at {
        0 => INPUT.to_owned(),
        LAYERS => OUTPUT.to_owned(),
        at => format!("product_{at}"),
    };
    let node =
        |at: usize| [text(1, &between(at)), text(1, WEIGHTS), text(2, &between(at + 1)), text(4, "MatMul")].concat();
    let nodes: Vec<u8> = (0..LAYERS).flat_map(|at| bytes(1, &node(at))).collect();
    let weights = [
        number(1, WIDTH as u64),
        number(1, WIDTH as u64),
        number(2, FLOAT),
        text(8, WEIGHTS),
        bytes(9, &(0..WIDTH * WIDTH).flat_map(|at| weight(at).to_le_bytes()).collect::<Vec<u8>>()),
    ];
    let graph =
        [nodes, text(2, "wide_layer"), bytes(5, &weights.concat()), bytes(11, &port(INPUT)), bytes(12, &port(OUTPUT))];
    // Version 8 of the format, and version 13 of the operators.
    [number(1, 8), bytes(7, &graph.concat()), bytes(8, &[text(1, ""), number(2, 13)].concat())].concat()
}

/// `config.pbtxt`, with or without dynamic batching.
pub(super) fn config(name: &str, is_batched: bool) -> String {
    let batching = if is_batched { "dynamic_batching { }\n" } else { "" };
    format!(
        "name: \"{name}\"\nplatform: \"onnxruntime_onnx\"\nmax_batch_size: 64\n\
         input [ {{ name: \"{INPUT}\" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]\n\
         output [ {{ name: \"{OUTPUT}\" data_type: TYPE_FP32 dims: [ {WIDTH} ] }} ]\n{batching}"
    )
}

/// Weights of either sign, so small that the products stay finite. Their values do not matter.
fn weight(at: usize) -> f32 {
    (at * 7919 % 2001) as f32 / 50_000.0 - 0.02
}

/// The name and type of an input or output: FP32 of any number of rows.
fn port(name: &str) -> Vec<u8> {
    let dims = [bytes(1, &text(2, "rows")), bytes(1, &number(1, WIDTH as u64))].concat();
    let tensor = [number(1, FLOAT), bytes(2, &dims)].concat();
    [text(1, name), bytes(2, &bytes(1, &tensor))].concat()
}

/// A field of the protobuf format, with a number.
fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// The same with a text.
fn text(field: u64, value: &str) -> Vec<u8> {
    bytes(field, value.as_bytes())
}

/// The same with bytes, or with another message.
fn bytes(field: u64, value: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

/// Seven bits in each byte, the lowest ones first.
fn varint(mut value: u64) -> Vec<u8> {
    let mut written = Vec::new();
    while value >= 0x80 {
        written.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    written.push(value as u8);
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_written_as_protobuf_has_them() {
        assert_eq!(number(1, 150), [0x08, 0x96, 0x01]);
        assert_eq!(text(2, "testing"), *b"\x12\x07testing");
        assert_eq!(bytes(9, &[]), [0x4a, 0]);
        assert_eq!(varint(u64::from(u32::MAX)), [0xff, 0xff, 0xff, 0xff, 0x0f]);
    }

    #[test]
    fn only_one_of_the_two_has_batching() {
        assert!(config("wide", true).contains("name: \"wide\"\n") && config("wide", true).contains("dynamic_batching"));
        assert!(!config("wide", false).contains("dynamic_batching"));
    }
}
