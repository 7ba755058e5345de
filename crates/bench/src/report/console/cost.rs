//! What does the console show of the cost of a request?

use std::fmt::Write as _;

use crate::results::Cost;

const MIB: f64 = 1024.0 * 1024.0;

/// Processor time, wake-ups, copies and memory.
pub(super) fn block(cost: &Cost) -> String {
    let mut out = String::from("  Cost: \n");
    out += &side("Client", Some(cost.client_cpu_us), Some(cost.client_wake_ups));
    out += &side("Server", cost.server_cpu_us, cost.server_wake_ups);
    if let Some(bytes) = cost.copied_bytes {
        let _ = writeln!(out, "    Server copies: {bytes:.0} bytes/request");
    }
    let _ = writeln!(out, "    Cores asleep: {:.1}% of the time", cost.idle * 100.0);
    let _ = write!(out, "    Peak memory: client {:.1} MiB", cost.client_bytes as f64 / MIB);
    if let Some(bytes) = cost.server_bytes {
        let _ = write!(out, ", server {:.1} MiB", bytes as f64 / MIB);
    }
    out += "\n";
    if cost.is_one_core == Some(true) {
        out += "    Client and server ran on the same core.\n";
    }
    out
}

fn side(name: &str, cpu_us: Option<f64>, wake_ups: Option<f64>) -> String {
    match (cpu_us, wake_ups) {
        (Some(cpu), Some(wake_ups)) => {
            format!("    {name} CPU: {cpu:.1} usec/request, {wake_ups:.2} wake-ups/request\n")
        }
        (Some(cpu), None) => format!("    {name} CPU: {cpu:.1} usec/request\n"),
        (None, _) => format!("    {name} CPU: unknown, because its process is not visible here\n"),
    }
}
