//! Which token does a client send, according to the file as it is now?
//!
//! A thread looks at the file once a second. A change takes effect once two looks in a row see the same file, because in a file that is half written
//! a quota or a list of models may be missing. If the file has a fault, the earlier rules stay in force.

use std::collections::HashMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;

use arc_swap::ArcSwap;
use nerite_memory::read_regular_file;

use crate::anonymous_peers::AnonymousPeers;
use crate::limits::{CHECK_INTERVAL, FILE_BYTES_MAX};
use crate::rules::{self, Rule, Rules, RulesError};
use crate::secret::SecretHash;
use crate::token::{Counts, Token};

/// The bits of a file's mode that let others read it.
const OTHERS_READ: u32 = 0o044;

/// The tokens of a file. Clones share them.
#[derive(Clone, Debug)]
pub struct Tokens {
    inner: Arc<Inner>,
    /// The thread that looks at the file ends when the last of these is dropped.
    _watched: Option<Arc<Sender<()>>>,
}

#[derive(Debug)]
struct Inner {
    table: ArcSwap<Table>,
    anonymous_peers: AnonymousPeers,
    /// The number of the table, without the table.
    generation: AtomicU64,
    refused_unknown: AtomicU64,
    refused_without: AtomicU64,
    faults: AtomicU64,
    is_current: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    by_secret: HashMap<SecretHash, Arc<Token>>,
    anonymous: Option<Arc<Token>>,
    generation: u64,
}

/// A client sent a token that the file does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the request's token is not known: send the secret of one of this server's tokens, over HTTP and gRPC in the header authorization as 'Bearer <secret>'"
)]
pub struct Unknown;

/// Why the rules of a file are not used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("the tokens of '{}' cannot be read: {cause}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The content of the file is invalid.
    #[error("the tokens of '{}' have faults:\n{faults}", .path.display())]
    Faulty {
        /// The file.
        path: PathBuf,
        /// Its faults.
        faults: RulesError,
    },
}

/// Counts of all tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Counts for each token, and for requests without one, by name.
    pub tokens: Vec<Counts>,
    /// Calls with a token that is not known.
    pub unknown: u64,
    /// Calls without a token that need one.
    pub without: u64,
    /// How often the file was found with a fault.
    pub faults: u64,
    /// Whether the rules in force are those of the file as it is.
    pub is_current: bool,
}

