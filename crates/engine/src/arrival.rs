//! What does a scheduler learn of a job?

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

use nerite_backend::Job;
use nerite_config::{PaddedInput, Padding, TensorSpec};
use nerite_memory::Access;
use nerite_schedule::{Arrival, Client, Deadline, PriorityLevels, Repeat, Span, Spans, Ticket, TimeoutAction, Wants};
use nerite_tensor::Name;

use crate::sequences::step;

/// How the jobs of one model are described to its scheduler.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    levels: PriorityLevels,
    /// Inputs whose shapes must be equal in jobs that run together, apart from the number of rows.
    compared: Vec<Compared>,
    padding: Padding,
    wants: Wants,
    /// Whether the scheduler orders sequences.
    of_sequences: bool,
    /// Whether a model may have its requests run again.
    repeats: bool,
    /// Whether requests run in the order of arrival, whoever sent them.
    in_order: bool,
}

/// An input whose shapes are compared.
#[derive(Debug)]
struct Compared {
    /// Its index in the configuration.
    index: usize,
    name: Name,
    /// How it is padded, if it is.
    padded: Option<PaddedInput>,
}

impl Arrivals {
    /// Descriptions of jobs with these inputs, for a scheduler with these levels that reads what `wants` says.
    pub fn new(levels: PriorityLevels, inputs: &[TensorSpec], wants: Wants) -> Arrivals {
        let compared = inputs.iter().enumerate().filter(|(_, input)| is_compared(input));
        Arrivals {
            levels,
            compared: compared
                .map(|(index, input)| Compared { index, name: input.name.clone(), padded: None })
                .collect(),
            padding: Padding::default(),
            wants,
            of_sequences: false,
            repeats: false,
            in_order: false,
        }
    }

    /// The same. `in_order`: the model's responses are sent in the order of its requests. Then clients do not take turns, because a response that is
    /// made earlier would only wait to be sent.
    pub fn in_order(self, in_order: bool) -> Arrivals {
        Arrivals { in_order, ..self }
    }

    /// The same, for a model with padded inputs: requests may run together if their inputs are padded to the same shape.
    pub fn with_padding(mut self, padding: Padding) -> Arrivals {
        for Compared { name, padded, .. } in &mut self.compared {
            *padded = padding.input(name).cloned();
        }
        Arrivals { padding, ..self }
    }

    /// Which inputs are padded.
    pub fn padding(&self) -> &Padding {
        &self.padding
    }

    /// The same, for a scheduler of sequences.
    pub fn of_sequences(self, are_iterative: bool) -> Arrivals {
        Arrivals { of_sequences: true, repeats: are_iterative, ..self }
    }

    /// Whether a model may have its requests run again.
    pub fn repeats(&self) -> bool {
        self.repeats
    }

    /// The description of a job that arrived at that time. Its ticket is not known yet.
    pub fn describe(&self, job: &Job, arrived_us: u64) -> Arrival {
        let level = self.levels.level(job.priority());
        Arrival {
            priority: level,
            deadline: if self.of_sequences {
                backlog_deadline(job.timeout_us(), arrived_us)
            } else {
                self.deadline(job, arrived_us)
            },
            shapes: if self.wants.shapes { self.key(job) } else { 0 },
            spans: if self.wants.spans { spans(job) } else { Spans::new() },
            sequence: if self.of_sequences { step(job) } else { None },
            client: client(job),
            in_order: self.in_order,
            repeat: if self.repeats { Repeat::Possible } else { Repeat::Never },
            ..Arrival::new(Ticket(0), job.rows().max(1))
        }
    }

    /// How long a job may wait in the queue of its level.
    fn deadline(&self, job: &Job, arrived_us: u64) -> Option<Deadline> {
        self.levels.policy(self.levels.level(job.priority())).deadline(job.timeout_us(), arrived_us)
    }

