//! Can this Python run models, and if not, why?

use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use super::Origin;
use super::bounded::{Ran, RunBounds, run};

/// The oldest supported Python.
pub(super) const VERSION_MIN: (u32, u32) = (3, 9);

/// Code for every Python, including version 2. Start-up files of the site may print text before its output.
const QUESTION: &str = "\
import sys
sys.stdout.write('\\nnerite-python %d.%d.%d\\n' % sys.version_info[:3])
sys.stdout.flush()
try:
    import numpy
    sys.stdout.write('\\nnerite-numpy %s\\n' % numpy.__version__)
except BaseException:
    sys.stdout.write('\\nnerite-missing %s: %s\\n' % (sys.exc_info()[0].__name__, sys.exc_info()[1]))
";

/// The most lines of its output in an error.
const LINES_MAX: usize = 3;

/// The versions of a Python that can run models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) python: String,
    pub(super) numpy: String,
}

/// Why it cannot run models.
#[derive(Debug)]
pub(super) enum Fault {
    /// The system could not start it.
    Unstartable(io::Error),
    /// It did not answer within this time.
    Hangs(Duration),
    /// It ended without an answer: how, and the end of its output.
    Foreign(String, String),
    /// It is too old: its version.
    Old(String),
    /// It has no usable numpy: its version, and the error of the import.
    NoNumpy(String, String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unstartable(error) => write!(f, "cannot be started: {error}"),
            Fault::Hangs(at_most) => {
                write!(f, "did not say within {:.1} seconds which Python it is", at_most.as_secs_f64())
            }
            Fault::Foreign(how, output) if output.is_empty() => write!(f, "is no Python: {how}, and printed nothing"),
            Fault::Foreign(how, output) => write!(f, "is no Python, or a broken one: {how}, and printed \"{output}\""),
            Fault::Old(python) => {
                write!(f, "is Python {python}, and models need {}.{} or newer", VERSION_MIN.0, VERSION_MIN.1)
            }
            Fault::NoNumpy(python, why) => write!(f, "is Python {python} without a numpy that can be imported ({why})"),
        }
    }
}

impl Fault {
    /// What the operator can do.
    pub(super) fn cure(&self, program: &Path, origin: &Origin) -> String {
        let program_is_folder = matches!(self, Fault::Unstartable(_)) && program.is_dir();
        let is_forbidden = matches!(self, Fault::Unstartable(error) if error.kind() == io::ErrorKind::PermissionDenied);
        // Error numbers that mean a shortage of the server itself: EMFILE and ENFILE (descriptors), EAGAIN (processes), ENOMEM (memory).
        let is_short =
            matches!(self, Fault::Unstartable(error) if matches!(error.raw_os_error(), Some(24 | 23 | 11 | 12)));
        match (self, origin) {
            _ if is_short => {
                "raise the server's limits (ulimit -n, -u, -v) or load fewer instances: each is a process and two descriptors \
                 of the server"
                    .to_owned()
            }
            _ if program_is_folder => "it is a directory: name the program in it, such as bin/python3".to_owned(),
            (_, Origin::Environment(_)) if is_forbidden => {
                "see that the server's user may run it, and that its file system (TMPDIR's, for an archive) is not mounted with \
                 noexec"
                    .to_owned()
            }
            _ if is_forbidden => "see that the server's user may run it".to_owned(),
            (Fault::NoNumpy(..), Origin::Environment(_)) => {
                format!(
                    "put numpy into the environment, `{} -m pip install numpy` where it was made",
                    program.file_name().unwrap_or_default().display()
                )
            }
            (Fault::NoNumpy(..), _) => format!("`{} -m pip install numpy`", program.display()),
            (Fault::Old(_), Origin::Environment(_)) => "make the environment with a newer one".to_owned(),
            (_, Origin::Environment(_)) => "make the environment anew, with Python 3.9 or newer and numpy".to_owned(),
            (Fault::Old(_), _) => "name a newer one with --backend-config=python,interpreter=<path>".to_owned(),
            _ => "install Python 3.9 or newer with numpy, or name one with --backend-config=python,interpreter=<path>".to_owned(),
        }
    }
}

/// Runs the code with the interpreter of `command`, for at most this time.
pub(super) fn query(mut command: Command, at_most: Duration) -> Result<Answer, Fault> {
    command.args(["-c", QUESTION]);
    let ran = run(command, RunBounds::within(at_most)).map_err(Fault::Unstartable)?;
    answer_of(&ran, at_most)
}

