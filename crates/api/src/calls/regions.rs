//! How do clients manage their shared memory?

use std::convert::Infallible;
use std::sync::Arc;

use nerite_memory::MemoryReservation;
use nerite_request::report::{CudaRegionReport, SystemRegionReport};
use nerite_request::{Code, SessionRef, Status};
use nerite_shm::{Attached, LeaseName, Registrant, Registry, Rights, ShmError, keep_until_freed};
use tokio::sync::oneshot;

use crate::Api;
use crate::aside::{on_lookup_worker, on_mapping_worker, on_stalling_worker};
use crate::audit::quoted;
use crate::errors::of_shm;

/// The bytes of the status of one region, without its name and key: the report, and the numbers and members of the JSON.
const STATUS_BYTES: usize = 512;
/// The most bytes of a status for one byte of a name: one in the report, and twelve in the JSON. JSON may escape the byte by six, and the vector of the JSON
/// may have twice its length.
const STATUS_GROWTH: usize = 13;
/// Charged for a region beside its name and key: its entries in the tables of names, of mappings and of the guard.
const REGION_BYTES: usize = 1 << 10;
/// A client that has no more than this mapped can change its regions on a front thread.
const QUICK_UNMAP_BYTES_MAX: u64 = 256 << 20;
/// No memory is reserved for fewer bytes.
const RESERVED_BYTES_MIN: usize = 1 << 20;

impl Api {
    /// Refuses if clients may register no regions. HTTP checks this before it reads a body.
    pub fn check_client_shm(&self) -> Result<(), Status> {
        self.inner.regions.operator().check_allowed().map_err(of_shm)
    }

    /// Refuses if no CUDA region can be opened here. HTTP checks this before it reads a body.
    pub fn check_cuda(&self, name: &str) -> Result<(), Status> {
        self.inner.regions.operator().check_gpu(name).map(drop).map_err(of_shm)
    }

