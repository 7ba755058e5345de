//! How is an error of the library told?

use nerite_request::Status;

/// An error of the library's, with its number, as Triton words it.
pub fn library_status(error: &ort::Error) -> Status {
    let code = ort::sys::OrtErrorCode::from(error.code()) as i32;
    Status::internal(format!("onnx runtime error {code}: {}", error.message()))
}
