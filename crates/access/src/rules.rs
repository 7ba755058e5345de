//! What does a file of tokens say?
//!
//! ```toml
//! [[token]]
//! name = "ci"
//! sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
//! scopes = ["infer", "read"]
//! models = ["digits*"]
//! requests_per_second = 100
//!
//! [anonymous]
//! scopes = ["read"]
//! ```
//!
//! All faults of a file are reported at once, with their lines. No text here quotes a secret.

use std::collections::HashSet;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use crate::bucket::Rate;
use crate::limits::{NAME_CHARS_MAX, PATTERNS_MAX, SECRET_BYTES_MAX, TOKENS_MAX};
use crate::pattern::Pattern;
use crate::scope::Scope;
use crate::secret::SecretHash;

/// The name under which requests without a token are counted.
pub(crate) const ANONYMOUS: &str = "anonymous";
const KEYS: &str = "name, sha256, secret, scopes, models, requests_per_second, burst, bytes_per_second, bytes_burst";

/// The faults of a file, a line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RulesError(pub String);

/// The rule of one token, or of requests without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub name: String,
    pub secret: Option<SecretHash>,
    pub scopes: u8,
    pub models: Option<Vec<Pattern>>,
    pub requests: Option<Rate>,
    pub bytes: Option<Rate>,
}

/// The content of a file of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    pub tokens: Vec<Rule>,
    pub anonymous: Rule,
    /// Whether it holds a secret itself, and not only hashes.
    pub has_plain_secrets: bool,
    /// Whether it says which tokens there are, be it none: `token = []`.
    pub states_tokens: bool,
    /// Whether it says what requests without a token may do.
    pub states_anonymous: bool,
}

/// Reads the text of a file.
pub(crate) fn read(text: &str) -> Result<Rules, RulesError> {
    let line_of = |at: usize| text.as_bytes().iter().take(at).filter(|&&byte| byte == b'\n').count() + 1;
    let table = DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(span.start));
        RulesError(format!("line {line}: {}", error.message()))
    })?;
    let anonymous = Rule { name: ANONYMOUS.to_owned(), ..Rule::default() };
    let mut reading = Reading { rules: Rules { anonymous, ..Rules::default() }, faults: Vec::new(), line_of: &line_of };
    for (key, value) in by_line(table.get_ref()) {
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("token", DeValue::Array(tokens)) => {
                reading.rules.states_tokens = true;
                tokens.iter().for_each(|token| reading.token(token));
            }
            ("anonymous", DeValue::Table(table)) => {
                reading.rules.states_anonymous = true;
                reading.anonymous(table);
            }
            (other, _) => reading.fault(
                key.span().start,
                format!("'{}' is no part of the file: it has [[token]], and [anonymous]", other.escape_debug()),
            ),
        }
    }
    reading.check_all();
    if reading.faults.is_empty() { Ok(reading.rules) } else { Err(RulesError(reading.faults.join("\n"))) }
}

struct Reading<'t> {
    rules: Rules,
    faults: Vec<String>,
    line_of: &'t dyn Fn(usize) -> usize,
}

/// A token as far as it was read.
#[derive(Default)]
struct Partial {
    rule: Rule,
    has_plain_secret: bool,
    requests: Limit,
    bytes: Limit,
}

/// A quota as far as it was read.
#[derive(Clone, Copy, Default)]
struct Limit {
    per_second: Option<u64>,
    burst: Option<u64>,
}

impl Reading<'_> {
    fn fault(&mut self, at: usize, text: impl std::fmt::Display) {
        self.faults.push(format!("line {}: {text}", (self.line_of)(at)));
    }

    fn token(&mut self, token: &Spanned<DeValue<'_>>) {
        let at = token.span().start;
        let DeValue::Table(table) = token.get_ref() else { return self.fault(at, "[[token]] is a table") };
        let Some(Partial { rule, has_plain_secret, .. }) = self.rule(at, table, true) else { return };
        if rule.name.is_empty() || rule.secret.is_none() {
            return self.fault(at, "a token has a name, and either sha256 or secret");
        }
        self.rules.has_plain_secrets |= has_plain_secret;
        self.rules.tokens.push(rule);
    }

    fn anonymous(&mut self, table: &DeTable<'_>) {
        if let Some(Partial { rule, .. }) = self.rule(0, table, false) {
            self.rules.anonymous = Rule { name: ANONYMOUS.to_owned(), ..rule };
        }
    }

    /// The members of one token; `None` if one is wrong, which was noted.
    fn rule(&mut self, at: usize, table: &DeTable<'_>, is_token: bool) -> Option<Partial> {
        let (mut partial, before) = (Partial::default(), self.faults.len());
        for (key, value) in by_line(table) {
            let name = key.get_ref().as_ref();
            let read = match name {
                "name" | "sha256" | "secret" if !is_token => {
                    Err(format!("[anonymous] has no {name}: it is for requests without a token"))
                }
                _ => member(&mut partial, name, value.get_ref()),
            };
            if let Err(text) = read {
                self.fault(key.span().start, text);
            }
        }
        for (limit, per_second, burst) in
            [(partial.requests, "requests_per_second", "burst"), (partial.bytes, "bytes_per_second", "bytes_burst")]
        {
            if limit.burst.is_some() && limit.per_second.is_none() {
                self.fault(at, format!("{burst} needs {per_second}"));
            }
        }
        (partial.rule.requests, partial.rule.bytes) = (partial.requests.rate(), partial.bytes.rate());
        (self.faults.len() == before).then_some(partial)
    }

    /// Faults that concern more than one token.
    fn check_all(&mut self) {
        let (mut names, mut secrets, mut faults) = (HashSet::new(), HashSet::new(), Vec::new());
        for rule in &self.rules.tokens {
            if !names.insert(&rule.name) {
                faults.push(format!("two tokens are called '{}'", rule.name));
            }
            if !secrets.insert(rule.secret) {
                faults.push(format!("token '{}' has the secret of another", rule.name));
            }
        }
        if self.rules.tokens.len() > TOKENS_MAX {
            faults.push(format!("the file has {} tokens, at most {TOKENS_MAX} are taken", self.rules.tokens.len()));
        }
        self.faults.extend(faults);
    }
}