impl Tokens {
    /// The tokens of a file, which is read again when it changes.
    pub fn from_file(path: &Path) -> Result<Tokens, FileError> {
        // Taken before the file is read, so that a file that changes meanwhile is read again.
        let stamp = stamp(path);
        let rules = read(path)?;
        let inner = Arc::new(Inner::new(rules));
        let (watched, last_dropped) = channel::<()>();
        let (watch, path) = (Arc::downgrade(&inner), path.to_owned());
        let mut seen = Seen { last: stamp, read: stamp, is_unreadable: false };
        let reload_if_changed = move || {
            while last_dropped.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let Some(inner) = watch.upgrade() else { return };
                inner.reload_if_changed(&path, &mut seen);
            }
        };
        let started = thread::Builder::new().name("nerite-access".to_owned()).spawn(reload_if_changed);
        if let Err(error) = started {
            log::error!(
                "no thread looks whether the file of tokens changes: {error}; restart the server after a change"
            );
        }
        Ok(Tokens { inner, _watched: Some(Arc::new(watched)) })
    }

    /// What is wrong with a file of tokens now.
    pub fn check_file(path: &Path) -> Result<(), FileError> {
        read(path).map(drop)
    }

    /// The tokens of a text, which does not change.
    pub fn from_text(text: &str) -> Result<Tokens, RulesError> {
        Ok(Tokens { inner: Arc::new(Inner::new(rules::read(text)?)), _watched: None })
    }

    /// The token of the value of a header `authorization`; without one, the rules for requests without a token.
    pub fn find(&self, authorization: Option<&[u8]>) -> Result<Arc<Token>, Unknown> {
        let table = self.inner.table.load();
        let found = match authorization {
            None => table.anonymous.as_ref(),
            Some(value) => SecretHash::of_header(value).and_then(|secret| table.by_secret.get(&secret)),
        };
        found.cloned().ok_or_else(|| self.unknown())
    }

    /// The token with the quotas that hold for this peer: those of requests without a token are each peer's own. `peer` names it, if that is needed.
    pub fn with_quotas_of(&self, token: Arc<Token>, peer: impl FnOnce() -> String, now_ns: u64) -> Arc<Token> {
        if !token.is_anonymous() || !token.has_quota() {
            return token;
        }
        self.inner.anonymous_peers.token_of(peer(), &token, now_ns)
    }

    /// The token as the file has it now, if that changed; `None` if this one is still current.
    pub fn renewed(&self, token: &Token) -> Result<Option<Arc<Token>>, Unknown> {
        if token.generation == self.inner.generation.load(Ordering::Acquire) {
            return Ok(None);
        }
        let table = self.inner.table.load();
        let found = match &token.secret {
            None => table.anonymous.as_ref().map(|rules| Arc::new(rules.with_buckets(&token.buckets))),
            Some(secret) => table.by_secret.get(secret).cloned(),
        };
        found.map(Some).ok_or_else(|| self.unknown())
    }

    /// Notes a call without a token that needs one.
    pub fn note_without(&self) {
        self.inner.refused_without.fetch_add(1, Ordering::Relaxed);
    }

    fn unknown(&self) -> Unknown {
        self.inner.refused_unknown.fetch_add(1, Ordering::Relaxed);
        Unknown
    }

    /// The counts until now.
    pub fn counters(&self) -> Counters {
        let Inner { table, refused_unknown, refused_without, faults, is_current, .. } = &*self.inner;
        let table = table.load();
        let mut tokens: Vec<_> = table.all().map(|token| token.counts()).collect();
        tokens.sort_by(|one, other| one.name.cmp(&other.name));
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counters {
            tokens,
            unknown: read(refused_unknown),
            without: read(refused_without),
            faults: read(faults),
            is_current: is_current.load(Ordering::Relaxed),
        }
    }

    #[cfg(test)]
    fn reload_if_changed(&self, path: &Path, seen: &mut Seen) {
        self.inner.reload_if_changed(path, seen);
    }
}

impl Inner {
    fn new(rules: Rules) -> Inner {
        Inner {
            table: ArcSwap::from_pointee(Table::of(rules, &Table::default(), 0)),
            anonymous_peers: AnonymousPeers::default(),
            generation: AtomicU64::new(0),
            refused_unknown: AtomicU64::new(0),
            refused_without: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            is_current: AtomicBool::new(true),
        }
    }

    /// Reads the file again if it changed and two looks in a row saw the same file.
    fn reload_if_changed(&self, path: &Path, seen: &mut Seen) {
        let now = stamp(path);
        let stands_still = now == std::mem::replace(&mut seen.last, now);
        if now == seen.read || !stands_still {
            return;
        }
        let has_tokens = !self.table.load().by_secret.is_empty();
        let outcome =
            read(path).and_then(|rules| if has_tokens { unless_all_are_gone(path, rules) } else { Ok(rules) });
        let after = stamp(path);
        if after != now {
            // It changed while it was read. The next looks decide whether it is read again.
            seen.last = after;
            return;
        }
        // A file that cannot be read now, for example because no descriptor is left, is read at the next look.
        let is_unreadable = matches!(outcome, Err(FileError::Unreadable { .. }));
        let was_unreadable = std::mem::replace(&mut seen.is_unreadable, is_unreadable);
        if !is_unreadable {
            seen.read = now;
        }
        match outcome {
            Ok(rules) => self.take_over(path, rules),
            // The error was logged at an earlier look.
            Err(_) if is_unreadable && was_unreadable => {}
            Err(error) => {
                self.faults.fetch_add(1, Ordering::Relaxed);
                self.is_current.store(false, Ordering::Relaxed);
                log::error!("the tokens in force are kept, because the changed file cannot be used: {error}");
            }
        }
    }

