//! What do all instances of a graph share?

use std::sync::atomic::AtomicU32;

use nerite_backend::onnx::{Ports, UntrustedInputs};
use nerite_tensor::Tensor;
use rten::Model;

use crate::audit::MagnitudeBounds;

/// A graph in the engine, shared by all instances.
pub struct Loaded {
    /// The engine's own.
    pub model: Model,
    /// What the graph takes and gives.
    pub ports: Ports,
    /// What the inputs are that a request may leave out.
    pub defaults: Vec<Tensor>,
    /// Inputs that must not change while it runs.
    pub untrusted_inputs: UntrustedInputs,
    /// What its INT64 inputs must not lead to.
    pub magnitudes: MagnitudeBounds,
    /// Threads that ran it and wanted more memory than they may have.
    pub lost: AtomicU32,
}
