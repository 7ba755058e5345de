//! What does a shell complete?
//!
//! The completions are made from the usages of all commands and the table of flags, so they need no maintenance of their own.

use std::process::ExitCode;

use crate::flags::{FLAGS, Flag, Takes};
use crate::{config, demo, doctor, drain, fleet, model, ready, shm, top};

const USAGE: &str = "Usage: nerite completions bash|zsh|fish\n";
const SHELLS: &[&str] = &["bash", "zsh", "fish"];

/// One command and what may follow it.
pub(crate) struct Command {
    pub(crate) name: &'static str,
    words: Vec<&'static str>,
    options: Vec<String>,
}

/// `nerite completions`; `words` are those after that word.
pub fn main(words: &[String]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let text = match words[..] {
        ["bash"] => bash(),
        ["zsh"] => zsh(),
        ["fish"] => fish(),
        ["-h" | "--help"] => USAGE.to_owned(),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    print!("{text}");
    ExitCode::SUCCESS
}

pub(crate) fn commands() -> Vec<Command> {
    let of_usage = |name, usage| Command { name, words: words_of(usage), options: options_of(usage) };
    let plain = |name, words: &[&'static str]| Command { name, words: words.to_vec(), options: Vec::new() };
    let flags = FLAGS.iter().map(|flag| format!("--{}", flag.name)).collect();
    vec![
        Command { name: "serve", words: Vec::new(), options: flags },
        of_usage("shm", shm::USAGE),
        of_usage("doctor", doctor::USAGE),
        of_usage("demo", demo::USAGE),
        of_usage("config", config::USAGE),
        of_usage("drain", drain::USAGE),
        of_usage("ready", ready::USAGE),
        of_usage("top", top::USAGE),
        Command { name: "bench", words: Vec::new(), options: nerite_bench::options() },
        of_usage("model", model::USAGE),
        plain("fleet", fleet::WORDS),
        plain("completions", SHELLS),
        plain("man", &[]),
        plain("version", &[]),
        plain("help", &[]),
    ]
}

/// The subcommands of a usage: words at the beginning of lines that are indented by two.
fn words_of(usage: &'static str) -> Vec<&'static str> {
    let starts = usage.lines().filter_map(|line| line.strip_prefix("  "));
    let mut words: Vec<_> = starts
        .filter_map(|line| line.split_whitespace().next().filter(|word| line.starts_with(word)))
        .filter(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()))
        .collect();
    words.dedup();
    words
}

/// The long options of a usage: at the beginning of a line, or behind a short one.
fn options_of(usage: &str) -> Vec<String> {
    let lines = usage.lines().map(|line| line.trim_start().trim_start_matches("-h, "));
    lines
        .filter(|line| line.starts_with("--"))
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// The values of a flag, where they are few: truth values, and those that its text begins with.
fn choices(flag: &Flag) -> Vec<&'static str> {
    match flag.takes {
        Takes::Value("<boolean>") => vec!["true", "false"],
        Takes::Value(_) if flag.about.starts_with('\'') => {
            let list = flag.about.split([':', '.']).next().unwrap_or_default();
            list.split('\'').skip(1).step_by(2).collect()
        }
        _ => Vec::new(),
    }
}

/// Flags whose value is a file or a folder.
fn is_path(flag: &Flag) -> bool {
    let named = ["file", "repository", "store", "directory", "cert", "key"];
    flag.takes == Takes::Value("<path>") || named.iter().any(|end| flag.name.ends_with(&format!("-{end}")))
}

fn bash() -> String {
    let commands = commands();
    let names: Vec<_> = commands.iter().map(|command| command.name).collect();
    let mut cases = String::new();
    for command in &commands {
        let all: Vec<&str> = command.words.iter().copied().chain(command.options.iter().map(String::as_str)).collect();
        cases.push_str(&format!("        {}) words='{}' ;;\n", command.name, all.join(" ")));
    }
    let mut values = String::new();
    for flag in FLAGS.iter().filter(|flag| !choices(flag).is_empty()) {
        values.push_str(&format!("            --{}) words='{}' ;;\n", flag.name, choices(flag).join(" ")));
    }
    let alone: Vec<_> =
        FLAGS.iter().filter(|flag| flag.takes == Takes::Nothing).map(|flag| format!("--{}", flag.name)).collect();
    BASH.replace("@COMMANDS@", &names.join(" "))
        .replace("@CASES@", &cases)
        .replace("@VALUES@", &values)
        .replace("@ALONE@", &alone.join("|"))
}

/// `--flag=value` reaches bash as three words, because the sign breaks words.
const BASH: &str = r#"# Completions of nerite for bash, made by `nerite completions bash`.
_nerite() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} flag= words=
    COMPREPLY=()
    if [[ ${COMP_WORDS[0]##*/} == tritonserver ]]; then
        command=serve
    elif ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W '@COMMANDS@' -- "$current"))
        return
    fi
    if [[ $current == = ]]; then
        flag=$before current=
    elif [[ $before == = ]]; then
        flag=${COMP_WORDS[COMP_CWORD-2]}
    elif [[ $before == --* && $current != -* ]]; then
        case $before in @ALONE@) ;; *) flag=$before ;; esac
    fi
    if [[ -n $flag ]]; then
        case $flag in
