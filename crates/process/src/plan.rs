//! How is the packet of a batch built for a model's process?

use std::collections::HashMap;
use std::sync::Arc;

use nerite_backend::{Job, Responder};
use nerite_locks::Mutex;
use nerite_memory::{Buffer, Slot};
use nerite_request::Status;
use nerite_tensor::{Name, Tensor};

use crate::blocks::{Block, Blocks};
use crate::packets::{BatchPacket, OutputMemory, Request, SegmentOffset, TensorAt};
use crate::passed_on;
use crate::shares::{Maps, Shares};

/// The size of each output in the last response, by its name.
pub(crate) type Sizes = Arc<Mutex<HashMap<String, usize>>>;

/// One request that the process has, and the memory of its tensors.
pub(crate) struct Planned {
    /// Its number.
    pub(crate) number: u64,
    pub(crate) job: Job,
    /// Inputs that were copied to memory that the process can access.
    pub(crate) inputs: Option<Block>,
    pub(crate) targets: Vec<OutputTarget>,
}

impl Planned {
    /// Memory of the server with tensors of the request, and memory that its outputs had before.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &Block> {
        let kinds = self.targets.iter().flat_map(|target| target.former.iter().chain([&target.kind]));
        self.inputs.iter().chain(kinds.filter_map(Kind::block))
    }
}

/// The memory for an output.
pub(crate) struct OutputTarget {
    /// Its index in the model's configuration.
    pub(crate) index: usize,
    pub(crate) name: Name,
    pub(crate) location: Option<SegmentOffset>,
    /// Its capacity in bytes.
    pub(crate) capacity: usize,
    pub(crate) kind: Kind,
    /// Memory that it had before, which the process may still write to.
    former: Vec<Kind>,
}

impl OutputTarget {
    /// Replaces the memory by this.
    pub(crate) fn replace(&mut self, location: SegmentOffset, capacity: usize, kind: Kind) {
        let former = std::mem::replace(&mut self.kind, kind);
        if !matches!(former, Kind::Unknown) {
            self.former.push(former);
        }
        (self.location, self.capacity) = (Some(location), capacity);
    }

    /// The memory in the form for the packet.
    pub(crate) fn memory(&self) -> OutputMemory<'_> {
        let OutputTarget { name, location, capacity, kind, .. } = self;
        OutputMemory { name, location: *location, capacity: *capacity, fixed: matches!(kind, Kind::Client) }
    }
}

/// The kind of memory.
pub(crate) enum Kind {
    /// The client's memory, whose slot the job has.
    Client,
    /// Memory that the request's reply offered, once the size was known.
    Offered(Slot),
    /// The server's memory. The output is sent or copied from there.
    Block(Block),
    /// Not known yet. The process will ask.
    Unknown,
}

impl Kind {
    fn block(&self) -> Option<&Block> {
        match self {
            Kind::Block(block) => Some(block),
            _ => None,
        }
    }
}

/// The state of building a packet.
pub(crate) struct Planner<'a> {
    pub(crate) shares: &'a Arc<Shares>,
    pub(crate) blocks: &'a Blocks,
    /// The size of each output in the last response.
    pub(crate) sizes: &'a HashMap<String, usize>,
    pub(crate) maps: Maps,
    /// Whether the model may use inputs after it has read the batch.
    pub(crate) is_decoupled: bool,
    /// The requests so far.
    pub(crate) packet: BatchPacket,
    /// Where inputs of these requests lie in memory that the process maps privately.
    pub(crate) private_inputs: Vec<SegmentOffset>,
}

