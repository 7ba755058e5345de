//! How do the files of a load request become a model's directory?

use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nerite_request::setting::FileContent;
use tempfile::TempDir;

use super::ModelDir;
use crate::limits::{MODEL_DEPTH_MAX, SENT_FILES_MAX};

/// Writes the files below a new directory that only this process can read. It has no files of the repository.
pub(super) fn write(files: &[(String, Arc<dyn FileContent>)]) -> Result<ModelDir, String> {
    if files.len() > SENT_FILES_MAX {
        return Err(format!("a load request may bring {SENT_FILES_MAX} files, got {}", files.len()));
    }
    let folder = tempfile::Builder::new()
        .prefix("nerite-model-")
        .tempdir()
        .map_err(|cause| format!("failed to make a directory for the model's files: {cause}"))?;
    for (path, content) in files {
        write_one(&folder, path, &**content)?;
    }
    Ok(ModelDir::made(folder))
}

fn write_one(folder: &TempDir, path: &str, content: &dyn FileContent) -> Result<(), String> {
    let inside = inside(path).map_err(|normal| {
        format!(
            "Invalid file parameter 'file:{path}' with normalized path '{}' must stay within model directory.",
            normal.display()
        )
    })?;
    let depth = inside.components().count() - 1;
    if depth > MODEL_DEPTH_MAX {
        return Err(format!(
            "Invalid file parameter 'file:{path}', a file lies in at most {MODEL_DEPTH_MAX} folders, got {depth}"
        ));
    }
    let full = folder.path().join(&inside);
    let parent = full.parent().unwrap_or(folder.path());
    let is_file = |place: &Path| fs::metadata(place).is_ok_and(|found| found.is_file());
    if parent.ancestors().take_while(|place| *place != folder.path()).any(is_file) {
        return Err(format!("Invalid file parameter 'file:{path}', directory has been created as a file"));
    }
    fs::create_dir_all(parent)
        .and_then(|()| content.write_to(&mut File::create(&full)?))
        .map_err(|cause| format!("failed to write file parameter 'file:{path}': {cause}"))
}

/// The path without `.` and `..`, if it stays below the folder that it is relative to. Otherwise an error with the path that it leads to.
fn inside(path: &str) -> Result<PathBuf, PathBuf> {
    let mut normal = PathBuf::new();
    let mut escapes = false;
    for component in Path::new(path).components() {
        match component {
            // As in Triton, the path is below the model's directory, whatever slashes it begins with.
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            Component::Normal(name) => normal.push(name),
            // `file_name` is none for a path that ends in `..`.
            Component::ParentDir if normal.file_name().is_some() => {
                normal.pop();
            }
            Component::ParentDir => {
                escapes = true;
                normal.push("..");
            }
        }
    }
    if escapes || normal.as_os_str().is_empty() { Err(normal) } else { Ok(normal) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Vec<(String, Arc<dyn FileContent>)> {
        let content = |path: &str| -> Arc<dyn FileContent> { Arc::new(path.as_bytes().to_vec()) };
        paths.iter().map(|path| ((*path).to_owned(), content(path))).collect()
    }

    #[track_caller]
    fn check_refused(paths: &[&str], expect: &str) {
        assert_eq!(write(&files(paths)).unwrap_err(), expect);
    }

    #[test]
    fn files_land_where_they_say_and_go_with_the_last_clone() {
        let made = write(&files(&["config.pbtxt", "/1/model.onnx", "./1/sub/../weights"])).unwrap();
        let path = made.path().to_owned();
        assert_eq!(fs::read(path.join("1/model.onnx")).unwrap(), b"/1/model.onnx");
        assert!(path.join("1/weights").is_file());
        let kept = made.clone();
        drop(made);
        assert!(path.exists());
        drop(kept);
        assert!(!path.exists());
    }

    #[test]
    fn no_file_leaves_the_model() {
        for (path, normal) in [
            ("../escape", "../escape"),
            ("1/../../escape", "../escape"),
            ("/../escape", "../escape"),
            ("/", ""),
            ("../../a/../b", "../../b"),
            ("", ""),
            (".", ""),
            ("1/..", ""),
        ] {
            let text = "must stay within model directory.";
            check_refused(
                &[path],
                &format!("Invalid file parameter 'file:{path}' with normalized path '{normal}' {text}"),
            );
        }
    }

    #[test]
    fn a_file_lies_in_no_endless_row_of_folders() {
        assert!(write(&files(&[&format!("{}x", "d/".repeat(MODEL_DEPTH_MAX))])).is_ok());
        let deep = format!("{}x", "d/".repeat(MODEL_DEPTH_MAX + 1));
        let text = "a file lies in at most 32 folders, got 33";
        check_refused(&[&deep], &format!("Invalid file parameter 'file:{deep}', {text}"));
    }

    #[test]
    fn a_file_cannot_be_a_folder_too() {
        let text = "Invalid file parameter 'file:1/a/b', directory has been created as a file";
        check_refused(&["1/a", "1/a/b"], text);
        let text = "Invalid file parameter 'file:1/a/b/c', directory has been created as a file";
        check_refused(&["1/a", "1/a/b/c"], text);
    }
}
