//! Which of NVML's functions are used, and with what signatures?
//!
//! Names and types are those of `nvml.h`, the versions that drivers have had since CUDA 11.4.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::Library;
use thiserror::Error;

use crate::calls::loader_words;

/// `nvmlReturn_t`.
type Code = c_int;

const SUCCESS: Code = 0;
/// `NVML_ERROR_NOT_SUPPORTED` and `NVML_ERROR_FUNCTION_NOT_FOUND`.
const UNSUPPORTED: [Code; 2] = [3, 13];

/// `nvmlDevice_t`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Handle(*mut c_void);

// SAFETY: NVML's functions may be called from any thread; the handle itself is only a name.
unsafe impl Send for Handle {}
// SAFETY: as above, also from several threads at once.
unsafe impl Sync for Handle {}

impl Handle {
    /// An object that NVML represents by a handle.
    pub(super) fn none() -> Handle {
        Handle(std::ptr::null_mut())
    }
}

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Utilization {
    pub gpu: c_uint,
    pub _memory: c_uint,
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Memory {
    pub total: u64,
    pub _free: u64,
    /// Includes what the driver keeps for itself.
    pub used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct MemoryV2 {
    pub version: c_uint,
    pub total: u64,
    pub _reserved: u64,
    pub _free: u64,
    pub used: u64,
}

/// `nvmlMemory_v2`: the size of the struct, and its version in the highest byte.
pub(super) const MEMORY_V2_VERSION: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;
const _: () = assert!(MEMORY_V2_VERSION == 0x0200_0028);

/// A function of NVML that failed. Shown as `nvmlDeviceGetPowerUsage: Not Supported (3)`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{call}: {text} ({code})")]
pub struct NvmlError {
    /// The function.
    pub call: &'static str,
    /// Its answer.
    pub code: i32,
    /// What NVML says about it.
    pub text: String,
}

impl NvmlError {
    /// Whether the GPU or its driver does not support the call at all.
    pub fn is_unsupported(&self) -> bool {
        UNSUPPORTED.contains(&self.code)
    }
}

/// Why there is no NVML.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NvmlAbsent {
    /// There is no such library, or it cannot be loaded.
    #[error("no NVML: {cause}")]
    NoLibrary {
        /// The path asked for.
        path: PathBuf,
        /// The loader's words.
        cause: String,
    },
    /// The library is not NVML, or one older than CUDA 11.4.
    #[error("{path} is no NVML that can be used: it has no {symbol}", path = path.display())]
    NoSymbol {
        /// The library.
        path: PathBuf,
        /// The function it lacks.
        symbol: &'static str,
    },
    /// The library was loaded, but it does not start.
    #[error("NVML does not start: {0}")]
    Refused(#[from] NvmlError),
}

type GetMemoryInfoV2 = unsafe extern "C" fn(Handle, *mut MemoryV2) -> Code;

macro_rules! calls {
    ($($name:ident: $symbol:literal($($ty:ty),*);)*) => {
        /// The functions, by what they do.
        pub(super) struct Calls {
            $(pub(super) $name: unsafe extern "C" fn($($ty),*) -> Code,)*
            /// Drivers before 510 do not have it.
            pub(super) memory_v2: Option<GetMemoryInfoV2>,
            error_text: unsafe extern "C" fn(Code) -> *const c_char,
            /// Never unloaded, because a thread may be in a call that does not return.
            _library: ManuallyDrop<Library>,
        }

        impl Calls {
            fn find(path: &Path, library: Library) -> Result<Calls, NvmlAbsent> {
                let lacks = |symbol| NvmlAbsent::NoSymbol { path: path.to_owned(), symbol };
                Ok(Calls {
                    $($name: {
                        // SAFETY: the symbol is a function of this signature in every library that has NVML's names; the
                        // pointer is used while the library is loaded, which is for ever.
                        let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *found.map_err(|_| lacks($symbol))?
                    },)*
                    memory_v2: {
                        // SAFETY: as above.
                        let found = unsafe { library.get::<GetMemoryInfoV2>(b"nvmlDeviceGetMemoryInfo_v2\0") };
                        found.ok().map(|found| *found)
                    },
                    error_text: {
                        // SAFETY: as above.
                        let found = unsafe { library.get(b"nvmlErrorString\0") };
                        *found.map_err(|_| lacks("nvmlErrorString"))?
                    },
                    _library: ManuallyDrop::new(library),
                })
            }
        }

        /// NVML's own names, for errors.
        #[allow(non_upper_case_globals)]
        pub(super) mod name {
            $(pub(in super::super) const $name: &str = $symbol;)*
            pub(in super::super) const MEMORY_V2: &str = "nvmlDeviceGetMemoryInfo_v2";
        }
    };
}

calls! {
    init: "nvmlInit_v2"();
    device: "nvmlDeviceGetHandleByPciBusId_v2"(*const c_char, *mut Handle);
    uuid: "nvmlDeviceGetUUID"(Handle, *mut c_char, c_uint);
    utilization: "nvmlDeviceGetUtilizationRates"(Handle, *mut Utilization);
    memory: "nvmlDeviceGetMemoryInfo"(Handle, *mut Memory);
    power_usage: "nvmlDeviceGetPowerUsage"(Handle, *mut c_uint);
    power_limit: "nvmlDeviceGetPowerManagementLimit"(Handle, *mut c_uint);
    energy: "nvmlDeviceGetTotalEnergyConsumption"(Handle, *mut u64);
}

impl Calls {
    /// Loads the library at `path`, or of that name where the loader looks.
    pub(super) fn load(path: &Path) -> Result<Calls, NvmlAbsent> {
        // SAFETY: loading runs the library's initialisers. The default is the name under which NVIDIA installs NVML, in the
        // places where the operator has the loader look.
        let library = unsafe { Library::new(path) };
        let library =
            library.map_err(|error| NvmlAbsent::NoLibrary { path: path.to_owned(), cause: loader_words(&error) })?;
        Calls::find(path, library)
    }

    /// The answer of a call as a result.
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<(), NvmlError> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any code.
        let words = unsafe { (self.error_text)(code) };
        let text = if words.is_null() {
            "unknown error".to_owned()
        } else {
            // SAFETY: NVML's texts are constants of the library, which is never unloaded.
            unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
        };
        Err(NvmlError { call, code, text })
    }
}
