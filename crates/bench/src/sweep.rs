//! What is varied besides the load?

mod config;
mod sizes;

pub(crate) use self::config::{best_config, configs};
pub(crate) use self::sizes::sizes;
