//! Where do the instances of a model run, and how many are there?

use crate::ModelConfig;
use crate::host::HostFacts;
use crate::proto::ModelInstanceGroup;
use crate::proto::model_instance_group::Kind;

/// Backends of which two instances on a CPU serve better than one.
const TWO_ON_CPU: [&str; 2] = ["onnxruntime", "tensorflow"];

/// Gives every instance group a name, a kind, a number and its GPUs. `preferred`
/// are the backend's own wishes; an ensemble has no instances and is left alone.
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
        follow(group, preferred, &usable);
        // What is below 0 stays, to be refused.
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

/// The one group of a model that names none.
fn default_group(model: &str, preferred: &[ModelInstanceGroup], usable: &[i32]) -> ModelInstanceGroup {
    let mut group = ModelInstanceGroup { name: model.to_owned(), ..Default::default() };
    let possible = |wish: &&ModelInstanceGroup| wish.kind() != Kind::Gpu || !usable.is_empty();
    if let Some(wish) = preferred.iter().find(possible) {
        group.kind = wish.kind;
        group.count = wish.count;
        group.gpus = match wish.kind() {
            Kind::Gpu => both(&wish.gpus, usable),
            Kind::Auto => wish.gpus.clone(),
            Kind::Cpu | Kind::Model => Vec::new(),
        };
    }
    group
}

/// GPU if there is any, and each one listed is usable; else CPU.
fn resolved(group: &ModelInstanceGroup, usable: &[i32]) -> Kind {
    if !usable.is_empty() && group.gpus.iter().all(|gpu| usable.contains(gpu)) { Kind::Gpu } else { Kind::Cpu }
}

/// Takes GPUs and number from the wishes of the same kind, where none are given.
fn follow(group: &mut ModelInstanceGroup, preferred: &[ModelInstanceGroup], usable: &[i32]) {
    for wish in preferred.iter().filter(|wish| wish.kind == group.kind) {
        if group.kind() == Kind::Gpu && group.gpus.is_empty() && !wish.gpus.is_empty() {
            group.gpus = both(&wish.gpus, usable);
            if group.gpus.is_empty() {
                continue;
            }
        }
        if group.count == 0 && wish.count > 0 {
            group.count = wish.count;
        }
    }
}

fn both(wished: &[i32], usable: &[i32]) -> Vec<i32> {
    wished.iter().copied().filter(|gpu| usable.contains(gpu)).collect()
}