@VALUES@        esac
        if [[ -n $words ]]; then
            COMPREPLY=($(compgen -W "$words" -- "$current"))
        else
            compopt -o filenames 2>/dev/null
            COMPREPLY=($(compgen -f -- "$current"))
        fi
        return
    fi
    case $command in
@CASES@    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -F _nerite nerite tritonserver
"#;

fn zsh() -> String {
    let mut cases = String::new();
    for command in commands().iter().filter(|command| command.name != "serve") {
        let options = command.options.iter().map(|option| format!(" '{option}[]'")).collect::<Vec<_>>().concat();
        let words = command.words.join(" ");
        cases.push_str(&format!("        {}) _arguments{options} '*: :({words})' ;;\n", command.name));
    }
    let flags = FLAGS.iter().map(|flag| format!("    {}\n", zsh_flag(flag))).collect::<Vec<_>>().concat();
    let names: Vec<_> = commands().iter().map(|command| command.name).collect();
    format!(
        "#compdef nerite tritonserver\n# Completions of nerite for zsh, made by `nerite completions zsh`.\nlocal -a flags\nflags=(\n{flags})\n\
         if [[ $service == tritonserver ]]; then\n    _arguments $flags\nelif ((CURRENT == 2)); then\n    compadd {}\nelse\n    \
         local command=$words[2]\n    shift words\n    ((CURRENT--))\n    case $command in\n        serve) _arguments $flags ;;\n{cases}    esac\nfi\n",
        names.join(" ")
    )
}

fn zsh_flag(flag: &Flag) -> String {
    let mut about = String::new();
    for next in flag.about.chars() {
        match next {
            '\'' => about.push_str("'\\''"),
            '[' | ']' | ':' | '\\' => about.extend(['\\', next]),
            next => about.push(next),
        }
    }
    let star = if flag.repeats() { "*" } else { "" };
    let value = match flag.takes {
        Takes::Nothing => String::new(),
        Takes::Value(_) if is_path(flag) => "=:path:_files".to_owned(),
        Takes::Value(_) => format!("=:value:({})", choices(flag).join(" ")),
    };
    let (equals, action) = value.split_at(usize::from(!value.is_empty()));
    format!("'{star}--{}{equals}[{about}]{action}'", flag.name)
}

fn fish() -> String {
    let mut text =
        "# Completions of nerite for fish, made by `nerite completions fish`.\ncomplete -c nerite -f\n".to_owned();
    let quote = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    for command in commands() {
        text.push_str(&format!("complete -c nerite -n __fish_use_subcommand -a {}\n", command.name));
        let there = format!("complete -c nerite -n '__fish_seen_subcommand_from {}'", command.name);
        for word in &command.words {
            text.push_str(&format!("{there} -a {word}\n"));
        }
        for option in command.options.iter().filter(|_| command.name != "serve") {
            text.push_str(&format!("{there} -l {}\n", option.trim_start_matches('-')));
        }
    }
    for flag in FLAGS {
        let takes = match flag.takes {
            Takes::Nothing => String::new(),
            Takes::Value(_) if is_path(flag) => " -r -F".to_owned(),
            Takes::Value(_) => format!(" -x -a {}", quote(&choices(flag).join(" "))),
        };
        let rest = format!(" -l {}{takes} -d {}\n", flag.name, quote(flag.about));
        text.push_str(&format!("complete -c nerite -n '__fish_seen_subcommand_from serve'{rest}"));
        text.push_str(&format!("complete -c tritonserver{rest}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_options_are_those_of_the_usages() {
        assert_eq!(words_of(shm::USAGE), ["list", "show", "drop", "pools", "sessions"]);
        assert_eq!(words_of(doctor::USAGE), ["shm", "python", "onnx"]);
        assert_eq!(words_of(config::USAGE), ["check", "show"]);
        assert_eq!(options_of(demo::USAGE), ["--exit", "--examples", "--help"]);
        assert_eq!(options_of(config::USAGE), ["--models", "--no-files", "--config", "--help"]);
    }

    #[test]
    fn each_shell_knows_each_flag() {
        for flag in FLAGS {
            assert!(bash().contains(&format!("--{} ", flag.name)) || bash().contains(&format!("--{}'", flag.name)));
            assert!(zsh().contains(&format!("--{}", flag.name)), "--{}", flag.name);
            assert!(fish().contains(&format!(" -l {} ", flag.name)), "--{}", flag.name);
        }
    }

    #[test]
    fn few_values_are_completed() {
        let of = |name: &str| FLAGS.iter().find(|flag| flag.name == name).map(choices).unwrap_or_default();
        assert_eq!(of("model-control-mode"), ["none", "poll", "explicit", "demand"]);
        assert_eq!(of("rate-limit"), ["off", "execution_count"]);
        assert_eq!(of("strict-readiness"), ["true", "false"]);
        assert!(of("http-port").is_empty());
    }
}
