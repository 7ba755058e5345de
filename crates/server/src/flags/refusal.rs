//! What does an operator read if flags are refused?
//!
//! Triton prints its whole usage with every error. `nerite serve` prints only the error, because nobody finds it behind a hundred lines.

use nerite_config::{did_you_mean, nearest};

use super::parse::ParseError;
use super::table::{FLAGS, Takes};

/// The name under which the program was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `nerite serve`.
    Serve,
    /// `tritonserver`: scripts may look for what Triton prints.
    Tritonserver,
}

impl Command {
    /// What to print for a command line that cannot be read.
    pub fn refuse(self, error: &ParseError) -> String {
        let name = self.name();
        match (error, self) {
            (ParseError::Help, _) => usage(name),
            // getopt prints its errors before the usage. All other errors come after it.
            (ParseError::Stray(_), Command::Tritonserver) => format!("{}{error}\n", usage(name)),
            (_, Command::Tritonserver) => format!("{name}: {error}\n{}", usage(name)),
            (_, Command::Serve) => format!("{name}: {error}{}\n{}", hint(error), self.more()),
        }
    }

    /// The text for flags with invalid values.
    pub fn refuse_values(self, error: impl std::fmt::Display) -> String {
        let text = error.to_string();
        match self {
            Command::Tritonserver => format!("{}{text}\n", usage(self.name())),
            Command::Serve => format!("{}: {}\n{}", self.name(), text.trim_end(), self.more()),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Command::Serve => "nerite serve",
            Command::Tritonserver => "tritonserver",
        }
    }

    fn more(self) -> String {
        format!("`{} --help` lists the flags.\n", self.name())
    }
}

/// The flag that was probably meant, behind an error about one that does not exist.
fn hint(error: &ParseError) -> String {
    let ParseError::Unknown(word) = error else { return String::new() };
    let meant = nearest(word.trim_start_matches('-'), FLAGS.iter().map(|flag| flag.name));
    did_you_mean(meant.map(|name| format!("--{name}")))
}

/// The usage as Triton lays it out.
fn usage(command: &str) -> String {
    let mut text = format!("Usage: {command} [options]\n");
    let mut group = "";
    for flag in FLAGS {
        if flag.group != group {
            group = flag.group;
            text.push_str(&format!("\n{group}:\n"));
        }
        match flag.takes {
            Takes::Nothing => text.push_str(&format!("  --{}\n\t{}\n", flag.name, flag.about)),
            Takes::Value(kind) => text.push_str(&format!("  --{} {kind}\n\t{}\n", flag.name, flag.about)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::*;

    fn refusal(command: Command, word: &str) -> String {
        command.refuse(&parse(&[word.to_owned()]).expect_err("no legal line"))
    }

    #[track_caller]
    fn check(word: &str, expect: &str) {
        let expect = format!("nerite serve: {expect}\n`nerite serve --help` lists the flags.\n");
        assert_eq!(refusal(Command::Serve, word), expect);
    }

    #[test]
    fn a_slip_is_told_the_nearest_flag_in_two_lines() {
        check("--http-prot=8000", "unrecognized option '--http-prot'; did you mean '--http-port'?");
        check("--grpc_port", "unrecognized option '--grpc_port'; did you mean '--grpc-port'?");
        check("-model-repository=m", "unrecognized option '-model-repository'; did you mean '--model-repository'?");
        check("--connection-max", "unrecognized option '--connection-max'; did you mean '--connections-max'?");
        check("--colour", "unrecognized option '--colour'");
        check("stray", "Unexpected argument: stray");
        check("--id", "option '--id' requires an argument");
    }

    #[test]
    fn triton_prints_its_usage_with_every_error() {
        for word in ["--http-prot=8000", "stray", "--id"] {
            assert!(refusal(Command::Tritonserver, word).contains("Usage: tritonserver [options]\n"), "{word}");
            assert!(!refusal(Command::Serve, word).contains("Usage: "), "{word}");
        }
        let unknown = refusal(Command::Tritonserver, "--http-prot");
        assert!(unknown.starts_with("tritonserver: unrecognized option '--http-prot'\nUsage: "), "{unknown}");
        assert!(refusal(Command::Tritonserver, "stray").ends_with("\nUnexpected argument: stray\n"));
        assert!(refusal(Command::Serve, "--help").starts_with("Usage: nerite serve [options]\n"));
        let bad = "Bad option: \"--id\".\nno\n";
        assert!(Command::Tritonserver.refuse_values(bad).ends_with(&format!("{bad}\n")));
        let short = "nerite serve: Bad option: \"--id\".\nno\n`nerite serve --help` lists the flags.\n";
        assert_eq!(Command::Serve.refuse_values(bad), short);
    }
}
