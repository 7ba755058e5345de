//! How does a child make metrics that the server shows?
//!
//! The registry is the server's, so the child sends questions on the side channel, as Python models do. The answers come in the order of the
//! questions. When the process ends, all metrics that it made are removed.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};

use nerite_backend::{MetricChange, MetricMaker, MetricSource};
use nerite_locks::Mutex;
use nerite_process::Channel;
use nerite_process::packets::{Measured, MetricQuestion, Unmeasured};
use nerite_request::report::MetricKind;

use crate::limits::MEASURED_MAX;

/// Makes metrics in the server's registry.
pub(super) struct ServerMetrics(Arc<Questions>);

struct Questions {
    side: Arc<Channel>,
    /// `None` once an answer is missing, because a later answer would be taken for the answer to another question.
    answers: Mutex<Option<Receiver<Measured>>>,
}

/// The metrics that one object of the engine made.
struct Made {
    questions: Arc<Questions>,
    families: Vec<u64>,
}

impl ServerMetrics {
    /// Sends questions on this channel. The thread that reads the channel puts the answers into the returned sender.
    pub fn new(side: &Arc<Channel>) -> (ServerMetrics, Sender<Measured>) {
        let (read, answers) = channel();
        let questions = Questions { side: Arc::clone(side), answers: Mutex::new(Some(answers)) };
        (ServerMetrics(Arc::new(questions)), read)
    }
}

impl MetricSource for ServerMetrics {
    fn maker(&self) -> Box<dyn MetricMaker> {
        Box::new(Made { questions: Arc::clone(&self.0), families: Vec::new() })
    }
}

impl Questions {
    fn send(&self, question: &MetricQuestion<'_>) -> Result<Measured, String> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = || "the server does not answer questions about metrics".to_owned();
        let read = answers.as_ref().ok_or_else(lost)?;
        self.side.send(question.to_string(), &[]).map_err(|error| format!("the server cannot be told: {error}"))?;
        match read.recv_timeout(MEASURED_MAX) {
            Ok(Measured::Error(why)) => Err(why),
            Ok(answer) => Ok(answer),
            Err(_) => {
                *answers = None;
                Err(lost())
            }
        }
    }

    /// Sends a question whose answer is a number.
    fn number(&self, question: &MetricQuestion<'_>) -> Result<u64, String> {
        match self.send(question)? {
            Measured::Number(number) => Ok(number),
            other => Err(format!("the server answered '{other}'")),
        }
    }
}

impl MetricMaker for Made {
    fn family(&mut self, name: &str, description: &str, kind: MetricKind) -> Result<u64, String> {
        let number = self.questions.number(&MetricQuestion::Family { name, description, kind })?;
        self.families.push(number);
        Ok(number)
    }

    fn metric(
        &mut self,
        family: u64,
        labels: BTreeMap<String, String>,
        buckets: Option<Vec<f64>>,
    ) -> Result<u64, String> {
        self.questions.number(&MetricQuestion::Metric { family, labels: Ok(labels), buckets })
    }

    fn change(&self, metric: u64, change: MetricChange) -> Result<f64, String> {
        match self.questions.send(&MetricQuestion::Change { metric, change })? {
            Measured::Value(value) => Ok(value),
            other => Err(format!("the server answered '{other}'")),
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for family in &self.families {
            // If the server is gone, it shows no metrics.
            let _ = self.questions.side.send(Unmeasured(*family).to_string(), &[]);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::thread;

    use nerite_process::Packet;
    use nerite_process::packets::SideSaid;

    use super::*;

    #[test]
    fn questions_are_answered_in_order_and_metrics_end_with_their_object() {
        let (theirs, child) = Channel::pair().unwrap();
        let (metrics, read) = ServerMetrics::new(&Arc::new(Channel::from(child)));
        let server = thread::Builder::new()
            .spawn(move || {
                let (mut packet, mut heard) = (Packet::default(), Vec::new());
                while let Ok(Some(text)) = theirs.receive(&mut packet) {
                    let said = SideSaid::read(text).unwrap();
                    heard.push(String::from_utf8_lossy(text).into_owned());
                    match said.metric() {
                        Some(MetricQuestion::Family { .. }) => read.send(Measured::Number(1)).unwrap(),
                        Some(MetricQuestion::Metric { .. }) => read.send(Measured::Number(2)).unwrap(),
                        Some(MetricQuestion::Change { change: MetricChange::Set(_), .. }) => {
                            read.send(Measured::Error("a counter".to_owned())).unwrap();
                        }
                        Some(MetricQuestion::Change { .. }) => read.send(Measured::Value(2.5)).unwrap(),
                        None => {}
                    }
                }
                heard
            })
            .unwrap();
        let mut maker = metrics.maker();
        let family = maker.family("cats", "Cats", MetricKind::Counter).unwrap();
        let metric = maker.metric(family, [("a".to_owned(), "1".to_owned())].into(), None).unwrap();
        assert_eq!(maker.change(metric, MetricChange::Increment(2.5)), Ok(2.5));
        assert_eq!(maker.change(metric, MetricChange::Set(1.0)), Err("a counter".to_owned()));
        drop((maker, metrics));
        let expected = [
            r#"{"metric_family":["cats","Cats","COUNTER"]}"#,
            r#"{"metric":[1,{"a":"1"},null]}"#,
            r#"{"measure":[2,"increment","2.5"]}"#,
            r#"{"measure":[2,"set","1.0"]}"#,
            r#"{"unmeasured":[1]}"#,
        ];
        assert_eq!(server.join().unwrap(), expected);
    }
}
