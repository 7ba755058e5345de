//! How do models run one after the other, as one model?
//!
//! ```text
//!   request ──► Run ── Flow: which steps may run? ──► Models::infer(step 0) ──┐
//!                ▲                                                            │ tensors, by reference
//!                └──────────────────── answers of the steps ◄─────────────────┘
//! ```
//! An ensemble is a runtime like any other ([`Ensemble`]). It computes nothing itself: it runs other models of the server. Steps that do not depend
//! on each other run side by side. Tensors pass from step to step as references. The step that makes an output of the ensemble writes it where the
//! client wants it.
//!
//! ```
//! use nerite_backend::Runtime;
//! use nerite_ensemble::Ensemble;
//!
//! assert_eq!(Ensemble.name(), "ensemble"); // the platform in config.pbtxt
//! ```
#![forbid(unsafe_code)]

mod batch_dimension;
mod check;
mod flow;
mod outputs;
mod plan;
mod readers;
mod run;
mod runtime;
mod sequence;

pub use runtime::Ensemble;
