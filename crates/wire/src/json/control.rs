//! How are the bodies of all calls except inference read?

use std::fs::File;
use std::sync::Arc;

use nerite_request::Status;
use nerite_request::limits::{Counted, LOAD_FILES_MAX, check_count};
use nerite_request::setting::{FileContent, LoadOptions, LogChange, TraceChange, log_names};

use super::base64;
use super::fault::{Fault, Malformed, explained, explained_as, mismatch};
use super::lex::{Kind, Reader};
use super::limits::{FILE_TEXT_BYTES_MAX, SETTING_VALUES_MAX};
use super::spooled::{LongString, Spooled};
use super::value::{Seen, abridged, absent, text_of};
use crate::budget::Budget;

/// The body of a system region's registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemRegister {
    /// The object's POSIX key.
    pub key: String,
    /// Offset of its first byte in the object.
    pub offset: u64,
    /// Bytes.
    pub byte_size: u64,
}

/// The body of a CUDA region's registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaRegister {
    /// The bytes of the IPC handle as the client sent them, of any length.
    pub raw_handle: Vec<u8>,
    /// The device that has the memory.
    pub device_id: u64,
    /// Bytes.
    pub byte_size: u64,
}

/// Reads `{"key","offset"?,"byte_size"}`.
pub fn read_system_register(text: &[u8]) -> Result<SystemRegister, Status> {
    let (mut key, mut offset, mut byte_size): (Seen<String>, Seen<u64>, Seen<u64>) = (None, None, None);
    document(text, |reader, name| match name {
        b"key" => reader.once(&mut key, Reader::string),
        b"offset" => reader.once(&mut offset, Reader::unsigned),
        b"byte_size" => reader.once(&mut byte_size, Reader::unsigned),
        _ => reader.skip(),
    })?;
    Ok(SystemRegister {
        key: field(key, "key")?,
        offset: given(offset, "offset")?.unwrap_or_default(),
        byte_size: field(byte_size, "byte_size")?,
    })
}

/// Reads `{"raw_handle":{"b64"},"device_id","byte_size"}`.
pub fn read_cuda_register(text: &[u8]) -> Result<CudaRegister, Status> {
    let (mut handle, mut device_id, mut byte_size): (Seen<Vec<u8>>, Seen<u64>, Seen<u64>) = (None, None, None);
    document(text, |reader, name| match name {
        b"raw_handle" => reader.once(&mut handle, read_handle),
        b"device_id" => reader.once(&mut device_id, Reader::unsigned),
        b"byte_size" => reader.once(&mut byte_size, Reader::unsigned),
        _ => reader.skip(),
    })?;
    let raw_text = field(handle, "raw_handle")?;
    let byte_size = given(byte_size, "byte_size")?.ok_or_else(|| absent("byte_size"))?;
    let device_id = given(device_id, "device_id")?.ok_or_else(|| absent("device_id"))?;
    let raw_handle = base64::decode(&raw_text).map_err(|refused| Status::no_memory("'raw_handle'", refused))?;
    Ok(CudaRegister { raw_handle, device_id, byte_size })
}

/// Reads `{"ready"?}` of an index request, whose body may be empty. Returns whether only ready models are requested.
pub fn read_index(text: &[u8]) -> Result<bool, Status> {
    if text.is_empty() {
        return Ok(false);
    }
    let mut ready: Seen<bool> = None;
    document(text, |reader, name| match name {
        b"ready" => reader.once(&mut ready, Reader::bool),
        _ => reader.skip(),
    })?;
    let wrong = |_| Status::invalid("Invalid value for 'ready': expected a boolean");
    Ok(ready.transpose().map_err(wrong)?.unwrap_or_default())
}

/// Reads `{"parameters"?:{"config"?,"file:…"…}}` of a load request, whose body may be empty.
pub fn read_load(text: &[u8]) -> Result<LoadOptions, Status> {
    if text.is_empty() {
        return Ok(LoadOptions::default());
    }
    read_load_text(text, None)
}

/// As [`read_load`], for a body of `len` bytes in a file. Its long strings remain in the file. The files that it contains are decoded when they are written.
pub fn read_spooled_load(file: File, len: u64) -> Result<LoadOptions, Status> {
    let spooled = Spooled::read(file, len)?;
    read_load_text(spooled.text(), Some(&spooled))
}

