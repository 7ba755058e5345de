//! How do the front ends' threads wait for models' processes, beside their connections?

use std::os::fd::{AsFd, AsRawFd, RawFd};

use nerite_backend::Awaited;
use nerite_engine::Watch;
use nerite_watchdog::{FrontEnd, watched};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

/// Waits by the runtime of the front threads.
pub struct OnFrontThreads(pub Handle);

impl Watch for OnFrontThreads {
    fn is_here(&self) -> bool {
        Handle::try_current().is_ok()
    }

    #[expect(
        deprecated,
        reason = "what follows it is unsafe for types that could name a descriptor that is not theirs; this one holds what it names"
    )]
    fn when_readable(&self, what: Awaited, then: Box<dyn FnOnce() + Send>) {
        let _entered = self.0.enter();
        // Fails if the system cannot watch more descriptors.
        let Ok(watching) = AsyncFd::with_interest(Watched(what), Interest::READABLE) else { return };
        tokio::spawn(watched(FrontEnd::Server, async move {
            // The reader of the descriptor gets the error.
            let _ = watching.readable().await.map(drop);
            // It may be watched again at once.
            drop(watching);
            then();
        }));
    }
}

struct Watched(Awaited);

impl AsRawFd for Watched {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}
