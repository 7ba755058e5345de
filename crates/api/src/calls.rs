//! What does each call do?

mod infer;
mod metrics;
mod models;
mod regions;
mod settings;

pub(crate) use infer::Head;
pub(crate) use regions::{check_name, system_report};
pub use settings::Changeable;