fn read_load_text(text: &[u8], spooled: Option<&Spooled>) -> Result<LoadOptions, Status> {
    let mut options: Seen<LoadOptions> = None;
    let outcome = document(text, |reader, name| match name {
        b"parameters" => reader.once(&mut options, |reader| read_load_options(reader, spooled)),
        _ => reader.skip(),
    });
    outcome.map_err(|fault| match (fault, spooled) {
        (Fault::Malformed(fault), Some(spooled)) => spooled.located(fault).into(),
        (fault, _) => Status::from(fault),
    })?;
    Ok(options.transpose()?.unwrap_or_default())
}

/// Reads `{"parameters"?:{"unload_dependents"?}}` of an unload request, whose body may be empty. A value that is not a boolean counts as false, as in Triton.
pub fn read_unload(text: &[u8]) -> Result<bool, Status> {
    if text.is_empty() {
        return Ok(false);
    }
    let (mut parameters_seen, mut dependents): (bool, Seen<bool>) = (false, None);
    document(text, |reader, name| match name {
        b"parameters" if !parameters_seen => {
            parameters_seen = true;
            reader.members(|reader, key| match key.as_ref() {
                b"unload_dependents" => reader.once(&mut dependents, Reader::bool),
                _ => reader.skip(),
            })
        }
        _ => reader.skip(),
    })?;
    Ok(matches!(dependents, Some(Ok(true))))
}

const TRACE_LEVEL: &str = "trace_level";

/// Reads a change of trace settings. Levels are an array, other values are strings. `null` resets a setting to its default.
pub fn read_trace_change(text: &[u8]) -> Result<TraceChange, Status> {
    const TRACE_FILE: usize = 0;
    const NAMES: [&str; 5] = ["trace_file", TRACE_LEVEL, "trace_rate", "trace_count", "log_frequency"];
    let mut seen: [Seen<Option<Vec<String>>>; NAMES.len()] = [const { None }; NAMES.len()];
    document(text, |reader, name| match NAMES.iter().position(|known| known.as_bytes() == name) {
        // Whatever its value, it is refused.
        Some(TRACE_FILE) => reader.once(&mut seen[TRACE_FILE], |reader| Ok(reader.skip().map(|()| None)?)),
        Some(at) => reader.once(&mut seen[at], |reader| read_setting(reader, NAMES[at] == TRACE_LEVEL)),
        None => reader.skip(),
    })?;
    let given = NAMES.into_iter().zip(seen).filter_map(|(name, value)| value.map(|value| (name, value)));
    given.map(|(name, value)| Ok((name.to_string(), value.map_err(|status| wrong_setting(status, name))?))).collect()
}

/// Reads a change of the log settings. `null` leaves a setting unchanged.
pub fn read_log_change(text: &[u8]) -> Result<LogChange, Status> {
    let (mut file, mut format): (Seen<Option<String>>, Seen<Option<String>>) = (None, None);
    let [mut info, mut warning, mut error]: [Seen<Option<bool>>; 3] = [None, None, None];
    let mut verbose: Seen<Option<u64>> = None;
    document(text, |reader, name| match std::str::from_utf8(name).unwrap_or_default() {
        log_names::FILE => reader.once(&mut file, |reader| unless_null(reader, ignored)),
        log_names::INFO => reader.once(&mut info, |reader| unless_null(reader, Reader::bool)),
        log_names::WARNING => reader.once(&mut warning, |reader| unless_null(reader, Reader::bool)),
        log_names::ERROR => reader.once(&mut error, |reader| unless_null(reader, Reader::bool)),
        log_names::VERBOSE_LEVEL => reader.once(&mut verbose, |reader| unless_null(reader, Reader::unsigned)),
        log_names::FORMAT => reader.once(&mut format, |reader| unless_null(reader, Reader::string)),
        _ => reader.skip(),
    })?;
    Ok(LogChange {
        file: given(file, log_names::FILE)?.flatten(),
        info: given(info, log_names::INFO)?.flatten(),
        warning: given(warning, log_names::WARNING)?.flatten(),
        error: given(error, log_names::ERROR)?.flatten(),
        verbose_level: given(verbose, log_names::VERBOSE_LEVEL)?.flatten().map(verbose_level).transpose()?,
        format: given(format, log_names::FORMAT)?.flatten(),
    })
}

/// The value of a setting that is refused, whatever its value.
fn ignored(reader: &mut Reader<'_>) -> Result<String, Fault> {
    reader.skip()?;
    Ok(String::new())
}

/// Triton silently keeps only the low bits of a level that is too large. Here it is an error.
fn verbose_level(level: u64) -> Result<u32, Status> {
    u32::try_from(level).map_err(|_| {
        let text = format!(
            "Unable to parse '{}', value is out of range [ 0, {} ], got: {level}",
            log_names::VERBOSE_LEVEL,
            u32::MAX
        );
        Status::invalid(text)
    })
}

