//! Which steps read a tensor, and which of them gets a copy?
//!
//! ```text
//!   step 0 ──► tensor ──► step 1   reads it where it lies
//!                   ├───► step 2   reads it there too, if what step 1 writes to its input stays with step 1
//!                   └───► client   gets a copy
//! ```
//! If step 1 could change the tensor, step 2 gets a copy. The copies are made before step 1 starts.

use std::sync::{Arc, OnceLock};

use nerite_backend::Models;
use nerite_memory::{Buffer, Reason, Slot};
use nerite_request::{InputMemory, Status};

use crate::plan::{Plan, Step, TensorIndex};

/// The readers of the tensors of one request.
pub struct Readers {
    plan: Arc<Plan>,
    models: Models,
    /// For each step, the input memory of the instance that it should run on, once it was needed.
    memories: Vec<OnceLock<Option<Arc<dyn InputMemory>>>>,
}

/// A step and its input memory.
type Reader = (usize, Arc<dyn InputMemory>);

/// The memory that a tensor should lie in.
enum Place {
    /// All its readers read it there, except those that get copies when they start.
    Joint(Arc<dyn InputMemory>),
    /// The first reader reads it there. The others get copies.
    First(Reader, Vec<Reader>),
}

/// Copies of a tensor for readers that do not read it where it lies.
#[derive(Debug)]
pub struct Copies {
    for_client: Option<Buffer>,
    for_steps: Vec<(usize, Buffer)>,
}

impl Readers {
    /// The readers for one request. No input memory was needed yet.
    pub fn new(plan: &Arc<Plan>, models: &Models) -> Readers {
        let memories = plan.steps.iter().map(|_| OnceLock::new()).collect();
        Readers { plan: Arc::clone(plan), models: models.clone(), memories }
    }

    /// The input memory that the tensor should be written to. `None` if it must lie elsewhere. `will_run` says which steps run for this request.
    pub fn input_memory(&self, tensor: TensorIndex, will_run: impl Fn(usize) -> bool) -> Option<Arc<dyn InputMemory>> {
        self.place(tensor, will_run).map(|place| Arc::clone(place.memory()))
    }

    /// The copies of a tensor that lies in input memory. `None` if it lies elsewhere.
    pub fn copies(
        &self,
        tensor: TensorIndex,
        data: &Buffer,
        will_run: impl Fn(usize) -> bool,
        is_for_client: bool,
    ) -> Result<Option<Arc<Copies>>, Status> {
        let place = self.place(tensor, will_run).filter(|place| place.memory().can_read(data));
        let others = match &place {
            None => return Ok(None),
            Some(Place::Joint(_)) => &[],
            Some(Place::First(_, others)) => others.as_slice(),
        };
        let no_memory = |refused| Status::no_memory(format_args!("tensor '{}'", self.plan.tensors[tensor]), refused);
        let for_client = is_for_client.then(|| data.try_private(Reason::InlineResponse));
        let copy = |(step, memory): &Reader| {
            let slot = memory.slot(data.len()).map_or_else(|| Slot::try_heap(data.len()), Ok);
            let mut slot = slot.map_err(no_memory)?;
            slot.fill_from(0, data, Reason::ModelProcess).map_err(|error| Status::internal(error.to_string()))?;
            Ok((*step, slot.filled().into_buffer()))
        };
        let for_client = for_client.transpose().map_err(no_memory)?;
        let for_steps = others.iter().map(copy).collect::<Result<_, Status>>()?;
        Ok(Some(Arc::new(Copies { for_client, for_steps })))
    }

    /// Where a tensor should lie. `None` if it must not lie in input memory, or if no reader has any. A reader without input memory can read the
    /// tensor without a copy only where no process can change it.
    fn place(&self, tensor: TensorIndex, will_run: impl Fn(usize) -> bool) -> Option<Place> {
        if !*self.plan.in_input_memory.get(tensor)? {
            return None;
        }
        let step_of = |step: usize| self.plan.steps.get(step);
        let memory = |step: usize| {
            let Step { model, version, .. } = step_of(step)?;
            self.memories.get(step)?.get_or_init(|| self.models.input_memory(model, *version)).clone()
        };
        let steps: Vec<usize> = self.plan.readers[tensor].iter().copied().filter(|step| will_run(*step)).collect();
        let mut readers = steps.iter().filter_map(|step| Some((*step, memory(*step)?)));
        let first = readers.next()?;
        let others: Vec<Reader> = readers.collect();
        let has_all = others.len() + 1 == steps.len();
        // The model that writes the tensor cannot read it in joint memory.
        let writer = self.plan.writers[tensor].and_then(step_of).map(|step| step.model.as_str());
        let is_writer = |(step, _): &Reader| step_of(*step).is_some_and(|step| Some(step.model.as_str()) == writer);
        if steps.len() > 1 && !std::iter::once(&first).chain(&others).all(is_writer) {
            let memories: Vec<_> = others.iter().map(|(_, memory)| Arc::clone(memory)).collect();
            if let Some(joint) = Arc::clone(&first.1).joint(&memories, !has_all) {
                return Some(Place::Joint(joint));
            }
        }
        has_all.then_some(Place::First(first, others))
    }
}

