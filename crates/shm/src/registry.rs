//! Which regions are registered, and may this one be?

use std::sync::Arc;

use crate::cuda::{CudaHandle, CudaMapping};
use crate::deferred::{Deferred, unmap_on_this_thread};
use crate::error::{ShmError, reason};
use crate::gpu::Gpu;
use crate::limits::{MAPPED_BYTES_MAX, NAME_BYTES_MAX, OBJECTS_OPEN_MAX, REGIONS_MAX, mapped_bytes_per_owner_max};
use crate::mapped_counts::{Counts, Full, MappedCounts, Most, QuotaPermit, Total};
use crate::names::{Names, Taken};
use crate::objects::Size;
use crate::open_object::OpenObject;
use crate::phrasebook::RESERVED_PREFIX;
use crate::posix::Posix;
use crate::record::{CudaStatus, Kind, Origin, Record, SystemStatus};
use crate::region::{Attached, Located, Region};
use crate::registrant::{Payer, Registrant};
use crate::rights::{Rights, UserGroups, depends_on_groups, own_uid};
use crate::source::{Mapping, Object, ObjectError, Source};
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

impl Options {
    fn most(&self) -> Most {
        Most { regions: self.regions_max as u64, bytes: self.mapped_bytes_max }
    }

    /// Device memory has no page tables in this process, so the host's memory does not limit it.
    fn most_cuda(&self) -> Most {
        Most { regions: self.regions_max as u64, bytes: mapped_bytes_per_owner_max(MAPPED_BYTES_MAX) }
    }
}

/// Regions by name, with one namespace for both kinds. All methods may be called from any thread at any time.
pub struct Registry {
    options: Options,
    source: Box<dyn Source>,
    pub(crate) names: Names,
    pub(crate) mapped_counts: Arc<MappedCounts>,
    cuda_mapped_counts: Arc<MappedCounts>,
    /// The registry whose owner pays for these regions. This reference keeps it alive, so that its counts do not start from 0 again.
    _within: Option<Arc<Registry>>,
    gpu: Option<Gpu>,
    groups: Arc<UserGroups>,
}

impl Registry {
    /// An empty registry of POSIX objects.
    pub fn new(options: Options) -> Registry {
        Registry::with_source(options, Box::new(Posix))
    }

    pub(crate) fn with_source(options: Options, source: Box<dyn Source>) -> Registry {
        Registry {
            options,
            source,
            names: Names::new(),
            mapped_counts: Arc::new(MappedCounts::new(options.most())),
            cuda_mapped_counts: Arc::new(MappedCounts::new(options.most_cuda())),
            _within: None,
            gpu: None,
            groups: UserGroups::of_system(),
        }
    }

    /// The same registry as one of several with a common limit. `total` counts what all of them map.
    pub(crate) fn counted_in(self, total: &Total) -> Registry {
        let mapped_counts = MappedCounts::within(&total.system, self.options.most());
        let cuda_mapped_counts = MappedCounts::within(&total.cuda, self.options.most_cuda());
        Registry { mapped_counts, cuda_mapped_counts, ..self }
    }

    /// The same registry, whose regions have their own limit and whose bytes count as bytes of `owner`.
    pub(crate) fn within(self, owner: Arc<Registry>) -> Registry {
        let mapped_counts = MappedCounts::bytes_within(&owner.mapped_counts, self.options.most());
        let cuda_mapped_counts = MappedCounts::bytes_within(&owner.cuda_mapped_counts, self.options.most_cuda());
        Registry { mapped_counts, cuda_mapped_counts, _within: Some(owner), ..self }
    }

    /// The same registry with a GPU: it accepts CUDA regions, and may page-lock system regions.
    pub fn with_gpu(self, gpu: Option<Gpu>) -> Registry {
        Registry { gpu, ..self }
    }

