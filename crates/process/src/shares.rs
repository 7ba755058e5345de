//! Which memory has a model's process mapped, and how does it learn of new and removed memory?

use std::collections::HashMap;
use std::fmt::Write;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use nerite_locks::Mutex;
use nerite_memory::{ProcessPermit, ReleaseListener, Share, SharedWindow};

use crate::channel::{Channel, memory_file};
use crate::limits::MAPS_MAX;
use crate::packets::{Forget, Segment, SegmentOffset};

/// The memory that one process has mapped.
pub(crate) struct Shares {
    channel: Arc<Channel>,
    /// Whether the process has a guard. Without a guard it gets no memory that its owner may shrink. The server knows this once the model is
    /// initialized.
    guarded: AtomicBool,
    /// Whether it gets memory of devices by its handle.
    takes_devices: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The segments that the process has mapped, or that a packet which is being built tells it to map.
    known: HashMap<u64, ProcessPermit>,
    /// Removed memory that could not be reported to the process at once.
    ended: Vec<u64>,
}

/// Memory that a packet introduces: its text, and a descriptor for each segment.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    pub(crate) text: String,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Their numbers, for [`Shares::disown`] if the packet is never sent.
    pub(crate) segments: Vec<u64>,
}

impl Shares {
    /// A process without mapped memory.
    pub(crate) fn new(channel: Arc<Channel>, guarded: bool) -> Arc<Shares> {
        let (guarded, takes_devices) = (AtomicBool::new(guarded), AtomicBool::new(false));
        Arc::new(Shares { channel, guarded, takes_devices, state: Mutex::default() })
    }

    /// From now on the process gets memory that its owner may shrink, because it has a guard.
    pub(crate) fn set_guarded(&self) {
        self.guarded.store(true, Ordering::Relaxed);
    }

    /// From now on the process gets memory of devices, which it opens by the IPC handle.
    pub(crate) fn take_devices(&self) {
        self.takes_devices.store(true, Ordering::Relaxed);
    }

    /// The segment and offset of these bytes in the process. Memory that it does not know yet is added to `maps`.
    /// `None` if it cannot map them: they must be copied to memory that it can map.
    pub(crate) fn location(
        self: &Arc<Shares>,
        window: Option<SharedWindow<'_>>,
        maps: &mut Maps,
    ) -> Option<SegmentOffset> {
        self.find(window, maps, false)
    }

    /// The same for memory that the process maps privately: nobody else sees what it writes there.
    pub(crate) fn private_location(
        self: &Arc<Shares>,
        window: Option<SharedWindow<'_>>,
        maps: &mut Maps,
    ) -> Option<SegmentOffset> {
        self.find(window, maps, true)
    }

    fn find(
        self: &Arc<Shares>,
        window: Option<SharedWindow<'_>>,
        maps: &mut Maps,
        is_private: bool,
    ) -> Option<SegmentOffset> {
        let SharedWindow { share, offset } = window?;
        let is_usable = match share.device() {
            Some(_) => self.takes_devices.load(Ordering::Relaxed),
            None => share.is_sealed() || self.guarded.load(Ordering::Relaxed),
        };
        if !is_usable {
            return None;
        }
        let segment = share.mark().number();
        if !self.knows(segment) {
            self.introduce(share, maps, is_private).ok()?;
        }
        Some(SegmentOffset { segment, offset })
    }

    /// Takes the segments that the process must unmap. Each is reported once.
    pub(crate) fn take_ended(&self) -> Vec<u64> {
        std::mem::take(&mut self.lock().ended)
    }

    /// Forgets segments that the process did not get or could not map. They are introduced again when they are needed.
    pub(crate) fn disown(&self, segments: impl Iterator<Item = u64>) {
        let mut state = self.lock();
        for segment in segments {
            state.known.remove(&segment);
        }
    }

    fn knows(&self, segment: u64) -> bool {
        self.lock().known.contains_key(&segment)
    }

