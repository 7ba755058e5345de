//! Which models load before which?

use std::collections::BTreeMap;

/// A load order: an ensemble comes after the models that it is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// Groups of models in load order. The models of one group can load at the same time.
    pub waves: Vec<Vec<String>>,
    /// Models that need each other in a cycle, each with its error text.
    pub circular: Vec<(String, String)>,
}

/// Orders models by their needs. A need that is not among `models` is ignored here. Whether it is loaded already is checked when its ensemble loads.
pub fn load_order(models: &BTreeMap<String, Vec<String>>) -> Order {
    let mut order = Order::default();
    let mut waiting: BTreeMap<&str, &[String]> =
        models.iter().map(|(model, needs)| (model.as_str(), needs.as_slice())).collect();
    while !waiting.is_empty() {
        let ready = |needs: &[String]| !needs.iter().any(|need| waiting.contains_key(need.as_str()));
        let wave: Vec<String> =
            waiting.iter().filter(|(_, needs)| ready(needs)).map(|(&model, _)| model.to_owned()).collect();
        if wave.is_empty() {
            order.circular = waiting.keys().map(|model| ((*model).to_owned(), circle(model, &waiting))).collect();
            break;
        }
        for model in &wave {
            waiting.remove(model.as_str());
        }
        order.waves.push(wave);
    }
    order
}

/// Follows the first need that still waits, until a model appears twice.
fn circle(model: &str, waiting: &BTreeMap<&str, &[String]>) -> String {
    let mut path = vec![model];
    loop {
        let last = path[path.len() - 1];
        let next = waiting.get(last).and_then(|needs| needs.iter().find(|need| waiting.contains_key(need.as_str())));
        let Some(next) = next else { break };
        let seen = path.contains(&next.as_str());
        path.push(next);
        if seen {
            break;
        }
    }
    format!("circular dependency between ensembles: {}", path.join(" -> "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(models: &[(&str, &[&str])], waves: &[&[&str]], circular: &[&str]) {
        let models = models
            .iter()
            .map(|(model, needs)| ((*model).to_owned(), needs.iter().map(|&need| need.to_owned()).collect()))
            .collect();
        let order = load_order(&models);
        assert_eq!(order.waves, waves);
        let sentences: Vec<&str> = order.circular.iter().map(|(_, sentence)| sentence.as_str()).collect();
        assert_eq!(sentences, circular);
    }

    #[test]
    fn plain_models_load_side_by_side() {
        check(&[], &[], &[]);
        check(&[("a", &[]), ("b", &[])], &[&["a", "b"]], &[]);
    }

    #[test]
    fn an_ensemble_comes_after_its_parts() {
        check(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])], &[&["c"], &["b"], &["a"]], &[]);
        check(&[("a", &["loaded before"])], &[&["a"]], &[]);
    }

    #[test]
    fn a_circle_is_named_and_the_rest_loads() {
        let text = "circular dependency between ensembles:";
        check(
            &[("a", &["b"]), ("b", &["a"]), ("c", &[]), ("d", &["b"])],
            &[&["c"]],
            &[&format!("{text} a -> b -> a"), &format!("{text} b -> a -> b"), &format!("{text} d -> b -> a -> b")],
        );
        check(&[("a", &["a"])], &[], &[&format!("{text} a -> a")]);
    }
}
