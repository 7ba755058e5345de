//! How does a client register memory on a device over gRPC?

use super::{Client, proto};
use crate::Error;
use crate::report::CudaRegionReport;

impl Client {
    /// The CUDA shared memory regions that are registered: all, or the one with this name.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// for region in client.cuda_regions(None).await? {
    ///     println!("{} is {} bytes on device {}", region.name, region.byte_size, region.device_id);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn cuda_regions(&self, name: Option<&str>) -> Result<Vec<CudaRegionReport>, Error> {
        let message = proto::CudaSharedMemoryStatusRequest { name: name.unwrap_or_default().to_owned() };
        let answer: proto::CudaSharedMemoryStatusResponse = self.call("CudaSharedMemoryStatus", message).await?;
        let report = |region: proto::cuda_shared_memory_status_response::RegionStatus| CudaRegionReport {
            name: region.name,
            device_id: region.device_id,
            byte_size: region.byte_size,
        };
        Ok(answer.regions.into_values().map(report).collect())
    }

    /// Registers the first `byte_size` bytes of an allocation as `name`. `raw_handle` is the 64 bytes of its `cudaIpcMemHandle_t`, and `device_id` the number
    /// of its device.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client, handle: [u8; 64]) -> Result<(), nerite_client::Error> {
    /// client.register_cuda_region("frames", &handle, 0, 1 << 20).await?;
    /// # Ok(()) }
    /// ```
    pub async fn register_cuda_region(
        &self,
        name: &str,
        raw_handle: &[u8],
        device_id: u32,
        byte_size: u64,
    ) -> Result<(), Error> {
        let (name, raw_handle, device_id) = (name.to_owned(), raw_handle.to_owned().into(), i64::from(device_id));
        let message = proto::CudaSharedMemoryRegisterRequest { name, raw_handle, device_id, byte_size };
        self.call("CudaSharedMemoryRegister", message).await.map(|_: proto::CudaSharedMemoryRegisterResponse| ())
    }

    /// Unregisters a CUDA region. Without a name it unregisters all of them, including those of other clients.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::grpc::Client) -> Result<(), nerite_client::Error> {
    /// client.unregister_cuda_region(Some("frames")).await?;
    /// # Ok(()) }
    /// ```
    pub async fn unregister_cuda_region(&self, name: Option<&str>) -> Result<(), Error> {
        let message = proto::CudaSharedMemoryUnregisterRequest { name: name.unwrap_or_default().to_owned() };
        self.call("CudaSharedMemoryUnregister", message).await.map(|_: proto::CudaSharedMemoryUnregisterResponse| ())
    }
}
