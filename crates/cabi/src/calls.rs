//! Which functions does this server export to backends?
//!
//! All functions of Triton's interface, under their names, so a library can be loaded that needs a function and never calls it.

mod allocator;
mod attributes;
mod backend;
mod errors;
mod inference_request;
mod inference_response;
mod inference_tensors;
mod input;
mod instance;
mod memory;
mod messages;
mod metrics;
mod model;
mod options;
mod output;
mod program;
mod program_models;
mod request;
mod response;
mod response_statistics;
mod server;
mod state;
mod trace;
mod words;

/// One function of the interface.
#[derive(Clone, Copy)]
pub struct Export {
    /// Its name.
    pub name: &'static str,
    /// Its address.
    pub address: *const (),
}

/// Defines functions of the interface that return an error or NULL, and the list of them.
macro_rules! exports {
    ($($(#[$meta:meta])* $name:literal = $function:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $($(#[$meta])*
        // SAFETY: only Triton's own library has a function of this name.
        #[unsafe(export_name = $name)]
        extern "C" fn $function($($arg: $type),*) -> $crate::table::Handle<$crate::objects::ErrorObject> {
            $crate::answer::answer($name, move || { $body; Ok(()) })
        })*
        /// The functions of this file.
        pub(super) const EXPORTS: &[super::Export] =
            &[$(super::Export { name: $name, address: $function as *const () }),*];
    };
}

/// Defines functions of the interface with other return types, and the list of them.
macro_rules! plain_exports {
    ($($(#[$meta:meta])* $name:literal = $function:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $($(#[$meta])*
        // SAFETY: as above.
        #[unsafe(export_name = $name)]
        extern "C" fn $function($($arg: $type),*) $(-> $result)? $body)*
        /// The functions of this file with other return types.
        pub(super) const PLAIN_EXPORTS: &[super::Export] =
            &[$(super::Export { name: $name, address: $function as *const () }),*];
    };
}
use {exports, plain_exports};

/// All functions.
pub fn all() -> impl Iterator<Item = Export> {
    let files = [
        allocator::EXPORTS,
        attributes::EXPORTS,
        backend::EXPORTS,
        errors::PLAIN_EXPORTS,
        inference_request::EXPORTS,
        inference_response::EXPORTS,
        inference_response::PLAIN_EXPORTS,
        inference_tensors::EXPORTS,
        input::EXPORTS,
        instance::EXPORTS,
        memory::EXPORTS,
        messages::EXPORTS,
        messages::PLAIN_EXPORTS,
        metrics::EXPORTS,
        model::EXPORTS,
        options::EXPORTS,
        output::EXPORTS,
        program::EXPORTS,
        program_models::EXPORTS,
        request::EXPORTS,
        response::EXPORTS,
        response_statistics::EXPORTS,
        server::EXPORTS,
        state::EXPORTS,
        trace::EXPORTS,
        words::EXPORTS,
        words::PLAIN_EXPORTS,
    ];
    files.into_iter().flatten().copied()
}

#[cfg(test)]
mod tests;
