//! How is a GPU used without linking to CUDA?
//!
//! ```text
//!   Driver ── libcuda.so.1, opened at run time; a table of the calls used here
//!     └─ Device ── its primary context, retained when first needed; streams for copies
//!          ├─ IpcMemory     another process's allocation, opened by its 64-byte handle     closed when dropped
//!          ├─ DeviceMemory  an allocation of our own, with its handle                      freed when dropped
//!     ├─ PinnedMemory       page-locked memory, pooled by PinnedPool                       freed when dropped
//!     └─ PageLock           page-locks memory that is there already                        unlocked when dropped
//!   Nvml ── libnvidia-ml.so.1, opened at run time
//!     └─ NvmlDevice          how busy a GPU is, its memory, power and energy
//! ```
//!
//! Nothing here links to CUDA or needs its toolkit. On a host without the driver, [`Driver::open`] returns an error, and that is the only effect.
//! Each call pushes the device's context and pops it afterwards. So other code on the same thread (a runtime that computes on the GPU) finds its
//! context unchanged.
//!
//! ```
//! use nerite_cuda::Driver;
//!
//! match Driver::open(None) {
//!     Ok(driver) => println!("{} devices", driver.devices().len()),
//!     Err(absent) => println!("{absent}"), // no CUDA driver: libcuda.so.1: cannot open shared object file …
//! }
//! ```

mod calls;
mod context;
mod copies;
mod device;
mod driver;
mod error;
mod ipc;
pub mod limits;
mod lock_budget;
mod nvml;
mod owned;
mod page_lock;
mod pinned;
mod pool;

pub use device::Device;
pub use driver::{Driver, LIBRARY};
pub use error::{Absent, CudaError, OpenError};
pub use ipc::{IPC_HANDLE_BYTES, IpcHandle, IpcMemory};
pub use lock_budget::LockError;
pub use nvml::{GpuMemory, NVML_LIBRARY, Nvml, NvmlAbsent, NvmlDevice, NvmlError};
pub use owned::DeviceMemory;
pub use page_lock::PageLock;
pub use pinned::PinnedMemory;
pub use pool::PinnedPool;