    /// A key that is equal for jobs that may run together, and rarely equal for others.
    fn key(&self, job: &Job) -> u64 {
        let mut hasher = DefaultHasher::new();
        for input in &self.compared {
            input.features(job).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Whether two jobs may run together. Clients choose the values that the keys are made of, so equal keys are no proof.
    pub fn may_join(&self, one: &Job, next: &Job) -> bool {
        !self.wants.shapes || self.compared.iter().all(|input| input.features(one) == input.features(next))
    }
}

/// Who sent a job, for its scheduler.
pub(crate) fn client(job: &Job) -> Client {
    let nerite_request::Client { peer, flow, .. } = job.client();
    Client { peer, flow }
}

/// The address ranges of the inputs, if any input lies in memory that a client shares. Only there can inputs of two jobs be adjacent.
fn spans(job: &Job) -> Spans {
    if job.inputs().iter().all(|input| input.data.access() == Access::Private) {
        return Spans::new();
    }
    job.inputs()
        .iter()
        .map(|input| Span {
            allocation: input.data.owner() as u64,
            offset: input.data.as_ptr().addr() as u64,
            len: input.data.len() as u64,
        })
        .collect()
}

impl Compared {
    /// The dimensions of the input without its rows, as the model gets them; `None` if the job does not have it.
    fn features<'a>(&self, job: &'a Job) -> Option<Cow<'a, [i64]>> {
        let shape = &job.inputs().at(self.index)?.shape;
        Some(match &self.padded {
            Some(padded) => Cow::Owned(padded.padded(shape).into_iter().skip(1).collect()),
            None => Cow::Borrowed(shape.get(1..).unwrap_or_default()),
        })
    }
}

/// A request of a sequence has no queue policy: its own timeout bounds how long its sequence waits for a slot.
fn backlog_deadline(timeout_us: u64, arrived_us: u64) -> Option<Deadline> {
    (timeout_us > 0).then(|| Deadline { at_us: arrived_us.saturating_add(timeout_us), action: TimeoutAction::Reject })
}

/// Whether two requests may both fit the model's configuration and still differ in this input, so that they cannot run together.
pub(crate) fn is_compared(input: &TensorSpec) -> bool {
    input.optional || (!input.ragged && input.dims.iter().any(|dim| *dim < 0))
}

#[cfg(test)]
mod tests {
    use nerite_backend::ModelVersion;
    use nerite_memory::Buffer;
    use nerite_request::{AdmittedRequest, Inputs, Reply};
    use nerite_schedule::QueuePolicy;
    use nerite_tensor::{DataType, Shape, Tensor};

    use super::*;

    fn spec(name: &str, dims: &[i64], optional: bool, ragged: bool) -> TensorSpec {
        TensorSpec {
            name: name.into(),
            data_type: Some(DataType::Fp32),
            dims: dims.to_vec(),
            reshape: None,
            optional,
            ragged,
            label_filename: String::new(),
        }
    }

    fn job(inputs: &[(&str, &[i64])]) -> Job {
        let tensor = |(name, shape): &(&str, &[i64])| Tensor {
            name: (*name).into(),
            datatype: DataType::Fp32,
            shape: Shape::from_slice(shape),
            data: Buffer::empty(),
        };
        let index = |name: &str| ["A", "B", "C"].iter().position(|known| *known == name);
        let arranged =
            inputs.iter().map(tensor).collect::<Inputs>().arranged(3, |tensor| index(&tensor.name).ok_or(()));
        let request = AdmittedRequest {
            rows: inputs.first().map_or(1, |(_, shape)| shape[0] as u32),
            inputs: arranged.expect("the model has these inputs"),
            priority: 1,
            timeout_us: 7,
            ..AdmittedRequest::new(Reply::new(drop))
        };
        Job::new(request, ModelVersion::unmetered("m").begin(), 0)
    }

