//! Which names and numbers does the interface have for its types, and how does a backend log?

use std::ffi::{CStr, c_char};

use nerite_tensor::DataType;

use super::{exports, plain_exports};
use crate::abi::{Out, Text};
use crate::log_callback::{is_early, log_to_program};

/// The version of the interface for backends.
const BACKEND_API: (u32, u32) = (1, 19);
/// The version of the interface for programs.
const SERVER_API: (u32, u32) = (1, 34);

const DATATYPES: [&CStr; 15] = [
    c"<invalid>",
    c"BOOL",
    c"UINT8",
    c"UINT16",
    c"UINT32",
    c"UINT64",
    c"INT8",
    c"INT16",
    c"INT32",
    c"INT64",
    c"FP16",
    c"FP32",
    c"FP64",
    c"BYTES",
    c"BF16",
];

fn word(words: &[&'static CStr], at: u32) -> *const c_char {
    words.get(at as usize).map_or(c"<invalid>".as_ptr(), |word| word.as_ptr())
}

/// The log level of a number: 0 is info, 1 is warning, 2 is error, 3 is verbose.
fn level(number: u32) -> log::Level {
    match number {
        1 => log::Level::Warn,
        2 => log::Level::Error,
        3 => log::Level::Debug,
        _ => log::Level::Info,
    }
}

exports! {
    "TRITONBACKEND_ApiVersion" = backend_api_version(major: Out<u32>, minor: Out<u32>) {
        major.put(BACKEND_API.0)?;
        minor.put(BACKEND_API.1)?;
    }

    "TRITONSERVER_ApiVersion" = server_api_version(major: Out<u32>, minor: Out<u32>) {
        major.put(SERVER_API.0)?;
        minor.put(SERVER_API.1)?;
    }

    "TRITONSERVER_LogMessage" = log_message(number: u32, file: Text, line: i32, message: Text) {
        let (file, message) = (file.read_if_given().unwrap_or_default(), message.read()?);
        let level = level(number);
        let file = file.rsplit('/').next().unwrap_or_default();
        if is_early(level) {
            log_to_program(level, file, u32::try_from(line).unwrap_or_default(), &message);
        } else if log::log_enabled!(level) {
            let mut record = log::Record::builder();
            record.level(level).target(module_path!()).file(Some(file)).line(u32::try_from(line).ok());
            log::logger().log(&record.args(format_args!("{message}")).build());
        }
    }
}

plain_exports! {
    "TRITONSERVER_LogIsEnabled" = log_is_enabled(number: u32) -> bool {
        let level = level(number);
        log::log_enabled!(level) || is_early(level)
    }

    "TRITONSERVER_DataTypeString" = data_type_string(datatype: u32) -> *const c_char {
        word(&DATATYPES, datatype)
    }

    "TRITONSERVER_StringToDataType" = string_to_data_type(text: Text) -> u32 {
        text.read_if_given().and_then(|text| DataType::from_name(&text)).map_or(0, |datatype| datatype as u32)
    }

    "TRITONSERVER_DataTypeByteSize" = data_type_byte_size(number: u32) -> u32 {
        DataType::ALL.into_iter().find(|datatype| *datatype as u32 == number).and_then(DataType::size).unwrap_or(0) as u32
    }

    "TRITONSERVER_MemoryTypeString" = memory_type_string(number: u32) -> *const c_char {
        word(&[c"CPU", c"CPU_PINNED", c"GPU"], number)
    }

    "TRITONSERVER_ParameterTypeString" = parameter_type_string(number: u32) -> *const c_char {
        word(&[c"STRING", c"INT", c"BOOL", c"DOUBLE", c"BYTES"], number)
    }

    "TRITONSERVER_InstanceGroupKindString" = instance_group_kind_string(number: u32) -> *const c_char {
        word(&[c"AUTO", c"CPU", c"GPU", c"MODEL"], number)
    }

    "TRITONSERVER_InferenceTraceLevelString" = trace_level_string(number: u32) -> *const c_char {
        match number {
            0 => c"DISABLED".as_ptr(),
            1 => c"MIN".as_ptr(),
            2 => c"MAX".as_ptr(),
            4 => c"TIMESTAMPS".as_ptr(),
            8 => c"TENSORS".as_ptr(),
            _ => c"<unknown>".as_ptr(),
        }
    }

    "TRITONSERVER_InferenceTraceActivityString" = trace_activity_string(number: u32) -> *const c_char {
        let words = [
            c"REQUEST_START", c"QUEUE_START", c"COMPUTE_START", c"COMPUTE_INPUT_END", c"COMPUTE_OUTPUT_START", c"COMPUTE_END",
            c"REQUEST_END", c"TENSOR_QUEUE_INPUT", c"TENSOR_BACKEND_INPUT", c"TENSOR_BACKEND_OUTPUT", c"CUSTOM_ACTIVITY",
        ];
        words.get(number as usize).map_or(c"<unknown>".as_ptr(), |word| word.as_ptr())
    }
}
