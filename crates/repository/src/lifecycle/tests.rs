//! Do events lead to the right states?
