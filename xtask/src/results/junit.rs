//! Which tests failed, according to a JUnit file of nextest or pytest?

use std::collections::BTreeMap;

use roxmltree::{Document, Node};

use super::{Failure, Results, Skip, reason_in};
/// Reads a file of nextest, or of pytest for the tests of a folder. A test with several entries, such as an error of its fixture after it passed, counts once.
pub fn read(text: &str, pytest_folder: Option<&str>) -> Result<Results, String> {
    let document = Document::parse(text).map_err(|cause| format!("the results are no XML: {cause}"))?;
    let mut ends = BTreeMap::new();
    for case in document.descendants().filter(|node| node.has_tag_name("testcase")) {
        let end = End::of(case);
        let worst: &mut End = ends.entry(name(case, pytest_folder)).or_insert(End::Passed);
        if end.rank() > worst.rank() {
            *worst = end;
        }
    }
    let mut results = Results::default();
    for (name, end) in ends {
        match end {
            End::Passed => results.passed += 1,
            End::Skipped(reason) => results.skipped.push(Skip { name, reason }),
            End::Failed(reason) => results.failed.push(Failure { name, reason }),
        }
    }
    Ok(results)
}

/// How a test ended.
enum End {
    Passed,
    Skipped(String),
    Failed(String),
}

impl End {
    fn of(case: Node<'_, '_>) -> End {
        let child = |tag: &str| case.children().find(|node| node.has_tag_name(tag));
        // Of a panic, the message of nextest has only the place, and its text has the panic as well.
        let message = |node: Node<'_, '_>| {
            let (message, text) = (node.attribute("message").unwrap_or_default(), node.text().unwrap_or_default());
            reason_in(if message.starts_with("thread '") { text } else { message })
        };
        if let Some(failure) = child("failure").or(child("error")) {
            return End::Failed(message(failure));
        }
        match child("skipped") {
            // A test that is expected to fail did so.
            Some(skipped) if skipped.attribute("type") == Some("pytest.xfail") => End::Passed,
            Some(skipped) => End::Skipped(message(skipped)),
            None => End::Passed,
        }
    }

    fn rank(&self) -> u8 {
        match self {
            End::Passed => 0,
            End::Skipped(_) => 1,
            End::Failed(_) => 2,
        }
    }
}

/// The name that the runner takes: `BINARY TEST` for nextest, the path from the root and the name for pytest.
fn name(case: Node<'_, '_>, pytest_folder: Option<&str>) -> String {
    let attribute = |name: &str| case.attribute(name).unwrap_or_default();
    let (class, test) = (attribute("classname"), attribute("name"));
    let Some(folder) = pytest_folder else { return format!("{class} {test}") };
    let Some(file) = case.attribute("file") else {
        // A file that could not be read as tests.
        return format!("{}/{}.py", folder, test.replace('.', "/"));
    };
    // pytest names files from the folder of its settings: that of the tests, or of the package with its tests.
    let top = folder.strip_suffix("/tests").unwrap_or(folder);
    let module = file.trim_end_matches(".py").replace('/', ".");
    match class.strip_prefix(&format!("{module}.")) {
        Some(inner) => format!("{top}/{file}::{}::{test}", inner.replace('.', "::")),
        None => format!("{top}/{file}::{test}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(name: &str, reason: &str) -> Failure {
        Failure { name: name.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn a_file_of_nextest_is_read() {
        let text = r#"<?xml version="1.0"?><testsuites><testsuite name="nerite-shm::faults">
            <testcase name="a::b" classname="nerite-shm::faults"/>
            <testcase name="a::c" classname="nerite-shm::faults">
              <failure message="thread &apos;a::c&apos; panicked at src/a.rs:1:2" type="test failure with exit code 101">thread 'a::c' (3) panicked at src/a.rs:1:2:
            left is right</failure></testcase></testsuite></testsuites>"#;
        let results = read(text, None).expect("XML");
        assert_eq!((results.passed, results.skipped.len()), (1, 0));
        assert_eq!(results.failed, [failure("nerite-shm::faults a::c", "left is right (src/a.rs:1:2)")]);
    }

    #[test]
    fn a_file_of_pytest_is_read() {
        let text = r#"<testsuites><testsuite>
            <testcase classname="conformance.test_a" name="test_b[x]" file="conformance/test_a.py" line="3"/>
            <testcase classname="conformance.test_a" name="test_b[x]" file="conformance/test_a.py" line="3">
              <error message="failed on teardown with &quot;OSError: no&quot;">long</error></testcase>
            <testcase classname="conformance.test_a.TestC" name="test_d" file="conformance/test_a.py">
              <skipped type="pytest.skip" message="no kernel">long</skipped></testcase>
            <testcase classname="conformance.test_a" name="test_e" file="conformance/test_a.py">
              <skipped type="pytest.xfail" message="differs"/></testcase>
            <testcase classname="" name="conformance.test_f"><error message="collection failure">long</error></testcase>
          </testsuite></testsuites>"#;
        let results = read(text, Some("tests")).expect("XML");
        assert_eq!(results.passed, 1);
        let skip =
            Skip { name: "tests/conformance/test_a.py::TestC::test_d".to_owned(), reason: "no kernel".to_owned() };
        assert_eq!(results.skipped, [skip]);
        let failed = [
            failure("tests/conformance/test_a.py::test_b[x]", "failed on teardown with \"OSError: no\""),
            failure("tests/conformance/test_f.py", "collection failure"),
        ];
        assert_eq!(results.failed, failed);
        let package = r#"<a><testcase classname="tests.test_g" name="test_h" file="tests/test_g.py"><failure message="no"/></testcase></a>"#;
        let results = read(package, Some("python/tests")).expect("XML");
        assert_eq!(results.failed, [failure("python/tests/test_g.py::test_h", "no")]);
    }

    #[test]
    fn what_is_no_xml_is_refused() {
        assert!(read("<testsuites>", None).is_err());
    }
}
