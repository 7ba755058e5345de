//! Are traces written to files, or sent to a collector?

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nerite_request::TraceSink;

use crate::counts::Counts;
use crate::exporter::Exporter;
use crate::settings::TraceConfig;
use crate::writer::Writer;

/// The destination of all traces, chosen when the server starts.
#[derive(Debug)]
pub(crate) enum Destination {
    File(Writer),
    Collector(Exporter),
}

impl Destination {
    pub(crate) fn of(config: &TraceConfig) -> Destination {
        match &config.spans {
            None => Destination::File(Writer::new(PathBuf::from(&config.file))),
            Some(spans) => Destination::Collector(Exporter::new(spans.clone())),
        }
    }

    /// A sink for the traces of these settings. The Err says why no thread could be started for it.
    pub(crate) fn sink(&self, config: &TraceConfig) -> io::Result<Arc<dyn TraceSink>> {
        Ok(match self {
            Destination::File(writer) => Arc::new(writer.stream(config)?),
            Destination::Collector(exporter) => Arc::new(exporter.sink()?),
        })
    }

    pub(crate) fn counts(&self) -> &Counts {
        match self {
            Destination::File(writer) => &writer.counts,
            Destination::Collector(exporter) => exporter.counts(),
        }
    }

    /// Waits until all traces that have ended are written or sent, at most for `patience`.
    pub(crate) fn flush(&self, patience: Duration) {
        match self {
            Destination::File(writer) => writer.flush(patience),
            Destination::Collector(exporter) => exporter.flush(patience),
        }
    }
}
