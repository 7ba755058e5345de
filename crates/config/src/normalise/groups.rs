//! Where do the instances of a model run, and how many are there?

use crate::ModelConfig;
use crate::host::HostFacts;
use crate::proto::ModelInstanceGroup;
use crate::proto::model_instance_group::Kind;

/// Backends that get two instances by default on a CPU.
const TWO_ON_CPU: [&str; 2] = ["onnxruntime", "tensorflow"];

/// Sets name, kind, count and GPUs of every instance group. `preferred` are the defaults of the backend. An ensemble has no instances and is not changed.
pub fn normalise_groups(mut config: ModelConfig, preferred: &[ModelInstanceGroup], host: &HostFacts) -> ModelConfig {
    if config.is_ensemble() {
        return config;
    }
    let usable = host.usable_gpus();
    if config.instance_group.is_empty() {
        config.instance_group.push(default_group(&config.name, preferred, &usable));
    }
    for (index, group) in config.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{index}", config.name);
        }
        if group.kind() == Kind::Auto {
            group.set_kind(if host.auto_on_gpus { resolved(group, &usable) } else { Kind::Cpu });
        }
        fill_from_preferred(group, preferred, &usable);
        // A negative count is kept, so that it is refused later.
        if group.count == 0 {
            let two = group.kind() == Kind::Cpu && TWO_ON_CPU.contains(&config.backend.as_str());
            group.count = if two { 2 } else { 1 };
        }
        if group.kind() == Kind::Gpu && group.gpus.is_empty() {
            group.gpus.clone_from(&usable);
        }
    }
    config
}

/// The default group of a model without instance groups.
fn default_group(model: &str, preferred: &[ModelInstanceGroup], usable: &[i32]) -> ModelInstanceGroup {
    let mut group = ModelInstanceGroup { name: model.to_owned(), ..Default::default() };
    let possible = |preference: &&ModelInstanceGroup| preference.kind() != Kind::Gpu || !usable.is_empty();
    if let Some(preference) = preferred.iter().find(possible) {
        group.kind = preference.kind;
        group.count = preference.count;
        group.gpus = match preference.kind() {
            Kind::Gpu => intersection(&preference.gpus, usable),
            Kind::Auto => preference.gpus.clone(),
            Kind::Cpu | Kind::Model => Vec::new(),
        };
    }
    group
}

/// GPU if there are usable GPUs and all listed ones are usable. Otherwise CPU.
fn resolved(group: &ModelInstanceGroup, usable: &[i32]) -> Kind {
    if !usable.is_empty() && group.gpus.iter().all(|gpu| usable.contains(gpu)) { Kind::Gpu } else { Kind::Cpu }
}

/// Sets GPUs and count, where they are not set, from the preferred groups of the same kind.
fn fill_from_preferred(group: &mut ModelInstanceGroup, preferred: &[ModelInstanceGroup], usable: &[i32]) {
    for preference in preferred.iter().filter(|preference| preference.kind == group.kind) {
        if group.kind() == Kind::Gpu && group.gpus.is_empty() && !preference.gpus.is_empty() {
            group.gpus = intersection(&preference.gpus, usable);
            if group.gpus.is_empty() {
                continue;
            }
        }
        if group.count == 0 && preference.count > 0 {
            group.count = preference.count;
        }
    }
}

fn intersection(preferred: &[i32], usable: &[i32]) -> Vec<i32> {
    preferred.iter().copied().filter(|gpu| usable.contains(gpu)).collect()
}
