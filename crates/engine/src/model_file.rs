//! How are the bytes of a tensor read from a file of a model's directory?

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path};

use nerite_memory::{Buffer, Slot};
use nerite_request::Status;
use nerite_tensor::DataType;

/// A file with the bytes of a tensor.
pub(crate) struct ModelFile<'a> {
    /// The model's directory.
    pub directory: &'a Path,
    /// The folder in it.
    pub folder: &'a str,
    /// The file, as the configuration names it: a path below the folder.
    pub file: &'a str,
    /// The name of the tensor in errors, such as `initial state 's'`.
    pub what: &'a str,
}

impl ModelFile<'_> {
    /// Reads the first `expected` bytes, or the whole file for strings. `check_length` gets the file's length, and refuses a file that is too short.
    pub fn read(
        &self,
        datatype: DataType,
        expected: usize,
        check_length: impl FnOnce(u64) -> Result<(), Status>,
    ) -> Result<Buffer, Status> {
        let ModelFile { directory, folder, file, what } = self;
        if !Path::new(file).components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(Status::invalid(format!("{what} names the file '{file}', which is not below {folder}")));
        }
        let path = directory.join(folder).join(file);
        let failed =
            |cause: std::io::Error| Status::invalid(format!("failed to read {what} from {}: {cause}", path.display()));
        let mut source = File::open(&path).map_err(failed)?;
        let found = source.metadata().map_err(failed)?.len();
        check_length(found)?;
        let bytes = if datatype == DataType::Bytes { usize::try_from(found).unwrap_or(usize::MAX) } else { expected };
        let slot = Slot::try_heap(bytes);
        let mut slot = slot.map_err(|refused| Status::no_memory(format_args!("{what}"), refused))?;
        if let Some(all) = slot.private_bytes_mut() {
            source.read_exact(all).map_err(failed)?;
        }
        Ok(slot.filled().into_buffer())
    }
}

/// Zeros. For strings, each four of these bytes are the length of an empty string.
pub(crate) fn zeros(what: &str, bytes: usize) -> Result<Buffer, Status> {
    filled(what, bytes, |all| all.fill(0))
}

/// Memory for `what`, filled by `fill`.
pub(crate) fn filled(what: &str, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<Buffer, Status> {
    let mut slot = Slot::try_heap(bytes).map_err(|refused| Status::no_memory(format_args!("{what}"), refused))?;
    if let Some(all) = slot.private_bytes_mut() {
        fill(all);
    }
    Ok(slot.filled().into_buffer())
}
