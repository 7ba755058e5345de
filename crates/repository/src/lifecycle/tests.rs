//! Do events lead to the right states?

mod script;

use self::script::{check, happen, status_text};
use super::*;
use crate::store::Listing;

#[test]
fn a_model_loads_serves_and_goes() {
    check(
        "load m 1,2          -> #1 loads [1, 2]
         index               -> m:1 LOADING, m:2 LOADING
         missing             -> m:1 (it is being loaded), m:2 (it is being loaded)
         ask m               -> Not found: Request for unknown model: 'm' has no available versions
         ask m 1             -> Unavailable: Request for unknown model: 'm' version 1 is not at ready state
         ok #1 2             -> wait
         index               -> m:1 LOADING, m:2 LOADING
         ok #1 1             -> yes; publish m:1#1 m:2#1
         index               -> m:1 READY, m:2 READY
         missing             ->
         ask m               -> m:2#1
         ask m 1             -> m:1#1
         ask m 3             -> Not found: Request for unknown model: 'm' version 3 is not found; versions that take requests: 1, 2
         ask m 0             -> Not found: Request for unknown model: 'm' version 0 is not found; versions that take requests: 1, 2
         unload m            -> retire m:1#1 m:2#1
         index               -> m:1 UNLOADING, m:2 UNLOADING
         ask m               -> Not found: Request for unknown model: 'm' has no available versions
         drained m:2#1       ->
         index               -> m:1 UNLOADING, m:2 UNAVAILABLE (unloaded)
         missing             ->
         drained m:1#1       ->
         missing             ->
         ask m 2             -> Unavailable: Request for unknown model: 'm' version 2 is not at ready state
         load m 1,2          -> #3 loads [1, 2]",
    );
}

#[test]
fn nothing_is_known_at_first() {
    check(
        "missing             ->
         ask m               -> Not found: Request for unknown model: 'm' is not found
         ask m 1             -> Not found: Request for unknown model: 'm' is not found
         unload m            ->
         unload m dependents ->",
    );
}

#[test]
fn other_instances_are_no_reload_and_are_asked_for_until_they_are_there() {
    check(
        "load m 1,2          -> #1 loads [1, 2]
         ok #1 1             -> wait
         ok #1 2             -> yes; publish m:1#1 m:2#1
         load m 1,2 served=b -> settled; resize m:1#1 m:2#1
         load m 1,2 served=b -> settled; resize m:1#1 m:2#1
         resized m b         ->
         load m 1,2 served=b -> settled
         load m 2 served=c   -> settled; retire m:1#1; resize m:2#1
         resized m c         ->
         load m 2,3 served=d -> #2 loads [3]; resize m:2#1
         ok #2 3             -> yes; publish m:3#2
         load m 2,3 served=d -> settled; resize m:2#1 m:3#2
         resized m d         ->
         load m 2b,3 served=e -> #3 loads [2]; resize m:3#2",
    );
}

#[test]
fn an_unchanged_model_stays_as_it_is() {
    check(
        "load m 1            -> #1 loads [1]
         ok #1 1             -> yes; publish m:1#1
         load m 1            -> settled
         load m 1 part       -> settled
         load m 1b           -> #2 loads [1]
         ok #2 1             -> yes; publish m:1#2; retire m:1#1
         load m 1b           -> settled
         load m 1b shared=b  -> #3 loads [1]",
    );
}

#[test]
fn only_the_versions_that_changed_load_anew() {
    check(
        "load m 1,2          -> #1 loads [1, 2]
         ok #1 1             -> wait
         ok #1 2             -> yes; publish m:1#1 m:2#1
         load m 1,2,3        -> #2 loads [3]
         ok #2 3             -> yes; publish m:3#2
         load m 1b,2,3       -> #3 loads [1]
         ok #3 1             -> yes; publish m:1#3; retire m:1#1
         load m 2,3          -> settled; retire m:1#3
         index               -> m:1 UNLOADING, m:2 READY, m:3 READY
         drained m:1#3       ->
         missing             ->
         load m 4 shared=b   -> #4 loads [4]
         ok #4 4             -> yes; publish m:4#4; retire m:2#1 m:3#2
         index               -> m:1 UNAVAILABLE (unloaded), m:2 UNLOADING, m:3 UNLOADING, m:4 READY",
    );
}

