//! Which backend's code aborts this process?
//!
//! A failed assertion or a call of `abort` ends the process, and its own text, if there is one, does not name the backend. So a line on the standard error does.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering, compiler_fence};
use std::sync::{Arc, OnceLock};

use libc::{c_int, c_void};

/// The most bytes of a name that are written.
const NAME_BYTES_MAX: usize = 128;
/// The most backends that an abort on a thread of their own can name.
const LOADED_MAX: usize = 64;

/// The backends that are loaded. A signal handler reads it, so it has no lock, and a name stays once it is there.
static LOADED: [LoadedName; LOADED_MAX] =
    [const { LoadedName { name: OnceLock::new(), count: AtomicUsize::new(0) } }; LOADED_MAX];

/// A name, and how many loaded backends have it.
struct LoadedName {
    name: OnceLock<Box<str>>,
    count: AtomicUsize,
}

/// Counts a backend as loaded, until it is dropped. If too many are loaded already, it is not counted.
pub struct Named(Option<&'static LoadedName>);

impl Named {
    /// Counts the backend of this name from now on.
    pub fn new(name: &str) -> Named {
        let found = LOADED.iter().find(|one| **one.name.get_or_init(|| name.into()) == *name);
        if let Some(one) = found {
            one.count.fetch_add(1, Ordering::Relaxed);
        }
        Named(found)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some(one) = self.0 {
            one.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

thread_local! {
    /// The backend whose code runs on this thread, or NULL. It points to the argument of the innermost [`running`]. A signal handler
    /// reads it, so it has no destructor and no lock.
    static RUNNING: AtomicPtr<Arc<str>> = const { AtomicPtr::new(ptr::null_mut()) };

    /// The name of that backend, if there is one. Many aborts follow a write out of bounds, which may also have changed the name on the heap. So the
    /// signal handler reads this copy.
    static NAME: Name = const { Name { bytes: [const { Cell::new(0) }; NAME_BYTES_MAX], len: Cell::new(0) } };
}

/// The start of a backend's name. It lies in the memory of the thread.
struct Name {
    bytes: [Cell<u8>; NAME_BYTES_MAX],
    len: Cell<usize>,
}

impl Name {
    fn start(name: &str) -> &[u8] {
        name.as_bytes().get(..NAME_BYTES_MAX).unwrap_or(name.as_bytes())
    }

    fn is(&self, name: &str) -> bool {
        let start = Name::start(name);
        self.len.get() == start.len() && self.bytes.iter().zip(start).all(|(here, byte)| here.get() == *byte)
    }

    fn set(&self, name: &str) {
        let start = Name::start(name);
        self.bytes.iter().zip(start).for_each(|(here, byte)| here.set(*byte));
        self.len.set(start.len());
    }
}

/// After this call, an abort writes the name of the backend that runs on the aborting thread to the standard error. On another thread, which may be a
/// backend's own, it writes the names of all that are loaded. Only programs of this server call this: a program with the server in its process keeps
/// its own signals.
pub fn name_aborting_backends() {
    // SAFETY: all bytes 0 are a valid `sigaction`: no flags, no handler, and an empty mask on Linux.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = name_and_raise as *const () as usize;
    // The handler runs once. After it the signal has its default action.
    action.sa_flags = libc::SA_RESETHAND | libc::SA_SIGINFO;
    // SAFETY: `action` is initialised and its handler is a function of the arguments that `SA_SIGINFO` gives, and calls only what a signal handler may. NULL: the former action, which
    // is the default, is not wanted.
    unsafe { libc::sigaction(libc::SIGABRT, &raw const action, std::ptr::null_mut()) };
}

/// Runs code of the backend called `owner` on this thread.
pub fn running<T>(owner: &Arc<str>, work: impl FnOnce() -> T) -> T {
    let _outer = Outer(set(Some(owner)));
    work()
}

/// The backend whose code runs on this thread. `None` on a thread of the backend's own.
pub fn running_backend() -> Option<Arc<str>> {
    RUNNING.with(|running| {
        // SAFETY: it is NULL or was made from the `owner` of a call of `running` on this thread. That call has not ended: when it ends, by a return
        // or by a panic, `Outer` sets the pointer of the call around it, or NULL. So `owner` is still borrowed, and nobody changes it.
        unsafe { running.load(Ordering::Relaxed).as_ref() }.cloned()
    })
}

/// From now on an abort writes no name.
pub fn name_no_backend() {
    set(None);
}

/// The backend that ran before this one. Its pointer is set again on drop.
struct Outer(*mut Arc<str>);

impl Drop for Outer {
    fn drop(&mut self) {
        // SAFETY: it is NULL, or the `owner` of a call of `running` on this thread that is around the one that ends here. So `owner` is still borrowed,
        // and nobody changes it.
        set(unsafe { self.0.as_ref() });
    }
}

/// Sets the backend, and returns the pointer to the previous one. The name is copied only if it has changed, which costs less.
fn set(owner: Option<&Arc<str>>) -> *mut Arc<str> {
    RUNNING.with(|running| {
        // Only this thread and its signal handlers use it. A load and a store cost less than one exchange.
        let before = running.load(Ordering::Relaxed);
        NAME.with(|name| {
            let Some(owner) = owner.filter(|owner| !name.is(owner)) else { return };
            // A signal while the name is written finds no backend. The fences keep the order of the writes for handlers on this thread.
            running.store(ptr::null_mut(), Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            name.set(owner);
            compiler_fence(Ordering::SeqCst);
        });
        running.store(owner.map_or(ptr::null_mut(), |owner| ptr::from_ref(owner).cast_mut()), Ordering::Relaxed);
        before
    })
}

/// Writes the line, and ends the process as the signal does by default. After `abort` the process would end anyway, but not after a signal from
/// another process.
extern "C" fn name_and_raise(signal: c_int, info: *const libc::siginfo_t, _: *const c_void) {
    // SAFETY: the kernel gives a handler with `SA_SIGINFO` a valid pointer.
    let code = unsafe { (*info).si_code };
    write_name(code == libc::SI_TKILL);
    // SAFETY: `raise` may be called in a signal handler. The signal is blocked until the handler returns, and has its default action again then.
    unsafe { libc::raise(signal) };
}

/// Writes to the standard error.
fn write(text: &[u8]) {
    // SAFETY: the slice has as many bytes. `write` may be called in a signal handler. What cannot be written is lost.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// Writes the names of all loaded backends, if there are any.
fn write_loaded() {
    let mut names = LOADED.iter().filter(|one| one.count.load(Ordering::Relaxed) > 0).filter_map(|one| one.name.get());
    let Some(first) = names.next() else { return };
    write(b"error: the process is aborted on a thread that runs no function of a backend for the server; it may be one of a backend's own. Loaded are: '");
    write(first.as_bytes());
    for name in names {
        write(b"', '");
        write(name.as_bytes());
    }
    write(
        b"'. In a process of its own (--backend-config=<name>,isolated=true) a backend costs only its own requests\n",
    );
}

/// Writes the line, if a backend runs on this thread. If none does and this process aborts itself, it may be a backend's own thread.
fn write_name(by_itself: bool) {
    if RUNNING.with(|running| running.load(Ordering::Relaxed).is_null()) {
        if by_itself {
            write_loaded();
        }
        return;
    }
    // The name is read after the pointer.
    compiler_fence(Ordering::SeqCst);
    NAME.with(|name| {
        let start = name.bytes.as_ptr().cast::<c_void>();
        let [before, after] = [
            &b"error: backend '"[..],
            b"' aborts the process: in a process of its own (--backend-config=<name>,isolated=true) that costs only its own requests\n",
        ];
        for (part, len) in
            [(before.as_ptr().cast(), before.len()), (start, name.len.get()), (after.as_ptr().cast(), after.len())]
        {
            // SAFETY: `part` has `len` bytes: the two texts do, and `Name::set` sets at most `NAME_BYTES_MAX`, the size of `bytes`. Nobody writes them
            // meanwhile, because only this thread does. `write` may be called in a signal handler. What cannot be written is lost.
            unsafe { libc::write(libc::STDERR_FILENO, part, len) };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_are_named_as_long_as_they_are_loaded() {
        let is_named = |name: &str| {
            let mut found = LOADED.iter().filter(|one| one.name.get().is_some_and(|known| **known == *name));
            found.any(|one| one.count.load(Ordering::Relaxed) > 0)
        };
        let (first, second) = (Named::new("twice"), Named::new("twice"));
        assert!(is_named("twice") && !is_named("never"));
        drop(first);
        assert!(is_named("twice"));
        drop(second);
        assert!(!is_named("twice"));
        assert!(Named::new("twice").0.is_some() && !is_named("twice"));
    }

    /// The backend that runs on this thread, and the name that an abort would write.
    fn named() -> Option<(String, String)> {
        let name =
            NAME.with(|name| name.bytes.iter().take(name.len.get()).map(|byte| char::from(byte.get())).collect());
        running_backend().map(|owner| (owner.to_string(), name))
    }

    #[test]
    fn the_name_is_that_of_the_innermost_backend_that_runs() {
        let [one, other, long]: [Arc<str>; 3] = ["one".into(), "other".into(), "x".repeat(NAME_BYTES_MAX + 1).into()];
        let both = |name: &str| Some((name.to_owned(), name.to_owned()));
        assert_eq!(named(), None);
        running(&one, || {
            assert_eq!(named(), both("one"));
            running(&other, || assert_eq!(named(), both("other")));
            assert_eq!(named(), both("one"));
            running(&long, || assert_eq!(named(), Some((long.to_string(), "x".repeat(NAME_BYTES_MAX)))));
            assert_eq!(named(), both("one"));
            let panics = || running(&other, || std::panic::resume_unwind(Box::new(())));
            assert!(std::panic::catch_unwind(panics).is_err());
            assert_eq!(named(), both("one"));
            name_no_backend();
            assert_eq!(named(), None);
        });
        assert_eq!(named(), None);
        running(&one, || assert_eq!(named(), both("one")));
    }
}
