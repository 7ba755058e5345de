//! How do clients manage their shared memory?

use nerite_memory::{Buffer, Slot};
use nerite_request::report::{CudaRegionReport, SystemRegionReport};
use nerite_request::{RegionRef, Status};
use nerite_shm::Registry;

use crate::Api;
use crate::admit::Regions;
use crate::errors::of_shm;

impl Api {
    /// Whether clients may register regions at all; HTTP asks before it reads a body.
    pub fn check_client_shm(&self) -> Result<(), Status> {
        self.0.regions.check_allowed().map_err(of_shm)
    }

    /// Whether a CUDA region could be had here at all; HTTP asks before it reads a body.
    pub fn check_cuda(&self, name: &str) -> Result<(), Status> {
        self.0.regions.check_gpu(name).map(drop).map_err(of_shm)
    }

    /// Maps `byte_size` bytes from `offset` on of the POSIX object `key` and calls them `name`.
    pub fn register_system(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<(), Status> {
        self.check_running()?;
        self.0.regions.register_system(name, key, offset, byte_size).map_err(of_shm)?;
        log::debug!("registered system shared memory region '{name}' over '{key}': {byte_size} bytes at {offset}");
        Ok(())
    }

    /// Opens the device memory behind a 64-byte CUDA IPC handle and calls it `name`.
    pub fn register_cuda(&self, name: &str, raw_handle: &[u8], device_id: i64, byte_size: u64) -> Result<(), Status> {
        self.check_running()?;
        self.0.regions.register_cuda(name, raw_handle, device_id, byte_size).map_err(of_shm)
    }

    /// Unregisters one system region, or (empty name) all. Requests in flight keep their memory.
    pub fn unregister_system(&self, name: &str) -> Result<(), Status> {
        self.check_running()?;
        match name {
            "" => self.0.regions.unregister_all_system(),
            name => self.0.regions.unregister_system(name),
        }
        .map_err(of_shm)
    }

    /// Unregisters one CUDA region, or (empty name) all.
    pub fn unregister_cuda(&self, name: &str) -> Result<(), Status> {
        self.check_running()?;
        match name {
            "" => self.0.regions.unregister_all_cuda(),
            name => self.0.regions.unregister_cuda(name),
        }
        .map_err(of_shm)
    }

    /// One system region, or (empty name) all, by name.
    pub fn system_status(&self, name: &str) -> Result<Vec<SystemRegionReport>, Status> {
        self.check_running()?;
        let all = self.0.regions.system_status(Some(name).filter(|name| !name.is_empty())).map_err(of_shm)?;
        Ok(all.into_iter().map(system_report).collect())
    }

    /// One CUDA region, or (empty name) all, by name.
    pub fn cuda_status(&self, name: &str) -> Result<Vec<CudaRegionReport>, Status> {
        self.check_running()?;
        let all = self.0.regions.cuda_status(Some(name).filter(|name| !name.is_empty())).map_err(of_shm)?;
        let report = |region: nerite_shm::CudaStatus| CudaRegionReport {
            name: region.name.to_string(),
            device_id: region.device_id,
            byte_size: region.byte_size,
        };
        Ok(all.into_iter().map(report).collect())
    }
}

pub(crate) fn system_report(region: nerite_shm::SystemStatus) -> SystemRegionReport {
    SystemRegionReport {
        name: region.name.to_string(),
        key: region.key.to_string(),
        offset: region.offset,
        byte_size: region.byte_size,
    }
}

impl Regions for Registry {
    fn buffer(&self, region: &RegionRef) -> Result<Buffer, Status> {
        let located = self.locate(&region.name, region.offset, region.byte_size).map_err(of_shm)?;
        Ok(located.into_buffer())
    }

    fn slot(&self, region: &RegionRef) -> Result<Slot, Status> {
        let located = self.locate(&region.name, region.offset, region.byte_size).map_err(of_shm)?;
        Ok(located.into_slot())
    }
}
