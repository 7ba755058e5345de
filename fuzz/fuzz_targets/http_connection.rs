//! Can any request heads and bodies make an HTTP/1 connection panic or go on for ever?
#![no_main]

use libfuzzer_sys::fuzz_target;
use nerite_fuzz::converse;
use nerite_http::fuzzing::serve_connection;

fuzz_target!(|requests: &[u8]| converse(&[requests], |api, stream| serve_connection(api, stream)));
