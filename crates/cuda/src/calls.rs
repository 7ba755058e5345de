//! Which of the driver's functions are used, and with what signatures?
//!
//! Names and types are those of CUDA's `cuda.h`, the versions that drivers have had since CUDA 11.4.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::Library;

use crate::error::{Absent, CudaError};

/// `CUresult`.
pub(crate) type Code = c_int;
/// `CUdeviceptr`.
pub(crate) type Address = u64;
/// `CUcontext` and `CUstream`: opaque handles of the driver.
pub(crate) type Handle = *mut c_void;
/// `CUipcMemHandle`, passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawIpcHandle(pub [u8; 64]);

const SUCCESS: Code = 0;

macro_rules! calls {
    ($($name:ident: $symbol:literal($($ty:ty),*);)*) => {
        /// The functions, by what they do.
        pub(crate) struct Calls {
            $(pub(crate) $name: unsafe extern "C" fn($($ty),*) -> Code,)*
            /// Never unloaded: the driver has threads of its own.
            _library: ManuallyDrop<Library>,
        }

        impl Calls {
            fn find(path: &Path, library: Library) -> Result<Calls, Absent> {
                Ok(Calls {
                    $($name: {
                        // SAFETY: the symbol is a function of this signature in every library that has CUDA's names; the
                        // pointer is used while the library is loaded, which is for ever.
                        let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *found.map_err(|_| Absent::NoSymbol { path: path.to_owned(), symbol: $symbol })?
                    },)*
                    _library: ManuallyDrop::new(library),
                })
            }
        }

        /// The driver's names of the functions, for errors. Some are unused, because failures of those functions are not reported.
        #[allow(non_upper_case_globals, dead_code)]
        pub(crate) mod name {
            $(pub(crate) const $name: &str = $symbol;)*
        }
    };
}

calls! {
    init: "cuInit"(c_uint);
    device_count: "cuDeviceGetCount"(*mut c_int);
    device: "cuDeviceGet"(*mut c_int, c_int);
    device_name: "cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_uuid: "cuDeviceGetUuid_v2"(*mut [u8; 16], c_int);
    device_bus_id: "cuDeviceGetPCIBusId"(*mut c_char, c_int, c_int);
    device_attribute: "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    device_bytes: "cuDeviceTotalMem_v2"(*mut usize, c_int);
    context_retain: "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    context_release: "cuDevicePrimaryCtxRelease_v2"(c_int);
    context_push: "cuCtxPushCurrent_v2"(Handle);
    context_pop: "cuCtxPopCurrent_v2"(*mut Handle);
    allocate: "cuMemAlloc_v2"(*mut Address, usize);
    free: "cuMemFree_v2"(Address);
    memory_info: "cuMemGetInfo_v2"(*mut usize, *mut usize);
    address_range: "cuMemGetAddressRange_v2"(*mut Address, *mut usize, Address);
    pointer_attribute: "cuPointerGetAttribute"(*mut c_void, c_int, Address);
    ipc_get: "cuIpcGetMemHandle"(*mut RawIpcHandle, Address);
    ipc_open: "cuIpcOpenMemHandle_v2"(*mut Address, RawIpcHandle, c_uint);
    ipc_close: "cuIpcCloseMemHandle"(Address);
    host_allocate: "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    host_free: "cuMemFreeHost"(*mut c_void);
    host_lock: "cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    host_unlock: "cuMemHostUnregister"(*mut c_void);
    stream_create: "cuStreamCreate"(*mut Handle, c_uint);
    stream_destroy: "cuStreamDestroy_v2"(Handle);
    stream_wait: "cuStreamSynchronize"(Handle);
    to_device: "cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, Handle);
    to_host: "cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, Handle);
    within: "cuMemcpyDtoDAsync_v2"(Address, Address, usize, Handle);
    error_name: "cuGetErrorName"(Code, *mut *const c_char);
    error_text: "cuGetErrorString"(Code, *mut *const c_char);
}

impl Calls {
    /// Loads the library at `path`, or of that name where the loader looks.
    pub(crate) fn load(path: &Path) -> Result<Calls, Absent> {
        // SAFETY: loading runs the library's initialisers. It is the operator's choice which library that is, and the
        // default is the name under which NVIDIA installs its driver.
        let library = unsafe { Library::new(path) };
        let library =
            library.map_err(|error| Absent::NoLibrary { path: path.to_owned(), cause: loader_words(&error) })?;
        Calls::find(path, library)
    }

    /// The answer of a call as a result.
    pub(crate) fn check(&self, call: &'static str, code: Code) -> Result<(), CudaError> {
        if code == SUCCESS {
            return Ok(());
        }
        let name = words(self.error_name, code).unwrap_or_else(|| "CUDA_ERROR".to_owned());
        let text = words(self.error_text, code).unwrap_or_else(|| "unknown error".to_owned());
        Err(CudaError { call, code, name, text })
    }
}

/// The driver's text for a code.
fn words(getter: unsafe extern "C" fn(Code, *mut *const c_char) -> Code, code: Code) -> Option<String> {
    let mut words = std::ptr::null();
    // SAFETY: takes any code, and `words` is a place for one pointer.
    let known = unsafe { getter(code, &raw mut words) };
    if known != SUCCESS || words.is_null() {
        return None;
    }
    // SAFETY: the driver answered, and its strings are constants of the library, which is never unloaded.
    Some(unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
}

/// The loader's error text, without that of libloading.
pub(crate) fn loader_words(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Buffers and Slots hold a device address as a pointer. With unified addressing the two have the same value.
pub(crate) fn address(ptr: *const u8) -> Address {
    ptr.expose_provenance() as Address
}

/// The reverse conversion. Code on this host never dereferences such a pointer.
pub(crate) fn pointer(at: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(at as usize)
}