impl Planner<'_> {
    /// Adds a request with this number, or returns it with the reason.
    // The error contains the whole job, but it is rare.
    #[allow(clippy::result_large_err)]
    pub(crate) fn add(&mut self, number: u64, job: Job) -> Result<Planned, (Job, Status)> {
        let (inputs, block) = match self.inputs(job.inputs()) {
            Ok(placed) => placed,
            Err(status) => return Err((job, status)),
        };
        let targets = self.targets(job.responder());
        self.write(number, &job, &inputs, &targets);
        Ok(Planned { number, job, inputs: block, targets })
    }

    /// The segment and offset of each input. Inputs that the process cannot access are copied to a block.
    fn inputs(&mut self, inputs: &[Tensor]) -> Result<(Vec<Option<SegmentOffset>>, Option<Block>), Status> {
        let mut location = |input: &Tensor| {
            // Memory of other instances is reused for requests that this process must not see. A decoupled model may
            // use its inputs until it drops the request, and the server holds only memory that it took for these inputs
            // for that long. In both cases the input is copied.
            let Some(sharers) = passed_on::sharers(&input.data) else {
                return self.shares.location(input.data.share(), &mut self.maps);
            };
            if self.is_decoupled || !sharers.may_read(self.blocks.instance()) {
                return None;
            }
            if !sharers.is_joint {
                return self.shares.location(input.data.share(), &mut self.maps);
            }
            let location = self.shares.private_location(input.data.share(), &mut self.maps)?;
            // Another request of the batch would read what the model wrote to this one's input.
            let is_first = !self.private_inputs.contains(&location);
            self.private_inputs.push(location);
            is_first.then_some(location)
        };
        let mut locations: Vec<Option<SegmentOffset>> = inputs.iter().map(&mut location).collect();
        let apart = |(location, input): (&Option<SegmentOffset>, &Tensor)| location.is_none() && !input.data.is_empty();
        let copied: Vec<usize> =
            locations.iter().zip(inputs).enumerate().filter(|(_, pair)| apart(*pair)).map(|(at, _)| at).collect();
        if copied.is_empty() {
            return Ok((locations, None));
        }
        let buffers: Vec<&Buffer> = copied.iter().filter_map(|at| inputs.get(*at)).map(|input| &input.data).collect();
        let (block, offsets) = self.blocks.gather(&buffers)?;
        let base = self.block_location(&block)?;
        for (at, offset) in copied.into_iter().zip(offsets) {
            if let Some(location) = locations.get_mut(at) {
                *location = Some(SegmentOffset { offset: base.offset + offset, ..base });
            }
        }
        Ok((locations, Some(block)))
    }

    fn block_location(&mut self, block: &Block) -> Result<SegmentOffset, Status> {
        let location = self.shares.location(block.buffer().share(), &mut self.maps);
        location.ok_or_else(|| {
            Status::unavailable(
                "the model's process cannot be given more memory: the server has no descriptor left; \
                                 raise its limit on open files",
            )
        })
    }

    /// The memory for each output that is wanted.
    pub(crate) fn targets(&mut self, responder: &Responder) -> Vec<OutputTarget> {
        let wanted = responder.wanted_outputs().indexed();
        wanted.map(|(index, wanted)| self.target(responder, index, &wanted.name)).collect()
    }

    /// The client's own memory, or memory of the size that was enough last time, or none.
    fn target(&mut self, responder: &Responder, index: usize, name: &Name) -> OutputTarget {
        let named = |location, capacity, kind| OutputTarget {
            index,
            name: name.clone(),
            location,
            capacity,
            kind,
            former: Vec::new(),
        };
        if let Some(slot) = responder.output_slot(index)
            && let Some(location) = self.shares.location(slot.share(), &mut self.maps)
        {
            return named(Some(location), slot.len(), Kind::Client);
        }
        // If the process cannot access the client's memory, a block is used instead.
        if (responder.output_slot(index).is_some() || !responder.offers_places())
            && let Some(size) = self.sizes.get(name.as_str())
            && let Ok(block) = self.blocks.take_for_output(responder, index, *size)
            && let Ok(location) = self.block_location(&block)
        {
            return named(Some(location), block.byte_size(), Kind::Block(block));
        }
        named(None, 0, Kind::Unknown)
    }

    /// Writes the request.
    fn write(&mut self, number: u64, job: &Job, locations: &[Option<SegmentOffset>], targets: &[OutputTarget]) {
        let inputs = job.inputs().iter().zip(locations).map(|(input, location)| {
            let Tensor { name, datatype, shape, data } = input;
            TensorAt { name, datatype: *datatype, shape: shape.as_slice(), location: *location, bytes: data.len() }
        });
        let trace = job.responder().trace().and_then(|trace| trace.context());
        let request = Request {
            number,
            id: job.id(),
            rows: job.rows(),
            sequence: job.sequence(),
            timeout_us: job.timeout_us(),
            parameters: job.parameters(),
            inputs,
            outputs: targets.iter().map(OutputTarget::memory),
            must_wait: job.responder().has_run_before(),
            trace: trace.as_ref(),
            own: Some(job.own_wanted().count()).filter(|own| *own < targets.len()),
        };
        self.packet.add(&request);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use nerite_backend::ModelVersion;
    use nerite_memory::Extent;
    use nerite_request::{
        AdmittedRequest, Cancel, Client, Deliver, Parameter, Parameters, Reply, Sequence, SequenceId, Wanted,
    };
    use nerite_shm::{LeaseLimits, Pools};
    use nerite_tensor::{DataType, Shape};
    use serde_json::Value;

    use super::*;
    use crate::channel::Channel;
    use crate::passed_on::Sharers;

    /// The shares and the memory of an instance, without a process at the other end of the channel.
    pub(crate) fn nobody() -> (Arc<Shares>, Blocks) {
        let (ours, theirs) = Channel::pair().unwrap();
        // The other end stays open. Otherwise every packet would fail.
        std::mem::forget(theirs);
        (Shares::new(Arc::new(ours), true), Blocks::new(&Pools::new(LeaseLimits::default())))
    }

    pub(crate) fn job(inputs: Vec<Tensor>, wanted: Vec<Wanted>, reply: Reply) -> Job {
        job_of(Client::default(), inputs, wanted, reply)
    }

    pub(crate) fn job_of(client: Client, inputs: Vec<Tensor>, wanted: Vec<Wanted>, reply: Reply) -> Job {
        let mut parameters = Parameters::new();
        parameters.insert("key", Parameter::String("\"value\"".into()));
        let sequence = Sequence { id: SequenceId::Number(7), start: true, end: false };
        let (id, cancel) = ("i\u{e9}".to_owned(), Cancel::new());
        let request = AdmittedRequest {
            id: id.into(),
            inputs: inputs.into(),
            wanted: wanted.into(),
            timeout_us: 5,
            sequence,
            parameters,
            client,
            ..AdmittedRequest::cancelled_by(cancel, reply)
        };
        Job::new(request, ModelVersion::unmetered("m").begin(), 1)
    }

    pub(crate) fn plan(
        job: Job,
        shares: &Arc<Shares>,
        blocks: &Blocks,
        sizes: &HashMap<String, usize>,
    ) -> (Planned, Value, usize) {
        let (maps, packet) = (Maps::default(), BatchPacket::new(false));
        let mut planner =
            Planner { shares, blocks, sizes, maps, is_decoupled: false, packet, private_inputs: Vec::new() };
        let planned = planner.add(3, job).map_err(|(_, status)| status).unwrap();
        let BatchPacket::Text(packet) = planner.packet else { panic!("asked for text") };
        (planned, serde_json::from_str(&packet).unwrap(), planner.maps.descriptors.len())
    }

    pub(crate) fn wanted(name: &str, slot: Option<Slot>) -> Wanted {
        Wanted { name: name.into(), slot }
    }

    #[test]
    fn a_request_is_sent_with_its_tensors_where_they_lie() {
        let (shares, blocks) = nobody();
        let lease = Pools::new(LeaseLimits::default()).open().take(4096).unwrap();
        let part = |at, len| Extent::new(at, len, 4096).unwrap();
        let tensor = |name: &str, data: Buffer| Tensor {
            name: name.into(),
            datatype: DataType::Uint8,
            shape: Shape::from_slice(&[data.len() as i64]),
            data,
        };
        let inputs = vec![
            tensor("lent", lease.buffer(part(64, 8))),
            tensor("sent", Buffer::from(vec![1u8; 3])),
            tensor("none", Buffer::empty()),
        ];
        let outputs =
            vec![wanted("placed", Some(lease.slot(part(128, 16)))), wanted("known", None), wanted("new", None)];
        let sizes = HashMap::from([("known".to_owned(), 100)]);
        let job = job(inputs, outputs, Reply::new(|_| ()));
        let (planned, packet, maps) = plan(job, &shares, &blocks, &sizes);
        let segment = lease.buffer(part(0, 1)).share().unwrap().share.mark().number();
        let [gathered, known] = [&packet["inputs"][1][3], &packet["outputs"][1][1]];
        let expect = serde_json::json!({
            "number": 3, "id": "i\u{e9}", "rows": 1, "correlation": 7, "flags": 1, "timeout": 5,
            "parameters": {"key": "\"value\""},
            "inputs": [
                ["lent", "UINT8", [8], segment, 64, 8],
                ["sent", "UINT8", [3], gathered, 0, 3],
                ["none", "UINT8", [0], null, 0, 0],
            ],
            "outputs": [["placed", segment, 128, 16, true], ["known", known, 0, 4096, false], ["new", null, 0, 0, false]],
        });
        assert_eq!(packet, expect);
        assert_eq!(maps, 3, "the lease, the inputs' block and that of the known output");
        planned.job.finish(Ok(()), nerite_backend::Times::begin());
    }

    #[test]
    fn memory_that_an_output_had_before_is_the_requests_too() {
        let (shares, blocks) = nobody();
        let sizes = HashMap::from([("x".to_owned(), 100)]);
        let job = job(Vec::new(), vec![wanted("x", None)], Reply::new(|_| ()));
        let (mut planned, packet, _) = plan(job, &shares, &blocks, &sizes);
        let larger = blocks.take(10_000).unwrap();
        let (number, capacity) = (larger.segment(), larger.byte_size());
        for target in &mut planned.targets {
            target.replace(SegmentOffset { segment: number, offset: 0 }, capacity, Kind::Block(larger.clone()));
        }
        let found: Vec<u64> = planned.blocks().map(Block::segment).collect();
        assert_eq!(serde_json::json!(found), serde_json::json!([packet["outputs"][0][1], number]));
        planned.job.finish(Ok(()), nerite_backend::Times::begin());
    }

    #[test]
    fn a_process_is_lent_no_memory_of_other_instances() {
        let (shares, blocks) = nobody();
        let other = Blocks::new(&Pools::new(LeaseLimits::default()));
        let sharers = |owner, readers: &[u64], is_joint| Sharers { owner, readers: readers.into(), is_joint };
        let (mine, foreign) = (blocks.instance(), other.instance());
        for (sharers, is_lent) in [
            (Sharers::only(mine), true),
            (sharers(Some(foreign), &[mine], false), true),
            (sharers(Some(mine), &[foreign], false), true),
            (Sharers::only(foreign), false),
            (sharers(Some(foreign), &[mine], true), true),
            (sharers(None, &[mine, foreign], true), true),
            // This instance writes there, so it could change what the other one reads.
            (sharers(Some(mine), &[mine, foreign], true), false),
            (sharers(None, &[foreign], true), false),
        ] {
            let block = other.take(100).unwrap();
            let data = block.buffer();
            passed_on::note(&data, sharers);
            let shape = Shape::from_slice(&[data.len() as i64]);
            let input = Tensor { name: "x".into(), datatype: DataType::Uint8, shape, data };
            let job = job(vec![input], Vec::new(), Reply::new(|_| ()));
            let (planned, packet, _) = plan(job, &shares, &blocks, &HashMap::new());
            assert_eq!(packet["inputs"][0][3] == block.segment(), is_lent);
            assert_eq!(planned.inputs.is_some(), !is_lent, "it is copied");
            planned.job.finish(Ok(()), nerite_backend::Times::begin());
        }
    }

    /// A reply that may offer memory for an output once its size is known.
    struct Offering;

    impl Deliver for Offering {
        fn deliver(&mut self, _: nerite_request::Response) {}

        fn offers_places(&self) -> bool {
            true
        }
    }

    #[test]
    fn an_output_whose_place_depends_on_its_size_is_not_guessed() {
        let (shares, blocks) = nobody();
        let sizes = HashMap::from([("x".to_owned(), 100)]);
        let reply = Reply::through(Offering);
        let (_planned, packet, _) = plan(job(Vec::new(), vec![wanted("x", None)], reply), &shares, &blocks, &sizes);
        assert_eq!(packet["outputs"], serde_json::json!([["x", null, 0, 0, false]]));
    }
}
