//! Which functions of Triton's interface does this crate call?
//!
//! The loader finds them in the process that loads the backend. Names, arguments and types are those of Triton's `tritonbackend.h` and
//! `tritonserver.h`, version 1.19 of the interface.

use std::ffi::{c_char, c_int, c_void};

/// The version of the interface.
pub const API_MAJOR: u32 = 1;
/// The oldest minor version that has all functions below.
pub const API_MINOR: u32 = 10;
/// Memory of the host.
pub const CPU: u32 = 0;
/// Page-locked memory of the host.
pub const CPU_PINNED: u32 = 1;
/// Instances on the host.
pub const KIND_CPU: u32 = 1;
/// Marks the last response of a request, and the release of all of the request.
pub const FINAL: u32 = 1;

/// Objects of the server. Their pointers are passed back to it, and never dereferenced.
macro_rules! opaque {
    ($($name:ident),*) => {
        $(
            #[doc = concat!("An object of the server: ", stringify!($name), ".")]
            #[repr(C)]
            pub struct $name {
                _private: [u8; 0],
            }
        )*
    };
}
opaque!(ErrorObject, Message, Backend, Attribute, Model, Instance, Request, Input, Response, Output);

/// The result of a function of the interface: NULL, or an error that the holder of this owns.
#[repr(transparent)]
#[must_use]
pub struct Returned(*mut ErrorObject);

impl Returned {
    /// Success.
    pub const SUCCESS: Returned = Returned(std::ptr::null_mut());

    /// The error. This keeps its ownership.
    pub fn error(&self) -> *mut ErrorObject {
        self.0
    }
}