#[test]
fn the_old_version_serves_until_the_new_one_is_there() {
    check(
        "load m 1            -> #1 loads [1]
         ok #1 1             -> yes; publish m:1#1
         load m 1b           -> #2 loads [1]
         index               -> m:1 READY
         ask m               -> m:1#1
         ok #2 1             -> yes; publish m:1#2; retire m:1#1
         ask m               -> m:1#2
         drained m:1#1       ->
         index               -> m:1 READY
         missing             ->",
    );
}

#[test]
fn a_failed_reload_leaves_the_old_version() {
    check(
        r"load m 1            -> #1 loads [1]
          ok #1 1             -> yes; publish m:1#1
          load m 1b           -> #2 loads [1]
          fail #2 1           -> Invalid argument: load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: broken;\n
          index               -> m:1 READY (the last load of the model failed: Internal: broken)
          outdated            -> m
          ask m               -> m:1#1
          load m 1            -> settled
          outdated            ->
          load m 1b           -> #3 loads [1]
          ok #3 1             -> yes; publish m:1#3; retire m:1#1",
    );
}

#[test]
fn one_failing_version_fails_the_load_and_drops_the_others() {
    check(
        r"load m 1,2,3        -> #1 loads [1, 2, 3]
          ok #1 2             -> wait
          fail #1 1           -> wait
          index               -> m:1 UNAVAILABLE (Internal: broken), m:2 LOADING, m:3 LOADING
          fail #1 3           -> Invalid argument: load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: broken;version 3 is at UNAVAILABLE state: Internal: broken;\n; retire m:2#1
          index               -> m:1 UNAVAILABLE (Internal: broken), m:2 UNLOADING, m:3 UNAVAILABLE (Internal: broken)
          drained m:2#1       ->
          index               -> m:1 UNAVAILABLE (Internal: broken), m:2 UNAVAILABLE (unloaded), m:3 UNAVAILABLE (Internal: broken)
          index ready         ->",
    );
}

#[test]
fn a_failure_stays_known_until_a_load_succeeds() {
    check(
        r"load m 1            -> #1 loads [1]
          fail #1 1           -> Invalid argument: load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: broken;\n
          missing             -> m:1 (Internal: broken)
          unload m            ->
          index               -> m:1 UNAVAILABLE (unloaded)
          missing             ->
          ask m               -> Not found: Request for unknown model: 'm' has no available versions
          ask m 1             -> Unavailable: Request for unknown model: 'm' version 1 is not at ready state
          load m 1            -> #3 loads [1]
          index               -> m:1 LOADING
          ok #3 1             -> yes; publish m:1#3
          missing             ->",
    );
}

#[test]
fn a_model_that_failed_is_not_missing_once_nobody_wants_it() {
    // Its directory is gone: polling unloads it.
    check(
        r"load gone 1         -> #1 loads [1]
          fail #1 1           -> Invalid argument: load failed for model 'gone': version 1 is at UNAVAILABLE state: Internal: broken;\n
          missing             -> gone:1 (Internal: broken)
          vanished            -> gone
          unload gone         ->
          missing             ->
          vanished            ->",
    );
    // The configuration names another version now.
    check(
        r"load m 1            -> #1 loads [1]
          fail #1 1           -> Invalid argument: load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: broken;\n
          load m 2            -> #2 loads [2]
          why m               -> Internal: broken
          ok #2 2             -> yes; publish m:2#2
          why m               ->
          missing             ->
          index               -> m:1 UNAVAILABLE (unloaded), m:2 READY",
    );
    check(
        r"load m -            -> at least one version must be available under the version policy of model 'm'; a version is a directory such as 'm/1'
          unload m            ->
          missing             ->
          load sent - sent    -> at least one version must be available under the version policy of model 'sent'; a version is a directory such as 'sent/1'
          missing             ->",
    );
}

