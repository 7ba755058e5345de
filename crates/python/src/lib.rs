//! How do models that are Python classes run?
#![forbid(unsafe_code)]
