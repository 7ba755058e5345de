//! What does a command say about a command line that it does not understand?
//!
//! The fault, the option or word that was probably meant, and how to list all of them. The whole list would hide the fault.

use std::process::ExitCode;

use nerite_config::{did_you_mean, nearest};

use crate::plain::plain;

/// Prints what is wrong with the command line of `nerite <command>`.
pub fn refuse(command: &str, reason: &str) -> ExitCode {
    eprintln!("nerite {command}: {}\n`nerite {command} --help` lists what there is", plain(reason));
    ExitCode::from(2)
}

/// The fault of an option that is not in the text of `--help`.
pub fn no_option(word: &str, help: &str) -> String {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    let options = || help.split([' ', '\n', ',', '[', ']']).filter(|word| word.starts_with("--"));
    if word != name && options().any(|option| option == name) {
        return format!("'{name}' takes no value");
    }
    format!("there is no option '{name}'{}", did_you_mean(nearest(name, options())))
}

/// The fault of a word that is none of these. `kind` says what they are.
pub fn none_of(kind: &str, word: &str, known: &[&'static str]) -> String {
    format!("there is no {kind} '{word}'{}", did_you_mean(nearest(word, known.iter().copied())))
}

/// The log line about a setting `--{flag}={name}=…` that is not among those known. `meant` is the one that was probably meant, if it is not just
/// the nearest.
pub fn no_setting(flag: &str, name: &str, meant: Option<&'static str>, known: &[&'static str]) -> String {
    let meant = did_you_mean(meant.or_else(|| nearest(name, known.iter().copied())));
    format!("--{flag}={name} has no effect: there is no such setting{meant}; there are: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_option_or_word_is_named() {
        let help = "Usage: nerite ready [URL] [options]\n      --cacert FILE    in PEM\n  -h, --help     print this\n";
        assert_eq!(no_option("--cacrt=x", help), "there is no option '--cacrt'; did you mean '--cacert'?");
        assert_eq!(no_option("--help=yes", help), "'--help' takes no value");
        assert_eq!(no_option("--quite-another", help), "there is no option '--quite-another'");
        assert_eq!(none_of("command", "chek", &["check", "show"]), "there is no command 'chek'; did you mean 'check'?");
    }
}
