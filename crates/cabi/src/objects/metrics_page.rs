//! What is a look at a server's metrics?

use super::object;

/// `TRITONSERVER_Metrics`: the page of metrics as it was when the program asked.
pub struct MetricsPage(String);

object!(MetricsPage, 25, "metrics object");

impl MetricsPage {
    /// This page.
    pub fn new(text: String) -> MetricsPage {
        MetricsPage(text)
    }

    /// The text, which lives as long as the object.
    pub fn text(&self) -> &str {
        &self.0
    }
}
