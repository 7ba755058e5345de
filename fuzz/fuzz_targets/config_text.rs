//! Can any text make the reader of `config.pbtxt` panic, or lose what it read?
#![no_main]

use libfuzzer_sys::fuzz_target;
use nerite_config::{HostFacts, from_json, normalise, normalise_groups, parse_text, to_json, validate};

fuzz_target!(|text: &[u8]| {
    let Ok(config) = parse_text("config.pbtxt", text) else { return };
    let config = normalise_groups(normalise(config, "fuzzed"), &[], &HostFacts::cpu_only());
    let verdict = validate(&config).is_ok();
    // What is shown to clients can be sent back by them and means the same.
    if verdict && let Ok(again) = from_json(&to_json(&config)) {
        assert_eq!(to_json(&again), to_json(&config));
    }
});
