//! What are the limits of graphs and requests?

/// The most bytes of a file with a graph. It is protobuf's limit of a message.
pub const GRAPH_BYTES_MAX: u64 = 1 << 31;
/// The most nodes that the outputs of a graph may need.
pub const NODES_MAX: usize = 8192;
/// The most dimensions of a tensor.
pub const RANK_MAX: usize = 8;
/// The most elements of an integer tensor whose values are computed together with the shapes.
pub const KNOWN_MAX: usize = 1024;
/// The most bytes of the tensors of one run at a time, unless the model's parameter `run_bytes_max` sets another limit.
pub const RUN_BYTES_MAX: u64 = 1 << 30;
/// The most plans that a model keeps.
pub const PLANS_MAX: usize = 16;
/// The most bytes of the constants of all plans that a model keeps, and of a single plan.
pub const PLAN_BYTES_MAX: u64 = 256 << 20;
/// Bytes that a string occupies besides its text.
pub const STRING_BYTES: u64 = 256;
