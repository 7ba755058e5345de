//! May a request to an ensemble start any number of steps, through the ensembles in it?
#![allow(clippy::unwrap_used)]

#[path = "support/test_engine.rs"]
mod test_engine;

use std::path::Path;
use std::sync::{Arc, mpsc};

use nerite_backend::identity::Identity;
use nerite_engine::Engine;
use nerite_repository::ControlMode;
use nerite_request::Peer;
use nerite_request::setting::LoadOptions;
use test_engine::{Ensembles, Setup, bytes_model};

/// An ensemble of `steps` steps of one model, one after the other.
fn ensemble(model: &str, steps: usize) -> String {
    let tensor = |at: usize| match at {
        0 => "IN".to_owned(),
        at if at == steps => "OUT".to_owned(),
        at => format!("t{at}"),
    };
    let step = |at: usize| {
        format!(
            "step {{ model_name: '{model}' model_version: -1 input_map {{ key: 'IN' value: '{}' }} output_map {{ key: 'OUT' value: '{}' }} }} ",
            tensor(at),
            tensor(at + 1)
        )
    };
    let steps: String = (0..steps).map(step).collect();
    bytes_model("", &format!("platform: 'ensemble' ensemble_scheduling {{ {steps} }}"))
}

fn load(engine: &Arc<Engine>, model: &str) -> Result<(), String> {
    let (to, done) = mpsc::channel();
    engine.load(model, LoadOptions::default(), &Peer::User { uid: 1 }, move |end| to.send(end).unwrap());
    done.recv().unwrap().map_err(|status| status.message)
}

fn put(folder: &Path, model: &str, config: &str) {
    std::fs::write(folder.join(model).join("config.pbtxt"), config).unwrap();
}

#[test]
fn the_steps_that_a_request_may_start_have_a_bound_through_all_levels() {
    let mut setup = Setup::new([Arc::new(Ensembles) as _, Arc::new(Identity) as _]);
    setup.options.control = ControlMode::Explicit;
    setup.put("leaf", &bytes_model("identity", ""));
    for (name, model, steps) in
        [("low", "leaf", 16), ("middle", "low", 16), ("wide", "middle", 16), ("top", "middle", 15)]
    {
        setup.put(name, &ensemble(model, steps));
    }
    let (engine, folder) = setup.start();
    let refused = load(&engine, "wide").unwrap_err();
    let count = 16 + 16 * (16 + 16 * 16);
    let why = format!(
        "a request to ensemble 'wide' would start {count} steps, with those of the ensembles in it; at most 4096 are possible"
    );
    assert!(refused.contains(&why), "{refused}");
    assert!(engine.served("wide").is_empty() && !engine.served("middle").is_empty());
    assert_eq!(load(&engine, "top"), Ok(()), "{}", 15 + 15 * (16 + 16 * 16));
    // A part that grows takes an ensemble out of service that is too large with it.
    put(folder.path(), "low", &ensemble("leaf", 17));
    assert_eq!(load(&engine, "low"), Ok(()));
    assert!(engine.served("top").is_empty() && !engine.served("middle").is_empty());
    put(folder.path(), "low", &ensemble("leaf", 16));
    assert_eq!(load(&engine, "low"), Ok(()));
    assert_eq!(engine.served("top").len(), 1);
}
