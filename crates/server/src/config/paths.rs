//! Can the files and directories be used that the settings name?
//!
//! Nothing is made, started or opened for writing. What is found holds for the user who runs the command.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, FileType};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use nerite_api::{Tokens, collector_fault};
use nerite_listen::{ApplicationProtocol, TlsFiles};
use nerite_python::check_interpreter;
use nerite_repository::bucket_cure;
use nerite_sandbox::{AllowedPlace, allowed_places};
use rustix::fs::{Access, access};

use crate::settings::{CudaLibrary, SessionSocket, Settings};

/// Something that is wrong with a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PathFault {
    /// The setting that names it.
    pub(super) flag: &'static str,
    /// What is wrong, and the cure.
    pub(super) text: String,
    /// Whether a server with these settings starts all the same, and says it in its log.
    pub(super) is_note: bool,
}

/// The settings that name the certificate, the key and the roots of a port.
type TlsNames = [&'static str; 3];

const HTTP_TLS: TlsNames = ["http-server-cert", "http-server-key", "http-root-cert"];
const GRPC_TLS: TlsNames = ["grpc-server-cert", "grpc-server-key", "grpc-root-cert"];
const METRICS_TLS: TlsNames = ["metrics-server-cert", "metrics-server-key", "metrics-root-cert"];

/// All that is wrong with the paths of these settings.
pub(super) fn faults(settings: &Settings) -> Vec<PathFault> {
    let ends_start = |flag, text| PathFault { flag, text, is_note: false };
    let ends_load = |flag, text| PathFault { flag, text, is_note: !settings.exit_on_error };
    let is_noted = |flag, text| PathFault { flag, text, is_note: true };

    let mut faults = Vec::new();
    let repositories = settings.models.repositories.iter().filter_map(|path| unlisted(path));
    faults.extend(repositories.map(|text| ends_load("model-repository", text)));
    faults.extend(tls(settings).into_iter().map(|(flag, text)| ends_start(flag, text)));
    let tokens = settings.tokens_file.as_deref().and_then(tokens);
    faults.extend(tokens.map(|text| ends_start("access-tokens-file", text)));
    faults.extend(unwritable(Path::new(&settings.log.file)).map(|text| ends_start("log-file", text)));
    faults.extend(sockets(settings).into_iter().map(|(flag, text)| ends_start(flag, text)));
    faults.extend(libraries(settings).into_iter().map(|(flag, text)| ends_start(flag, text)));
    faults.extend(interpreter(settings).map(|text| ends_load("backend-config", text)));
    let directory = settings.backend_directory.as_deref().and_then(unlisted);
    faults.extend(directory.map(|text| is_noted("backend-directory", text)));
    faults.extend(sandboxes(settings).into_iter().map(|(text, is_needed)| PathFault {
        flag: "backend-config",
        text,
        is_note: !is_needed || !settings.exit_on_error,
    }));
    faults.extend(settings.trace.file_fault().map(|text| is_noted("trace-config", text)));
    let collector = settings.trace.spans.as_ref().and_then(collector_fault);
    faults.extend(collector.map(|text| is_noted("trace-config", text)));
    faults
}

fn tls(settings: &Settings) -> Vec<(&'static str, String)> {
    let of_metrics = settings.metrics.as_ref().and_then(|metrics| metrics.tls.as_ref());
    // The page's own port has the same files.
    let of_page = settings.ui.as_ref().and_then(|ui| ui.own_tls.as_ref());
    let ports = [
        (settings.http.as_ref().and_then(|front| front.tls.as_ref()), ApplicationProtocol::Http1, HTTP_TLS),
        (settings.grpc.as_ref().and_then(|front| front.tls.as_ref()), ApplicationProtocol::Http2, GRPC_TLS),
        (of_metrics.or(of_page), ApplicationProtocol::Http1, METRICS_TLS),
    ];
    let ports = ports.into_iter().filter_map(|(files, protocol, names)| Some((files?, protocol, names)));
    ports.flat_map(|(files, protocol, names)| of_port(files, protocol, names)).collect()
}

fn of_port(files: &TlsFiles, protocol: ApplicationProtocol, names: TlsNames) -> Vec<(&'static str, String)> {
    let [certificate, key, roots] = names;
    let name = |path: &Path| match path {
        path if path == files.certificate => certificate,
        path if path == files.key => key,
        _ => roots,
    };
    let faults = files.faults(protocol).into_iter();
    faults
        .map(|error| (name(error.path()), format!("{error}; name a PEM file that the server's user can read")))
        .collect()
}

fn tokens(path: &Path) -> Option<String> {
    unreadable(path).or_else(|| Tokens::check_file(path).err().map(|error| error.to_string()))
}

fn sockets(settings: &Settings) -> Vec<(&'static str, String)> {
    let http = settings.http.as_ref().and_then(|front| front.socket.as_deref());
    let grpc = settings.grpc.as_ref().and_then(|front| front.socket.as_deref());
    let session = match &settings.sessions.socket {
        SessionSocket::At(path) => Some(path.as_path()),
        SessionSocket::Default | SessionSocket::Off => None,
    };
    let named = [("http-socket", http), ("grpc-socket", grpc), ("session-socket", session)];
    let fault = |path: &Path| match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            Some(format!("'{}' is there and is no socket; remove it or name another path", path.display()))
        }
        _ => unmakeable(path),
    };
    named.into_iter().filter_map(|(flag, path)| Some((flag, fault(path?)?))).collect()
}

