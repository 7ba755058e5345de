//! How are traces written so that no request waits for a disk?

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use nerite_locks::Mutex;
use nerite_request::{Gathered, TraceSink};

use crate::counts::Counts;
use crate::files::TraceFile;
use crate::lines::lines;
use crate::settings::TraceConfig;

/// The handle of the thread that writes.
#[derive(Debug)]
pub(crate) struct Writer {
    /// `None` until the thread is started.
    to: Mutex<Option<Sender<Message>>>,
    path: PathBuf,
    pub(crate) counts: Arc<Counts>,
    next_stream: AtomicU64,
}

/// The traces of one state of the settings. They share files.
#[derive(Debug)]
pub(crate) struct Stream {
    to: Sender<Message>,
    counts: Arc<Counts>,
    /// A number that no other state of the settings has.
    number: u64,
    /// Traces in each numbered file; 0 for no limit.
    log_frequency: u32,
    /// Whether they go to numbered files.
    is_numbered: bool,
}

enum Message {
    Trace {
        trace: Gathered,
        stream: u64,
        log_frequency: u32,
        is_numbered: bool,
    },
    /// No more traces of the stream follow.
    End(u64),
    /// The sender gets a message when all traces before this are written.
    Flush(Sender<()>),
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Message")
    }
}

impl Writer {
    pub(crate) fn new(path: PathBuf) -> Writer {
        Writer { to: Mutex::default(), path, counts: Arc::default(), next_stream: AtomicU64::new(0) }
    }

    /// A sink for the traces of these settings.
    pub(crate) fn stream(&self, config: &TraceConfig) -> std::io::Result<Stream> {
        Ok(Stream {
            to: self.way()?,
            counts: Arc::clone(&self.counts),
            number: self.next_stream.fetch_add(1, Ordering::Relaxed),
            log_frequency: config.log_frequency,
            is_numbered: config.is_numbered(),
        })
    }

    /// A sender to the thread, which is started if there is none. The Err says why it cannot be started.
    fn way(&self) -> std::io::Result<Sender<Message>> {
        let mut lock = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(to) = &*lock {
            return Ok(to.clone());
        }
        let (to, from) = channel();
        let (path, counts) = (self.path.clone(), Arc::clone(&self.counts));
        let thread = std::thread::Builder::new().name("nerite-trace".to_owned());
        thread.spawn(move || {
            Desk { path, counts, main: None, next_file: 0, open: Vec::new(), has_failed: false }.work(&from);
        })?;
        Ok(lock.insert(to).clone())
    }

    /// Waits until all traces that have ended are in their files, at most for `patience`.
    pub(crate) fn flush(&self, patience: Duration) {
        let way = self.to.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (flushed, done) = channel();
        if let Some(way) = way
            && way.send(Message::Flush(flushed)).is_ok()
            && done.recv_timeout(patience).is_err()
        {
            log::warn!("traces are still being written to '{}'; the rest is lost", self.path.display());
        }
    }
}

impl TraceSink for Stream {
    fn finished(&self, trace: Gathered) {
        let Stream { number, log_frequency, is_numbered, .. } = *self;
        let message = Message::Trace { trace, stream: number, log_frequency, is_numbered };
        if self.to.send(message).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // If the thread has ended, no file is open.
        let _ = self.to.send(Message::End(self.number));
    }
}

/// The state of the thread.
struct Desk {
    path: PathBuf,
    counts: Arc<Counts>,
    main: Option<TraceFile>,
    /// The number of the next numbered file.
    next_file: u64,
    open: Vec<Numbered>,
    /// Whether the last write failed. Of several failures in a row only the first is logged.
    has_failed: bool,
}

/// A numbered file to which more traces of its stream may be added.
struct Numbered {
    stream: u64,
    file: TraceFile,
    traces: u32,
}

impl Desk {
    fn work(mut self, from: &Receiver<Message>) {
        while let Ok(message) = from.recv() {
            match message {
                Message::Trace { trace, stream, log_frequency, is_numbered } => {
                    let is_shortened = trace.is_shortened;
                    let objects = lines(trace);
                    if objects.is_empty() {
                        continue;
                    }
                    let written = if is_numbered {
                        self.write_to_numbered(stream, log_frequency, objects)
                    } else {
                        self.write_to_main(objects)
                    };
                    self.count(written, is_shortened);
                }
                Message::End(stream) => self.open.retain(|open| open.stream != stream),
                // The caller may have stopped waiting.
                Message::Flush(flushed) => drop(flushed.send(())),
            }
        }
    }

    fn write_to_main(&mut self, objects: Vec<u8>) -> std::io::Result<()> {
        let file = match &mut self.main {
            Some(file) => file,
            None => self.main.insert(TraceFile::create(&self.path)?),
        };
        file.add(objects)
    }

    fn write_to_numbered(&mut self, stream: u64, log_frequency: u32, objects: Vec<u8>) -> std::io::Result<()> {
        let at = if let Some(at) = self.open.iter().position(|open| open.stream == stream) {
            at
        } else {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{}", self.next_file));
            let file = TraceFile::create(&PathBuf::from(name))?;
            self.next_file += 1;
            self.open.push(Numbered { stream, file, traces: 0 });
            self.open.len() - 1
        };
        let Some(open) = self.open.get_mut(at) else { return Ok(()) };
        open.file.add(objects)?;
        open.traces += 1;
        if log_frequency != 0 && open.traces >= log_frequency {
            self.open.swap_remove(at);
        }
        Ok(())
    }

    fn count(&mut self, written: std::io::Result<()>, is_shortened: bool) {
        match written {
            Ok(()) => {
                self.counts.written.fetch_add(1, Ordering::Relaxed);
                self.counts.shortened.fetch_add(u64::from(is_shortened), Ordering::Relaxed);
                self.has_failed = false;
            }
            Err(error) => {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                if !std::mem::replace(&mut self.has_failed, true) {
                    log::error!("{error}; traces are dropped until it can be written");
                }
            }
        }
    }
}
