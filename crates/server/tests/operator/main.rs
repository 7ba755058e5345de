//! Do the operator's commands say what is so, and do what they say?
#![allow(clippy::unwrap_used)]

mod doctor;
#[path = "../session/house.rs"]
mod house;
mod run;
mod shm;
