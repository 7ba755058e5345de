//! Which device do the calls of this thread mean?

use std::marker::PhantomData;
use std::sync::PoisonError;

use crate::calls::{Calls, name};
use crate::device::Device;
use crate::driver::{Context, Stream};
use crate::error::CudaError;
use crate::limits::STREAMS_IDLE_MAX;

/// The device's context is this thread's current one until this value is dropped.
pub(crate) struct Current<'d> {
    pub(crate) device: &'d Device,
    /// A context that is pushed on one thread must be popped there.
    stays: PhantomData<*mut ()>,
}

/// A stream that one copy uses.
pub(crate) struct Lane<'c> {
    current: &'c Current<'c>,
    stream: Option<Stream>,
}

impl Device {
    /// Makes the device's primary context current on this thread. The first call retains it.
    pub(crate) fn enter(&self) -> Result<Current<'_>, CudaError> {
        let calls = self.calls();
        let Context(context) = self.context()?;
        // SAFETY: the context is retained until the driver's end.
        calls.check(name::context_push, unsafe { (calls.context_push)(context) })?;
        Ok(Current { device: self, stays: PhantomData })
    }

    fn context(&self) -> Result<Context, CudaError> {
        let (calls, slot) = (self.calls(), self.slot());
        let mut held = slot.context.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = *held {
            return Ok(context);
        }
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is a place for one handle, and `raw` a device that the driver named.
        let code = unsafe { (calls.context_retain)(&raw mut context, slot.facts.raw) };
        calls.check(name::context_retain, code)?;
        Ok(*held.insert(Context(context)))
    }
}

impl Current<'_> {
    pub(crate) fn calls(&self) -> &Calls {
        self.device.calls()
    }

    /// A stream that nobody else uses meanwhile. It and the default stream do not wait for each other.
    pub(crate) fn lane(&self) -> Result<Lane<'_>, CudaError> {
        const NON_BLOCKING: u32 = 1;
        let idle = self.device.slot().streams.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if idle.is_some() {
            return Ok(Lane { current: self, stream: idle });
        }
        let mut stream = std::ptr::null_mut();
        // SAFETY: `stream` is a place for one handle; the context is current.
        let code = unsafe { (self.calls().stream_create)(&raw mut stream, NON_BLOCKING) };
        self.calls().check(name::stream_create, code)?;
        Ok(Lane { current: self, stream: Some(Stream(stream)) })
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        // SAFETY: pops what `enter` pushed on this thread, which a Current cannot leave. Null means that the popped context is not returned.
        let _ = unsafe { (self.calls().context_pop)(std::ptr::null_mut()) };
    }
}

impl Lane<'_> {
    pub(crate) fn handle(&self) -> crate::calls::Handle {
        self.stream.as_ref().map_or(std::ptr::null_mut(), |stream| stream.0)
    }

    /// Waits until everything on the stream is done.
    pub(crate) fn wait(&self) -> Result<(), CudaError> {
        let calls = self.current.calls();
        // SAFETY: a stream of the current context.
        calls.check(name::stream_wait, unsafe { (calls.stream_wait)(self.handle()) })
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        let mut idle = self.current.device.slot().streams.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < STREAMS_IDLE_MAX {
            return idle.push(stream);
        }
        drop(idle);
        // SAFETY: a stream of the current context that nobody else has. The driver destroys it when its work is done.
        let _ = unsafe { (self.current.calls().stream_destroy)(stream.0) };
    }
}
