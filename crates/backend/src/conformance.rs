//! Does a runtime keep the contract?
