//! How fast are transfers, by the kind of the host's memory?

use std::sync::Arc;
use std::time::Instant;

use nerite_cuda::{Device, DeviceMemory, PinnedPool};
use nerite_memory::{Buffer, Extent, Reason, Slot, Staging};
use nerite_shm::{Gpu, Options, OwnedRegion, Registry};

/// Tries per direction; the best counts.
const TRIES: usize = 5;

/// GB/s to and from the device, for pageable memory, pinned memory, and a region that was page-locked when it was registered.
pub fn measure(device: &Device, bytes: usize) -> Result<String, String> {
    let memory = DeviceMemory::allocate(device, bytes).map_err(|error| error.to_string())?;
    let pageable = both_ways(&memory, || Ok(Slot::heap(bytes)))?;
    let pool = PinnedPool::new(device.driver(), (bytes as u64).next_power_of_two());
    let pinned = both_ways(&memory, || pool.slot(bytes).map_err(|full| full.to_string()))?;
    let show = |(to, from): (f64, f64)| format!("{to:.1} to, {from:.1} from");
    // A container's /dev/shm may be too small for it, which is no fault of the GPU.
    let locked = match Region::new(device, bytes) {
        Ok(region) => show(both_ways(&memory, || region.slot())?),
        Err(why) => format!("not measured ({why})"),
    };
    let (ratio_to, ratio_from) = (pinned.0 / pageable.0, pinned.1 / pageable.1);
    Ok(format!(
        "GB/s with {} MiB: pageable {}; pinned {} ({ratio_to:.1} and {ratio_from:.1} times that); page-locked region {}",
        bytes >> 20,
        show(pageable),
        show(pinned),
        locked
    ))
}

/// A region of this process, registered with itself so that it is page-locked.
struct Region {
    registry: Registry,
    _mine: OwnedRegion,
    bytes: usize,
}

impl Region {
    fn new(device: &Device, bytes: usize) -> Result<Region, String> {
        let key = format!("/nerite-gpu-check-{}", std::process::id());
        let mine = OwnedRegion::create(&key, bytes).map_err(|error| error.to_string())?;
        let gpu = Gpu::new(Arc::clone(device.driver()), true);
        let registry = Registry::new(Options::default()).with_gpu(Some(gpu));
        registry.register_system("r", &key, 0, bytes as u64).map_err(|error| error.to_string())?;
        Ok(Region { registry, _mine: mine, bytes })
    }

    fn slot(&self) -> Result<Slot, String> {
        let located = self.registry.locate("r", 0, self.bytes as u64).map_err(|error| error.to_string())?;
        Ok(located.into_slot())
    }
}

fn both_ways(memory: &Arc<DeviceMemory>, slot: impl Fn() -> Result<Slot, String>) -> Result<(f64, f64), String> {
    let device = || memory.buffer(Extent::whole(memory.len()));
    let (mut to, mut from) = (0f64, 0f64);
    for _ in 0..TRIES {
        let mut host = slot()?;
        // The first touch is not the bus's fault.
        rate(&mut host, &device())?;
        from = from.max(rate(&mut host, &device())?);
        let host = host.filled().into_buffer();
        to = to.max(rate(&mut memory.slot(Extent::whole(memory.len())), &host)?);
    }
    Ok((to, from))
}

fn rate(to: &mut Slot, from: &Buffer) -> Result<f64, String> {
    let start = Instant::now();
    to.fill_from(0, from, Reason::CrossDevice).map_err(|error| error.to_string())?;
    Ok(from.len() as f64 / start.elapsed().as_secs_f64() / 1e9)
}
