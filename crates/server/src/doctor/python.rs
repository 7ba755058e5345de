//! Is there a Python that can run models?

use nerite_python::{NoPython, PythonFound};

use super::verdict::{Verdict, fails, holds, note};

/// The cure if the environment itself has the fault.
const CURE: &str = "repair the environment, or name another one; docs/python.md says what it must be";

/// The verdict on what was found. A user who did not ask for it may have no Python models.
pub(super) fn judge(found: Result<PythonFound, NoPython>, is_named: bool) -> Verdict {
    let check = "python";
    match found {
        Ok(PythonFound { program, origin, python, numpy }) => {
            holds(check, format!("'{}' ({origin}) is Python {python} with numpy {numpy}", program.display()))
        }
        Err(NoPython { found, cure }) => {
            let cure = if cure.is_empty() { CURE.to_owned() } else { cure };
            if is_named { fails(check, found, cure) } else { note(check, found, cure) }
        }
    }
}

/// The verdict on what a sandbox could enforce here. Sandboxes are optional.
pub(super) fn judge_sandbox(probed: Result<String, String>) -> Verdict {
    let check = "sandbox";
    match probed {
        Ok(held) => holds(check, format!("the kernel can confine models: {held}")),
        Err(why) => note(
            check,
            format!("the kernel cannot confine models (--backend-config=python,sandbox=on): {why}"),
            "docs/sandbox.md says what it needs; models that nobody wants confined run without",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::troubles;
    use super::*;

    #[track_caller]
    fn check(found: Result<PythonFound, NoPython>, is_named: bool, expect: &[&str]) {
        assert_eq!(troubles(&[judge(found, is_named)]), expect);
    }

    fn none(cure: &str) -> Result<PythonFound, NoPython> {
        Err(NoPython { found: "there is none".to_owned(), cure: cure.to_owned() })
    }

    #[test]
    fn a_kernel_that_cannot_confine_is_noted() {
        assert_eq!(troubles(&[judge_sandbox(Ok("files".to_owned()))]), Vec::<String>::new());
        let [trouble] = &troubles(&[judge_sandbox(Err("no Landlock".to_owned()))])[..] else { panic!("one") };
        assert!(
            trouble.starts_with("note sandbox: the kernel cannot confine models") && trouble.contains("no Landlock"),
            "{trouble}"
        );
    }

    #[test]
    fn a_missing_python_only_fails_who_asks_for_one() {
        let (program, origin) = ("/usr/bin/python3".into(), "python3 on the PATH".to_owned());
        let found = PythonFound { program, origin, python: "3.11.2".to_owned(), numpy: "2.4.0".to_owned() };
        check(Ok(found.clone()), true, &[]);
        assert_eq!(
            judge(Ok(found), true).found,
            "'/usr/bin/python3' (python3 on the PATH) is Python 3.11.2 with numpy 2.4.0"
        );
        check(none("install one"), true, &["FAIL python: there is none => install one"]);
        check(none("install one"), false, &["note python: there is none => install one"]);
        check(none(""), true, &[&format!("FAIL python: there is none => {CURE}")]);
    }
}