impl Place {
    fn memory(&self) -> &Arc<dyn InputMemory> {
        match self {
            Place::Joint(memory) | Place::First((_, memory), _) => memory,
        }
    }
}

impl Copies {
    /// The copy for the client.
    pub fn for_client(&self) -> Option<&Buffer> {
        self.for_client.as_ref()
    }

    /// The copy for this step.
    pub fn for_step(&self, step: usize) -> Option<&Buffer> {
        self.for_steps.iter().find(|(reader, _)| *reader == step).map(|(_, data)| data)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::{Mutex, Weak};

    use nerite_backend::Infer;
    use nerite_config::ModelConfig;
    use nerite_request::Request;

    use super::*;
    use crate::batch_dimension::BatchDimension;
    use crate::plan::StepInput;

    /// Memory of one instance: the addresses in it that were used, and whether other instances may read them too.
    struct Memory(Mutex<Vec<usize>>, bool);

    impl InputMemory for Memory {
        fn slot(&self, bytes: usize) -> Option<Slot> {
            let mut slot = Slot::heap(bytes);
            self.0.lock().unwrap().push(slot.as_mut_ptr().addr());
            Some(slot)
        }

        fn can_read(&self, output: &Buffer) -> bool {
            self.0.lock().unwrap().contains(&output.as_ptr().addr())
        }

        fn joint(self: Arc<Self>, _: &[Arc<dyn InputMemory>], _: bool) -> Option<Arc<dyn InputMemory>> {
            self.1.then_some(self as _)
        }
    }

    /// Models with input memory, except one whose name is `server`. That of `joint` may be read by others too.
    struct Repository;

    impl Infer for Repository {
        fn infer(&self, _: &str, _: Option<i64>, _: Request) {}

        fn config(&self, _: &str, _: Option<i64>) -> Result<Arc<ModelConfig>, Status> {
            Err(Status::unsupported(""))
        }

        fn input_memory(&self, model: &str, _: Option<i64>) -> Option<Arc<dyn InputMemory>> {
            (model != "server").then(|| Arc::new(Memory(Mutex::default(), model == "joint")) as _)
        }
    }

    /// Which of the steps 0, 1, … with these models get copies of tensor 0, and whether the client does. `None` if it does not lie in input memory.
    #[track_caller]
    fn check(models: &[&str], runs: &[bool], is_for_client: bool, expected: Option<(&[usize], bool)>) {
        let repository: Arc<dyn Infer> = Arc::new(Repository);
        let step = |model: &&str| Step {
            model: (*model).to_owned(),
            inputs: vec![StepInput { name: String::new(), tensor: 0, batch: BatchDimension::Kept }],
            ..Step::default()
        };
        let steps = models.iter().map(step).collect();
        let plan = Plan { tensors: vec!["x".to_owned()], steps, in_input_memory: vec![true], ..Plan::default() };
        let whom: Weak<dyn Infer> = Arc::downgrade(&repository);
        let readers = Readers::new(&Arc::new(plan.linked()), &Models::of(whom));
        let will_run = |step: usize| runs[step];
        let memory = readers.input_memory(0, will_run);
        let mut slot = memory.and_then(|memory| memory.slot(4)).unwrap_or_else(|| Slot::heap(4));
        slot.write(0, b"1234", Reason::Model).unwrap();
        let data = slot.filled().into_buffer();
        let copies = readers.copies(0, &data, will_run, is_for_client).unwrap();
        let found = copies.as_ref().map(|copies| {
            let steps: Vec<usize> = (0..models.len()).filter(|step| copies.for_step(*step).is_some()).collect();
            let each = copies.for_client().into_iter().chain(copies.for_steps.iter().map(|(_, copy)| copy));
            each.for_each(|copy| assert_eq!(copy.private_bytes(), Some(&b"1234"[..])));
            (steps, copies.for_client().is_some())
        });
        let found = found.as_ref().map(|(steps, client)| (steps.as_slice(), *client));
        assert_eq!(found, expected, "{models:?} {runs:?} {is_for_client}");
    }

    #[test]
    fn all_readers_but_one_get_copies() {
        check(&["a"], &[true], false, Some((&[], false)));
        check(&["a"], &[true], true, Some((&[], true)));
        check(&["a", "b", "a"], &[true; 3], false, Some((&[1, 2], false)));
        check(&["a", "b", "c"], &[false, true, true], true, Some((&[2], true)));
        check(&["a", "server"], &[true, false], false, Some((&[], false)));
    }

    #[test]
    fn no_reader_gets_a_copy_of_a_tensor_in_joint_memory() {
        check(&["joint", "a", "joint"], &[true; 3], false, Some((&[], false)));
        check(&["joint", "server"], &[true; 2], true, Some((&[], true)));
        check(&["joint", "a", "b"], &[false, true, true], false, Some((&[2], false)));
    }

    #[test]
    fn a_tensor_lies_elsewhere_if_the_server_reads_it_or_nobody_does() {
        check(&["a", "server"], &[true; 2], false, None);
        check(&["server"], &[true], true, None);
        check(&["a"], &[false], true, None);
    }
}