/// Libraries that are named by a path. A bare name is searched by the loader.
fn libraries(settings: &Settings) -> Vec<(&'static str, String)> {
    let cuda = match &settings.gpu.library {
        CudaLibrary::At(path) => Some(path.as_path()),
        CudaLibrary::Default | CudaLibrary::Off => None,
    };
    let named = [("onnxruntime-library", settings.onnxruntime_library.as_deref()), ("cuda-library", cuda)];
    let named = named.into_iter().filter_map(|(flag, path)| Some((flag, path?)));
    let named = named.filter(|(_, path)| path.components().count() > 1);
    named.filter_map(|(flag, path)| Some((flag, unreadable(path)?))).collect()
}

fn interpreter(settings: &Settings) -> Option<String> {
    let named = settings.backend_config.iter().rfind(|(of, key, _)| of == "python" && key == "interpreter");
    let fault = named.and_then(|(_, _, path)| check_interpreter(Path::new(path)).err())?;
    Some(format!("{}; {}", fault.found, fault.cure))
}

/// What is wrong with the places of sandboxes, and whether models of the backend cannot be loaded because of it.
fn sandboxes(settings: &Settings) -> Vec<(String, bool)> {
    let of = |backend: &str| -> BTreeMap<String, String> {
        let own = settings.backend_config.iter().filter(|(of, ..)| of == backend);
        own.map(|(_, key, value)| (key.clone(), value.clone())).collect()
    };
    let named: BTreeSet<&str> = settings.backend_config.iter().map(|(backend, ..)| backend.as_str()).collect();
    // Settings without a backend are those of all, and each backend's own override them.
    let faults = named.into_iter().flat_map(|backend| {
        let (own, mut all) = (of(backend), of(""));
        all.extend(own.clone());
        let places = allowed_places(&all).into_iter().filter(|place| own.contains_key(place.key));
        let faults: Vec<_> = places.filter_map(|place| fault_of_place(&place)).collect();
        let prefix = if backend.is_empty() { String::new() } else { format!("{backend},") };
        faults.into_iter().map(move |(text, is_needed)| (format!("{prefix}{text}"), is_needed))
    });
    faults.collect()
}

/// A place that is missing is allowed: no model can name anything below it.
fn fault_of_place(place: &AllowedPlace) -> Option<(String, bool)> {
    let (key, shown) = (place.key, place.path.display());
    if !place.path.is_absolute() {
        return Some((format!("{key} has '{shown}', which is no whole path; write it from '/' on"), true));
    }
    let (access_wanted, verb) =
        if place.is_writable { (Access::WRITE_OK, "written") } else { (Access::READ_OK, "read") };
    let text = match fs::metadata(&place.path).map_err(|error| error.kind()) {
        _ if !place.is_used => return None,
        Err(io::ErrorKind::NotFound) => format!("{key}: there is no '{shown}'; make it, or name another place"),
        _ => {
            let error = access(&place.path, access_wanted).err()?;
            format!("{key}: '{shown}' cannot be {verb}: {error}; let the server's user do that")
        }
    };
    Some((text, false))
}

