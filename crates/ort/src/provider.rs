//! Does the library have a CUDA provider, and how does a session get it?

use std::ffi::{CStr, CString, c_char};
use std::ptr::NonNull;

use ort::AsPointer;
use ort::session::builder::SessionBuilder;
use ort::sys;

use crate::cuda::CudaOptions;
use crate::value::done;

/// The provider's name, as the library lists it.
const CUDA: &CStr = c"CUDAExecutionProvider";

/// Whether the library was built with the provider. Whether the provider can start is known only when a session uses it.
pub fn has_cuda() -> Result<bool, ort::Error> {
    let (mut names, mut count) = (std::ptr::null_mut(), 0);
    // SAFETY: `names` is a place for one pointer and `count` for one number.
    done(unsafe { (ort::api().GetAvailableProviders)(&raw mut names, &raw mut count) })?;
    let len = if names.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
    let mut found = false;
    for at in 0..len {
        // SAFETY: the library made an array of `len` pointers, and `at` is below that.
        let place = unsafe { names.add(at) };
        // SAFETY: one of them, as just said.
        let name = unsafe { place.read() };
        // SAFETY: each is a C string that lives until the release below.
        found |= unsafe { CStr::from_ptr(name) } == CUDA;
    }
    // SAFETY: the array that the library made, released once; no name of it is used from here on.
    done(unsafe { (ort::api().ReleaseAvailableProviders)(names, count) })?;
    Ok(found)
}

/// Makes sessions of `builder` run the operators that the provider has on `device`. The others run on the host.
pub fn append_cuda(builder: &mut SessionBuilder, options: &CudaOptions, device: u32) -> Result<(), ort::Error> {
    let device = device.to_string();
    let pairs = options.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let provider = ProviderOptions::new()?;
    provider.update(pairs.chain([("device_id", device.as_str())]))?;
    let append = ort::api().SessionOptionsAppendExecutionProvider_CUDA_V2;
    // SAFETY: both are alive, this builder is the only user of its options, and the library copies the provider's.
    done(unsafe { append(builder.ptr_mut(), provider.0.as_ptr()) })
}

/// An `OrtCUDAProviderOptionsV2` that we own.
struct ProviderOptions(NonNull<sys::OrtCUDAProviderOptionsV2>);

impl ProviderOptions {
    fn new() -> Result<ProviderOptions, ort::Error> {
        let mut made = std::ptr::null_mut();
        // SAFETY: `made` is a place for one pointer.
        done(unsafe { (ort::api().CreateCUDAProviderOptions)(&raw mut made) })?;
        NonNull::new(made).map(ProviderOptions).ok_or_else(|| ort::Error::new("the library made no provider options"))
    }

    /// Sets options by name. The library returns an error for an unknown one.
    fn update<'o>(&self, pairs: impl Iterator<Item = (&'o str, &'o str)>) -> Result<(), ort::Error> {
        let c_string = |text: &str| CString::new(text).map_err(|_| ort::Error::new("an option has a zero in it"));
        let pairs = pairs.map(|(key, value)| Ok((c_string(key)?, c_string(value)?)));
        let pairs: Vec<(CString, CString)> = pairs.collect::<Result<_, ort::Error>>()?;
        let (keys, values): (Vec<*const c_char>, Vec<*const c_char>) =
            pairs.iter().map(|(key, value)| (key.as_ptr(), value.as_ptr())).unzip();
        let update = ort::api().UpdateCUDAProviderOptions;
        // SAFETY: the options are alive and ours alone; both arrays have the length given and point to C strings of `pairs`,
        // which lives until after the call. The library copies them.
        done(unsafe { update(self.0.as_ptr(), keys.as_ptr(), values.as_ptr(), keys.len()) })
    }
}

impl Drop for ProviderOptions {
    fn drop(&mut self) {
        // SAFETY: made by the library for us and released once.
        unsafe { (ort::api().ReleaseCUDAProviderOptions)(self.0.as_ptr()) };
    }
}