    fn introduce(self: &Arc<Shares>, share: &dyn Share, maps: &mut Maps, is_private: bool) -> io::Result<()> {
        if maps.descriptors.len() >= MAPS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let segment = share.mark().number();
        let device = share.device();
        let permit = share.admit_process().ok_or(io::ErrorKind::QuotaExceeded)?;
        let (descriptor, file_offset) = match &device {
            Some(device) => (memory_file(&device.handle)?, 0),
            None => share.open()?,
        };
        let whole: Weak<dyn ReleaseListener> = Arc::downgrade(&(Arc::clone(self) as Arc<dyn ReleaseListener>));
        share.mark().notify_on_release(whole);
        let bytes = share.byte_size();
        let device = device.map(|device| device.ordinal);
        let is_region = !share.is_sealed();
        maps.add(Segment { number: segment, bytes, file_offset, is_region, device, is_private }, descriptor);
        self.lock().known.insert(segment, permit);
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReleaseListener for Shares {
    fn on_release(&self, share: u64) {
        let mut state = self.lock();
        let Some(_permit) = state.known.remove(&share) else { return };
        // It is sent under the lock, so that no later packet is sent before it. If the process is busy, its next
        // request says it.
        if self.channel.try_notice(&Forget(&[share]).to_string()).is_err() {
            state.ended.push(share);
        }
    }
}

impl Maps {
    fn add(&mut self, segment: Segment, descriptor: OwnedFd) {
        let comma = if self.text.is_empty() { "" } else { "," };
        write!(self.text, "{comma}{segment}").expect("a String takes what is written");
        self.descriptors.push(descriptor);
        self.segments.push(segment.number);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::File;
    use std::io::Read;
    use std::ptr::NonNull;

    use nerite_memory::{Buffer, DeviceShare, Extent, ShareMark};
    use nerite_shm::{LeaseLimits, OwnedRegion, Pools, Registry};

    use super::*;
    use crate::channel::Packet;

    fn read(channel: &Channel) -> String {
        channel.set_receive_timeout(Some(std::time::Duration::from_millis(1))).unwrap();
        let mut packet = Packet::default();
        let text = channel.receive(&mut packet).ok().flatten().unwrap_or_default();
        String::from_utf8(text.to_vec()).unwrap()
    }

    fn pair() -> (Arc<Channel>, Channel) {
        let (ours, theirs) = Channel::pair().unwrap();
        (Arc::new(ours), Channel::from(theirs))
    }

    /// The bytes 128 to 192 of a lease.
    fn lease() -> Buffer {
        let lease = Pools::new(LeaseLimits::default()).open().take(4096).unwrap();
        lease.buffer(Extent::new(128, 64, 4096).unwrap())
    }

    #[test]
    fn memory_is_introduced_once_and_its_end_is_reported() {
        let (ours, theirs) = pair();
        let shares = Shares::new(ours, false);
        let buffer = lease();
        let number = buffer.share().unwrap().share.mark().number();
        let mut maps = Maps::default();
        let location = shares.location(buffer.share(), &mut maps);
        assert_eq!(location, Some(SegmentOffset { segment: number, offset: 128 }));
        assert_eq!((maps.text, maps.descriptors.len()), (format!("[{number},4096,0,false]"), 1));
        let mut again = Maps::default();
        assert_eq!(shares.location(buffer.share(), &mut again), location);
        assert_eq!((again.text.as_str(), again.descriptors.len(), read(&theirs).as_str()), ("", 0, ""));
        drop(buffer);
        assert_eq!(read(&theirs), format!(r#"{{"forget":[{number}]}}"#));
    }

    #[test]
    fn memory_that_may_shrink_is_shared_only_with_a_process_with_a_guard() {
        let key = format!("/nerite-test-shares-{}", std::process::id());
        let _mine = OwnedRegion::create(&key, 8192).unwrap();
        let registry = Registry::new(nerite_shm::Options::default());
        registry.register_system("a", &key, 4096, 4096).unwrap();
        let buffer = registry.locate("a", 64, 8).unwrap().into_buffer();
        for (guarded, text) in [(false, ""), (true, "4096,4096,true]")] {
            let shares = Shares::new(pair().0, guarded);
            let mut maps = Maps::default();
            assert_eq!(
                shares.location(buffer.share(), &mut maps).map(|location| location.offset),
                guarded.then_some(64)
            );
            assert!(maps.text.ends_with(text) && maps.text.is_empty() != guarded, "{}", maps.text);
        }
        assert_eq!(Shares::new(pair().0, true).location(Buffer::from(vec![1u8]).share(), &mut Maps::default()), None);
    }

    #[test]
    fn what_processes_map_counts_as_the_owners_until_they_forget_it() {
        let key = format!("/nerite-test-shares-counted-{}", std::process::id());
        let _mine = OwnedRegion::create(&key, 4096).unwrap();
        let options = nerite_shm::Options { mapped_bytes_max: 2 * 4096, ..nerite_shm::Options::default() };
        let registry = Registry::new(options);
        registry.register_system("a", &key, 0, 4096).unwrap();
        let buffer = registry.locate("a", 0, 8).unwrap().into_buffer();
        let locate = |shares: &Arc<Shares>| shares.location(buffer.share(), &mut Maps::default());
        let [first, second] = [(); 2].map(|()| Shares::new(pair().0, true));
        assert!(locate(&first).is_some() && locate(&first).is_some());
        assert_eq!((locate(&second), registry.counts().mapped_bytes), (None, 2 * 4096));
        drop(first);
        assert_eq!(registry.counts().mapped_bytes, 4096);
        assert!(locate(&second).is_some());
        registry.unregister_system("a").unwrap();
        drop(buffer);
        assert_eq!(registry.counts().mapped_bytes, 0);
    }

    /// A client's region on a GPU.
    #[derive(Default)]
    struct OnGpu(ShareMark);

    impl Share for OnGpu {
        fn mark(&self) -> &ShareMark {
            &self.0
        }

        fn base(&self) -> NonNull<u8> {
            NonNull::dangling()
        }

        fn byte_size(&self) -> usize {
            4096
        }

        fn open(&self) -> io::Result<(OwnedFd, u64)> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn device(&self) -> Option<DeviceShare> {
            Some(DeviceShare { ordinal: 3, handle: [7; 64] })
        }

        fn is_sealed(&self) -> bool {
            false
        }

        fn lose(&self, _: usize) {}
    }

    #[test]
    fn memory_of_a_device_is_introduced_by_its_handle_to_a_process_that_takes_it() {
        let (ours, theirs) = pair();
        let (shares, region) = (Shares::new(ours, false), OnGpu::default());
        let number = region.mark().number();
        let window = || Some(SharedWindow { share: &region, offset: 256 });
        let mut maps = Maps::default();
        assert_eq!(shares.location(window(), &mut maps), None);
        shares.take_devices();
        let location = shares.location(window(), &mut maps);
        assert_eq!(location, Some(SegmentOffset { segment: number, offset: 256 }));
        assert_eq!(maps.text, format!("[{number},4096,0,true,3]"));
        let mut handle = Vec::new();
        File::from(maps.descriptors.remove(0)).read_to_end(&mut handle).unwrap();
        assert_eq!(handle, [7; 64]);
        drop(region);
        assert_eq!(read(&theirs), format!(r#"{{"forget":[{number}]}}"#));
    }

    #[test]
    fn memory_that_the_process_did_not_get_is_introduced_again() {
        let (ours, _theirs) = pair();
        let shares = Shares::new(ours, false);
        let (buffer, mut maps) = (lease(), Maps::default());
        shares.location(buffer.share(), &mut maps);
        shares.disown(maps.segments.drain(..));
        let mut again = Maps::default();
        shares.location(buffer.share(), &mut again);
        assert_eq!((again.text, again.descriptors.len()), (maps.text, 1));
    }

    #[test]
    fn a_busy_process_is_notified_later() {
        let (ours, theirs) = pair();
        let shares = Shares::new(Arc::clone(&ours), false);
        let buffer = lease();
        shares.location(buffer.share(), &mut Maps::default());
        while ours.try_send("{}").is_ok() {}
        let number = buffer.share().unwrap().share.mark().number();
        drop(buffer);
        assert_eq!(shares.take_ended(), [number]);
        assert_eq!(shares.take_ended(), [0u64; 0]);
        drop(theirs);
    }
}
