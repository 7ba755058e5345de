//! How are verdicts shown?

use serde_json::json;

use crate::plain::{plain, plain_json};

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) level: Level,
    /// The precondition.
    pub(super) check: &'static str,
    /// What was found; if the check fails, both values.
    pub(super) found: String,
    /// What to do; empty if there is nothing to do.
    pub(super) cure: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Holds,
    /// It is a problem only for some users, or it cannot be decided from here.
    Note,
    Fails,
}

pub(super) fn holds(check: &'static str, found: impl Into<String>) -> Verdict {
    Verdict { level: Level::Holds, check, found: found.into(), cure: String::new() }
}

pub(super) fn note(check: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Verdict {
    Verdict { level: Level::Note, check, found: found.into(), cure: cure.into() }
}

pub(super) fn fails(check: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Verdict {
    Verdict { level: Level::Fails, check, found: found.into(), cure: cure.into() }
}

/// The verdicts on one topic.
pub(super) struct Section {
    pub(super) topic: &'static str,
    /// What was examined.
    pub(super) about: String,
    pub(super) verdicts: Vec<Verdict>,
}

/// Checks that fail, over all topics.
pub(super) fn failed(sections: &[Section]) -> usize {
    let verdicts = sections.iter().flat_map(|section| &section.verdicts);
    verdicts.filter(|verdict| verdict.level == Level::Fails).count()
}

/// For people.
pub(super) fn text(sections: &[Section]) -> String {
    let text: String = sections.iter().map(section_text).collect();
    text + &match failed(sections) {
        0 => "Nothing stands in the way.\n".to_owned(),
        1 => "1 check fails.\n".to_owned(),
        many => format!("{many} checks fail.\n"),
    }
}

fn section_text(section: &Section) -> String {
    let mut text = format!("{}\n", section.about);
    for Verdict { level, check, found, cure } in &section.verdicts {
        let mark = match level {
            Level::Holds => "good",
            Level::Note => "note",
            Level::Fails => "FAIL",
        };
        text += &format!("  {mark}  {check:17} {}\n", plain(found));
        if !cure.is_empty() {
            text += &format!("{:26}=> {}\n", "", plain(cure));
        }
    }
    text
}

/// For programs: one line of JSON.
pub(super) fn json(sections: &[Section]) -> String {
    let entry = |topic: &str, Verdict { level, check, found, cure }: &Verdict| {
        let level = match level {
            Level::Holds => "good",
            Level::Note => "note",
            Level::Fails => "fail",
        };
        json!({ "topic": topic, "check": check, "verdict": level, "found": found, "cure": cure })
    };
    let of = |section: &Section| section.verdicts.iter().map(|one| entry(section.topic, one)).collect::<Vec<_>>();
    let checks: Vec<_> = sections.iter().flat_map(of).collect();
    plain_json(&format!("{}\n", json!({ "checks": checks, "failed": failed(sections) })))
}

/// For the tables of tests: verdicts as `mark check: found => cure`, without those that hold.
#[cfg(test)]
pub(super) fn troubles(verdicts: &[Verdict]) -> Vec<String> {
    let bad = verdicts.iter().filter(|verdict| verdict.level != Level::Holds);
    let mark = |level| if level == Level::Fails { "FAIL" } else { "note" };
    bad.map(|v| format!("{} {}: {} => {}", mark(v.level), v.check, v.found, v.cure)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_seen_at_once_and_comes_with_its_cure() {
        let verdicts = vec![holds("a", "fine"), fails("b", "1, not 2\u{1b}", "make it 2"), note("c", "odd", "")];
        let sections = [
            Section { topic: "t", about: "What:".into(), verdicts },
            Section { topic: "u", about: "Else:".into(), verdicts: vec![holds("d", "good")] },
        ];
        let expect = "\
What:
  good  a                 fine
  FAIL  b                 1, not 2\\u{1b}
                          => make it 2
  note  c                 odd
Else:
  good  d                 good
1 check fails.
";
        assert_eq!(text(&sections), expect);
        let parsed: serde_json::Value = serde_json::from_str(&json(&sections)).expect("JSON");
        assert_eq!((&parsed["failed"], &parsed["checks"][1]["verdict"]), (&1.into(), &"fail".into()));
        assert_eq!((&parsed["checks"][1]["topic"], &parsed["checks"][3]["topic"]), (&"t".into(), &"u".into()));
    }
}