#[test]
fn a_model_that_cannot_be_read_says_why_but_is_not_missing() {
    check(
        "unreadable m           ->
         index                  -> m UNAVAILABLE (its configuration is broken)
         index ready            ->
         outdated               ->
         missing                ->
         why m                  -> its configuration is broken
         load ens 1 needs=m     -> ensemble 'ens' depends on 'm' which has no loaded version. Model 'm' loading failed with error: its configuration is broken
         load m 1               -> #1 loads [1]
         ok #1 1                -> yes; publish m:1#1
         index                  -> m:1 READY
         unreadable m           ->
         index ready            -> m:1 READY (the last load of the model failed: its configuration is broken)
         outdated               -> m
         why m                  -> its configuration is broken
         load m 1               -> settled
         index                  -> m:1 READY
         unreadable gone        ->
         vanished               -> gone
         unload gone            ->
         why gone               ->",
    );
}

#[test]
fn a_model_without_a_version_is_no_model_but_no_readiness_either() {
    check(
        r"load m -            -> at least one version must be available under the version policy of model 'm'; a version is a directory such as 'm/1'
          index               -> 
          missing             -> m ()
          ask m               -> Not found: Request for unknown model: 'm' has no available versions
          load m 1            -> #1 loads [1]
          ok #1 1             -> yes; publish m:1#1
          missing             ->
          load m - shared=b   -> at least one version must be available under the version policy of model 'm'; a version is a directory such as 'm/1'
          ask m               -> m:1#1
          missing             ->",
    );
}

#[test]
fn a_version_that_is_served_with_the_completed_configuration_stays() {
    check(
        "load m 1,2                               -> #1 loads [1, 2]
         ok #1 1                                  -> wait
         ok #1 2                                  -> yes; publish m:1#1 m:2#1
         load m 1,2 config=b completed=1 served=b -> #2 loads [2]; resize m:1#1
         ok #2 2                                  -> yes; publish m:2#2; retire m:2#1
         resized m b                              ->
         load m 1,2 config=b served=b             -> settled
         load m 1b,2 config=c completed=1,2       -> #3 loads [1]; resize m:2#2",
    );
}

#[test]
fn what_a_request_brings_lasts_until_the_next_load() {
    check(
        "load m 1            -> #1 loads [1]
         ok #1 1             -> yes; publish m:1#1
         load m 1 sent       -> #2 loads [1]
         ok #2 1             -> yes; publish m:1#2; retire m:1#1
         load m 1 sent       -> #3 loads [1]
         ok #3 1             -> yes; publish m:1#3; retire m:1#2
         load m 1            -> #4 loads [1]
         ok #4 1             -> yes; publish m:1#4; retire m:1#3
         load m 1            -> settled",
    );
}

#[test]
fn a_model_that_only_a_request_described_is_served_but_not_listed() {
    check(
        "load sent 1 sent     -> #1 loads [1]
         ok #1 1              -> yes; publish sent:1#1
         ask sent             -> sent:1#1
         index ready          -> 
         vanished             ->
         unload sent          -> retire sent:1#1",
    );
}

#[test]
fn a_later_operation_overtakes_a_load() {
    check(
        r"load m 1            -> #1 loads [1]
          load m 1b           -> #2 loads [1]
          ok #1 1             -> Invalid argument: load failed for model 'm': Newer operation has been applied to the model lifecycle, current load operation is out-dated.\n; retire m:1#1
          index               -> m:1 LOADING
          drained m:1#1       ->
          ok #2 1             -> yes; publish m:1#2
          load m 1c           -> #3 loads [1]
          unload m            -> retire m:1#2
          ok #3 1             -> Invalid argument: load failed for model 'm': Newer operation has been applied to the model lifecycle, current load operation is out-dated.\n; retire m:1#3
          drained m:1#3       ->
          index               -> m:1 UNLOADING
          drained m:1#2       ->
          index               -> m:1 UNAVAILABLE (unloaded)",
    );
}

