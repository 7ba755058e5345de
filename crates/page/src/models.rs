//! Which models does the page list, and in which state?

use nerite_api::Api;
use nerite_request::Status;
use nerite_request::report::IndexEntry;
use nerite_wire::json::Writer;

use crate::limits::MODELS_MAX;

/// The versions of all models as JSON, those that clients sent as well, by name and identifier: at most [`MODELS_MAX`], with the number of those left out. This reads the repositories.
pub fn write(api: &Api) -> Result<Vec<u8>, Status> {
    let mut entries = api.index(false)?;
    entries.extend(api.served_beyond(&entries));
    entries.sort_by(|a, b| (&a.name, &a.identifier, a.version).cmp(&(&b.name, &b.identifier, b.version)));
    let left_out = entries.len().saturating_sub(MODELS_MAX);
    entries.truncate(MODELS_MAX);
    Ok(write_entries(&entries, left_out, |entry| platform(api, entry)))
}

/// The platform of a version. It is known for loaded versions only.
fn platform(api: &Api, entry: &IndexEntry) -> Option<String> {
    let version = entry.version?.to_string();
    api.model_report(&entry.identifier, &version).ok().map(|report| report.platform)
}

fn write_entries(entries: &[IndexEntry], left_out: usize, platform: impl Fn(&IndexEntry) -> Option<String>) -> Vec<u8> {
    let mut out = Writer::with_capacity(64 + 96 * entries.len());
    out.object(|out| {
        out.key("models").array(|out| entries.iter().for_each(|entry| write_entry(out, entry, platform(entry))));
        out.key("left_out").unsigned(left_out as u64);
    });
    out.into_bytes()
}

fn write_entry(out: &mut Writer, entry: &IndexEntry, platform: Option<String>) {
    out.object(|out| {
        out.key("name").string(entry.name.as_bytes());
        // With `--model-namespacing` several models may have the same name.
        if entry.identifier != entry.name {
            out.key("identifier").string(entry.identifier.as_bytes());
        }
        if let Some(version) = entry.version {
            out.key("version").string(version.to_string().as_bytes());
        }
        out.key("state").string(entry.state.as_bytes());
        if !entry.reason.is_empty() {
            out.key("reason").string(entry.reason.as_bytes());
        }
        if let Some(platform) = platform {
            out.key("platform").string(platform.as_bytes());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_has_its_state_and_its_reason() {
        let entry = |name: &str, version, state, reason: &str| IndexEntry {
            identifier: name.into(),
            name: name.into(),
            version,
            state,
            reason: reason.into(),
        };
        let entries = [
            entry("a", Some(3), "READY", ""),
            entry("b", None, "", ""),
            entry("c", Some(1), "UNAVAILABLE", "unloaded"),
            IndexEntry { identifier: "/r::d".into(), ..entry("d", Some(1), "LOADING", "") },
        ];
        let platform = |entry: &IndexEntry| (entry.state == "READY").then(|| "onnx".to_owned());
        let text = String::from_utf8(write_entries(&entries, 7, platform)).expect("UTF-8");
        let expect = r#"{"models":[{"name":"a","version":"3","state":"READY","platform":"onnx"},{"name":"b","state":""},{"name":"c","version":"1","state":"UNAVAILABLE","reason":"unloaded"},{"name":"d","identifier":"/r::d","version":"1","state":"LOADING"}],"left_out":7}"#;
        assert_eq!(text, expect);
    }
}
