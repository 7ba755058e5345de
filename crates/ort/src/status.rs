//! What does the error of a library's call say?

use nerite_request::Status;

/// An error of the library, with its number, in Triton's form.
pub fn library_status(error: &ort::Error) -> Status {
    let code = ort::sys::OrtErrorCode::from(error.code()) as i32;
    Status::internal(format!("onnx runtime error {code}: {}", error.message()))
}
