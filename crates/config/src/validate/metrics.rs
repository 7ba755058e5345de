//! How much may a configuration add to the page of metrics?
//!
//! A scrape writes each bucket of a histogram for each version of the model, and the tags on each line of the model.

use crate::error::refuse;
use crate::limits::{HISTOGRAM_BUCKETS_MAX, METRIC_TAG_BYTES_MAX, METRIC_TAGS_MAX};
use crate::proto::model_metrics::metric_control::MetricOptions;
use crate::{ConfigError, ModelConfig};

/// Checks the tags and the histograms of a configuration.
pub(super) fn check(config: &ModelConfig) -> Result<(), ConfigError> {
    check_tags(config)?;
    for control in config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control) {
        let Some(identifier) = &control.metric_identifier else {
            refuse!("metric control must specify 'metric_identifier'");
        };
        if identifier.family.is_empty() {
            refuse!("metric identifier must specify non-empty 'family'");
        }
        let Some(MetricOptions::HistogramOptions(options)) = &control.metric_options else {
            refuse!("metric control must specify 'histogram_options'");
        };
        if options.buckets.is_empty() {
            refuse!("histogram options must specify non-empty 'buckets'");
        }
        check_buckets(&config.name, &identifier.family, &options.buckets)?;
    }
    Ok(())
}

fn check_buckets(model: &str, family: &str, bounds: &[f64]) -> Result<(), ConfigError> {
    let count = bounds.len();
    if count > HISTOGRAM_BUCKETS_MAX {
        refuse!(
            "histogram '{family}' of model '{model}' has {count} buckets, at most {HISTOGRAM_BUCKETS_MAX} are possible; list fewer in \
             'buckets'"
        );
    }
    if let Some(bound) = bounds.iter().find(|bound| !bound.is_finite()) {
        refuse!(
            "histogram '{family}' of model '{model}' has a bucket of {bound}; list finite numbers in 'buckets', the bucket of all \
             values is added"
        );
    }
    if let Some((one, next)) = bounds.iter().zip(bounds.iter().skip(1)).find(|(one, next)| one >= next) {
        refuse!(
            "histogram '{family}' of model '{model}' has a bucket of {next} behind one of {one}; list each once, in ascending \
             order"
        );
    }
    Ok(())
}

fn check_tags(config: &ModelConfig) -> Result<(), ConfigError> {
    let ModelConfig { name: model, metric_tags: tags, .. } = config;
    if tags.len() > METRIC_TAGS_MAX {
        refuse!(
            "model '{model}' has {} metric_tags, at most {METRIC_TAGS_MAX} are possible; give it fewer",
            tags.len()
        );
    }
    let bytes: usize = tags.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > METRIC_TAG_BYTES_MAX {
        refuse!(
            "the metric_tags of model '{model}' have {bytes} bytes, at most {METRIC_TAG_BYTES_MAX} are possible; shorten their names \
             and values"
        );
    }
    // A name is written to the page as it is.
    let is_label = |name: &str| name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_');
    match tags.keys().find(|name| !is_label(name)) {
        Some(name) => refuse!(
            "the metric_tags of model '{model}' have the name '{}', which Prometheus does not accept; use letters, digits and '_'",
            name.escape_debug()
        ),
        None => Ok(()),
    }
}
