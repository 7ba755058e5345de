//! Which calls exist, and which category does each have?

use nerite_api::Category;

/// A call of the inference service, or of the standard health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    ModelInfer,
    ModelStreamInfer,
    ServerLive,
    ServerReady,
    ModelReady,
    ServerMetadata,
    ModelMetadata,
    ModelConfig,
    ModelStatistics,
    RepositoryIndex,
    RepositoryModelLoad,
    RepositoryModelUnload,
    SystemSharedMemoryStatus,
    SystemSharedMemoryRegister,
    SystemSharedMemoryUnregister,
    CudaSharedMemoryStatus,
    CudaSharedMemoryRegister,
    CudaSharedMemoryUnregister,
    TraceSetting,
    LogSettings,
    HealthCheck,
}

impl Call {
    /// The call with that path. `None` if there is none.
    pub(crate) fn from_path(path: &str) -> Option<Call> {
        if path == "/grpc.health.v1.Health/Check" {
            return Some(Call::HealthCheck);
        }
        Some(match path.strip_prefix("/inference.GRPCInferenceService/")? {
            "ModelInfer" => Call::ModelInfer,
            "ModelStreamInfer" => Call::ModelStreamInfer,
            "ServerLive" => Call::ServerLive,
            "ServerReady" => Call::ServerReady,
            "ModelReady" => Call::ModelReady,
            "ServerMetadata" => Call::ServerMetadata,
            "ModelMetadata" => Call::ModelMetadata,
            "ModelConfig" => Call::ModelConfig,
            "ModelStatistics" => Call::ModelStatistics,
            "RepositoryIndex" => Call::RepositoryIndex,
            "RepositoryModelLoad" => Call::RepositoryModelLoad,
            "RepositoryModelUnload" => Call::RepositoryModelUnload,
            "SystemSharedMemoryStatus" => Call::SystemSharedMemoryStatus,
            "SystemSharedMemoryRegister" => Call::SystemSharedMemoryRegister,
            "SystemSharedMemoryUnregister" => Call::SystemSharedMemoryUnregister,
            "CudaSharedMemoryStatus" => Call::CudaSharedMemoryStatus,
            "CudaSharedMemoryRegister" => Call::CudaSharedMemoryRegister,
            "CudaSharedMemoryUnregister" => Call::CudaSharedMemoryUnregister,
            "TraceSetting" => Call::TraceSetting,
            "LogSettings" => Call::LogSettings,
            _ => return None,
        })
    }

    /// Whether the call changes something of the server, for access rules. Whether a settings call does is known only after its message was read, so
    /// `Api::allow_change` checks it then.
    pub(crate) fn changes(self) -> bool {
        match self {
            Call::RepositoryModelLoad
            | Call::RepositoryModelUnload
            | Call::SystemSharedMemoryRegister
            | Call::SystemSharedMemoryUnregister
            | Call::CudaSharedMemoryRegister
            | Call::CudaSharedMemoryUnregister => true,
            Call::ModelInfer
            | Call::ModelStreamInfer
            | Call::ServerLive
            | Call::ServerReady
            | Call::ModelReady
            | Call::HealthCheck
            | Call::ServerMetadata
            | Call::ModelMetadata
            | Call::ModelConfig
            | Call::ModelStatistics
            | Call::RepositoryIndex
            | Call::SystemSharedMemoryStatus
            | Call::CudaSharedMemoryStatus
            | Call::TraceSetting
            | Call::LogSettings => false,
        }
    }

    /// The category, for which the operator may require a header.
    pub(crate) fn category(self) -> Category {
        match self {
            Call::ModelInfer | Call::ModelStreamInfer => Category::Inference,
            Call::ServerLive | Call::ServerReady | Call::ModelReady | Call::HealthCheck => Category::Health,
            Call::ServerMetadata | Call::ModelMetadata => Category::Metadata,
            Call::ModelConfig => Category::ModelConfig,
            Call::ModelStatistics => Category::Statistics,
            Call::RepositoryIndex | Call::RepositoryModelLoad | Call::RepositoryModelUnload => {
                Category::ModelRepository
            }
            Call::SystemSharedMemoryStatus
            | Call::SystemSharedMemoryRegister
            | Call::SystemSharedMemoryUnregister
            | Call::CudaSharedMemoryStatus
            | Call::CudaSharedMemoryRegister
            | Call::CudaSharedMemoryUnregister => Category::SharedMemory,
            Call::TraceSetting => Category::Trace,
            Call::LogSettings => Category::Logging,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, call: Option<Call>) {
        assert_eq!(Call::from_path(path), call, "{path}");
    }

    #[test]
    fn only_complete_paths_are_calls() {
        check("/inference.GRPCInferenceService/ModelInfer", Some(Call::ModelInfer));
        check("/grpc.health.v1.Health/Check", Some(Call::HealthCheck));
        check("/grpc.health.v1.Health/Watch", None);
        check("/inference.GRPCInferenceService/modelinfer", None);
        check("/inference.GRPCInferenceService/", None);
        check("inference.GRPCInferenceService/ModelInfer", None);
        check("/", None);
    }

    #[test]
    fn every_call_of_the_schema_is_known() {
        let schema = nerite_wire::proto::FILE_DESCRIPTOR_SET;
        let names = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        // The schema has each call's request type as `.inference.<call>Request`.
        let text = names(schema);
        let mut known = 0;
        for (at, mark) in text.match_indices(".inference.") {
            let rest = &text[at + mark.len()..];
            let word: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
            if let Some(call) = word.strip_suffix("Request") {
                let found = Call::from_path(&format!("/inference.GRPCInferenceService/{call}"));
                assert!(found.is_some(), "{call}");
                known += 1;
            }
        }
        assert!(known >= 20, "{known} calls");
    }
}
