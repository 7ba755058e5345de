//! How is a shape printed?

/// The shape in Triton's format, such as `[-1,3]`.
pub(crate) fn shown(dims: &[i64]) -> String {
    let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
    format!("[{}]", dims.join(","))
}
