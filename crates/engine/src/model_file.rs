//! How are the bytes of a tensor read from a file of a model's directory?

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path};

use nerite_memory::Buffer;
use nerite_request::Status;
use nerite_tensor::DataType;

use crate::config_tensors::{ConfigTensors, TensorSize};

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
    /// Reads the first `size.bytes` bytes, or the whole file for strings. `check_length` gets the file's length, and refuses a file that is too
    /// short.
    pub fn read(
        &self,
        tensors: &mut ConfigTensors,
        size: TensorSize,
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
        let is_strings = size.datatype == DataType::Bytes;
        let bytes = if is_strings { usize::try_from(found).unwrap_or(usize::MAX) } else { size.bytes };
        tensors.filled(what, size, bytes, |all| source.read_exact(all).map_err(failed))
    }
}
