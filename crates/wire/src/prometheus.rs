//! How do metrics look as Prometheus text?
