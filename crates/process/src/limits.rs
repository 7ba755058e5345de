//! What are the limits of the packets between the server and a model's process?

use std::time::Duration;

/// The most bytes of one packet. A longer text is sent as a memory file.
pub const PACKET_BYTES_MAX: usize = 65_536;
/// The most descriptors of one packet.
pub const DESCRIPTORS_MAX: usize = 64;
/// The most segments that one packet may introduce. Further tensors are copied to known memory, or their segments are requested later.
pub const MAPS_MAX: usize = DESCRIPTORS_MAX - 2;
/// The most bytes of a text that a model's process sends as a memory file.
pub const LONG_BYTES_MAX: usize = 64 << 20;
/// The most bytes of a log line or question that is read, because one thread reads those of all processes.
pub const SIDE_BYTES_MAX: usize = 4 << 20;
/// Kinds of memory on all devices of which a process may report how much it has.
pub const MEMORY_USES_MAX: usize = 64;
/// How often a process may ask for memory for the outputs of one batch before a front thread leaves it to another
/// thread.
pub const NEEDS_AT_ONCE_MAX: usize = 4;
/// The most packets that are read from a process's channel after its end. Its socket holds fewer, unless another
/// process continues to send.
pub(crate) const LAST_PACKETS_MAX: usize = 1024;
/// An output is kept after its request, for another model or a sequence, only while at most 1 / `KEPT_SHARE` of the
/// memory of all instances is in use. The rest is for the next requests.
pub const KEPT_SHARE: u64 = 8;
/// An output is copied if the memory that it would keep has more than this many times its bytes.
pub const KEPT_TIMES_MAX: usize = 2;
/// The most sets of readers that the outputs of one instance, or the inputs of one instance together with others, have memory
/// for. Outputs for further sets are copied.
pub const READER_SETS_MAX: usize = 256;
/// The alignment of tensors in memory that several of them share.
pub const TENSOR_ALIGN: usize = 64;
/// The pause after a failed start of a process. Each further failure doubles it.
pub const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after failed starts.
pub const RESTART_PAUSE_MAX: Duration = Duration::from_secs(30);
/// The most processes in a row that may die at their first request while other requests wait for the next process. After more such deaths, requests
/// fail during the pauses.
pub const DEATHS_AT_REQUESTS_MAX: u32 = 8;
/// A process that lived for so long was started well, even if nobody used it.
pub const GOOD_LIFE: Duration = Duration::from_secs(10);
/// How often the log names a phase of a process that goes on.
pub const PHASE_LOGGED_EVERY: Duration = Duration::from_secs(10);
/// How long a process that has closed its channel may take to end before it is killed.
pub const CLOSED_MAX: Duration = Duration::from_secs(1);
/// The most requests of a failed batch that the log names.
pub const NAMED_REQUESTS_MAX: usize = 16;
/// The most characters of the id of such a request.
pub const NAMED_ID_CHARACTERS_MAX: usize = 64;
/// The most lines of a process's output in an error.
pub const OUTPUT_LINES_MAX: usize = 20;
/// The most bytes of such a line.
pub const OUTPUT_LINE_BYTES_MAX: usize = 512;
/// The most bytes of all such lines in the error of a request. A gRPC client takes at most 8 KiB of trailers by default, and a byte may become three there.
pub const RUN_OUTPUT_BYTES_MAX: usize = 2 << 10;
/// Bytes that a process may print in a second. If it prints more, it waits.
pub const PRINTED_BYTES_PER_S: usize = 1 << 20;
/// Bytes that a printed line counts beside its own, because the log puts the time and the names before it.
pub const PRINTED_LINE_BYTES: usize = 64;
/// Bytes of a printed line. A longer one is divided. The log shows as many of a message.
pub const PRINTED_LINE_BYTES_MAX: usize = 16 << 10;
/// The most bytes of a model's name in lists of processes.
pub const TITLE_NAME_BYTES_MAX: usize = 128;
/// The last bytes of a process's output that are kept.
pub const OUTPUT_BYTES_KEPT: usize = 16 << 10;
/// The longest wait for the thread that reads the output of a process.
pub const OUTPUT_READ_MAX: Duration = Duration::from_millis(200);
/// The interval at which an error that waits for the log lines of a process checks whether they were read.
pub(crate) const LOGGED_LOOK_EVERY: Duration = Duration::from_millis(1);

const _: () = assert!(OUTPUT_LINE_BYTES_MAX <= RUN_OUTPUT_BYTES_MAX, "the last line is always told");
const _: () = assert!(OUTPUT_LINES_MAX * (OUTPUT_LINE_BYTES_MAX + 1) <= OUTPUT_BYTES_KEPT);
const _: () = assert!(RESTART_PAUSE.as_nanos() < RESTART_PAUSE_MAX.as_nanos());
const _: () = assert!(DESCRIPTORS_MAX < 253, "Linux passes no more at once");