    /// Calls `work`, which registers or unregisters regions of this client, as [`Api::change_mappings`] does.
    pub async fn change_own_regions<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Api) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let mapped = self.reachable_bytes();
        let own = self.clone();
        self.change_mappings(mapped, move || work(&own)).await
    }

    /// Calls `work`, which maps or unmaps regions. `mapped_bytes` is the size of the regions that are mapped now, or more if they are many.
    ///
    /// Memory that `work` gives up is unmapped when this returns, so the owner's quota is free again when the client gets its answer. An exception is
    /// memory that another thread still holds, for a request or to read its status: that thread passes the memory on to be unmapped. A client's object
    /// that takes long to be freed is always passed on. This call waits until it is freed, and occupies no thread or worker meanwhile.
    /// If `work` may take long, it runs on a thread that serves no connection. The kernel takes 20 to 40 ms to unmap 1 GiB that was used. On a host with
    /// GPUs the driver takes more than 100 ms for its first context, and page-locking takes longer for more memory. A client that punches a hole into an
    /// object makes every thread wait that maps or unmaps the object. So a client whose requests made threads wait gets a thread of its own.
    pub async fn change_mappings<T: Send + 'static>(
        &self,
        mapped_bytes: u64,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let (freeing, freed) = oneshot::channel::<Infallible>();
        let outcome = self.change_where_it_may_wait(mapped_bytes, || keep_until_freed(Arc::new(freeing), work)).await;
        // Nothing is sent on this channel. It is closed when the memory that was passed on is freed.
        let _ = freed.await;
        outcome
    }

    async fn change_where_it_may_wait<T: Send + 'static>(
        &self,
        mapped_bytes: u64,
        work: impl FnOnce() -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        if self.is_stalling() {
            return on_stalling_worker(self.flow(), work).await?;
        }
        if mapped_bytes <= QUICK_UNMAP_BYTES_MAX && self.inner.regions.operator().check_gpu("").is_err() {
            return work();
        }
        on_mapping_worker(work).await?
    }

    /// Looks up the groups of the client's user, if the groups decide whether the client may map the object `key`. The lookup runs on a worker of its own.
    /// Call this before `key` is registered, because the registration itself does no lookup.
    pub async fn look_up_groups(&self, key: &str) -> Result<(), Status> {
        let rights = self.rights(key);
        // The object counts as one that the client has open. If the registry cannot be opened, the registration reports the error.
        let user = self.in_own_regions(|regions| Ok(regions.user_to_look_up(&rights, key)));
        let Some(uid) = user.ok().flatten() else { return Ok(()) };
        let own = self.clone();
        on_lookup_worker(move || own.inner.regions.operator().look_up_groups(uid)).await
    }

    /// As [`Api::register_system`], on the thread that [`Api::change_mappings`] chooses, after [`Api::look_up_groups`].
    pub async fn register_own_system(
        &self,
        name: String,
        key: String,
        offset: u64,
        byte_size: u64,
    ) -> Result<(), Status> {
        self.look_up_groups(&key).await?;
        self.change_own_regions(move |api| api.register_system(&name, &key, offset, byte_size)).await
    }

    /// Maps `byte_size` bytes at `offset` of the POSIX object `key`, and registers them as `name`. Refuses an object if the client's groups decide about it
    /// and are not known.
    pub fn register_system(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<(), Status> {
        self.check_running()?;
        check_name(name)?;
        let (rights, attached) = (self.rights(key), self.charge_region(name, key)?);
        let outcome = self.registering(|regions, payer| {
            let by = Registrant { rights: &rights, payer, attached };
            regions.register_system_by(by, name, key, offset, byte_size)
        });
        if outcome.is_ok() {
            let peer = self.peer();
            log::debug!(
                "{peer} registered system shared memory region '{name}' over '{key}': {byte_size} bytes at {offset}"
            );
        }
        self.audit(&outcome, || {
            format!("register region {} over {}: {byte_size} bytes at {offset}", quoted(name), quoted(key))
        });
        outcome
    }

    /// Opens the device memory of a 64-byte CUDA IPC handle, and registers it as `name`.
    pub fn register_cuda(&self, name: &str, raw_handle: &[u8], device_id: i64, byte_size: u64) -> Result<(), Status> {
        self.check_running()?;
        check_name(name)?;
        let attached = self.charge_region(name, "")?;
        let outcome = self.registering(|regions, payer| {
            let by = Registrant { rights: &Rights::Any, payer, attached };
            regions.register_cuda_by(by, name, raw_handle, device_id, byte_size)
        });
        self.audit(&outcome, || {
            format!("register region {} of CUDA device {device_id}: {byte_size} bytes", quoted(name))
        });
        outcome
    }

    /// Charges the client for a region's names, which are kept as long as the region.
    pub(crate) fn charge_region(&self, name: &str, key: &str) -> Result<Attached, Status> {
        // The region's entry stores name and key, its mapping stores the key, and the tables of names store the name.
        let charge = self.charge_retained(REGION_BYTES + 2 * (name.len() + key.len()))?;
        Ok(Box::new(charge))
    }

    /// Unregisters one system region, or (empty name) all of the client's own. Requests in flight keep their memory.
    pub fn unregister_system(&self, name: &str) -> Result<(), Status> {
        self.check_running()?;
        self.check_client_shm()?;
        let outcome = match name {
            "" => self.in_own_regions(Registry::unregister_all_system),
            name => self.unregister(
                name,
                |regions| regions.system_status(Some(name)).map(drop),
                Registry::unregister_system,
            ),
        };
        self.audit(&outcome, || format!("unregister system region {}", quoted(name)));
        outcome
    }

    /// Unregisters one CUDA region, or (empty name) all of the client's own.
    pub fn unregister_cuda(&self, name: &str) -> Result<(), Status> {
        self.check_running()?;
        self.check_client_shm()?;
        let outcome = match name {
            "" => self.in_own_regions(Registry::unregister_all_cuda),
            name => {
                self.unregister(name, |regions| regions.cuda_status(Some(name)).map(drop), Registry::unregister_cuda)
            }
        };
        self.audit(&outcome, || format!("unregister CUDA region {}", quoted(name)));
        outcome
    }

    /// Unregisters a region in the registry where `look` finds it. A name that is not found, or is of the other kind, is no error.
    fn unregister(
        &self,
        name: &str,
        look: impl Fn(&Registry) -> Result<(), ShmError>,
        end: impl Fn(&Registry, &str) -> Result<(), ShmError>,
    ) -> Result<(), Status> {
        let outcome = self.in_regions(|regions| look(regions).and_then(|()| end(regions, name)));
        match outcome {
            Err(status) if status.code == Code::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    /// One system region, or (empty name) all that the client can use, by name.
    pub fn system_status(&self, name: &str) -> Result<Vec<SystemRegionReport>, Status> {
        self.write_system_status(name, |regions| regions)
    }

    /// As [`Api::system_status`]. `write` makes the answer while memory for it is reserved.
    pub fn write_system_status<T>(
        &self,
        name: &str,
        write: impl FnOnce(Vec<SystemRegionReport>) -> T,
    ) -> Result<T, Status> {
        self.check_running()?;
        let mut found = match name {
            "" => self.in_each_region(|regions| regions.system_status(None))?,
            name => self.in_regions(|regions| regions.system_status(Some(name)))?,
        };
        let _reserved = reserve(found.iter().map(|region| region.name.len() + region.key.len()))?;
        // The sort is stable: of regions with one name, the operator's stays first.
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(write(found.into_iter().map(system_report).collect()))
    }

    /// One CUDA region, or (empty name) all that the client can use, by name.
    pub fn cuda_status(&self, name: &str) -> Result<Vec<CudaRegionReport>, Status> {
        self.write_cuda_status(name, |regions| regions)
    }

    /// As [`Api::cuda_status`]. `write` makes the answer while memory for it is reserved.
    pub fn write_cuda_status<T>(
        &self,
        name: &str,
        write: impl FnOnce(Vec<CudaRegionReport>) -> T,
    ) -> Result<T, Status> {
        self.check_running()?;
        let mut found = match name {
            "" => self.in_each_region(|regions| regions.cuda_status(None))?,
            name => self.in_regions(|regions| regions.cuda_status(Some(name)))?,
        };
        let _reserved = reserve(found.iter().map(|region| region.name.len()))?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let report = |region: nerite_shm::CudaStatus| CudaRegionReport {
            name: region.name.to_string(),
            device_id: region.device_id,
            byte_size: region.byte_size,
        };
        Ok(write(found.into_iter().map(report).collect()))
    }
}

/// Reserves memory for the status of regions with these lengths of names and keys, if it is much.
fn reserve(name_bytes: impl ExactSizeIterator<Item = usize>) -> Result<MemoryReservation, Status> {
    let bytes = name_bytes.len() * STATUS_BYTES + name_bytes.sum::<usize>() * STATUS_GROWTH;
    if bytes < RESERVED_BYTES_MIN {
        return Ok(MemoryReservation::none());
    }
    MemoryReservation::take(bytes).map_err(|refused| Status::no_memory("the status of all regions", refused))
}

/// Refuses names that look like those of leases or sessions, because a request could not distinguish them.
pub(crate) fn check_name(name: &str) -> Result<(), Status> {
    let kind = match () {
        () if LeaseName::parse(name).is_some() => "lease",
        () if SessionRef::parse(name).is_some() => "session",
        () => return Ok(()),
    };
    Err(Status::invalid(format!(
        "shared memory region '{name}' is called as a {kind} is ('{kind}-' and 32 hexadecimal digits); give it another name"
    )))
}

pub(crate) fn system_report(region: nerite_shm::SystemStatus) -> SystemRegionReport {
    SystemRegionReport {
        name: region.name.to_string(),
        key: region.key.to_string(),
        offset: region.offset,
        byte_size: region.byte_size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, kind: Option<&str>) {
        let refused = check_name(name).err().map(|status| status.message);
        let expect = kind.map(|kind| format!("region '{name}' is called as a {kind} is ("));
        match expect {
            None => assert_eq!(refused, None, "{name}"),
            Some(expect) => assert!(refused.as_ref().is_some_and(|text| text.contains(&expect)), "{name}: {refused:?}"),
        }
    }

    #[test]
    fn only_names_that_requests_take_for_leases_or_sessions_are_refused() {
        check("lease-0123456789abcdef0123456789abcdef", Some("lease"));
        check("session-0123456789abcdef0123456789abcdef", Some("session"));
        check("session-0123456789abcdef0123456789abcdef-7", Some("session"));
        for name in ["lease-1", "session-", "session-a-1", "lease-0123456789ABCDEF0123456789abcdef", "input"] {
            check(name, None);
        }
    }
}
