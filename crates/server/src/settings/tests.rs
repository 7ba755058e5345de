//! Are flags that contradict each other refused, and the others understood?

use super::*;

#[track_caller]
fn check(flag: &str, notes: &[&str]) {
    let words = ["--model-repository=m", flag].map(str::to_owned);
    let given = crate::flags::parse(&words).expect("the flag is known");
    assert_eq!(Settings::read(&given).expect("its value is one").notes, notes);
}

#[track_caller]
fn check_upload(flags: &[&str], expect: Result<bool, &str>) {
    let words: Vec<_> = flags.iter().chain(&["--model-repository=m"]).map(|flag| (*flag).to_owned()).collect();
    let given = crate::flags::parse(&words).expect("the flags are known");
    let found = Settings::read(&given).map(|settings| settings.models.allow_upload);
    assert_eq!(found.map_err(|error| error.to_string()), expect.map_err(str::to_owned), "{flags:?}");
}

#[test]
fn clients_may_send_models_only_where_they_may_load_them() {
    let explicit = "--model-control-mode=explicit";
    check_upload(&[], Ok(false));
    check_upload(&[explicit], Ok(true));
    check_upload(&[explicit, "--allow-model-upload=false"], Ok(false));
    check_upload(&["--allow-model-upload=false"], Ok(false));
    let text = "Error: Use of '--allow-model-upload=true' requires setting '--model-control-mode=explicit' as well.";
    check_upload(&["--allow-model-upload=true"], Err(text));
}

#[test]
fn times_that_no_clock_has_are_refused() {
    let read = |flag: &str| {
        let words = ["--model-repository=m".to_owned(), flag.to_owned()];
        let given = crate::flags::parse(&words).expect("known flags");
        Settings::read(&given).map(|settings| settings.exit_timeout_secs).map_err(|error| error.to_string())
    };
    assert_eq!(read("--exit-timeout-secs=1000000000"), Ok(1_000_000_000));
    let text = "Bad option: \"--exit-timeout-secs\".\na time is 0 to 1000000000 seconds. Got 18446744073709551615\n";
    assert_eq!(read("--exit-timeout-secs=18446744073709551615"), Err(text.to_owned()));
    assert!(read("--metrics-interval-ms=soon").is_err_and(|text| text.contains("Got soon")));
    assert!(read("--metrics-interval-ms=500.5").is_ok());
}

#[test]
fn a_backends_setting_of_no_meaning_is_the_flags_fault() {
    let read = |value: &str| {
        let words = ["--model-repository=m".to_owned(), format!("--backend-config={value}")];
        let given = crate::flags::parse(&words).expect("known flags");
        Settings::read(&given).map(|settings| settings.backend_config.len()).map_err(|error| error.to_string())
    };
    assert_eq!(read("onnxruntime,isolated=true"), Ok(1));
    assert_eq!(read("other,isolated=maybe"), Ok(1));
    let text = "Bad option: \"--backend-config\".\n'isolated' is 'maybe'; it is 'true' for instances in processes \
                of their own, or 'false'\n";
    assert_eq!(read("onnxruntime,isolated=maybe"), Err(text.to_owned()));
}

#[test]
fn a_strict_configuration_is_completed_by_no_backend() {
    #[track_caller]
    fn check(flags: &[&str], completed: bool) {
        let words: Vec<_> = flags.iter().chain(&["--model-repository=m"]).map(|flag| (*flag).to_owned()).collect();
        let given = crate::flags::parse(&words).expect("the flags are known");
        let settings = Settings::read(&given).expect("they do not contradict each other");
        assert_eq!(settings.models.auto_complete, completed, "{flags:?}");
    }
    check(&[], true);
    check(&["--strict-model-config=false"], true);
    check(&["--strict-model-config=true"], false);
    check(&["--disable-auto-complete-config", "--strict-model-config=false"], false);
}

#[test]
fn a_repository_that_is_given_twice_counts_once() {
    let words = ["--model-repository=b", "--model-repository=a", "--model-store=b", "--model-repository=a"];
    let given = crate::flags::parse(&words.map(str::to_owned)).expect("known flags");
    let repositories = Settings::read(&given).expect("they are not opened yet").models.repositories;
    assert_eq!(repositories, ["b", "a"].map(PathBuf::from));
}

#[test]
fn a_pool_of_responses_has_at_least_one() {
    let read = |value: &str| {
        let words = ["--model-repository=m".to_owned(), format!("--grpc-max-response-pool-size={value}")];
        let given = crate::flags::parse(&words).expect("known flags");
        Settings::read(&given).map(|settings| settings.grpc_tuning.responses_max).map_err(|error| error.to_string())
    };
    assert_eq!(read("1"), Ok(1));
    for value in ["0", "-1"] {
        let text = "Error: --grpc-max-response-pool-size must be greater than 0.";
        assert!(read(value).is_err_and(|found| found.contains(text)), "{value}");
    }
}

#[test]
fn flags_without_an_effect_are_accepted_as_in_triton() {
    let words = "--model-repository=m --enable-peer-access=true --grpc-infer-thread-count=2 --grpc-infer-allocation-pool-size=8 \
                 --grpc-http2-max-pings-without-data=2 --grpc-http2-min-recv-ping-interval-without-data=300000 --grpc-http2-max-ping-strikes=2 \
                 --allow-gpu-metrics=true --cache-directory=/c --pinned-memory-pool-byte-size=1 --cuda-memory-pool-byte-size=0:1 \
                 --cuda-virtual-address-size=0:1 --min-supported-compute-capability=7.5 --model-load-gpu-limit=0:0.5 \
                 --buffer-manager-thread-count=2 --repoagent-directory=/r --strict-model-config=false";
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let given = crate::flags::parse(&words).expect("known flags");
    // One line for each but the repository and the three with an effect.
    assert_eq!(Settings::read(&given).expect("accepted").notes.len(), words.len() - 4);
}

#[test]
fn what_a_flag_does_not_do_is_said() {
    check("--model-control-mode=poll", &[]);
    check("--model-control-mode=explicit", &[]);
    check("--model-namespacing=true", &[]);
    check("--http-socket-mode=0660", &["--http-socket-mode has no effect without --http-socket"]);
    let part = "it is for a part of Triton that this server does not have";
    for flag in ["repoagent-directory=/x", "grpc-infer-allocation-pool-size=8", "cuda-memory-pool-byte-size=0:1"] {
        let (name, _) = flag.split_once('=').expect("it has a value");
        check(&format!("--{flag}"), &[&format!("--{name} has no effect: {part}")]);
    }
    check("--allow-sagemaker=false", &[]);
    check("--grpc-keepalive-permit-without-calls=true", &[]);
    let permit = format!("--grpc-keepalive-permit-without-calls has no effect: {part}");
    check("--grpc-keepalive-permit-without-calls=false", &[&permit]);
    let words = ["--model-repository=m", "--enable-peer-access=1", "--enable-peer-access=0"].map(str::to_owned);
    let given = crate::flags::parse(&words).expect("known flags");
    assert_eq!(Settings::read(&given).expect("they are accepted").notes.len(), 1, "one line for a flag");
}