    /// A model whose `A` has any length, whose `B` is optional and whose `C` is ragged.
    #[track_caller]
    fn check(one: &[(&str, &[i64])], next: &[(&str, &[i64])], expect: bool) {
        let inputs = [spec("A", &[-1], false, false), spec("B", &[4], true, false), spec("C", &[-1], false, true)];
        let arrivals = Arrivals::new(PriorityLevels::default(), &inputs, Wants { shapes: true, spans: true });
        let (one, next) = (job(one), job(next));
        assert_eq!(arrivals.may_join(&one, &next), expect);
        assert_eq!(arrivals.describe(&one, 0).shapes == arrivals.describe(&next, 0).shapes, expect);
    }

    #[test]
    fn jobs_are_distinguished_by_free_dimensions_and_optional_inputs() {
        check(&[("A", &[2, 3])], &[("A", &[5, 3])], true);
        check(&[("A", &[2, 3])], &[("A", &[2, 4])], false);
        check(&[("A", &[1, 3]), ("B", &[1, 4])], &[("A", &[1, 3]), ("B", &[2, 4])], true);
        check(&[("A", &[1, 3]), ("B", &[1, 4])], &[("A", &[1, 3])], false);
        check(&[("A", &[1, 3]), ("C", &[1, 4])], &[("A", &[1, 3]), ("C", &[1, 9])], true);
        // The order in which a client names its inputs has no meaning.
        check(&[("A", &[1, 3]), ("B", &[1, 4])], &[("B", &[1, 4]), ("A", &[1, 3])], true);
    }

    #[test]
    fn jobs_that_are_padded_to_the_same_shape_may_run_together() {
        let text =
            b"name: 'm' backend: 'onnxruntime' max_batch_size: 8 input { name: 'A' data_type: TYPE_FP32 dims: -1 } \
                     parameters { key: 'nerite.pad' value { string_value: 'A: 4,8' } }";
        let config = nerite_config::parse_text("", text).expect("a configuration");
        let padding = Padding::of(&config).expect("it holds together");
        let arrivals = Arrivals::new(PriorityLevels::default(), &config.inputs(), Wants { shapes: true, spans: false })
            .with_padding(padding.clone());
        let padded = |length: i64| padding.input("A").map(|input| input.padded(&[1, length])[1]);
        for (one, next) in (0..12).flat_map(|one| (0..12).map(move |next| (one, next))) {
            let together = padded(one) == padded(next);
            let (one, next) = (job(&[("A", &[1, one])]), job(&[("A", &[2, next])]));
            assert_eq!(arrivals.may_join(&one, &next), together);
            assert_eq!(arrivals.describe(&one, 0).shapes == arrivals.describe(&next, 0).shapes, together);
        }
    }

    #[test]
    fn an_arrival_has_its_client_also_where_requests_run_in_the_order_of_arrival() {
        let client = nerite_request::Client { peer: 3, flow: 4, ..Default::default() };
        let request = AdmittedRequest { client, ..AdmittedRequest::new(Reply::new(drop)) };
        let job = Job::new(request, ModelVersion::unmetered("m").begin(), 0);
        let arrivals = |in_order| Arrivals::new(PriorityLevels::default(), &[], Wants::default()).in_order(in_order);
        for in_order in [false, true] {
            let described = arrivals(in_order).describe(&job, 0);
            assert_eq!((described.client, described.in_order), (Client { peer: 3, flow: 4 }, in_order));
        }
    }

    #[test]
    fn a_request_gets_the_timeout_of_its_priority_level() {
        let policy = QueuePolicy { timeout_us: 9, allow_override: true, ..QueuePolicy::default() };
        let levels =
            PriorityLevels { count: 2, default_level: 2, policies: [(1, policy)].into(), ..Default::default() };
        let arrival = Arrivals::new(levels, &[], Wants::default()).describe(&job(&[("A", &[3, 1])]), 100);
        assert_eq!((arrival.priority, arrival.rows, arrival.deadline.map(|due| due.at_us)), (1, 3, Some(107)));
        assert!(arrival.spans.is_empty());
    }
}
