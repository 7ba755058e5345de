//! How does a backend make and read errors?

use std::ffi::c_char;
use std::sync::Arc;

use super::plain_exports;
use crate::abi::Text;
use crate::objects::{ErrorObject, c_text, code_number, code_of};
use crate::table::Handle;

plain_exports! {
    "TRITONSERVER_ErrorNew" = error_new(code: u32, message: Text) -> Handle<ErrorObject> {
        let message = c_text(&message.read_if_given().unwrap_or_default());
        Handle::to(Arc::new(ErrorObject { code: code_of(code), message })).unwrap_or_default()
    }

    "TRITONSERVER_ErrorDelete" = error_delete(error: Handle<ErrorObject>) {
        if let Err(fault) = error.delete() {
            fault.into_status("TRITONSERVER_ErrorDelete");
        }
    }

    "TRITONSERVER_ErrorCode" = error_code(error: Handle<ErrorObject>) -> u32 {
        error.get().map_or(0, |error| code_number(error.code))
    }

    "TRITONSERVER_ErrorCodeString" = error_code_string(error: Handle<ErrorObject>) -> *const c_char {
        let code = error.get().map_or(0, |error| code_number(error.code));
        let words = [
            c"Unknown", c"Internal", c"Not found", c"Invalid argument", c"Unavailable", c"Unsupported", c"Already exists",
            c"Cancelled",
        ];
        words.get(code as usize).map_or(c"<invalid code>".as_ptr(), |word| word.as_ptr())
    }

    "TRITONSERVER_ErrorMessage" = error_message(error: Handle<ErrorObject>) -> *const c_char {
        // The text lives as long as the error's handle.
        error.get().map_or(c"".as_ptr(), |error| error.message.as_ptr())
    }
}
