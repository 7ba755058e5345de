//! Where does the server place tensors that are not in a client's memory, so that a model's process can access them?

mod joint;

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use nerite_backend::Responder;
use nerite_locks::Mutex;
use nerite_memory::{Buffer, Extent, Reason, Share, Slot};
use nerite_request::limits::SHARED_BYTES_MIN;
use nerite_request::{InputMemory, OutputKey, Status};
use nerite_shm::{Account, LEASES_PER_SESSION_MAX, Lease, LeaseError, Pools};

use self::joint::{JointInput, JointInputs, numbers_of};
use crate::limits::{KEPT_SHARE, KEPT_TIMES_MAX, READER_SETS_MAX, TENSOR_ALIGN};
use crate::passed_on::{self, Sharers};

/// The memory of one instance. It is reused by later requests, and returned to the system when it is idle.
pub struct Blocks {
    pools: Arc<Pools>,
    account: Arc<Account>,
    sharers: Sharers,
    /// Whether the process of the instance is confined to a sandbox.
    is_confined: bool,
    /// Memory for outputs of this instance that other instances read.
    for_readers: Mutex<Vec<ForReaders>>,
    /// Memory for inputs of this instance and others.
    joint: JointInputs,
}

/// Memory for outputs that certain other instances read.
struct ForReaders {
    readers: Vec<Weak<Blocks>>,
    blocks: Arc<Blocks>,
}

/// A block of an instance's memory. It is free again when all clones of this value and all Buffers over the block are dropped.
#[derive(Clone)]
pub(crate) struct Block {
    lease: Arc<Lease>,
    may_be_kept: bool,
    sharers: Sharers,
}

