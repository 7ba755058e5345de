//! Does it say what it should?
