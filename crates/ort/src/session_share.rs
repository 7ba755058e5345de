//! What do the instances of a model share?
//!
//! On the host they share the session with its graph, its weights and its threads, which exist once however many
//! instances run. Each instance has its own run options, and its own count of divisions on the calling thread.
//!
//! ```text
//!  instance 0 ── Run ──┐
//!  instance 1 ── Run ──┼──► session: graph, weights, pool of threads
//!  instance 2 ── Run ──┘
//! ```
//!
//! It is not known which run a thread of the pool worked for. So instances share a session only if it has no pool, or
//! if no operator of the graph divides integers: a request must not fail because of a division of another request. The
//! list names the operators that do not divide. So an operator that is not in it costs memory, but fails no request.

use std::sync::Arc;

use nerite_backend::onnx::{Node, Nodes};
use ort::session::Session;
use ort::{AsPointer, sys};

use crate::held_bytes::SessionBytes;
use crate::options::Options;
use crate::traps::SessionTraps;

/// Operators that divide no integers, neither values nor sizes.
#[rustfmt::skip]
const DIVIDES_NO_INTEGERS: &[&str] = &[
    "Abs", "Add", "And", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "Concat", "Constant", "Conv", "Cos",
    "DequantizeLinear", "Dropout", "Elu", "Equal", "Erf", "Exp", "Flatten", "Floor", "Gather", "Gelu", "Gemm", "GlobalAveragePool",
    "GlobalMaxPool", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization",
    "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul", "Max", "MaxPool", "Min", "Mish", "Mul",
    "Neg", "Not", "Or", "PRelu", "QLinearConv", "QLinearMatMul", "QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid",
    "Sign", "Sin", "Softmax", "Softplus", "Softsign", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Transpose", "Unsqueeze", "Where",
];

/// Whether several instances may run one session with these options. `divides_none` says that its graph divides no
/// integers.
pub fn may_share(options: &Options, divides_none: bool) -> bool {
    options.has_own_operators_only() && (options.is_without_pool() || divides_none)
}

/// Whether no operator of a graph divides integers. Only sessions of such graphs may compute on threads that sessions
/// of other models use as well (`enable-global-threadpool`), because it is not known for which session a thread works.
pub fn divides_no_integers(nodes: &Nodes) -> bool {
    let is_known =
        |node: &Node| node.is_standard() && node.inner.is_empty() && DIVIDES_NO_INTEGERS.contains(&node.op.as_str());
    nodes.is_complete && nodes.graph.iter().all(is_known)
}

/// A session that several instances may run at the same time.
pub struct SharedSession {
    session: Session,
    traps: SessionTraps,
    /// Counts what it keeps.
    _bytes: SessionBytes,
}

/// One instance's part in a session.
pub struct SessionShare {
    session: Arc<SharedSession>,
    traps: SessionTraps,
}

impl SharedSession {
    /// A new session with its counters.
    pub fn new(session: Session, traps: SessionTraps, bytes: SessionBytes) -> SharedSession {
        SharedSession { session, traps, _bytes: bytes }
    }

    /// The session, to read.
    pub fn session(&self) -> &Session {
        &self.session
    }
}

impl SessionShare {
    /// One more instance of this session.
    pub fn of(session: &Arc<SharedSession>) -> SessionShare {
        SessionShare { session: Arc::clone(session), traps: session.traps.of_another_thread() }
    }

    /// The session. The library allows several runs of one session at the same time: `Run` needs no exclusive access.
    pub fn session_ptr(&self) -> *mut sys::OrtSession {
        self.session.session.ptr().cast_mut()
    }

    /// The session, to read.
    pub fn session(&self) -> &Session {
        &self.session.session
    }

    /// The divisions that this instance counts: those on its own calls, and those on the pool.
    pub fn traps(&self) -> &SessionTraps {
        &self.traps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ops: &[&str], expect: bool) {
        let node = |op: &&str| Node { op: (*op).to_owned(), ..Node::default() };
        let nodes = Nodes { graph: ops.iter().map(node).collect(), is_complete: true, ..Nodes::default() };
        assert_eq!(divides_no_integers(&nodes), expect, "{ops:?}");
        assert!(!divides_no_integers(&Nodes { is_complete: false, ..nodes }), "what was not read may divide");
    }

    #[test]
    fn a_graph_that_may_divide_integers_is_known() {
        check(&["Conv", "Relu", "Add", "GlobalAveragePool", "Flatten", "MatMul"], true);
        check(&["Conv", "Div"], false);
        check(&["Mod"], false);
        check(&["OfSomebodyElse"], false);
        let inside = Node { op: "Identity".to_owned(), inner: vec![Node::default()], ..Node::default() };
        assert!(!divides_no_integers(&Nodes { graph: vec![inside], is_complete: true, ..Nodes::default() }));
    }
}
