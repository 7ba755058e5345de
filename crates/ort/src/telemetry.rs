//! How is ONNX Runtime kept from sending reports to its makers?

/// The library's own switch.
const DISABLE: &str = "ORT_DISABLE_TELEMETRY";

/// Turns ONNX Runtime's telemetry off for this process and those that it starts, unless the environment sets it
/// already. Call this first in `main`: once there are other threads, it changes nothing.
///
/// Official builds for Linux send events over the network and write an identifier of the machine to the disk. The
/// library's function that turns events off needs an environment, and the first event is sent while that is made.
#[expect(clippy::disallowed_methods, reason = "the process has this one thread, which is checked")]
pub fn disable_telemetry() {
    if std::env::var_os(DISABLE).is_some() {
        return;
    }
    let threads = std::fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count);
    if threads == 1 {
        // SAFETY: this is the only thread, so nobody reads the environment meanwhile.
        unsafe { std::env::set_var(DISABLE, "1") };
    }
}
