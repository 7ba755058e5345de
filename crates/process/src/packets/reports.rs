//! Which packets on the side channel report a compiled backend's responses and its memory?

use std::fmt::{Display, Formatter, Result};

use nerite_backend::{ResponseDurations, ResponseOutcome};
use nerite_request::report::MemoryUsage;
use serde_json::Value;

use super::side::SideSaid;
use super::tensors::List;
use crate::limits::MEMORY_USES_MAX;

const OUTCOMES: [(&str, ResponseOutcome); 4] = [
    ("success", ResponseOutcome::Success),
    ("fail", ResponseOutcome::Failed),
    ("empty_response", ResponseOutcome::Empty),
    ("cancel", ResponseOutcome::Cancelled),
];
const MEMORY: [&str; 3] = ["CPU", "CPU_PINNED", "GPU"];

/// One response of a request, at its position: `[index, outcome, infer_ns, output_ns, total_ns]`; null for a duration
/// that does not count. There is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Responded(pub u64, pub ResponseDurations);

impl Display for Responded {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Responded(index, ResponseDurations { outcome, infer_ns, output_ns, total_ns }) = self;
        let outcome = OUTCOMES.iter().find(|(_, known)| known == outcome).map_or("success", |(word, _)| word);
        let (infer_ns, output_ns) = (Count(*infer_ns), Count(*output_ns));
        write!(f, r#"{{"responded":[{index},"{outcome}",{infer_ns},{output_ns},{total_ns}]}}"#)
    }
}

/// The memory of the model and its instance: `[kind, device, bytes]` for each kind and device. It replaces the earlier
/// report. There is no answer.
#[derive(Clone, Copy, Debug)]
pub struct MemoryReported<'a>(pub &'a [MemoryUsage]);

impl Display for MemoryReported<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, r#"{{"memory":{}}}"#, List(self.0.iter().map(Used)))
    }
}

impl SideSaid {
    /// A response that the backend reports, and its position.
    pub fn responded(&self) -> Option<Responded> {
        let [index, outcome, infer_ns, output_ns, total_ns] = self.0.get("responded")?.as_array()?.as_slice() else {
            return None;
        };
        let outcome = outcome.as_str()?;
        let outcome = OUTCOMES.iter().find(|(word, _)| *word == outcome)?.1;
        let (infer_ns, output_ns, total_ns) = (infer_ns.as_u64(), output_ns.as_u64(), total_ns.as_u64()?);
        Some(Responded(index.as_u64()?, ResponseDurations { outcome, infer_ns, output_ns, total_ns }))
    }

    /// The memory that the backend reports.
    pub fn memory(&self) -> Option<Vec<MemoryUsage>> {
        let all = self.0.get("memory")?.as_array()?;
        all.iter().take(MEMORY_USES_MAX).map(usage_of).collect()
    }
}

struct Count(Option<u64>);

impl Display for Count {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.0 {
            Some(ns) => write!(f, "{ns}"),
            None => f.write_str("null"),
        }
    }
}

#[derive(Clone, Copy)]
struct Used<'a>(&'a MemoryUsage);

impl Display for Used<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let MemoryUsage { kind, id, bytes } = self.0;
        write!(f, r#"["{kind}",{id},{bytes}]"#)
    }
}

fn usage_of(value: &Value) -> Option<MemoryUsage> {
    let [kind, id, bytes] = value.as_array()?.as_slice() else { return None };
    let word = kind.as_str()?;
    let kind = MEMORY.into_iter().find(|known| *known == word)?;
    Some(MemoryUsage { kind, id: id.as_i64()?, bytes: bytes.as_u64()? })
}