/// Why the entries of this directory cannot be seen.
fn unlisted(path: &Path) -> Option<String> {
    let error = fs::read_dir(path).err()?;
    let shown = path.display();
    Some(match error.kind() {
        io::ErrorKind::NotFound => match bucket_cure(path) {
            cure if cure.is_empty() => format!("there is no directory '{shown}'; make it, or name another"),
            cure => format!("there is no directory '{shown}'{cure}"),
        },
        io::ErrorKind::NotADirectory => format!("'{shown}' is no directory; name one"),
        _ => format!("directory '{shown}' cannot be read: {error}; let the server's user read it"),
    })
}

/// Why this file cannot be read.
fn unreadable(path: &Path) -> Option<String> {
    let shown = path.display();
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Some(format!("'{shown}' is no file; name one")),
        Ok(_) => {
            let error = access(path, Access::READ_OK).err()?;
            Some(format!("'{shown}' cannot be read: {error}; let the server's user read it"))
        }
        Err(error) => Some(format!("'{shown}' cannot be read: {error}; name another file")),
    }
}

/// Why this file cannot be written or made. An empty path stands for none.
fn unwritable(path: &Path) -> Option<String> {
    let shown = path.display();
    match fs::metadata(path) {
        _ if path.as_os_str().is_empty() => None,
        Ok(found) if is_other_kind(found.file_type()) => Some(format!("'{shown}' is no file; name one")),
        Ok(_) => {
            let error = access(path, Access::WRITE_OK).err()?;
            Some(format!("'{shown}' cannot be written: {error}; let the server's user write it"))
        }
        Err(_) => unmakeable(path),
    }
}

/// Whether no line could be added to it. A FIFO or a device may take lines.
fn is_other_kind(found: FileType) -> bool {
    found.is_dir() || found.is_socket()
}

