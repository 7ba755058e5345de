//! How are pointers that a backend passes read and written?
//!
//! Only this file dereferences addresses that a backend passes. Each type below is one kind of argument of Triton's interface. Its field is private,
//! so only C and this file make values of it, and a function of `calls` with such an argument was called by a backend. By the backend's part of the
//! contract, the argument is NULL or points to what the interface says, during the call. NULL is handled here. For other values, the operator has to
//! trust the backend ([`docs/threats.md`]).
//!
//! [`docs/threats.md`]: https://github.com/nerite/nerite/blob/main/docs/threats.md

use std::ffi::{CStr, c_char, c_void};

use nerite_request::Status;
use nerite_tensor::Name;

use crate::fault::Fault;
use crate::objects::{Kept, Value, c_text};

/// The longest list that a backend may pass. Texts have no limit.
const ELEMENTS_MAX: u64 = 1 << 20;
/// The most bytes that a backend may pass at once.
const BYTES_MAX: u64 = 64 << 20;

/// A pointer to which a result is written: `T*`.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result. NULL is an error.
    pub fn put(&self, value: T) -> Result<(), Fault> {
        self.check()?;
        self.put_unless_null(value);
        Ok(())
    }

    /// Refuses NULL before work is done whose result would be lost.
    pub fn check(&self) -> Result<(), Fault> {
        if self.0.is_null() { Err(Fault::misuse("a place for a result is NULL")) } else { Ok(()) }
    }

    /// Writes the result, unless the pointer is NULL.
    pub fn put_unless_null(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not NULL (above), so by the contract of the interface it points to a T of the caller that may be written during this
            // call. Nothing is dropped there: `write` forgets what was there, which may be uninitialised.
            unsafe { self.0.write(value) };
        }
    }
}

impl<T: Copy> Out<T> {
    /// The value that the caller has set, for an argument that is both input and output.
    pub fn wished(&self) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not NULL (above), so by the contract it points to a T that the caller has initialised, as it does for arguments that
        // the interface calls "in and out".
        Some(unsafe { self.0.read() })
    }
}

/// A text: `const char*`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// A copy of the text. Bytes that are no UTF-8 are replaced.
    pub fn read(self) -> Result<String, Fault> {
        self.read_if_given().ok_or_else(|| Fault::misuse("a text is NULL"))
    }

    /// A copy of the text as a name. A short name needs no allocation.
    pub fn name(self) -> Result<Name, Fault> {
        if self.0.is_null() {
            return Err(Fault::misuse("a text is NULL"));
        }
        // SAFETY: as in `read_if_given`.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into())
    }

    /// A copy of the text. NULL means none.
    pub fn read_if_given(self) -> Option<String> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: not NULL (above), so by the contract it points to bytes that end with a zero and do not change during this call.
        let text = unsafe { CStr::from_ptr(self.0) };
        Some(text.to_string_lossy().into_owned())
    }
}

/// An array: `const T*`, whose length is another argument.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct List<T>(*const T);

impl<T: Copy> List<T> {
    /// A copy of the first `count`.
    pub fn read(self, count: u64) -> Result<Vec<T>, Fault> {
        self.read_as(count)
    }

    /// As [`List::read`], in another collection.
    pub fn read_as<C: FromIterator<T>>(self, count: u64) -> Result<C, Fault> {
        let most = if size_of::<T>() == 1 { BYTES_MAX } else { ELEMENTS_MAX };
        if count == 0 {
            return Ok(C::from_iter([]));
        }
        if self.0.is_null() {
            return Err(Fault::misuse(format!("a list of {count} is NULL")));
        }
        if count > most {
            return Err(Fault::misuse(format!("a list has {count} elements, at most {most} are taken")));
        }
        let one = |index: u64| {
            // SAFETY: `index < count`, and by the contract `count` values lie there, so the sum stays within them.
            let at = unsafe { self.0.add(index as usize) };
            // SAFETY: by the contract that value is initialised and does not change during this call.
            unsafe { at.read() }
        };
        Ok((0..count).map(one).collect())
    }
}

/// An address that is only stored and returned: `void*`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Opaque(*mut c_void);

impl Opaque {
    /// The address, to be stored.
    pub fn address(self) -> *mut c_void {
        self.0
    }
}

/// A copy of this many bytes, which a backend has kept at that address.
pub fn bytes_at(base: Kept, bytes: u64) -> Result<Vec<u8>, Fault> {
    List(base.0.cast_const().cast::<u8>()).read(bytes)
}

/// Memory for a backend's own use. NULL if there is none.
pub fn allocate(bytes: u64) -> Result<*mut c_void, Fault> {
    let size = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
    // SAFETY: `malloc` takes any size, and returns NULL if it has no memory.
    let memory = unsafe { libc::malloc(size) };
    if memory.is_null() {
        return Err(Fault::from(Status::unavailable("CPU memory allocation failed")));
    }
    Ok(memory)
}

/// Frees memory of [`allocate`].
pub fn free(memory: Opaque) {
    // SAFETY: by the contract of `TRITONBACKEND_MemoryManagerFree` this is NULL or an address that `MemoryManagerAllocate` returned and that was not
    // freed since.
    unsafe { libc::free(memory.0) };
}

/// The value of a parameter at `from`, of the type with this number. `None` for a NULL and for other types.
pub fn value(kind: u32, from: Opaque) -> Option<Value> {
    let from = from.0;
    if from.is_null() {
        return None;
    }
    Some(match kind {
        0 => Value::Text(c_text(&Text(from.cast()).read_if_given()?)),
        // SAFETY: not NULL, and by the contract an initialised number of the type that `kind` names, maybe unaligned.
        1 => Value::Int(Box::new(unsafe { from.cast::<i64>().read_unaligned() })),
        // SAFETY: as above; C's bool is one byte, and any other value than 0 counts as true.
        2 => Value::Bool(Box::new(unsafe { from.cast::<u8>().read() } != 0)),
        // SAFETY: as above.
        3 => Value::Double(Box::new(unsafe { from.cast::<f64>().read_unaligned() })),
        _ => return None,
    })
}
