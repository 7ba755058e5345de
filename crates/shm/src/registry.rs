//! Which regions are registered, and may this one be?

use std::sync::Arc;

use crate::cuda::{CudaHandle, CudaMapping};
use crate::deferred::here;
use crate::error::{ShmError, reason};
use crate::gpu::Gpu;
use crate::limits::{MAPPED_BYTES_MAX, NAME_BYTES_MAX, REGIONS_MAX};
use crate::names::{Names, Taken};
use crate::objects::Size;
use crate::phrasebook::RESERVED_PREFIX;
use crate::posix::Posix;
use crate::record::{CudaStatus, Kind, Origin, Record, SystemStatus};
use crate::region::{Attached, Located, Region};
use crate::rights::{Rights, own_uid};
use crate::source::{Mapping, Object, ObjectError, Source};
use crate::tally::{Counts, QuotaPermit, Tally, Total};
use crate::window::{Window, WindowError};

/// The operator's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether clients may register and unregister regions: `--allow-client-shm`.
    pub allow_client_shm: bool,
    /// Regions mapped at one time.
    pub regions_max: usize,
    /// Bytes of address space of all regions together.
    pub mapped_bytes_max: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { allow_client_shm: true, regions_max: REGIONS_MAX, mapped_bytes_max: MAPPED_BYTES_MAX }
    }
}

/// Regions by name, with one namespace for both kinds. All methods may be called from any thread at any time.
pub struct Registry {
    options: Options,
    source: Box<dyn Source>,
    pub(crate) names: Names,
    tally: Arc<Tally>,
    cuda_tally: Arc<Tally>,
    gpu: Option<Gpu>,
}

impl Registry {
    /// An empty registry of POSIX objects.
    pub fn new(options: Options) -> Registry {
        Registry::with_source(options, Box::new(Posix))
    }

    pub(crate) fn with_source(options: Options, source: Box<dyn Source>) -> Registry {
        let (tally, cuda_tally) = Default::default();
        Registry { options, source, names: Names::new(), tally, cuda_tally, gpu: None }
    }

    /// One of several registries of POSIX objects with a common limit: `total` counts what all of them map.
    pub(crate) fn counted_in(self, total: &Total) -> Registry {
        let (tally, cuda_tally) = (Tally::within(&total.system), Tally::within(&total.cuda));
        Registry { tally, cuda_tally, ..self }
    }

    /// The same registry with a GPU: it accepts CUDA regions, and may page-lock system regions.
    pub fn with_gpu(self, gpu: Option<Gpu>) -> Registry {
        Registry { gpu, ..self }
    }

    /// The GPU it was made with.
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// Maps `byte_size` bytes from `offset` on of the POSIX object `key`, as the region `name`. The checks and their order are Triton's. No lock is held
    /// during system calls.
    pub fn register_system(&self, name: &str, key: &str, offset: u64, byte_size: u64) -> Result<(), ShmError> {
        self.register_system_as(&Rights::Any, Box::new(()), name, key, offset, byte_size)
    }

