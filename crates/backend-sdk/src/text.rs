//! How are texts converted for the C interface?

use std::ffi::{CStr, CString, c_char};

/// A text that ends with a zero, as C needs it. A zero inside becomes a space.
pub fn to_c(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// A copy of a text that the server owns. Bytes that are no UTF-8 are replaced; NULL is empty.
///
/// # Safety
/// `text` is NULL, or bytes that end with a zero and do not change during the call.
pub unsafe fn from_c(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not NULL (above), so by the caller's promise it ends with a zero.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
