//! Can any HTTP/2 frames, HPACK blocks among them, make a gRPC connection panic or go on for ever?
//!
//! The preface and the client's settings come before the input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nerite_fuzz::converse;
use nerite_grpc::fuzzing::serve_connection;

const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fuzz_target!(|frames: &[u8]| converse(&[GREETING, frames], |api, stream| serve_connection(api, stream)));
