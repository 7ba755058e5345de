//! Which errors can calls of the driver have, and what are their texts?

use std::path::PathBuf;

use thiserror::Error;

/// A call that the driver refused. Shown as `cuMemAlloc_v2: out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{call}: {text} ({name}, {code})")]
pub struct CudaError {
    /// The driver's function.
    pub call: &'static str,
    /// Its answer.
    pub code: i32,
    /// The answer's name.
    pub name: String,
    /// What the driver says about it.
    pub text: String,
}

/// Why this process cannot use a GPU.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Absent {
    /// There is no such library, or it cannot be loaded.
    #[error("no CUDA driver: {cause}")]
    NoLibrary {
        /// The path asked for.
        path: PathBuf,
        /// The loader's words.
        cause: String,
    },
    /// The library is no CUDA driver, or one older than CUDA 11.4.
    #[error("{path} is no CUDA driver that can be used: it has no {symbol}", path = path.display())]
    NoSymbol {
        /// The library.
        path: PathBuf,
        /// The function it lacks.
        symbol: &'static str,
    },
    /// The driver was loaded, but one of its calls failed.
    #[error("the CUDA driver does not start: {0}")]
    Refused(#[from] CudaError),
    /// The driver was loaded, but it has no device.
    #[error("the CUDA driver has no device")]
    NoDevice,
}

/// Why another process's memory was not opened. If it had been opened, it was closed again.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OpenError {
    /// The driver does not accept the handle.
    #[error("{0}")]
    Handle(CudaError),
    /// The handle is good, but for memory of another device.
    #[error("the handle is for memory of device {actual}, not of device {requested}")]
    Elsewhere {
        /// The device named with the handle.
        requested: u32,
        /// The device it lies on.
        actual: u32,
    },
    /// The size of the allocation is unknown.
    #[error("{0}")]
    Range(CudaError),
}