#[test]
fn an_unload_overtakes_the_first_load() {
    check(
        r"load m 1,2          -> #1 loads [1, 2]
          unload m            ->
          index               -> m:1 LOADING, m:2 LOADING
          ok #1 1             -> wait
          ok #1 2             -> Invalid argument: load failed for model 'm': Newer operation has been applied to the model lifecycle, current load operation is out-dated.\n; retire m:1#1 m:2#1
          index               -> m:1 UNLOADING, m:2 UNLOADING
          drained m:1#1       ->
          drained m:2#1       ->
          missing             ->",
    );
}

#[test]
fn a_version_loaded_again_is_not_touched_by_its_predecessors_end() {
    check(
        "load m 1            -> #1 loads [1]
         ok #1 1             -> yes; publish m:1#1
         unload m            -> retire m:1#1
         load m 1            -> #3 loads [1]
         drained m:1#1       ->
         index               -> m:1 LOADING
         ok #3 1             -> yes; publish m:1#3
         drained m:1#1       ->
         index               -> m:1 READY",
    );
}

#[test]
fn results_nobody_waits_for_change_nothing() {
    check(
        "ok #9 1             -> wait
         load m 1            -> #1 loads [1]
         ok #1 7             -> wait
         ok #1 1             -> yes; publish m:1#1
         fail #1 1           -> wait
         index               -> m:1 READY",
    );
}

#[test]
fn an_ensemble_needs_its_parts() {
    check(
        r"load ens 1 needs=part  -> ensemble 'ens' depends on 'part' which has no loaded version.
          load part 1 part       -> #1 loads [1]
          ok #1 1                -> yes; publish part:1#1
          load ens 1 needs=part  -> #2 loads [1]
          ok #2 1                -> yes; publish ens:1#2
          unload ens             -> retire ens:1#2
          ask part               -> part:1#1",
    );
}

#[test]
fn an_ensemble_that_would_need_itself_is_not_loaded() {
    check(
        r"load part 1             -> #1 loads [1]
          ok #1 1                 -> yes; publish part:1#1
          load ens 1 needs=part   -> #2 loads [1]
          ok #2 1                 -> yes; publish ens:1#2
          load ens 1b needs=ens   -> circular dependency between ensembles: ens -> ... -> ens -> ens
          load part 1b needs=ens  -> circular dependency between ensembles: part -> ... -> ens -> part
          load m 1                -> #3 loads [1]
          ok #3 1                 -> yes; publish m:1#3
          load other 1            -> #4 loads [1]
          ok #4 1                 -> yes; publish other:1#4
          load m 1b needs=other   -> #5 loads [1]
          load other 1b needs=m   -> circular dependency between ensembles: other -> ... -> m -> other
          fail #5 1               -> Invalid argument: load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: broken;\n
          load other 1b needs=m   -> #6 loads [1]",
    );
}

#[test]
fn an_ensemble_goes_with_a_part() {
    check(
        "load part 1            -> #1 loads [1]
         ok #1 1                -> yes; publish part:1#1
         load ens 1 needs=part  -> #2 loads [1]
         ok #2 1                -> yes; publish ens:1#2
         load m 1 needs=ens     -> #3 loads [1]
         ok #3 1                -> yes; publish m:1#3
         unload part            -> retire part:1#1 ens:1#2 m:1#3; users m ens
         drained ens:1#2        ->
         index                  -> ens:1 UNAVAILABLE (unloaded), m:1 UNLOADING, part:1 UNLOADING",
    );
}

