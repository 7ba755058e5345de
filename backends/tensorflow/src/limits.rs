//! What bounds what a graph and a request may ask for?

/// Bytes of a file with a graph: what a message of protobuf may have.
pub const GRAPH_BYTES_MAX: u64 = 1 << 31;
/// Nodes that the outputs of a graph need.
pub const NODES_MAX: usize = 8192;
/// Dimensions of a tensor.
pub const RANK_MAX: usize = 8;
/// Elements of a tensor of whole numbers that are followed while shapes are computed.
pub const KNOWN_MAX: usize = 1024;
/// Bytes that the tensors of one run may have at a time, unless the model's parameter `run_bytes_max` says otherwise.
pub const RUN_BYTES_MAX: u64 = 1 << 30;
/// Shapes of inputs for which a model keeps a plan.
pub const PLANS_MAX: usize = 16;
/// Bytes of the constants of all plans that a model keeps, or one plan.
pub const PLAN_BYTES_MAX: u64 = 256 << 20;
/// Bytes that a string occupies besides its text.
pub const STRING_BYTES: u64 = 256;
