//! Which settings do backends have, and which would have no effect?

use nerite_config::{did_you_mean, nearest};

/// Settings of Triton's backend of that name, and of this server's. Triton's settings may have no effect here, but are no mistake.
const KNOWN: [(&str, &[&str]); 2] = [
    (
        "onnxruntime",
        &[
            "arena_extend_strategy",
            "cudnn_conv_algo_search",
            "default-max-batch-size",
            "do_copy_in_default_stream",
            "enable-global-threadpool",
            "enable_mem_arena",
            "enable_mem_pattern",
            "execution_mode",
            "gpu_mem_limit",
            "inter_op_thread_count",
            "intra_op_thread_count",
            "isolated",
            "memory.enable_memory_arena_shrinkage",
            "sandbox",
            "sandbox-file-size",
            "sandbox-group-memory",
            "sandbox-memory",
            "sandbox-models",
            "sandbox-network",
            "sandbox-processes",
            "sandbox-read",
            "sandbox-write",
            "session.intra_op.allow_spinning",
            "session.use_device_allocator_for_initializers",
        ],
    ),
    (
        "python",
        &[
            "debug",
            "execute-timeout-seconds",
            "interpreter",
            "sandbox",
            "sandbox-file-size",
            "sandbox-group-memory",
            "sandbox-memory",
            "sandbox-models",
            "sandbox-network",
            "sandbox-processes",
            "sandbox-read",
            "sandbox-write",
            "shm-default-byte-size",
            "shm-growth-byte-size",
            "shm-region-prefix-name",
            "shm_message_queue_size",
            "stub-timeout-seconds",
            "thread-pool-size",
        ],
    ),
];

/// Settings that Triton's core gives all backends.
const OF_ALL: [&str; 4] =
    ["auto-complete-config", "backend-directory", "default-max-batch-size", "min-compute-capability"];

/// Log lines about settings that the built-in backends do not know. Each setting is (backend, key, value). Settings of compiled backends are not
/// checked.
pub(super) fn unknown(settings: &[(String, String, String)]) -> Vec<String> {
    let mut notes = Vec::new();
    for (backend, key, _) in settings {
        let Some((_, known)) = KNOWN.iter().find(|(name, _)| name == backend) else { continue };
        if known.contains(&key.as_str()) || OF_ALL.contains(&key.as_str()) {
            continue;
        }
        let meant = did_you_mean(nearest(key, known.iter().copied()));
        notes.push(format!(
            "--backend-config={backend},{key} has no effect: backend '{backend}' has no such setting{meant}; it has: {}",
            known.join(", ")
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(backend: &str, key: &str, expect: Option<&str>) {
        let notes = unknown(&[(backend.to_owned(), key.to_owned(), "1".to_owned())]);
        assert_eq!(notes.len(), usize::from(expect.is_some()), "{notes:?}");
        assert!(notes.iter().all(|note| note.contains(expect.unwrap_or_default())), "{notes:?}");
    }

    #[test]
    fn a_key_that_no_built_in_backend_has_is_said_with_those_it_has() {
        check("python", "stub-timeout-seconds", None);
        check(
            "python",
            "stub-timout-seconds",
            Some("did you mean 'stub-timeout-seconds'?; it has: debug, execute-timeout-seconds, interpreter, sandbox"),
        );
        check("onnxruntime", "intra_op_threads", Some("backend 'onnxruntime' has no such setting"));
        check("onnxruntime", "default-max-batch-size", None);
        check("onnxruntime", "min-compute-capability", None);
        // The settings of other backends are not known.
        check("mine", "anything", None);
        check("", "anything", None);
    }
}
