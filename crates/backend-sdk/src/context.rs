//! What can a backend ask the server while it is loaded?

use std::ffi::c_char;
use std::marker::PhantomData;
use std::ptr::{null, null_mut};

use crate::error::Error;
use crate::interface::{self as raw, Returned};
use crate::text::from_c;

/// The only version of the configuration's format.
const CONFIG_VERSION: u32 = 1;

/// The backend, during [`Backend::initialize`](crate::Backend::initialize).
pub struct BackendContext<'a> {
    raw: *mut raw::Backend,
    call: PhantomData<&'a ()>,
}

impl BackendContext<'_> {
    /// # Safety
    /// `raw` is the server's handle of the backend, as long as this lives.
    pub(crate) unsafe fn new(raw: *mut raw::Backend) -> Self {
        BackendContext { raw, call: PhantomData }
    }

    /// Its name, as it is in configurations.
    pub fn name(&self) -> Result<String, Error> {
        // SAFETY: the handle is good by the promise of `new`, the place is the one that `text` gives.
        text(|place| unsafe { raw::TRITONBACKEND_BackendName(self.raw, place) })
    }

    /// The directory of its library.
    pub fn directory(&self) -> Result<String, Error> {
        let mut kind = 0;
        // SAFETY: as in `name`, and `kind` outlives the call.
        text(|place| unsafe { raw::TRITONBACKEND_BackendArtifacts(self.raw, &raw mut kind, place) })
    }

    /// The operator's settings, as JSON: `{"cmdline": {…}}`. All values are strings.
    pub fn config(&self) -> Result<String, Error> {
        let mut message = null_mut();
        // SAFETY: as in `name`; the message stays the server's.
        unsafe { raw::TRITONBACKEND_BackendConfig(self.raw, &raw mut message) }.check()?;
        // SAFETY: the server just gave this message, which lives as long as the backend.
        unsafe { json(message) }
    }
}

/// A version of a model, during [`Backend::load`](crate::Backend::load).
pub struct ModelContext<'a> {
    raw: *mut raw::Model,
    call: PhantomData<&'a ()>,
}

impl ModelContext<'_> {
    /// # Safety
    /// `raw` is the server's handle of the model, which is being initialized as long as this lives.
    pub(crate) unsafe fn new(raw: *mut raw::Model) -> Self {
        ModelContext { raw, call: PhantomData }
    }

    /// Its name.
    pub fn name(&self) -> Result<String, Error> {
        // SAFETY: the handle is good by the promise of `new`, the place is the one that `text` gives.
        text(|place| unsafe { raw::TRITONBACKEND_ModelName(self.raw, place) })
    }

    /// Its version.
    pub fn version(&self) -> Result<u64, Error> {
        let mut version = 0;
        // SAFETY: as in `name`, and `version` outlives the call.
        unsafe { raw::TRITONBACKEND_ModelVersion(self.raw, &raw mut version) }.check()?;
        Ok(version)
    }

    /// The model's directory, which contains those of its versions.
    pub fn directory(&self) -> Result<String, Error> {
        let mut kind = 0;
        // SAFETY: as in `name`, and `kind` outlives the call.
        text(|place| unsafe { raw::TRITONBACKEND_ModelRepository(self.raw, &raw mut kind, place) })
    }

    /// Its configuration, as JSON.
    pub fn config(&self) -> Result<String, Error> {
        let mut message = null_mut();
        // SAFETY: as in `name`; the message is ours.
        unsafe { raw::TRITONBACKEND_ModelConfig(self.raw, CONFIG_VERSION, &raw mut message) }.check()?;
        // SAFETY: the server just gave this message, which is deleted only below.
        let text = unsafe { json(message) };
        // SAFETY: the message is ours, and used no more.
        unsafe { raw::TRITONSERVER_MessageDelete(message) }.check()?;
        text
    }

    /// Whether the backend should complete settings that the configuration leaves out.
    pub fn completes(&self) -> Result<bool, Error> {
        let mut completes = false;
        // SAFETY: as in `name`, and `completes` outlives the call.
        unsafe { raw::TRITONBACKEND_ModelAutoCompleteConfig(self.raw, &raw mut completes) }.check()?;
        Ok(completes)
    }

    /// Completes the configuration, which is given as JSON. Servers read from it inputs, outputs, the largest batch, dynamic batching and the
    /// transaction policy.
    pub fn set_config(&self, config: &str) -> Result<(), Error> {
        let mut message = null_mut();
        let (base, bytes) = (config.as_ptr().cast::<c_char>(), config.len());
        // SAFETY: the text lives during the call, which copies it.
        unsafe { raw::TRITONSERVER_MessageNewFromSerializedJson(&raw mut message, base, bytes) }.check()?;
        // SAFETY: the handle is good by the promise of `new`, and the message was just made.
        let set = unsafe { raw::TRITONBACKEND_ModelSetConfig(self.raw, CONFIG_VERSION, message) }.check();
        // SAFETY: the message is ours, and used no more.
        unsafe { raw::TRITONSERVER_MessageDelete(message) }.check()?;
        set
    }
}

/// An instance, during [`Model::instance`](crate::Model::instance).
pub struct InstanceContext<'a> {
    raw: *mut raw::Instance,
    call: PhantomData<&'a ()>,
}

impl InstanceContext<'_> {
    /// # Safety
    /// `raw` is the server's handle of the instance, as long as this lives.
    pub(crate) unsafe fn new(raw: *mut raw::Instance) -> Self {
        InstanceContext { raw, call: PhantomData }
    }

    /// Its name.
    pub fn name(&self) -> Result<String, Error> {
        // SAFETY: the handle is good by the promise of `new`, the place is the one that `text` gives.
        text(|place| unsafe { raw::TRITONBACKEND_ModelInstanceName(self.raw, place) })
    }
}

/// A copy of a text that a function of the server returns.
pub(crate) fn text(getter: impl FnOnce(*mut *const c_char) -> Returned) -> Result<String, Error> {
    let mut found = null();
    getter(&raw mut found).check()?;
    // SAFETY: by the interface, a text that the server gives ends with a zero and lives as long as its object, which outlives this
    // function. A function that failed gave none, and is met above.
    Ok(unsafe { from_c(found) })
}

/// A copy of a message.
///
/// # Safety
/// `message` is a message of the server that lives during the call.
unsafe fn json(message: *mut raw::Message) -> Result<String, Error> {
    let (mut base, mut bytes) = (null(), 0);
    // SAFETY: the message is good by the caller's promise, and both places outlive the call.
    unsafe { raw::TRITONSERVER_MessageSerializeToJson(message, &raw mut base, &raw mut bytes) }.check()?;
    // SAFETY: `index < bytes`, and by the interface `bytes` bytes lie there, which are the message's own and do not change.
    let one = |index: usize| unsafe { base.cast::<u8>().wrapping_add(index).read() };
    let copied: Vec<u8> = (0..bytes).map(one).collect();
    String::from_utf8(copied).map_err(|_| Error::internal("the server's JSON is no UTF-8"))
}