impl Blocks {
    /// Memory of a new instance, without blocks.
    pub fn new(pools: &Arc<Pools>) -> Blocks {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Blocks::shared_by(pools, Sharers::only(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The same memory. `is_confined`: whether the process of the instance is confined to a sandbox.
    #[must_use]
    pub fn confined(mut self, is_confined: bool) -> Blocks {
        self.is_confined = is_confined;
        self
    }

    fn shared_by(pools: &Arc<Pools>, sharers: Sharers) -> Blocks {
        Blocks {
            pools: Arc::clone(pools),
            account: pools.open(),
            sharers,
            is_confined: false,
            for_readers: Mutex::default(),
            joint: JointInputs::default(),
        }
    }

    /// The number of the instance, unique in this process. 0 if the memory belongs to none.
    pub(crate) fn instance(&self) -> u64 {
        self.sharers.owner.unwrap_or_default()
    }

    /// Whether the process may read memory that other instances read too. A process in a sandbox may not, because it could
    /// map the memory again with write access.
    fn reads_jointly(&self) -> bool {
        !self.is_confined
    }

    /// A block for an output of `bytes` bytes that the process of this instance writes. If other instances read the
    /// output next, the block lies in memory that only this instance and those readers ever use.
    pub(crate) fn take_for_output(
        &self,
        responder: &Responder,
        output: impl OutputKey,
        bytes: usize,
    ) -> Result<Block, Status> {
        let Some(shared) = self.shared_with_readers(responder, output, bytes) else { return self.take(bytes) };
        let block = shared.take(bytes)?;
        // The sharers are noted before the process gets the block, so that no process of other instances ever gets it.
        passed_on::note(&block.buffer(), block.sharers());
        Ok(block)
    }

    /// Memory that this instance shares with those that read the output next.
    fn shared_with_readers(&self, responder: &Responder, output: impl OutputKey, bytes: usize) -> Option<Arc<Blocks>> {
        if bytes < SHARED_BYTES_MIN {
            return None;
        }
        let memory: Arc<dyn Any + Send + Sync> = responder.input_memory(output)?;
        let (readers, is_joint) = match memory.downcast::<Blocks>() {
            Ok(reader) => (vec![reader], false),
            Err(memory) => (memory.downcast::<JointInput>().ok()?.readers()?, true),
        };
        if readers.iter().all(|reader| reader.instance() == self.instance()) {
            return None;
        }
        // If outputs may not be kept in that memory, the output is copied anyway, so the memory has no use.
        self.shared_with(&readers, is_joint).filter(|shared| shared.may_be_kept())
    }

    /// `None` if outputs of this instance have too many different sets of readers.
    fn shared_with(&self, readers: &[Arc<Blocks>], is_joint: bool) -> Option<Arc<Blocks>> {
        let sharers = Sharers { owner: Some(self.instance()), readers: numbers_of(readers), is_joint };
        let mut all = self.for_readers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|known| known.blocks.sharers == sharers) {
            return Some(Arc::clone(&known.blocks));
        }
        all.retain(|known| known.readers.iter().all(|reader| reader.strong_count() > 0));
        if all.len() >= READER_SETS_MAX {
            return None;
        }
        let blocks = Arc::new(Blocks::shared_by(&self.pools, sharers));
        all.push(ForReaders { readers: readers.iter().map(Arc::downgrade).collect(), blocks: Arc::clone(&blocks) });
        Some(blocks)
    }

    /// A block of at least this many bytes.
    pub(crate) fn take(&self, bytes: usize) -> Result<Block, Status> {
        // The notices are not needed: the memory itself tells the process when it is returned to the system.
        drop(self.account.take_forgotten());
        let lease = self.account.take(bytes.max(1) as u64).map_err(|refused| self.full(bytes, &refused))?;
        // It is put back to the free list at once. The list does not give out memory that is still referenced.
        self.account.put_back(&lease);
        Ok(Block { lease, may_be_kept: self.may_be_kept(), sharers: self.sharers.clone() })
    }

    /// Whether so little memory is in use that outputs may stay in it after their requests.
    fn may_be_kept(&self) -> bool {
        // All instances take their memory from the same pools.
        let ((leases, _), (used, bytes_max)) = (self.account.used(), self.account.used_by_all());
        leases <= LEASES_PER_SESSION_MAX as u64 / KEPT_SHARE && used <= bytes_max / KEPT_SHARE
    }

    fn full(&self, bytes: usize, refused: &LeaseError) -> Status {
        // The original text is about sessions and their flags, which do not apply here.
        let (_, used) = self.account.used();
        let why = match refused {
            LeaseError::System { cause, .. } => cause.clone(),
            _ => {
                format!(
                    "{used} are in use of {}, half of the host's or the control group's memory",
                    self.account.bytes_max()
                )
            }
        };
        Status::unavailable(format!(
            "no memory to share {bytes} bytes with the model's process: {why}; send less at once, or place tensors in shared memory"
        ))
    }

    /// Copies these buffers to one block, each aligned. Returns the block and the offset of each.
    pub(crate) fn gather(&self, buffers: &[&Buffer]) -> Result<(Block, Vec<usize>), Status> {
        let mut total = 0usize;
        let offsets: Vec<usize> = buffers
            .iter()
            .map(|buffer| {
                let at = total;
                total = (total + buffer.len()).next_multiple_of(TENSOR_ALIGN);
                at
            })
            .collect();
        let block = self.take(total)?;
        let mut slot = block.slot();
        for (buffer, at) in buffers.iter().zip(&offsets) {
            slot.fill_from(*at, buffer, Reason::ModelProcess).map_err(|error| Status::internal(error.to_string()))?;
        }
        Ok((block, offsets))
    }
}

/// Memory for inputs of this instance alone.
impl InputMemory for Blocks {
    fn slot(&self, bytes: usize) -> Option<Slot> {
        if !self.may_be_kept() {
            return None;
        }
        let block = self.take(bytes).ok().filter(|block| block.may_keep(bytes))?;
        passed_on::note(&block.buffer(), block.sharers());
        block.slot_of(bytes)
    }

    fn can_read(&self, output: &Buffer) -> bool {
        passed_on::sharers(output).is_some_and(|sharers| sharers.may_read(self.instance()))
    }

    fn joint(self: Arc<Self>, others: &[Arc<dyn InputMemory>], read_here: bool) -> Option<Arc<dyn InputMemory>> {
        JointInput::of(self, others, read_here)
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        self.account.close();
    }
}

impl Block {
    /// Its size in bytes.
    pub(crate) fn byte_size(&self) -> usize {
        self.lease.byte_size()
    }

    /// Whether an output of `bytes` bytes in it may stay there after its request. A small one would hold all of the block.
    pub(crate) fn may_keep(&self, bytes: usize) -> bool {
        self.may_be_kept && self.byte_size() <= bytes.saturating_mul(KEPT_TIMES_MAX)
    }

    /// The instances whose processes may map it.
    pub(crate) fn sharers(&self) -> Sharers {
        self.sharers.clone()
    }

    /// Its number in the model's process.
    pub(crate) fn segment(&self) -> u64 {
        self.lease.mark().number()
    }

    /// The whole block, for reading.
    pub(crate) fn buffer(&self) -> Buffer {
        self.lease.buffer(Extent::whole(self.lease.byte_size()))
    }

    /// Its first bytes, for writing.
    pub(crate) fn slot_of(&self, bytes: usize) -> Option<Slot> {
        Some(self.lease.slot(Extent::new(0, bytes, self.lease.byte_size()).ok()?))
    }

    fn slot(&self) -> Slot {
        self.lease.slot(Extent::whole(self.lease.byte_size()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nerite_memory::copied_bytes;
    use nerite_request::{Deliver, Reply};
    use nerite_shm::LeaseLimits;

    use super::*;
    use crate::plan::tests::{job, wanted};

    #[test]
    fn a_block_is_reused_once_it_is_not_referenced() {
        let blocks = Blocks::new(&Pools::new(LeaseLimits::default()));
        let at = |block: &Block| block.buffer().as_ptr().addr();
        let first = blocks.take(100).unwrap();
        let held = first.buffer();
        let second = blocks.take(100).unwrap();
        assert_ne!(at(&first), at(&second));
        let place = at(&first);
        drop(first);
        let third = blocks.take(100).unwrap();
        assert_ne!(at(&third), place, "a buffer holds it");
        drop((held, second, third));
        let again: Vec<_> = (0..3).map(|_| blocks.take(100).unwrap()).collect();
        assert!(again.iter().any(|block| at(block) == place));
    }

    #[test]
    fn most_of_the_memory_is_not_kept() {
        let pools = Pools::new(LeaseLimits { bytes_max: 1 << 20, session_bytes_max: 1 << 20 });
        let blocks = Blocks::new(&pools);
        let held: Vec<Block> = (0..64).map(|_| blocks.take(4096).unwrap()).collect();
        let kept = held.iter().filter(|block| block.may_keep(4096)).count();
        assert_eq!(kept as u64, (1 << 20) / KEPT_SHARE / 4096, "a share of a mebibyte, in pages");
        assert!(!held.last().unwrap().may_keep(4096));
    }

    #[test]
    fn instances_share_what_may_be_kept() {
        let pools = Pools::new(LeaseLimits { bytes_max: 1 << 20, session_bytes_max: 1 << 20 });
        let instances: Vec<Blocks> = (0..4).map(|_| Blocks::new(&pools)).collect();
        let held: Vec<Block> = (0..64).map(|at| instances[at % 4].take(4096).unwrap()).collect();
        let kept = held.iter().filter(|block| block.may_keep(4096)).count();
        assert_eq!(kept as u64, (1 << 20) / KEPT_SHARE / 4096);
    }

    #[test]
    fn a_small_part_of_a_block_is_not_kept() {
        let blocks = Blocks::new(&Pools::new(LeaseLimits::default()));
        let block = blocks.take(1 << 16).unwrap();
        let half = block.byte_size() / KEPT_TIMES_MAX;
        assert!(block.may_keep(half) && !block.may_keep(half - 1));
        let part = block.buffer().slice(Extent::new(0, half, block.byte_size()).unwrap());
        assert_eq!(part.held_bytes(), block.byte_size(), "as much is charged for it");
    }

    /// A reply to an ensemble, which names the instance that reads the output.
    struct ReadBy(Arc<Blocks>);

    impl Deliver for ReadBy {
        fn deliver(&mut self, _: nerite_request::Response) {}

        fn input_memory(&self, output: usize) -> Option<Arc<dyn InputMemory>> {
            (output == 0).then(|| Arc::clone(&self.0) as _)
        }
    }

    /// The block for an output that this instance writes and that one reads.
    fn output_block(writer: &Blocks, reader: &Arc<Blocks>, output: &str, bytes: usize) -> Block {
        let outputs = ["x", "y"].map(|name| wanted(name, None)).into();
        let job = job(Vec::new(), outputs, Reply::through(ReadBy(Arc::clone(reader))));
        writer.take_for_output(job.responder(), output, bytes).unwrap()
    }

    #[test]
    fn an_output_lies_where_only_its_writer_and_its_reader_have_access() {
        let pools = Pools::new(LeaseLimits::default());
        let [writer, reader, other] = [(); 3].map(|()| Arc::new(Blocks::new(&pools)));
        let check = |reader: &Arc<Blocks>, output: &str, bytes: usize, expect: [bool; 3]| {
            let sharers = output_block(&writer, reader, output, bytes).sharers();
            assert_eq!(
                [&writer, reader, &other].map(|blocks| sharers.may_read(blocks.instance())),
                expect,
                "{output} {bytes}"
            );
        };
        check(&reader, "x", SHARED_BYTES_MIN, [true, true, false]);
        check(&reader, "x", SHARED_BYTES_MIN - 1, [true, false, false]);
        check(&reader, "y", SHARED_BYTES_MIN, [true, false, false]);
        check(&writer, "x", SHARED_BYTES_MIN, [true, true, false]);
        assert_eq!(output_block(&writer, &writer, "x", SHARED_BYTES_MIN).sharers(), Sharers::only(writer.instance()));
    }

    #[test]
    fn memory_of_two_instances_is_reused_for_these_two_alone() {
        let pools = Pools::new(LeaseLimits::default());
        let [writer, reader, other] = [(); 3].map(|()| Arc::new(Blocks::new(&pools)));
        let bytes = SHARED_BYTES_MIN;
        let shared = output_block(&writer, &reader, "x", bytes).segment();
        let others = [
            output_block(&writer, &other, "x", bytes),
            output_block(&reader, &writer, "x", bytes),
            writer.take(bytes).unwrap(),
            reader.take(bytes).unwrap(),
        ];
        assert!(others.iter().all(|block| block.segment() != shared));
        let again = output_block(&writer, &reader, "x", bytes);
        assert_eq!(again.segment(), shared);
        assert_eq!(passed_on::sharers(&again.buffer()), Some(again.sharers()), "other processes never get it");
    }

    #[test]
    fn memory_for_a_reader_goes_with_it() {
        let pools = Pools::new(LeaseLimits::default());
        let writer = Blocks::new(&pools);
        for _ in 0..3 {
            output_block(&writer, &Arc::new(Blocks::new(&pools)), "x", SHARED_BYTES_MIN);
            assert_eq!(writer.for_readers.lock().unwrap().len(), 1);
        }
        drop(writer);
        assert_eq!(pools.counts().leases, 0);
    }

    #[test]
    fn what_a_reader_holds_takes_no_memory_from_the_writer_beyond_a_share() {
        let pools = Pools::new(LeaseLimits { bytes_max: 1 << 20, session_bytes_max: 1 << 20 });
        let [writer, reader] = [(); 2].map(|()| Arc::new(Blocks::new(&pools)));
        let held: Vec<Block> = (0..32).map(|_| output_block(&writer, &reader, "x", SHARED_BYTES_MIN)).collect();
        let shared = held.iter().filter(|block| block.sharers().may_read(reader.instance())).count();
        assert_eq!(shared as u64, (1 << 20) / KEPT_SHARE / SHARED_BYTES_MIN as u64 + 1);
        assert!(!held.last().unwrap().sharers().may_read(reader.instance()));
    }

    #[test]
    fn input_memory_is_noted_as_that_of_its_instance_while_little_is_in_use() {
        let pools = Pools::new(LeaseLimits { bytes_max: 1 << 20, session_bytes_max: 1 << 20 });
        let blocks = Blocks::new(&pools);
        let held: Vec<Slot> = std::iter::from_fn(|| blocks.slot(4096)).take(64).collect();
        assert_eq!(held.len() as u64, (1 << 20) / KEPT_SHARE / 4096);
        for slot in held {
            let input = slot.filled().into_buffer();
            assert_eq!(passed_on::sharers(&input), Some(Sharers::only(blocks.instance())));
        }
        pools.trim(0);
        assert!(blocks.slot(4096).is_some());
    }

    #[test]
    fn gathered_buffers_are_aligned_and_their_copies_counted() {
        let blocks = Blocks::new(&Pools::new(LeaseLimits::default()));
        let (a, b) = (Buffer::from(vec![1u8; 65]), Buffer::from(vec![2u8; 3]));
        let before = copied_bytes(Reason::ModelProcess);
        let (block, offsets) = blocks.gather(&[&a, &Buffer::empty(), &b]).unwrap();
        assert_eq!(offsets, [0, 128, 128]);
        assert!(copied_bytes(Reason::ModelProcess) - before >= 68);
        let bytes = block.buffer().to_private(Reason::Model);
        assert_eq!(&bytes.private_bytes().unwrap()[..3], [1, 1, 1]);
        assert_eq!(&bytes.private_bytes().unwrap()[128..131], [2, 2, 2]);
    }

    #[test]
    fn more_than_there_may_be_is_refused_by_number() {
        let pools = Pools::new(LeaseLimits { bytes_max: 4096, session_bytes_max: 4096 });
        let refused = Blocks::new(&pools).take(5000).err().unwrap();
        let text = "no memory to share 5000 bytes with the model's process: 0 are in use of 4096, ";
        assert!(refused.message.starts_with(text), "{refused}");
    }
}