/// Why no file can be made at this path.
fn unmakeable(path: &Path) -> Option<String> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (shown, directory) = (path.display(), parent.display());
    match fs::metadata(parent) {
        Ok(found) if !found.is_dir() => Some(format!("'{shown}' cannot be made: '{directory}' is no directory")),
        Ok(_) => {
            let error = access(parent, Access::WRITE_OK | Access::EXEC_OK).err()?;
            let cure = "let the server's user write there, or name another path";
            Some(format!("'{shown}' cannot be made in '{directory}': {error}; {cure}"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(format!(
            "'{shown}' cannot be made: there is no directory '{directory}'; make it, or name another path"
        )),
        Err(error) => Some(format!("'{shown}' cannot be made in '{directory}': {error}; name another path")),
    }
}

#[cfg(test)]
mod tests {
    use nerite_api::SpanConfig;

    use super::*;
    use crate::flags::parse;

    /// The faults of these flags, a line each. `F` stands for the folder, and `note` for a note.
    #[track_caller]
    fn check(folder: &Path, flags: &[&str], expect: &[&str]) {
        let folder = folder.display().to_string();
        let words: Vec<String> = flags.iter().map(|flag| flag.replace("F/", &format!("{folder}/"))).collect();
        let settings = Settings::read(&parse(&words).expect("known flags")).expect("no contradiction");
        let line = |fault: PathFault| {
            let note = if fault.is_note { "note: " } else { "" };
            format!("{note}{}: {}", fault.flag, fault.text.replace(&folder, "F"))
        };
        assert_eq!(faults(&settings).into_iter().map(line).collect::<Vec<_>>(), expect, "{flags:?}");
    }

    #[test]
    fn all_paths_that_cannot_be_used_are_named_with_their_settings() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        fs::write(at.join("file"), "no PEM").expect("written");
        fs::create_dir(at.join("models")).expect("made");
        check(at, &[], &[]);
        let usable = ["--model-repository=F/models", "--log-file=F/log", "--http-socket=F/s", "--session-socket=off"];
        check(at, &usable, &[]);
        check(
            at,
            &[
                "--model-repository=F/none",
                "--model-repository=F/file",
                "--http-use-ssl=true",
                "--http-server-cert=F/none.pem",
                "--http-server-key=F/file",
                "--access-tokens-file=F/none.toml",
                "--log-file=F/none/log",
                "--grpc-socket=F/file",
                "--session-socket=F/none/s",
                "--onnxruntime-library=F/none.so",
                "--backend-config=python,interpreter=F/file",
                "--backend-directory=F/none",
                "--trace-config=triton,file=F/none/t.json",
            ],
            &[
                "model-repository: there is no directory 'F/none'; make it, or name another",
                "model-repository: 'F/file' is no directory; name one",
                "http-server-cert: 'F/none.pem' cannot be read as PEM: I/O error: No such file or directory (os error 2); name a \
                 PEM file that the server's user can read",
                "http-server-key: 'F/file' cannot be read as PEM: no items found; name a PEM file that the server's user can read",
                "access-tokens-file: 'F/none.toml' cannot be read: No such file or directory (os error 2); name another file",
                "log-file: 'F/none/log' cannot be made: there is no directory 'F/none'; make it, or name another path",
                "grpc-socket: 'F/file' is there and is no socket; remove it or name another path",
                "session-socket: 'F/none/s' cannot be made: there is no directory 'F/none'; make it, or name another path",
                "onnxruntime-library: 'F/none.so' cannot be read: No such file or directory (os error 2); name another file",
                "backend-config: 'F/file' is no program that can be started; name a Python 3.9 or newer with numpy",
                "note: backend-directory: there is no directory 'F/none'; make it, or name another",
                "note: trace-config: 'F/none/t.json' is to be in 'F/none', which is not there; make that directory",
            ],
        );
        let bucket = "model-repository: there is no directory 's3://b/m'; a model repository is a directory of this host: copy the bucket into \
                      one (as by `aws s3 sync s3://b/m models`, `gsutil rsync`, `azcopy`), or mount it";
        check(at, &["--model-repository=s3://b/m"], &[bucket]);
        let goes_on = ["--model-repository=F/none", "--exit-on-error=false"];
        check(at, &goes_on, &["note: model-repository: there is no directory 'F/none'; make it, or name another"]);
        assert!(!at.join("log").exists() && !at.join("s").exists(), "nothing is made");
    }

    #[test]
    fn places_of_sandboxes_are_looked_at_where_models_are_confined() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let read = "--backend-config=python,sandbox-read=F/none:F/";
        let on = "--backend-config=python,sandbox=on";
        let isolated =
            ["--backend-config=onnxruntime,sandbox=best-effort", "--backend-config=onnxruntime,sandbox-write=F/no"];
        check(at, &[on, "--backend-config=python,sandbox-read=F/"], &[]);
        check(at, &[read], &[]);
        let note = "note: backend-config: python,sandbox-read: there is no 'F/none'; make it, or name another place";
        let other =
            "note: backend-config: onnxruntime,sandbox-write: there is no 'F/no'; make it, or name another place";
        check(at, &[read, on, isolated[0], isolated[1]], &[other, note]);
        check(at, &[read, "--backend-config=sandbox=on"], &[note]);
        // The later value of a setting counts.
        check(at, &[read, on, "--backend-config=python,sandbox-read=/"], &[]);
        let relative = "backend-config: python,sandbox-write has 'tmp', which is no whole path; write it from '/' on";
        check(at, &["--backend-config=python,sandbox-write=tmp"], &[relative]);
        let goes_on = ["--backend-config=python,sandbox-write=tmp", "--exit-on-error=false"];
        check(at, &goes_on, &[&format!("note: {relative}")]);
    }

    #[test]
    fn the_certificates_for_the_collector_are_looked_at() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut settings = Settings::read(&[]).expect("defaults");
        let certificates = folder.path().join("none.pem").display().to_string();
        let config =
            |url: &str| SpanConfig { url: url.into(), certificates: certificates.clone(), ..SpanConfig::default() };
        settings.trace.spans = Some(config("https://collector:4318"));
        let found = faults(&settings);
        assert!(found.iter().any(|fault| fault.is_note && fault.flag == "trace-config"), "{found:?}");
        let text = &found.first().expect("one fault").text;
        assert!(text.contains(&certificates) && text.contains("OTEL_EXPORTER_OTLP_CERTIFICATE"), "{text}");
        settings.trace.spans = Some(config("http://collector:4318"));
        assert_eq!(faults(&settings), []);
    }

    #[test]
    fn files_that_are_not_used_are_not_looked_at() {
        let folder = tempfile::tempdir().expect("a folder");
        let flags = ["--http-server-cert=F/none.pem", "--onnxruntime-library=none", "--cuda-library=none"];
        check(folder.path(), &flags, &[]);
        check(folder.path(), &["--onnxruntime-library=libonnxruntime.so"], &[]);
    }
}