#[test]
fn an_ensemble_is_loaded_anew_though_its_files_are_the_same() {
    check(
        "load part 1                 -> #1 loads [1]
         ok #1 1                     -> yes; publish part:1#1
         load ens 1 needs=part       -> #2 loads [1]
         ok #2 1                     -> yes; publish ens:1#2
         load ens 1 needs=part       -> settled
         load ens 1 needs=part anew  -> #3 loads [1]
         index                       -> ens:1 READY, part:1 READY
         ok #3 1                     -> yes; publish ens:1#3; retire ens:1#2",
    );
}

#[test]
fn an_ensemble_that_does_not_fit_its_parts_says_why_until_it_is_loaded_again() {
    check(
        r"load part 1                -> #1 loads [1]
          ok #1 1                    -> yes; publish part:1#1
          load ens 1,2 needs=part    -> #2 loads [1, 2]
          ok #2 1                    -> wait
          ok #2 2                    -> yes; publish ens:1#2 ens:2#2
          misfits ens                -> retire ens:1#2 ens:2#2
          drained ens:1#2            ->
          index                      -> ens:1 UNAVAILABLE (it does not fit), ens:2 UNAVAILABLE (it does not fit), part:1 READY
          missing                    -> ens:1 (it does not fit), ens:2 (it does not fit)
          ask ens                    -> Not found: Request for unknown model: 'ens' has no available versions
          misfits ens                ->
          load m 1 needs=ens         -> ensemble 'm' depends on 'ens' which has no loaded version. Model 'ens' loading failed with error: version 1 is at UNAVAILABLE state: it does not fit;version 2 is at UNAVAILABLE state: it does not fit;
          load ens 1,2 needs=part    -> #3 loads [1, 2]
          ok #3 1                    -> wait
          ok #3 2                    -> yes; publish ens:1#3 ens:2#3
          drained ens:2#2            ->
          index                      -> ens:1 READY, ens:2 READY, part:1 READY
          misfits other              ->",
    );
}

#[test]
fn an_ensemble_that_does_not_fit_its_parts_can_be_unloaded() {
    let up = "load part 1                -> #1 loads [1]
              ok #1 1                    -> yes; publish part:1#1
              load ens 1 needs=part      -> #2 loads [1]
              ok #2 1                    -> yes; publish ens:1#2
              misfits ens                -> retire ens:1#2
              drained ens:1#2            ->
              missing                    -> ens:1 (it does not fit)
              ";
    let by_name = "unload ens                 ->
                   index                      -> ens:1 UNAVAILABLE (unloaded), part:1 READY
                   missing                    ->
                   misfits ens                ->
                   missing                    ->";
    let with_its_part = "unload part                -> retire part:1#1; users ens
                         drained part:1#1           ->
                         index                      -> ens:1 UNAVAILABLE (unloaded), part:1 UNAVAILABLE (unloaded)
                         missing                    ->";
    let by_a_stop = "stop                       -> retire part:1#1
                     drained part:1#1           ->
                     missing                    ->";
    let by_another_version = "load ens 2 needs=part      -> #3 loads [2]
                              ok #3 2                    -> yes; publish ens:2#3
                              index                      -> ens:1 UNAVAILABLE (unloaded), ens:2 READY, part:1 READY
                              missing                    ->";
    for rest in [by_name, with_its_part, by_a_stop, by_another_version] {
        check(&format!("{up}{rest}"));
    }
}

#[test]
fn an_ensemble_that_does_not_fit_its_parts_hides_no_failed_load() {
    check(
        r"load part 1                -> #1 loads [1]
          ok #1 1                    -> yes; publish part:1#1
          load ens 1 needs=part      -> #2 loads [1]
          ok #2 1                    -> yes; publish ens:1#2
          load ens 1,2 needs=part    -> #3 loads [2]
          fail #3 2                  -> Invalid argument: load failed for model 'ens': version 2 is at UNAVAILABLE state: Internal: broken;\n
          misfits ens                -> retire ens:1#2
          index                      -> ens:1 UNAVAILABLE (it does not fit), ens:2 UNAVAILABLE (Internal: broken), part:1 READY",
    );
}

