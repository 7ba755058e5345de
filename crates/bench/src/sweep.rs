//! What is varied besides the load?

mod config;
mod sizes;

pub(crate) use self::config::{best_config, configs, mark};
pub(crate) use self::sizes::{begin, sizes};