    fn take_over(&self, path: &Path, rules: Rules) {
        let count = rules.tokens.len();
        let old = self.table.load_full();
        let generation = old.generation + 1;
        self.table.store(Arc::new(Table::of(rules, &old, generation)));
        self.generation.store(generation, Ordering::Release);
        self.is_current.store(true, Ordering::Relaxed);
        log::info!("the changed file of tokens '{}' is in force: {count} tokens", path.display());
    }
}

impl Table {
    /// The rules, with the used amounts of tokens of the same names.
    fn of(rules: Rules, before: &Table, generation: u64) -> Table {
        let before: HashMap<&str, &Arc<Token>> = before.all().map(|token| (token.name.as_str(), token)).collect();
        let token = |Rule { name, secret, scopes, models, requests, bytes }: Rule| {
            let same = before.get(name.as_str());
            let used = same.map_or_else(Arc::default, |token| Arc::clone(&token.used));
            let buckets = same.map_or_else(Arc::default, |token| Arc::clone(&token.buckets));
            Arc::new(Token { name, secret, scopes, models, requests, bytes, generation, buckets, used })
        };
        let anonymous = Some(token(rules.anonymous));
        let all = rules.tokens.into_iter().map(token);
        let by_secret = all.filter_map(|token| Some((token.secret?, token))).collect();
        Table { by_secret, anonymous, generation }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Token>> {
        self.by_secret.values().chain(&self.anonymous)
    }
}

/// The state of the file at earlier looks.
#[derive(Debug, Default)]
struct Seen {
    /// At the last one.
    last: Option<Stamp>,
    /// When it was read.
    read: Option<Stamp>,
    /// Whether it could not be read at the last look.
    is_unreadable: bool,
}

/// Tells whether the file was changed or replaced: device, inode, size, and the time of its last change in seconds and ns.
type Stamp = (u64, u64, u64, i64, i64);

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
}

fn read(path: &Path) -> Result<Rules, FileError> {
    let unreadable = |cause| FileError::Unreadable { path: path.to_owned(), cause };
    let (bytes, metadata) = read_regular_file(path, FILE_BYTES_MAX).map_err(unreadable)?;
    let text =
        String::from_utf8(bytes).map_err(|error| unreadable(io::Error::new(io::ErrorKind::InvalidData, error)))?;
    let rules = rules::read(&text).map_err(|faults| FileError::Faulty { path: path.to_owned(), faults })?;
    if !rules.states_tokens && !rules.states_anonymous {
        return Err(without_tokens(path));
    }
    if let Some(warning) = warning(path, &metadata, rules.has_plain_secrets) {
        log::warn!("{warning}");
    }
    Ok(rules)
}

/// Refuses rules that remove all tokens without saying so. An incomplete copy, after a full disk or a crash, leaves such a file.
fn unless_all_are_gone(path: &Path, rules: Rules) -> Result<Rules, FileError> {
    if rules.states_tokens { Ok(rules) } else { Err(without_tokens(path)) }
}

fn without_tokens(path: &Path) -> FileError {
    let text = "the file has no [[token]]; if nobody is to have a token, write `token = []` into its first line";
    FileError::Faulty { path: path.to_owned(), faults: RulesError(text.to_owned()) }
}

/// The log line about a file with plain secrets that other users can read.
fn warning(path: &Path, metadata: &Metadata, has_plain_secrets: bool) -> Option<String> {
    let mode = metadata.mode() & 0o7777;
    let shown = path.display();
    (has_plain_secrets && mode & OTHERS_READ != 0).then(|| {
        format!(
            "the file of tokens '{shown}' holds secrets, and its mode {mode:04o} lets others read them; `chmod 0600 {shown}`, or give sha256 \
             in their place"
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
