//! Which requests of sequences run together, and which sequences have a slot?
//!
//! The requests of a sequence run one after the other, on one instance. [`Direct`] gives each sequence a position in the batches of its instance.
//! [`Oldest`] gives each instance a dynamic batcher over its sequences.

mod direct;
mod oldest;
mod table;

pub use direct::{Direct, DirectPolicy, HoldBack};
pub use oldest::{Oldest, OldestPolicy};
