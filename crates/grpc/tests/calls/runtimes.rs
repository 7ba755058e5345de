//! Which runtimes do the tests control?

use std::sync::{Arc, Condvar, Mutex};

use nerite_backend::{Batch, Instance, InstanceSpec, Job, LoadContext, Model, Runtime, Times};
use nerite_request::{Parameter, Status};

/// The jobs of the model `held`. Tests decide when they are answered.
#[derive(Clone, Default)]
pub struct Held(Arc<(Mutex<Vec<Job>>, Condvar)>);

impl Held {
    fn hold(&self, job: Job) {
        self.0.0.lock().unwrap().push(job);
        self.0.1.notify_all();
    }

    /// Waits until this many jobs are held.
    #[expect(clippy::disallowed_methods, reason = "the test waits for its own model")]
    pub async fn wait(&self, count: usize) {
        let held = self.clone();
        let wait = move || drop(held.0.1.wait_while(held.0.0.lock().unwrap(), |jobs| jobs.len() < count).unwrap());
        tokio::task::spawn_blocking(wait).await.unwrap();
    }

    fn take(&self, id: &str) -> Job {
        let mut jobs = self.0.0.lock().unwrap();
        let at = jobs.iter().position(|job| job.id() == id).unwrap();
        jobs.remove(at)
    }

    /// Answers the job `id`.
    pub fn answer(&self, id: &str) {
        answer(self.take(id), Ok(()));
    }

    /// Fails the job `id`.
    pub fn fail(&self, id: &str, why: Status) {
        answer(self.take(id), Err(why));
    }

    /// Whether the job `id` was cancelled.
    pub fn is_cancelled(&self, id: &str) -> bool {
        self.0.0.lock().unwrap().iter().any(|job| job.id() == id && job.is_cancelled())
    }
}

fn answer(mut job: Job, result: Result<(), Status>) {
    let input = job.inputs()[0].clone();
    job.put_buffer("OUT", input.datatype, input.shape, input.data);
    job.finish(result, Times::begin());
}

impl Runtime for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, _: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(self.clone()))
    }
}

impl Model for Held {
    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(self.clone()))
    }
}

impl Instance for Held {
    fn run(&mut self, batch: Batch) {
        batch.jobs.into_iter().for_each(|job| self.hold(job));
    }
}

/// Answers as often as the parameter `count` says, then ends without tensors.
#[derive(Clone, Copy)]
pub struct Repeat;

impl Runtime for Repeat {
    fn name(&self) -> &'static str {
        "repeat"
    }

    fn engine(&self) -> String {
        "a test".into()
    }

    fn load(&self, _: &LoadContext) -> Result<Arc<dyn Model>, Status> {
        Ok(Arc::new(Repeat))
    }
}

impl Model for Repeat {
    fn instance(&self, _: &InstanceSpec) -> Result<Box<dyn Instance>, Status> {
        Ok(Box::new(Repeat))
    }
}

impl Instance for Repeat {
    fn run(&mut self, batch: Batch) {
        for job in batch.jobs {
            let count = match job.parameters().get("count") {
                Some(Parameter::Int(count)) => *count,
                _ => 1,
            };
            let times = job.begin();
            let (inputs, mut responder) = job.divide();
            for _ in 0..count {
                let tensor = inputs[0].clone();
                responder.put_buffer("OUT", tensor.datatype, tensor.shape, tensor.data);
                responder.send().unwrap();
            }
            responder.end(times);
        }
    }
}