    /// The same registry, which looks up the groups of users in `groups`.
    pub(crate) fn with_groups(self, groups: Arc<UserGroups>) -> Registry {
        Registry { groups, ..self }
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

    /// As [`Registry::register_system`], for a client with these rights. An object that the client could not open itself is refused. If the client's groups
    /// decide that and are not known, the object is refused as well ([`Registry::look_up_groups`]). `attached` is dropped with the region, or when the
    /// registration is refused.
    pub fn register_system_as(
        &self,
        rights: &Rights,
        attached: Attached,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<(), ShmError> {
        self.register_system_by(Registrant { rights, payer: None, attached }, name, key, offset, byte_size)
    }

    /// As [`Registry::register_system_as`], for a client that may pay with its own quota although it shares the registry with others.
    pub fn register_system_by(
        &self,
        by: Registrant<'_>,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<(), ShmError> {
        let payer = by.payer.unwrap_or_else(|| self.payer());
        let registered = unmap_on_this_thread(|| self.try_register_system(by, name, key, offset, byte_size));
        registered.inspect_err(|_| payer.system.count_refused())
    }

    /// The user whose groups must be looked up before a client with these rights registers the object `key` ([`Registry::look_up_groups`]). `None` if no
    /// groups decide whether the client may map the object, or if they were looked up in the last minute.
    pub fn user_to_look_up(&self, rights: &Rights, key: &str) -> Option<u32> {
        let Rights::User(uid) = *rights else { return None };
        // Most clients are of the server's own user, or have fresh groups. Their access to the object need not be read here.
        if uid == own_uid() || self.groups.are_fresh(uid) {
            return None;
        }
        self.check_allowed().and_then(|()| check_key("", key)).ok()?;
        // The object is not opened: to close it could free its pages.
        let access = self.source.access_of(key)?;
        depends_on_groups(uid, access).then_some(uid)
    }

    /// Looks up the groups of a user, which can then be used for two minutes. The system's user directory may be on another host and take any time, so no thread
    /// that serves connections calls this.
    pub fn look_up_groups(&self, uid: u32) {
        self.groups.of(uid);
    }

    /// Opens the device memory of an IPC handle, and registers its first `byte_size` bytes as the region `name`. The handle must have 64 bytes and belong to
    /// the named device. Without a GPU the call fails with the text of a Triton without GPU support, before the handle is checked.
    pub fn register_cuda(&self, name: &str, raw: &[u8], device_id: i64, byte_size: u64) -> Result<(), ShmError> {
        let by = Registrant { rights: &Rights::Any, payer: None, attached: Box::new(()) };
        self.register_cuda_by(by, name, raw, device_id, byte_size)
    }

    /// As [`Registry::register_cuda`], for a client that may pay with its own quota although it shares the registry with others. Knowing the handle is the
    /// right to use the memory.
    pub fn register_cuda_by(
        &self,
        by: Registrant<'_>,
        name: &str,
        raw: &[u8],
        device_id: i64,
        byte_size: u64,
    ) -> Result<(), ShmError> {
        let payer = by.payer.unwrap_or_else(|| self.payer());
        let registered = unmap_on_this_thread(|| self.try_register_cuda(by, name, raw, device_id, byte_size));
        registered.inspect_err(|_| payer.system.count_refused())
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

    /// The owner of this registry, as the payer for regions in another registry.
    pub fn payer(&self) -> Payer<'_> {
        Payer { system: &self.mapped_counts, cuda: &self.cuda_mapped_counts }
    }

    /// Whether no region is registered, and no memory or object of this registry is mapped or open any more.
    pub(crate) fn is_unused(&self) -> bool {
        let Counts { registered, mapped, mapped_bytes, cuda_mapped, .. } = self.counts();
        registered + mapped + mapped_bytes + cuda_mapped + self.mapped_counts.objects_open() == 0
    }

    /// The regions that were unregistered, and that requests still use.
    pub fn still_used(&self) -> u64 {
        self.names.still_used() as u64
    }

    /// The registry's numbers, for metrics.
    pub fn counts(&self) -> Counts {
        let cuda = self.cuda_mapped_counts.counts(0);
        let system = self.mapped_counts.counts(self.names.registered() as u64);
        Counts { cuda_mapped: cuda.mapped, cuda_mapped_bytes: cuda.mapped_bytes, ..system }
    }

    fn try_register_system(
        &self,
        Registrant { rights, payer, attached }: Registrant<'_>,
        name: &str,
        key: &str,
        offset: u64,
        byte_size: u64,
    ) -> Result<(), ShmError> {
        self.check_allowed()?;
        if name.is_empty() {
            // In Triton only HTTP needs a name, and checks it before it reads the key. Over gRPC a faulty key is refused first.
            check_key(name, key)?;
        }
        self.check_name(name, Kind::System)?;
        check_key(name, key)?;
        if let Some(holder) = self.names.holder(name) {
            return Err(ShmError::NameTaken { holder });
        }
        let payer = payer.unwrap_or_else(|| self.payer());
        let open = self.open_object(payer, rights, key)?;
        let object = &*open.object;
        // The access is checked before the size, because a client that may not open an object must not learn its size.
        if let Some(access) = object.access() {
            let checked = rights.check(access, own_uid(), &self.groups);
            checked.map_err(|refused| ShmError::Open { key: key.to_string(), cause: refused.to_string() })?;
        }
        let (mapping, permit) = self.map(payer, object, name, key, offset, byte_size)?;
        let present = object.is_present();
        // The mapping keeps the object alive, so closing the descriptor frees no pages.
        open.drop_here();
        let origin = Origin::System { key: key.into(), offset };
        let record = Arc::new(Record { name: name.into(), byte_size, origin });
        self.insert(Region::new(record, mapping, attached, permit).locked(self.gpu.as_ref(), present))
    }

    fn try_register_cuda(
        &self,
        Registrant { payer, attached, .. }: Registrant<'_>,
        name: &str,
        raw: &[u8],
        device_id: i64,
        byte_size: u64,
    ) -> Result<(), ShmError> {
        // The GPU is checked first, as in a Triton without GPU support, where gRPC checks nothing else. Over HTTP the flag was checked earlier.
        let gpu = self.check_gpu(name)?;
        self.check_name(name, Kind::Cuda)?;
        let handle = CudaHandle::new(raw)?;
        if let Some(holder) = self.names.holder(name) {
            return Err(ShmError::NameTaken { holder });
        }
        let mapping = CudaMapping::open(gpu.driver(), name, handle, device_id, byte_size)?;
        let permit = payer.unwrap_or_else(|| self.payer()).cuda.admit(byte_size).map_err(|full| {
            let regions_max = full.most.regions;
            let cause = format!("{regions_max} CUDA regions are the most there may be; unregister some");
            ShmError::CudaBounds { name: name.to_string(), cause }
        })?;
        let device_id = device_id.cast_unsigned();
        let record = Record { name: name.into(), byte_size, origin: Origin::Cuda { device_id } };
        self.insert(Region::new(Arc::new(record), Box::new(mapping), attached, permit))
    }

    fn open_object(&self, payer: Payer<'_>, rights: &Rights, key: &str) -> Result<Deferred<OpenObject>, ShmError> {
        let permit = payer.system.open().ok_or_else(|| ShmError::Open {
            key: key.to_string(),
            cause: format!(
                "{OBJECTS_OPEN_MAX} objects that this client wanted registered are open, at most {OBJECTS_OPEN_MAX} may be; try \
                 again when they are closed"
            ),
        })?;
        let object = self.source.open(key).map_err(|error| match error {
            ObjectError::Open { cause } => ShmError::Open { key: key.to_string(), cause },
            ObjectError::Denied { access, cause } => {
                let cause = rights.cause_to_report(access, own_uid(), &self.groups, cause);
                ShmError::Open { key: key.to_string(), cause }
            }
            ObjectError::Invalid { cause } => ShmError::Object { key: key.to_string(), cause },
        })?;
        Ok(Deferred::new(OpenObject { object, permit }))
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
        payer: Payer<'_>,
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
        let permit = payer.system.admit(byte_size).map_err(|full| refused(libc::ENOMEM, full_text(full, byte_size)))?;
        let mapping = object.map(window).map_err(|error| {
            let cause = format!("{byte_size} bytes at offset {offset} of object '{key}'");
            ShmError::Map { name: name.to_string(), reason: reason(&error), cause }
        })?;
        Ok((mapping, permit))
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
        unmap_on_this_thread(|| self.names.remove(name, kind));
        Ok(())
    }

    pub(crate) fn unregister_all(&self, kind: Kind) -> Result<(), ShmError> {
        self.check_allowed()?;
        unmap_on_this_thread(|| self.names.remove_all(kind));
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

/// Why `requested` bytes more may not be mapped, and the cure.
fn full_text(full: Full, requested: u64) -> String {
    let Full { of_all, regions, bytes, most } = full;
    let whose = if of_all { "of all clients together, " } else { "" };
    let (bytes, requested, bytes_max, regions_max) = (Size(bytes), Size(requested), Size(most.bytes), most.regions);
    format!(
        "{whose}{regions} regions of {bytes} are mapped, at most {regions_max} of {bytes_max} may be, asked for {requested} \
         more; unregister some, or register less of the object"
    )
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
