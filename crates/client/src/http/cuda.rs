//! How does a client register memory on a device over HTTP?

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::render::Object;
use super::{Client, escaped};
use crate::Error;
use crate::report::{self, CudaRegionReport};

impl Client {
    /// The CUDA shared memory regions that are registered: all, or the one with this name.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// for region in client.cuda_regions(None).await? {
    ///     println!("{} is {} bytes on device {}", region.name, region.byte_size, region.device_id);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn cuda_regions(&self, name: Option<&str>) -> Result<Vec<CudaRegionReport>, Error> {
        let path = format!("{}/status", path(name));
        Ok(report::cuda_regions(&report::parse(&self.get(&path).await?.json)?))
    }

    /// Registers the first `byte_size` bytes of an allocation as `name`. `raw_handle` is the 64 bytes of its `cudaIpcMemHandle_t`, and `device_id` the number
    /// of its device.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client, handle: [u8; 64]) -> Result<(), nerite_client::Error> {
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
        let (mut body, mut handle) = (Object::new(), Object::new());
        handle.key("b64").text(&STANDARD.encode(raw_handle));
        body.key("raw_handle").raw(&handle.close());
        body.key("device_id").raw(&device_id.to_string());
        body.key("byte_size").raw(&byte_size.to_string());
        self.post(&format!("{}/register", path(Some(name))), body.close()).await.map(|_| ())
    }

    /// Unregisters a CUDA region. Without a name it unregisters all of them, including those of other clients.
    ///
    /// ```no_run
    /// # async fn call(client: nerite_client::http::Client) -> Result<(), nerite_client::Error> {
    /// client.unregister_cuda_region(Some("frames")).await?;
    /// # Ok(()) }
    /// ```
    pub async fn unregister_cuda_region(&self, name: Option<&str>) -> Result<(), Error> {
        self.post(&format!("{}/unregister", path(name)), String::new()).await.map(|_| ())
    }
}

fn path(name: Option<&str>) -> String {
    let path = "/v2/cudasharedmemory";
    name.map_or(path.to_owned(), |name| escaped(name, &format!("{path}/region/")))
}
