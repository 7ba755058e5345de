//! Which functions does a backend find?
//!
//! Each function of Triton's interface, under its name: those of the modules below, and for all others one that answers UNSUPPORTED with its own
//! name. None is missing, so a library that needs a function it never calls can be loaded.

mod allocator;
mod attributes;
mod backend;
mod errors;
mod input;
mod instance;
mod memory;
mod messages;
mod metrics;
mod model;
mod output;
mod request;
mod response;
mod unsupported;
mod words;

/// One function of the interface.
#[derive(Clone, Copy)]
pub struct Export {
    /// Its name.
    pub name: &'static str,
    /// Where it is.
    pub address: *const (),
}

/// Makes functions of the interface, which return an error or NULL, and the list of them.
macro_rules! exports {
    ($($(#[$meta:meta])* $name:literal = $function:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $($(#[$meta])* extern "C" fn $function($($arg: $type),*) -> $crate::table::Handle<$crate::objects::ErrorObject> {
            $crate::answer::answer($name, move || { $body; Ok(()) })
        })*
        /// The functions of this file.
        pub(super) const EXPORTS: &[super::Export] =
            &[$(super::Export { name: $name, address: $function as *const () }),*];
    };
}

/// Makes functions of the interface that return something else than an error, and the list of them.
macro_rules! plain_exports {
    ($($(#[$meta:meta])* $name:literal = $function:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $($(#[$meta])* extern "C" fn $function($($arg: $type),*) $(-> $result)? $body)*
        /// The functions of this file that return something else than an error.
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
        input::EXPORTS,
        instance::EXPORTS,
        memory::EXPORTS,
        messages::EXPORTS,
        messages::PLAIN_EXPORTS,
        metrics::EXPORTS,
        model::EXPORTS,
        output::EXPORTS,
        request::EXPORTS,
        response::EXPORTS,
        unsupported::EXPORTS,
        words::EXPORTS,
        words::PLAIN_EXPORTS,
    ];
    files.into_iter().flatten().copied()
}

#[cfg(test)]
mod tests;