fn answer_of(ran: &Ran, at_most: Duration) -> Result<Answer, Fault> {
    let value =
        |key: &str| ran.output.lines().rev().find_map(|line| line.strip_prefix(key)).map(|text| text.trim().to_owned());
    let python = value("nerite-python ");
    if let Some(python) = python.as_deref()
        && version(python).is_some_and(|found| found < VERSION_MIN)
    {
        return Err(Fault::Old(python.to_owned()));
    }
    let numpy = value("nerite-numpy ");
    match (python, numpy, ran.end) {
        (Some(python), Some(numpy), _) => Ok(Answer { python, numpy }),
        (_, _, None) => Err(Fault::Hangs(at_most)),
        (Some(python), None, Some(end)) => {
            // numpy itself ends the process on a processor that it does not support.
            let why = value("nerite-missing ").unwrap_or_else(|| format!("the import {}", how(end)));
            Err(Fault::NoNumpy(python, why))
        }
        (None, _, Some(end)) => Err(Fault::Foreign(format!("it {}", how(end)), ran.last_lines(LINES_MAX))),
    }
}

/// How a process ended, as the end of a sentence.
pub(super) fn how(end: ExitStatus) -> String {
    match (end.signal(), end.code()) {
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, code) => format!("ended with code {}", code.unwrap_or_default()),
    }
}

/// Parses the major and minor version.
pub(super) fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::PathBuf;

    use super::*;

    /// Checks the result for an interpreter that is this shell script.
    #[track_caller]
    fn check(script: &str, at_most: Duration, expect: Result<(&str, &str), &str>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let found = run(command, RunBounds::within(at_most))
            .map_err(Fault::Unstartable)
            .and_then(|ran| answer_of(&ran, at_most));
        let found = found.map_err(|fault| fault.to_string());
        let answer = |(python, numpy): (&str, &str)| Answer { python: python.to_owned(), numpy: numpy.to_owned() };
        assert_eq!(found, expect.map(answer).map_err(str::to_owned), "{script}");
    }

    const LONG: Duration = Duration::from_mins(1);

    #[test]
    fn an_interpreter_is_known_by_its_answer() {
        let good = "echo a line of the site; echo nerite-python 3.11.2; echo nerite-numpy 2.4.0";
        check(good, LONG, Ok(("3.11.2", "2.4.0")));
        check(
            "echo nerite-python 3.8.18; echo nerite-numpy 1.24.2",
            LONG,
            Err("is Python 3.8.18, and models need 3.9 or newer"),
        );
        check("echo nerite-python 2.7.18", LONG, Err("is Python 2.7.18, and models need 3.9 or newer"));
        check(
            "echo nerite-python 3.11.2; echo \"nerite-missing ModuleNotFoundError: No module named 'numpy'\"",
            LONG,
            Err("is Python 3.11.2 without a numpy that can be imported (ModuleNotFoundError: No module named 'numpy')"),
        );
        check(
            "echo nerite-python 3.11.2; kill -ILL $$",
            LONG,
            Err("is Python 3.11.2 without a numpy that can be imported (the import was ended by signal 4)"),
        );
        check(":", LONG, Err("is no Python: it ended with code 0, and printed nothing"));
        check(
            "echo 1; echo 2; echo 3 >&2; echo 4; exit 9",
            LONG,
            Err("is no Python, or a broken one: it ended with code 9, and printed \"2 | 3 | 4\""),
        );
        check("sleep 600", Duration::from_millis(200), Err("did not say within 0.2 seconds which Python it is"));
    }

    #[test]
    fn a_real_python_answers_the_question() {
        let python = super::super::SearchEnvironment::of_process().find(None);
        let Ok((python, _)) = python else { return };
        match query(Command::new(python), LONG) {
            Ok(answer) => assert!(version(&answer.python) >= Some(VERSION_MIN)),
            Err(Fault::NoNumpy(python, why)) => assert!(version(&python) >= Some(VERSION_MIN) && why.contains("numpy")),
            Err(Fault::Old(python)) => assert!(version(&python) < Some(VERSION_MIN)),
            Err(other) => panic!("{other}"),
        }
    }

    #[track_caller]
    fn check_cure(fault: Fault, origin: Origin, expect: &str) {
        assert_eq!(fault.cure(&PathBuf::from("/p/bin/python3"), &origin), expect);
    }

    #[test]
    fn every_fault_has_its_cure() {
        let numpy = || Fault::NoNumpy("3.11.2".into(), String::new());
        let forbidden = || Fault::Unstartable(io::ErrorKind::PermissionDenied.into());
        let environment = || Origin::Environment("e".into());
        check_cure(numpy(), Origin::Path, "`/p/bin/python3 -m pip install numpy`");
        check_cure(
            numpy(),
            environment(),
            "put numpy into the environment, `python3 -m pip install numpy` where it was made",
        );
        check_cure(forbidden(), Origin::Setting, "see that the server's user may run it");
        check_cure(
            forbidden(),
            environment(),
            "see that the server's user may run it, and that its file system (TMPDIR's, for an archive) is not mounted with noexec",
        );
        check_cure(
            Fault::Foreign("it ended with code 1".into(), String::new()),
            Origin::Setting,
            "install Python 3.9 or newer with numpy, or name one with --backend-config=python,interpreter=<path>",
        );
        let folder = Fault::Unstartable(io::ErrorKind::PermissionDenied.into());
        assert!(folder.cure(Path::new("/"), &Origin::Setting).starts_with("it is a directory: name the program in it"));
    }
}