/// Reads a whole text. Calls `each` at the value of every member of its root.
fn document<'t>(
    text: &'t [u8],
    mut each: impl FnMut(&mut Reader<'t>, &[u8]) -> Result<(), Malformed>,
) -> Result<(), Fault> {
    let _budget = Budget::of_text(text).map_err(|refused| Status::no_memory("what a request says", refused))?;
    let mut reader = Reader::new(text)?;
    reader.members(|reader, key| each(reader, &key))?;
    Ok(reader.finish()?)
}

/// The value of an optional member.
fn given<T>(seen: Seen<T>, name: &str) -> Result<Option<T>, Status> {
    seen.transpose().map_err(|status| explained(status, format_args!("'{name}'")))
}

/// The value of a field that a registration must have.
fn field<T>(seen: Seen<T>, name: &str) -> Result<T, Status> {
    let absent = || Status::invalid(format!("Shared memory register request has no '{name}' field"));
    given(seen, name)?.ok_or_else(absent)
}

fn wrong_setting(status: Status, name: &str) -> Status {
    let wanted = if name == TRACE_LEVEL { "an array of strings" } else { "a string" };
    explained_as(status, format_args!("'{name}'"), wanted)
}

fn read_handle(reader: &mut Reader<'_>) -> Result<Vec<u8>, Fault> {
    let mut text: Seen<Vec<u8>> = None;
    reader.members(|reader, key| match key.as_ref() {
        b"b64" => reader.once(&mut text, |reader| Ok(reader.bytes()?.into_owned())),
        _ => reader.skip(),
    })?;
    Ok(given(text, "b64")?.ok_or_else(|| absent("b64"))?)
}

fn read_load_options(reader: &mut Reader<'_>, spooled: Option<&Spooled>) -> Result<LoadOptions, Fault> {
    if reader.kind() != Kind::Object {
        return Err(explained(Status::internal(mismatch::MEMBERS), "'parameters'").into());
    }
    let (mut options, mut count) = (LoadOptions::default(), 0);
    reader.members::<Fault>(|reader, key| {
        count += 1;
        if count > LOAD_FILES_MAX + 1 {
            return Ok(reader.skip()?);
        }
        let key = text_of(key);
        let long = spooled.and_then(|spooled| spooled.string_at(reader.position()));
        let value = reader.bytes().map_err(|fault| match fault {
            Fault::Refused(status) => explained(status, format_args!("parameter '{}'", abridged(&key))).into(),
            malformed @ Fault::Malformed(_) => malformed,
        })?;
        let len = long.as_ref().map_or(value.len() as u64, LongString::len);
        match key.strip_prefix("file:") {
            _ if key == "config" && options.config.is_some() => {}
            _ if key == "config" => {
                options.config = Some(match long {
                    Some(long) => long.text()?,
                    None => text_of(value),
                });
            }
            Some(_) if len > FILE_TEXT_BYTES_MAX => {
                let text = format!("'{key}' exceeds the maximum allowed data size limit INT_MAX");
                return Err(Status::invalid(text).into());
            }
            Some(path) => {
                let content: Arc<dyn FileContent> = match long {
                    Some(long) => Arc::new(long),
                    None => Arc::new(base64::decode(&value).map_err(|refused| Status::no_memory(&key, refused))?),
                };
                options.files.push((path.to_string(), content));
            }
            None => return Err(Status::internal("unexpected error on creating Triton parameter").into()),
        }
        Ok(())
    })?;
    check_count(Counted::LoadParameters, count, LOAD_FILES_MAX + 1).map_err(Status::from)?;
    Ok(options)
}

fn read_setting(reader: &mut Reader<'_>, is_array: bool) -> Result<Option<Vec<String>>, Fault> {
    unless_null(reader, |reader| {
        if !is_array {
            return Ok(vec![reader.string()?]);
        }
        let mut values = Vec::new();
        reader.elements(|reader| {
            if values.len() == SETTING_VALUES_MAX {
                return Err(Status::invalid(format!("a setting has at most {SETTING_VALUES_MAX} values")).into());
            }
            values.push(reader.string()?);
            Ok(())
        })?;
        Ok(values)
    })
}

fn unless_null<'t, T>(
    reader: &mut Reader<'t>,
    read: impl FnOnce(&mut Reader<'t>) -> Result<T, Fault>,
) -> Result<Option<T>, Fault> {
    if reader.kind() == Kind::Null {
        reader.word(b"null")?;
        return Ok(None);
    }
    read(reader).map(Some)
}

#[cfg(test)]
mod tests;