    /// As [`Registry::register_system`], for a client with these rights. An object that the client could not open itself is refused. `attached` is
    /// dropped with the region, or if it is refused.
    pub fn register_system_as(
        &self,
        rights: &Rights,
        attached: Attached,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<(), ShmError> {
        let registered = here(|| self.try_register_system(rights, attached, name, key, offset, byte_size));
        registered.inspect_err(|_| self.tally.count_refused())
    }

    /// Opens the device memory of an IPC handle, and registers its first `byte_size` bytes as the region `name`. The handle must have 64 bytes and belong to
    /// the named device. Without a GPU the call fails with the text of a Triton without GPU support, before the handle is checked.
    pub fn register_cuda(&self, name: &str, raw: &[u8], device_id: i64, byte_size: u64) -> Result<(), ShmError> {
        self.register_cuda_with(Box::new(()), name, raw, device_id, byte_size)
    }

    /// As [`Registry::register_cuda`]. `attached` is dropped with the region, or if it is refused.
    pub fn register_cuda_with(
        &self,
        attached: Attached,
        name: &str,
        raw: &[u8],
        device_id: i64,
        byte_size: u64,
    ) -> Result<(), ShmError> {
        let registered = here(|| self.try_register_cuda(attached, name, raw, device_id, byte_size));
        registered.inspect_err(|_| self.tally.count_refused())
    }

    /// Unregisters a system region. Requests in flight keep its memory. An unknown name, or one of the other kind, is not an error. For all regions, use
    /// [`Registry::unregister_all_system`].
    pub fn unregister_system(&self, name: &str) -> Result<(), ShmError> {
        self.unregister(name, Kind::System)
    }

    /// Unregisters all system regions.
    pub fn unregister_all_system(&self) -> Result<(), ShmError> {
        self.unregister_all(Kind::System)
    }

    /// Unregisters a CUDA region, as [`Registry::unregister_system`] does.
    pub fn unregister_cuda(&self, name: &str) -> Result<(), ShmError> {
        self.unregister(name, Kind::Cuda)
    }

    /// Unregisters all CUDA regions.
    pub fn unregister_all_cuda(&self) -> Result<(), ShmError> {
        self.unregister_all(Kind::Cuda)
    }

    /// The system regions that are registered or still in use, sorted by name. With a name: that region, or an error.
    pub fn system_status(&self, name: Option<&str>) -> Result<Vec<SystemStatus>, ShmError> {
        let records = self.records(name, Kind::System)?;
        Ok(records.iter().filter_map(|record| SystemStatus::of(record)).collect())
    }

    /// The CUDA regions that are registered or still in use, sorted by name. With a name: that region, or an error.
    pub fn cuda_status(&self, name: Option<&str>) -> Result<Vec<CudaStatus>, ShmError> {
        let records = self.records(name, Kind::Cuda)?;
        Ok(records.iter().filter_map(|record| CudaStatus::of(record)).collect())
    }

    /// Finds `byte_size` bytes from `offset` on in the region `name`, for a tensor. Takes no lock. The result keeps the region's memory mapped.
    pub fn locate(&self, name: &str, offset: u64, byte_size: u64) -> Result<Located, ShmError> {
        let region = self.names.find(name).ok_or_else(|| ShmError::RegionUnknown { name: name.to_string() })?;
        region.locate(offset, byte_size)
    }

    /// Whether nothing is registered and nothing of it is mapped any more.
    pub(crate) fn is_unused(&self) -> bool {
        let Counts { registered, mapped, cuda_mapped, .. } = self.counts();
        registered + mapped + cuda_mapped == 0
    }

    /// The regions that were unregistered, and that requests still use.
    pub fn still_used(&self) -> u64 {
        self.names.still_used() as u64
    }

    /// The registry's numbers, for metrics.
    pub fn counts(&self) -> Counts {
        let cuda = self.cuda_tally.counts(0);
        let system = self.tally.counts(self.names.registered() as u64);
        Counts { cuda_mapped: cuda.mapped, cuda_mapped_bytes: cuda.mapped_bytes, ..system }
    }

    fn try_register_system(
        &self,
        rights: &Rights,
        attached: Attached,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<(), ShmError> {
        self.check_name(name, Kind::System)?;
        check_key(name, key)?;
        if let Some(holder) = self.names.holder(name) {
            return Err(ShmError::NameTaken { holder });
        }
        let object = self.source.open(key).map_err(|error| match error {
            ObjectError::Open { cause } => ShmError::Open { key: key.to_string(), cause },
            ObjectError::Invalid { cause } => ShmError::Object { key: key.to_string(), cause },
        })?;
        // Before the size is checked: a client that may not open an object must not learn its size.
        if let Some(access) = object.access() {
            let checked = rights.check(access, own_uid());
            checked.map_err(|refused| ShmError::Open { key: key.to_string(), cause: refused.to_string() })?;
        }
        let (mapping, permit) = self.map(&*object, name, key, offset, byte_size)?;
        let present = object.is_present();
        drop(object);
        let origin = Origin::System { key: key.into(), offset };
        let record = Arc::new(Record { name: name.into(), byte_size, origin });
        self.insert(Region::new(record, mapping, attached, permit).locked(self.gpu.as_ref(), present))
    }

    fn try_register_cuda(
        &self,
        attached: Attached,
        name: &str,
        raw: &[u8],
        device_id: i64,
        byte_size: u64,
    ) -> Result<(), ShmError> {
        // First, as in a Triton without GPU support, where gRPC checks nothing else. HTTP has checked the flag before.
        let gpu = self.check_gpu(name)?;
        self.check_name(name, Kind::Cuda)?;
        let handle = CudaHandle::new(raw)?;
        if let Some(holder) = self.names.holder(name) {
            return Err(ShmError::NameTaken { holder });
        }
        let mapping = CudaMapping::open(gpu.driver(), name, handle, device_id, byte_size)?;
        let (regions_max, bytes_max) = (self.options.regions_max as u64, self.options.mapped_bytes_max);
        let permit = self.cuda_tally.admit(byte_size, regions_max, bytes_max);
        let permit = permit.ok_or_else(|| {
            let cause = format!("{regions_max} CUDA regions are the most there may be; unregister some");
            ShmError::CudaBounds { name: name.to_string(), cause }
        })?;
        let device_id = device_id.cast_unsigned();
        let record = Record { name: name.into(), byte_size, origin: Origin::Cuda { device_id } };
        self.insert(Region::new(Arc::new(record), Box::new(mapping), attached, permit))
    }

    /// Another call may have registered the name during the system calls. The new mapping is then dropped.
    pub(crate) fn insert(&self, region: Region) -> Result<(), ShmError> {
        self.names.insert(region).map_err(|Taken { region, holder }| {
            drop(region);
            ShmError::NameTaken { holder }
        })
    }

    fn map(
        &self,
        object: &dyn Object,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<(Box<dyn Mapping>, QuotaPermit), ShmError> {
        let (object_bytes, page) = (object.byte_size(), self.source.page_bytes());
        let refused = |error, cause| map_error(name, error, cause);
        let window = Window::new(offset, byte_size, object_bytes, page).map_err(|error| match error {
            WindowError::Beyond => {
                ShmError::Bounds { name: name.to_string(), key: key.to_string(), offset, byte_size, object_bytes }
            }
            WindowError::Empty => refused(libc::EINVAL, "byte_size is 0; a region has at least one byte".to_string()),
            WindowError::Unaligned => refused(
                libc::EINVAL,
                format!(
                    "offset {offset} is not a multiple of the page size, {page}; use a tensor's shared_memory_offset"
                ),
            ),
        })?;
        let permit = self.admit(byte_size).ok_or_else(|| refused(libc::ENOMEM, self.usage_text()))?;
        let mapping = object.map(window).map_err(|error| {
            let cause = format!("{byte_size} bytes at offset {offset} of object '{key}'");
            ShmError::Map { name: name.to_string(), reason: reason(&error), cause }
        })?;
        Ok((mapping, permit))
    }

    pub(crate) fn admit(&self, byte_size: u64) -> Option<QuotaPermit> {
        self.tally.admit(byte_size, self.options.regions_max as u64, self.options.mapped_bytes_max)
    }

    fn usage_text(&self) -> String {
        let (Counts { mapped, mapped_bytes, .. }, max) = (self.counts(), self.options);
        let (regions_max, bytes_max) = (max.regions_max, Size(max.mapped_bytes_max));
        let bytes = Size(mapped_bytes);
        let own = format!("{mapped} regions of {bytes} are mapped, at most {regions_max} of {bytes_max} may be");
        match self.tally.total().filter(|total| total.mapped > mapped) {
            None => format!("{own}; unregister some"),
            Some(Counts { mapped, mapped_bytes, .. }) => {
                let (bytes, bytes_max) = (Size(mapped_bytes), Size(MAPPED_BYTES_MAX));
                format!(
                    "{own}; all clients together have {mapped} of {bytes}, at most {REGIONS_MAX} of {bytes_max}; \
                     unregister some"
                )
            }
        }
    }

    fn check_name(&self, name: &str, kind: Kind) -> Result<(), ShmError> {
        self.check_allowed()?;
        match name.len() {
            0 => Err(ShmError::NameMissing(kind)),
            1..=NAME_BYTES_MAX => Ok(()),
            bytes => Err(ShmError::NameLong { bytes }),
        }
    }

    /// Whether clients may register and unregister regions at all.
    pub fn check_allowed(&self) -> Result<(), ShmError> {
        if self.options.allow_client_shm { Ok(()) } else { Err(ShmError::Disabled) }
    }

    /// Whether this server accepts CUDA regions.
    pub fn check_gpu(&self, name: &str) -> Result<&Gpu, ShmError> {
        self.gpu.as_ref().ok_or_else(|| ShmError::GpusNotSupported { name: name.to_string() })
    }

    fn unregister(&self, name: &str, kind: Kind) -> Result<(), ShmError> {
        self.check_allowed()?;
        here(|| self.names.remove(name, kind));
        Ok(())
    }

    pub(crate) fn unregister_all(&self, kind: Kind) -> Result<(), ShmError> {
        self.check_allowed()?;
        here(|| self.names.remove_all(kind));
        Ok(())
    }

    fn records(&self, name: Option<&str>, kind: Kind) -> Result<Vec<Arc<Record>>, ShmError> {
        let Some(name) = name else { return Ok(self.names.records()) };
        match self.names.record(name) {
            Some(record) if record.kind() == kind => Ok(vec![record]),
            Some(_) => Err(ShmError::OtherKind { name: name.to_string(), requested: kind }),
            None => Err(ShmError::StatusUnknown { name: name.to_string(), kind }),
        }
    }
}

fn check_key(name: &str, key: &str) -> Result<(), ShmError> {
    let bare = key.trim_start_matches('/');
    if bare.is_empty() {
        return Err(ShmError::KeyInvalid { name: name.to_string(), key: key.to_string() });
    }
    if bare.starts_with(RESERVED_PREFIX) {
        return Err(ShmError::KeyReserved { name: name.to_string(), key: key.to_string() });
    }
    Ok(())
}

fn map_error(name: &str, errno: i32, cause: String) -> ShmError {
    ShmError::Map { name: name.to_string(), reason: reason(&std::io::Error::from_raw_os_error(errno)), cause }
}
