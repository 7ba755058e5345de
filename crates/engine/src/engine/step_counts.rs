//! How many steps may a request to an ensemble start, with those of the ensembles in it?
//!
//! A step that is an ensemble starts all steps of that ensemble. Sixteen steps on each of eight levels would be four billion.

use std::collections::BTreeMap;
use std::sync::Arc;

use nerite_config::ENSEMBLE_STEPS_MAX;
use nerite_repository::{ModelSource, phrase};

/// What each ensemble is loaded from, by its identifier.
pub(super) type Sources = BTreeMap<String, Arc<ModelSource>>;

/// Checks how many steps a request to an ensemble would start. Err: there are too many.
pub(super) fn check_steps(ensemble: &str, sources: &Sources) -> Result<(), String> {
    let steps = sources.iter().map(|(ensemble, source)| (ensemble.as_str(), steps_of(source))).collect();
    let count = count(ensemble, &steps, &mut BTreeMap::new());
    if count <= ENSEMBLE_STEPS_MAX as u64 {
        Ok(())
    } else {
        Err(phrase::too_many_steps(ensemble, count, ENSEMBLE_STEPS_MAX))
    }
}

/// For each step of an ensemble, the identifier of its model.
fn steps_of(source: &ModelSource) -> Vec<&str> {
    let needs: BTreeMap<&str, &str> = source.needs.iter().map(|(name, need)| (name.as_str(), need.as_str())).collect();
    let steps = source.config.ensemble_scheduling().map_or(&[][..], |ensemble| &ensemble.step);
    steps.iter().filter_map(|step| needs.get(step.model_name.as_str()).copied()).collect()
}

/// The steps that a request to `model` starts; 0 if it is no ensemble. Ensembles that need each other are refused elsewhere.
fn count<'s>(model: &'s str, steps: &BTreeMap<&'s str, Vec<&'s str>>, known: &mut BTreeMap<&'s str, u64>) -> u64 {
    if let Some(&count) = known.get(model) {
        return count;
    }
    known.insert(model, 0);
    let mut all = 0_u64;
    for part in steps.get(model).map_or(&[][..], Vec::as_slice) {
        all = all.saturating_add(1).saturating_add(count(part, steps, known));
    }
    known.insert(model, all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `steps` as `a=b,b,c d=e`.
    #[track_caller]
    fn check(steps: &str, model: &str, expect: u64) {
        let each = steps.split_whitespace().filter_map(|one| one.split_once('='));
        let steps = each.map(|(ensemble, models)| (ensemble, models.split(',').collect())).collect();
        assert_eq!(count(model, &steps, &mut BTreeMap::new()), expect);
    }

    #[test]
    fn steps_are_counted_through_all_levels() {
        check("e=a,a,b", "e", 3);
        check("e=a", "a", 0);
        check("e=f,f,b f=a,b", "e", 3 + 2 * 2);
        let level = |level: u32| format!("e{level}={} ", vec![format!("e{}", level + 1); 16].join(","));
        let levels: String = (0..8).map(level).collect();
        check(&levels, "e0", (1..=8).map(|level| 16_u64.pow(level)).sum());
        let deep: String = (0..32).map(level).collect();
        check(&deep, "e0", u64::MAX);
        check("e=f,f f=e", "e", 4);
    }
}