impl Limit {
    /// Without a setting for bursts, the amount of one second may be used at once.
    fn rate(self) -> Option<Rate> {
        let per_second = self.per_second?;
        Some(Rate { per_second, burst: self.burst.unwrap_or(per_second) })
    }
}

/// The members of a table in the order of the file.
fn by_line<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t Spanned<DeString<'i>>, &'t Spanned<DeValue<'i>>)> {
    let mut members: Vec<_> = table.iter().collect();
    members.sort_by_key(|(key, _)| key.span().start);
    members
}

/// Applies one member of a token. Err: what is wrong with it.
fn member(partial: &mut Partial, key: &str, value: &DeValue<'_>) -> Result<(), String> {
    let Partial { rule, requests, bytes, has_plain_secret } = partial;
    match key {
        "name" => rule.name = name(text(key, value)?)?,
        "sha256" | "secret" if rule.secret.is_some() => return Err("a token has sha256 or secret, not both".to_owned()),
        "sha256" => {
            let wrong = || "sha256 has 64 hexadecimal digits; `printf %s SECRET | sha256sum` prints them".to_owned();
            rule.secret = Some(SecretHash::parse(text(key, value)?).ok_or_else(wrong)?);
        }
        "secret" => {
            let secret = text(key, value)?;
            let wrong = || format!("a secret has 1 to {SECRET_BYTES_MAX} bytes, this one has {}", secret.len());
            rule.secret = Some(SecretHash::of(secret.as_bytes()).ok_or_else(wrong)?);
            *has_plain_secret = true;
        }
        "scopes" => {
            rule.scopes = 0;
            for name in texts(key, value)? {
                rule.scopes |= scope(name)?.bit();
            }
        }
        "models" => {
            let patterns = texts(key, value)?;
            if patterns.len() > PATTERNS_MAX {
                return Err(format!("models has {} names, at most {PATTERNS_MAX} are taken", patterns.len()));
            }
            rule.models = Some(patterns.into_iter().map(Pattern::parse).collect::<Result<_, _>>()?);
        }
        "requests_per_second" => requests.per_second = Some(number(key, value)?),
        "burst" => requests.burst = Some(number(key, value)?),
        "bytes_per_second" => bytes.per_second = Some(number(key, value)?),
        "bytes_burst" => bytes.burst = Some(number(key, value)?),
        other => return Err(format!("a token has no '{}'; it has {KEYS}", other.escape_debug())),
    }
    Ok(())
}

/// A name that can be a label of a metric as it is.
fn name(name: &str) -> Result<String, String> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if name.is_empty() || name.len() > NAME_CHARS_MAX || !is_plain {
        return Err(format!("a name has 1 to {NAME_CHARS_MAX} letters, digits, '.', '_' and '-'"));
    }
    if name == ANONYMOUS {
        return Err(format!("'{ANONYMOUS}' is what requests without a token are called; choose another name"));
    }
    Ok(name.to_owned())
}

fn scope(name: &str) -> Result<Scope, String> {
    Scope::parse(name).ok_or_else(|| {
        let all = Scope::ALL.map(Scope::name).join(", ");
        format!("'{}' is no scope; there are {all}", name.escape_debug())
    })
}

fn text<'v>(key: &str, value: &'v DeValue<'_>) -> Result<&'v str, String> {
    value.as_str().ok_or_else(|| format!("{key} is a text"))
}

fn texts<'v>(key: &str, value: &'v DeValue<'_>) -> Result<Vec<&'v str>, String> {
    let wrong = || format!("{key} is a list of texts");
    let DeValue::Array(all) = value else { return Err(wrong()) };
    all.iter().map(|one| one.get_ref().as_str().ok_or_else(wrong)).collect()
}

/// A whole number of 1 or more.
fn number(key: &str, value: &DeValue<'_>) -> Result<u64, String> {
    let wrong = || format!("{key} is a whole number of 1 or more; leave it out for no limit");
    let DeValue::Integer(number) = value else { return Err(wrong()) };
    let number = u64::from_str_radix(number.as_str(), number.radix()).map_err(|_| wrong())?;
    if number == 0 { Err(wrong()) } else { Ok(number) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
