//! Which engine runs ONNX models?

use nerite_backend::Runtime;
use nerite_ort::{INSTALL, NOT_FOUND, OnnxRuntime, OpenError, find_library};

use super::verdict::{Section, Verdict, holds, note};

/// The library is searched and opened as a server would.
pub(super) fn section() -> Section {
    let opened = find_library(None).map(|path| OnnxRuntime::open(&path));
    let about = "ONNX models, for a server that is started from here:".into();
    Section { topic: "onnx", about, verdicts: vec![judge(opened.map(|opened| opened.map(|found| found.engine())))] }
}

/// The verdict on what was found. Without ONNX Runtime the server starts as well.
fn judge(opened: Option<Result<String, OpenError>>) -> Verdict {
    let check = "onnx engine";
    match opened {
        Some(Ok(engine)) => holds(check, engine),
        Some(Err(error)) => note(check, "the embedded engine runs ONNX models", error.to_string()),
        None => note(check, NOT_FOUND, INSTALL),
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::troubles;
    use super::*;

    #[test]
    fn a_host_without_onnx_runtime_is_told_how_to_install_it() {
        assert_eq!(troubles(&[judge(Some(Ok("ONNX Runtime 1.23.2 (/lib.so)".to_owned())))]), Vec::<String>::new());
        for opened in [None, Some(Err(OpenError::Unusable { reason: "too old".to_owned() }))] {
            let [trouble] = &troubles(&[judge(opened)])[..] else { panic!("one") };
            assert!(trouble.starts_with("note onnx engine: ") && trouble.contains("embedded engine"), "{trouble}");
            assert!(trouble.contains("pip install onnxruntime"), "{trouble}");
        }
    }
}
