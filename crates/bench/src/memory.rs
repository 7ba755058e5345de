//! Where is the shared memory of a measurement, and who has to be told when it ends?

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nerite_client::{Lease, Region, Session, blocking};

use nerite_cuda::{DeviceMemory, Driver};
use nerite_memory::{Extent, Reason};

use crate::caller::Caller;
use crate::options::{Memory, Options, Protocol};
use crate::plan::Plan;

/// The variable that names the library of the CUDA driver, as for the server.
const CUDA_LIBRARY: &str = "NERITE_CUDA_LIBRARY";
/// What a server says of memory that a request holds.
const IN_USE: &str = "currently in use";
/// How long a server may hold memory after the last response.
const IN_USE_MAX: Duration = Duration::from_secs(10);
const IN_USE_EVERY: Duration = Duration::from_millis(5);

/// The memory in which tensors lie. Only this memory is unregistered at the end; that of other clients stays.
pub(crate) enum Held {
    /// In the messages, or in leases that each session borrows for itself.
    Nothing,
    /// `caller` registered it. `None`: each session registers it for itself.
    Region {
        region: Region,
        caller: Option<Caller>,
    },
    Lease {
        lease: Lease,
        _session: Session,
    },
    Cuda {
        name: String,
        caller: Caller,
        _memory: Arc<DeviceMemory>,
    },
}

impl Held {
    /// Makes the memory, writes the inputs to it, and registers it.
    pub(crate) fn make(options: &Options, plan: &Plan, caller: &Caller) -> Result<Held, String> {
        let bytes = plan.memory_bytes();
        match (options.memory, options.protocol) {
            (Memory::Inline, _) | (Memory::Lease, Protocol::Session) => Ok(Held::Nothing),
            (Memory::System, _) => {
                // The key is the name of the region too. Over HTTP, Triton 2.51 does not find a name with a slash.
                let key = format!("nerite_bench_{}", std::process::id());
                let region = Region::create(&key, bytes).map_err(|error| error.to_string())?;
                plan.fill(&region).map_err(|error| error.to_string())?;
                let caller = (options.protocol != Protocol::Session).then(|| caller.clone());
                caller.as_ref().map_or(Ok(()), |caller| caller.register(&key, &key, bytes))?;
                Ok(Held::Region { region, caller })
            }
            (Memory::Lease, _) => {
                let session = caller.session()?.ok_or("--shared-memory lease needs a nerite server on this host")?;
                let lease = blocking::wait(session.borrow(bytes)).map_err(|error| error.to_string())?;
                plan.fill(&lease).map_err(|error| error.to_string())?;
                Ok(Held::Lease { lease, _session: session })
            }
            (Memory::Cuda, _) => Held::on_device(plan, caller),
        }
    }

    /// Memory of the first GPU.
    fn on_device(plan: &Plan, caller: &Caller) -> Result<Held, String> {
        let fault = |reason: &dyn std::fmt::Display| format!("--shared-memory cuda: {reason}");
        let library = std::env::var_os(CUDA_LIBRARY);
        let driver = Driver::open(library.as_deref().map(Path::new)).map_err(|absent| fault(&absent))?;
        let device = driver.device(0).ok_or_else(|| fault(&"there is no GPU"))?;
        let bytes = plan.memory_bytes();
        let memory = DeviceMemory::allocate(&device, bytes).map_err(|error| fault(&error))?;
        let whole = Extent::new(0, bytes, bytes).map_err(|error| fault(&error))?;
        let mut slot = memory.slot(whole);
        for (offset, input) in plan.inputs() {
            slot.write(offset, input, Reason::CrossDevice).map_err(|error| fault(&error))?;
        }
        let name = format!("nerite_bench_{}", std::process::id());
        let handle = memory.ipc_handle().map_err(|error| fault(&error))?;
        caller.register_cuda(&name, &handle.0, device.ordinal(), bytes)?;
        Ok(Held::Cuda { name, caller: caller.clone(), _memory: memory })
    }

    /// The name of the memory in requests.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Held::Nothing => None,
            Held::Region { region, .. } => Some(region.key()),
            Held::Lease { lease, .. } => Some(lease.name()),
            Held::Cuda { name, .. } => Some(name),
        }
    }

    /// Gives the memory back. The error says what stays behind at the server.
    pub(crate) fn end(self) -> Result<(), String> {
        let (name, unregistered) = match &self {
            Held::Region { region, caller: Some(caller) } => {
                (region.key(), when_released(|| caller.unregister(region.key())))
            }
            Held::Cuda { name, caller, .. } => (name.as_str(), when_released(|| caller.unregister_cuda(name))),
            _ => return Ok(()),
        };
        unregistered.map_err(|reason| format!("region {name} stays registered: {reason}"))
    }
}

/// Repeats it while the server says that the memory is in use: Triton 2.51 releases it a moment after the response.
#[expect(clippy::disallowed_methods, reason = "the main thread has nothing else to do")]
fn when_released(unregister: impl Fn() -> Result<(), String>) -> Result<(), String> {
    let since = Instant::now();
    loop {
        match unregister() {
            Err(reason) if reason.contains(IN_USE) && since.elapsed() < IN_USE_MAX => std::thread::sleep(IN_USE_EVERY),
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::when_released;

    #[test]
    fn only_memory_in_use_is_unregistered_again() {
        let check = |reason: &str, calls: usize| {
            let count = Cell::new(0);
            let ended = when_released(|| {
                count.set(count.get() + 1);
                if count.get() < 3 { Err(reason.to_owned()) } else { Ok(()) }
            });
            assert_eq!((count.get(), ended.is_ok()), (calls, calls == 3), "{reason}");
        };
        check("Cannot unregister shared memory region 'a', it is currently in use.", 3);
        check("Unable to find shared memory region: 'a'", 1);
    }
}