#[test]
fn parts_go_with_their_ensemble_unless_somebody_else_wants_them() {
    check(
        "load part 1 part             -> #1 loads [1]
         ok #1 1                      -> yes; publish part:1#1
         load other 1                 -> #2 loads [1]
         ok #2 1                      -> yes; publish other:1#2
         load ens 1 needs=part,other  -> #3 loads [1]
         ok #3 1                      -> yes; publish ens:1#3
         load m 1 needs=part          -> #4 loads [1]
         ok #4 1                      -> yes; publish m:1#4
         unload ens dependents        -> retire ens:1#3
         unload m dependents          -> retire m:1#4 part:1#1
         ask other                    -> other:1#2",
    );
}

#[test]
fn a_part_asked_for_by_name_stays() {
    check(
        "load part 1 part       -> #1 loads [1]
         ok #1 1                -> yes; publish part:1#1
         load part 1            -> settled
         load ens 1 needs=part  -> #2 loads [1]
         ok #2 1                -> yes; publish ens:1#2
         unload ens dependents  -> retire ens:1#2
         ask part               -> part:1#1",
    );
}

#[test]
fn a_stop_takes_everything() {
    check(
        "load m 1            -> #1 loads [1]
         ok #1 1             -> yes; publish m:1#1
         load other 1,2      -> #2 loads [1, 2]
         ok #2 1             -> wait
         stop                -> retire m:1#1
         ok #2 2             -> Invalid argument: load failed for model 'other': Newer operation has been applied to the model lifecycle, current load operation is out-dated.\\n; retire other:1#2 other:2#2",
    );
}

#[test]
fn polling_misses_what_is_gone_or_there_twice() {
    check(
        "load gone 1         -> #1 loads [1]
         ok #1 1             -> yes; publish gone:1#1
         load twin 1         -> #2 loads [1]
         ok #2 1             -> yes; publish twin:1#2
         load m 1            -> #3 loads [1]
         ok #3 1             -> yes; publish m:1#3
         vanished            -> gone, twin
         unload gone         -> retire gone:1#1
         vanished            -> twin
         misfits twin        -> retire twin:1#2
         vanished            -> twin
         unload twin         ->
         vanished            ->",
    );
}

#[test]
fn the_index_lists_directories_by_name() {
    let mut lifecycle = Lifecycle::new();
    happen(&mut lifecycle, &["load", "b", "2,1"]);
    let listing = Listing::of([("c", "/r"), ("b", "/r"), ("a", "/r"), ("c", "/s")]);
    let lines = |ready_only| -> Vec<(String, Option<i64>, &str, String)> {
        let index = lifecycle.index(&listing, ready_only);
        index.into_iter().map(|entry| (entry.name, entry.version, entry.state, entry.reason)).collect()
    };
    let twice = ("c".to_owned(), None, "UNAVAILABLE", "model appears in two or more repositories".to_owned());
    assert_eq!(
        lines(false),
        [
            ("a".to_owned(), None, "", String::new()),
            ("b".to_owned(), Some(1), "LOADING", String::new()),
            ("b".to_owned(), Some(2), "LOADING", String::new()),
            twice.clone(),
        ]
    );
    assert_eq!(lines(true), [twice]);
}

#[test]
fn an_unload_that_left_something_says_so() {
    let mut lifecycle = Lifecycle::new();
    assert_eq!(lifecycle.check_unloaded("m"), Ok(()));
    happen(&mut lifecycle, &["load", "m", "1,2"]);
    happen(&mut lifecycle, &["ok", "#1", "1"]);
    happen(&mut lifecycle, &["ok", "#1", "2"]);
    let refused = lifecycle.check_unloaded("m").expect_err("two versions are ready");
    assert_eq!(status_text(&refused), "Internal: failed to unload 'm', versions that are still available: 1,2");
}
