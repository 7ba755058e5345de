//! How does a program get the text of the server's metrics?

use super::object;

/// `TRITONSERVER_Metrics`: the page of metrics at the time of the call.
pub struct MetricsPage(String);

object!(MetricsPage, 25, "metrics object");

impl MetricsPage {
    /// An object with this page.
    pub fn new(text: String) -> MetricsPage {
        MetricsPage(text)
    }

    /// The text, which lives as long as the object.
    pub fn text(&self) -> &str {
        &self.0
    }
}
