//! What does each call do?

mod infer;
mod models;
mod regions;
mod settings;