unsafe extern "C" {
    pub fn TRITONSERVER_ErrorNew(code: u32, text: *const c_char) -> Returned;
    pub fn TRITONSERVER_ErrorDelete(error: *mut ErrorObject);
    pub fn TRITONSERVER_ErrorCode(error: *mut ErrorObject) -> u32;
    pub fn TRITONSERVER_ErrorMessage(error: *mut ErrorObject) -> *const c_char;
    pub fn TRITONSERVER_LogMessage(level: u32, file: *const c_char, line: c_int, text: *const c_char) -> Returned;
    pub fn TRITONSERVER_MessageNewFromSerializedJson(
        message: *mut *mut Message,
        base: *const c_char,
        bytes: usize,
    ) -> Returned;
    pub fn TRITONSERVER_MessageSerializeToJson(
        message: *mut Message,
        base: *mut *const c_char,
        bytes: *mut usize,
    ) -> Returned;
    pub fn TRITONSERVER_MessageDelete(message: *mut Message) -> Returned;

    pub fn TRITONBACKEND_ApiVersion(major: *mut u32, minor: *mut u32) -> Returned;
    pub fn TRITONBACKEND_BackendName(backend: *mut Backend, name: *mut *const c_char) -> Returned;
    pub fn TRITONBACKEND_BackendConfig(backend: *mut Backend, config: *mut *mut Message) -> Returned;
    pub fn TRITONBACKEND_BackendArtifacts(
        backend: *mut Backend,
        kind: *mut u32,
        directory: *mut *const c_char,
    ) -> Returned;
    pub fn TRITONBACKEND_BackendState(backend: *mut Backend, state: *mut *mut c_void) -> Returned;
    pub fn TRITONBACKEND_BackendSetState(backend: *mut Backend, state: *mut c_void) -> Returned;
    pub fn TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(
        attribute: *mut Attribute,
        enabled: bool,
    ) -> Returned;
    pub fn TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
        attribute: *mut Attribute,
        kind: u32,
        count: u64,
        devices: *const u64,
        device_count: u64,
    ) -> Returned;

    pub fn TRITONBACKEND_ModelName(model: *mut Model, name: *mut *const c_char) -> Returned;
    pub fn TRITONBACKEND_ModelVersion(model: *mut Model, version: *mut u64) -> Returned;
    pub fn TRITONBACKEND_ModelRepository(model: *mut Model, kind: *mut u32, path: *mut *const c_char) -> Returned;
    pub fn TRITONBACKEND_ModelConfig(model: *mut Model, version: u32, config: *mut *mut Message) -> Returned;
    pub fn TRITONBACKEND_ModelAutoCompleteConfig(model: *mut Model, completes: *mut bool) -> Returned;
    pub fn TRITONBACKEND_ModelSetConfig(model: *mut Model, version: u32, config: *mut Message) -> Returned;
    pub fn TRITONBACKEND_ModelBackend(model: *mut Model, backend: *mut *mut Backend) -> Returned;
    pub fn TRITONBACKEND_ModelState(model: *mut Model, state: *mut *mut c_void) -> Returned;
    pub fn TRITONBACKEND_ModelSetState(model: *mut Model, state: *mut c_void) -> Returned;

    pub fn TRITONBACKEND_ModelInstanceName(instance: *mut Instance, name: *mut *const c_char) -> Returned;
    pub fn TRITONBACKEND_ModelInstanceModel(instance: *mut Instance, model: *mut *mut Model) -> Returned;
    pub fn TRITONBACKEND_ModelInstanceState(instance: *mut Instance, state: *mut *mut c_void) -> Returned;
    pub fn TRITONBACKEND_ModelInstanceSetState(instance: *mut Instance, state: *mut c_void) -> Returned;
    pub fn TRITONBACKEND_ModelInstanceReportStatistics(
        instance: *mut Instance,
        request: *mut Request,
        success: bool,
        start_ns: u64,
        input_end_ns: u64,
        infer_end_ns: u64,
        end_ns: u64,
    ) -> Returned;
    pub fn TRITONBACKEND_ModelInstanceReportBatchStatistics(
        instance: *mut Instance,
        rows: u64,
        start_ns: u64,
        input_end_ns: u64,
        infer_end_ns: u64,
        end_ns: u64,
    ) -> Returned;

    pub fn TRITONBACKEND_RequestId(request: *mut Request, id: *mut *const c_char) -> Returned;
    pub fn TRITONBACKEND_RequestIsCancelled(request: *mut Request, cancelled: *mut bool) -> Returned;
    pub fn TRITONBACKEND_RequestInputCount(request: *mut Request, count: *mut u32) -> Returned;
    pub fn TRITONBACKEND_RequestInputByIndex(request: *mut Request, index: u32, input: *mut *mut Input) -> Returned;
    pub fn TRITONBACKEND_RequestInput(request: *mut Request, name: *const c_char, input: *mut *mut Input) -> Returned;
    pub fn TRITONBACKEND_RequestOutputCount(request: *mut Request, count: *mut u32) -> Returned;
    pub fn TRITONBACKEND_RequestOutputName(request: *mut Request, index: u32, name: *mut *const c_char) -> Returned;
    pub fn TRITONBACKEND_RequestRelease(request: *mut Request, flags: u32) -> Returned;
    pub fn TRITONBACKEND_InputProperties(
        input: *mut Input,
        name: *mut *const c_char,
        datatype: *mut u32,
        shape: *mut *const i64,
        dims: *mut u32,
        bytes: *mut u64,
        buffers: *mut u32,
    ) -> Returned;
    pub fn TRITONBACKEND_InputBuffer(
        input: *mut Input,
        index: u32,
        base: *mut *const c_void,
        bytes: *mut u64,
        memory: *mut u32,
        memory_id: *mut i64,
    ) -> Returned;

    pub fn TRITONBACKEND_ResponseNew(response: *mut *mut Response, request: *mut Request) -> Returned;
    pub fn TRITONBACKEND_ResponseDelete(response: *mut Response) -> Returned;
    pub fn TRITONBACKEND_ResponseOutput(
        response: *mut Response,
        output: *mut *mut Output,
        name: *const c_char,
        datatype: u32,
        shape: *const i64,
        dims: u32,
    ) -> Returned;
    pub fn TRITONBACKEND_OutputBuffer(
        output: *mut Output,
        buffer: *mut *mut c_void,
        bytes: u64,
        memory: *mut u32,
        memory_id: *mut i64,
    ) -> Returned;
    pub fn TRITONBACKEND_ResponseSend(response: *mut Response, flags: u32, error: *mut ErrorObject) -> Returned;
}
