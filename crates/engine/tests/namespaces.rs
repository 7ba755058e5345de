//! With `--model-namespacing`, what does a name mean that a repository's model and an uploaded one have?
#![allow(clippy::unwrap_used)]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::sync::{Arc, mpsc};

use nerite_backend::identity::Identity;
use nerite_engine::Engine;
use nerite_repository::ControlMode;
use nerite_request::setting::LoadOptions;
use nerite_request::{Code, Peer, Status};
use tempfile::TempDir;
use test_engine::{Setup, bytes_model};

const CONFIG: &str = r#"{"backend": "identity", "input": [{"name": "IN", "data_type": "TYPE_UINT8", "dims": [-1]}],
                         "output": [{"name": "OUT", "data_type": "TYPE_UINT8", "dims": [-1]}]}"#;
/// An engine over one repository, which has the model `same`. Nothing is loaded.
fn engine() -> (Arc<Engine>, TempDir) {
    let mut setup = Setup::new([Arc::new(Identity) as _]);
    setup.put("same", &bytes_model("identity", ""));
    setup.namespacing = true;
    setup.options.control = ControlMode::Explicit;
    setup.start()
}

fn load(engine: &Arc<Engine>, model: &str, options: LoadOptions) {
    let (sender, receiver) = mpsc::channel();
    engine.load(model, options, &Peer::User { uid: 1 }, move |outcome| sender.send(outcome).unwrap());
    receiver.recv().unwrap().unwrap();
}

fn upload(engine: &Arc<Engine>, model: &str) {
    let file = ("1/weights".to_owned(), Arc::new(b"uploaded".to_vec()) as _);
    load(engine, model, LoadOptions { config: Some(CONFIG.to_owned()), files: vec![file], ..LoadOptions::default() });
}

fn unload(engine: &Arc<Engine>, model: &str) {
    let (sender, receiver) = mpsc::channel();
    engine.unload(model, false, &Peer::own(), move |outcome| sender.send(outcome).unwrap());
    receiver.recv().unwrap().unwrap();
}

/// The identifier that the name means.
fn found(engine: &Engine, name: &str) -> Result<String, Status> {
    engine.find(name, None).map(|served| served.identifier().to_owned())
}

#[track_caller]
fn check_refused(engine: &Engine, name: &str, code: Code, text: &str) {
    let error = found(engine, name).unwrap_err();
    assert_eq!((error.code, error.message.as_str()), (code, text));
    assert!(engine.served(name).is_empty(), "a name without one meaning has no versions");
}

#[test]
fn a_name_of_an_uploaded_model_and_of_a_repositorys_means_neither_until_one_has_gone() {
    let (engine, folder) = engine();
    let stored = format!("{}::same", folder.path().display());
    let ambiguous =
        "There are 2 identifiers of model 'same' in global map, model namespace must be provided to resolve ambiguity.";

    load(&engine, "same", LoadOptions::default());
    assert_eq!(found(&engine, "same").unwrap(), stored);

    upload(&engine, "same");
    check_refused(&engine, "same", Code::InvalidArg, ambiguous);
    assert_eq!(found(&engine, &stored).unwrap(), stored, "by its identifier it is reached all the same");
    let up: Vec<_> = engine.all().iter().map(|served| served.identifier().to_owned()).collect();
    assert_eq!(up, [stored.clone(), "same".to_owned()]);

    // The uploaded model has no repository: its identifier is its name, which means only it now.
    unload(&engine, &stored);
    assert_eq!(found(&engine, "same").unwrap(), "same");
    assert_eq!(found(&engine, &stored).unwrap_err().code, Code::NotFound);

    load(&engine, &stored, LoadOptions::default());
    check_refused(&engine, "same", Code::InvalidArg, ambiguous);

    // An unload by name unloads all models of that name.
    unload(&engine, "same");
    let gone = "Identifier of model 'same' is not found in global map";
    check_refused(&engine, "same", Code::NotFound, gone);
    assert_eq!(engine.all().len(), 0);
}
