//! How is a process's answer turned into the responses of its requests?

use std::collections::HashMap;
use std::sync::Arc;

use nerite_backend::Responder;
use nerite_memory::{Buffer, Extent, Reason, SharedWindow, count_copied};
use nerite_request::Status;
use nerite_request::limits::SHARED_BYTES_MIN;
use nerite_tensor::{DataType, Shape, Tensor, byte_size, element_count, strings};

use crate::blocks::Blocks;
use crate::packets::{Need, NoMemoryFound, OutputSpace, Response, SegmentOffset, TensorAt};
use crate::passed_on;
use crate::plan::{Kind, OutputTarget, Planned};
use crate::shares::{Maps, Shares};

/// How one request ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// With outputs.
    Done,
    /// With an error that the model set.
    Said(Status),
    /// Without an answer that can be used.
    Failed(Status),
    /// It has not ended: it is to run again.
    Again,
}

/// Counts copies of tensors that the process made, as if the server had made them.
pub(crate) fn note_copied(copied: impl Iterator<Item = (Reason, u64)>) {
    for (reason, bytes) in copied {
        count_copied(reason, bytes as usize);
    }
}

/// Moves one response to its request. `sizes` gets the sizes of outputs that were placed in the server's memory.
pub(crate) fn settle(
    responder: &mut Responder,
    targets: &mut Vec<OutputTarget>,
    response: Option<&Response>,
    sizes: &mut HashMap<String, usize>,
) -> Ended {
    let Some(response) = response else { return Ended::Failed(unreadable("there is none for this request")) };
    if let Some(error) = response.error() {
        return Ended::Said(error);
    }
    if let Some(failed) = response.failed() {
        // An invalid state is ignored.
        response.states().flatten().for_each(|state| drop(keep_state(responder, targets, state)));
        return Ended::Failed(failed);
    }
    if response.is_again() {
        return Ended::Again;
    }
    if response.is_later() {
        return Ended::Failed(unreadable("a response comes later that was to come now"));
    }
    if let Some(parameters) = response.parameters() {
        responder.set_parameters(parameters);
    }
    for output in response.outputs() {
        let output = output.ok_or_else(|| unreadable("an output is told in words that make no sense"));
        if let Err(status) = output.and_then(|output| take_over(responder, targets, output, sizes)) {
            return Ended::Failed(status);
        }
    }
    Ended::Done
}

/// Marks memory as lost that the process found missing, so that the requests that use it fail.
pub(crate) fn note_lost(planned: &[Planned], lost: impl Iterator<Item = (u64, usize)>) {
    for lost in lost {
        for Planned { job, targets, .. } in planned {
            note_lost_of(job.inputs(), targets, job.responder(), lost);
        }
    }
}

/// As [`note_lost`], for the inputs and outputs of one request. The memory is a segment and an offset in it.
pub(crate) fn note_lost_of(
    inputs: &[Tensor],
    targets: &[OutputTarget],
    responder: &Responder,
    (segment, at): (u64, usize),
) {
    let inputs = inputs.iter().filter_map(|input| input.data.share());
    let outputs = targets.iter().filter_map(|target| match &target.kind {
        Kind::Offered(slot) => slot.share(),
        _ => responder.output_slot(target.index)?.share(),
    });
    let is_it = |window: &SharedWindow<'_>| window.share.mark().number() == segment;
    inputs.chain(outputs).filter(is_it).for_each(|window| window.share.lose(at));
}

/// Finds memory for an output whose size the process has just computed. Returns the answer for the process.
pub(crate) fn find_space(
    planned: &mut [Planned],
    need: Option<Need<'_>>,
    shares: &Arc<Shares>,
    blocks: &Blocks,
) -> (String, Maps) {
    let mut maps = Maps::default();
    let text = match space(planned, need, shares, blocks, &mut maps) {
        Ok((location, capacity)) => OutputSpace { location, capacity, map: &maps.text }.to_string(),
        Err(status) => NoMemoryFound(&status.message).to_string(),
    };
    (text, maps)
}

fn space(
    planned: &mut [Planned],
    need: Option<Need<'_>>,
    shares: &Arc<Shares>,
    blocks: &Blocks,
    maps: &mut Maps,
) -> Result<(SegmentOffset, usize), Status> {
    let need = need.ok_or_else(|| unreadable("it asks for room in words that make no sense"))?;
    let Need { index, name, bytes } = need;
    let Planned { job, targets, .. } = planned.get_mut(index).ok_or_else(|| unreadable("no request has that index"))?;
    find_output_memory(job.responder_mut(), targets, (name, bytes), shares, blocks, maps)
}

/// Memory for an output of that name and size.
pub(crate) fn find_output_memory(
    responder: &mut Responder,
    targets: &mut [OutputTarget],
    (name, bytes): (&str, usize),
    shares: &Arc<Shares>,
    blocks: &Blocks,
    maps: &mut Maps,
) -> Result<(SegmentOffset, usize), Status> {
    let target = targets.iter_mut().find(|target| target.name == name);
    let target = target.ok_or_else(|| unreadable("nobody wants that output"))?;
    if matches!(target.kind, Kind::Client) {
        return Err(unreadable("the client has its own place for that output"));
    }
    if responder.output_slot(target.index).is_none()
        && let Some(slot) = responder.offered(target.index, bytes)?
    {
        let location = shares.location(slot.share(), maps).ok_or_else(|| unreachable_memory(name))?;
        let capacity = slot.len();
        target.replace(location, capacity, Kind::Offered(slot));
        return Ok((location, capacity));
    }
    let block = blocks
        .take_for_output(responder, target.index, bytes)
        .map_err(|full| Status::new(full.code, format!("output '{name}': {full}")))?;
    let location = shares.location(block.buffer().share(), maps).ok_or_else(|| unreachable_memory(name))?;
    target.replace(location, block.byte_size(), Kind::Block(block));
    Ok((location, target.capacity))
}

fn take_over(
    responder: &mut Responder,
    targets: &mut Vec<OutputTarget>,
    made: TensorAt<'_>,
    sizes: &mut HashMap<String, usize>,
) -> Result<(), Status> {
    let TensorAt { name, datatype, shape, location: said, bytes } = made;
    // Outputs that were not requested, or come twice, are ignored.
    let Some(at) = targets.iter().position(|target| target.name == name) else { return Ok(()) };
    let OutputTarget { index, name, location, capacity, kind, .. } = targets.swap_remove(at);
    check_size(&name, datatype, &shape, bytes)?;
    if matches!(kind, Kind::Client) && bytes > capacity {
        // The error has the sizes of the client's memory and of the result.
        return responder.output_bytes(index, bytes).map(drop);
    }
    if bytes > 0 && (said != location || bytes > capacity) {
        return Err(unreadable(&format!("output '{name}' lies where there was no room for it")));
    }
    match kind {
        Kind::Client => {
            let slot = responder.output_bytes(index, bytes)?;
            responder.put(index, datatype, shape, slot.filled());
        }
        Kind::Offered(mut slot) => {
            slot.truncate(bytes);
            responder.put(index, datatype, shape, slot.filled());
        }
        Kind::Block(block) => {
            let whole = block.buffer();
            let extent = Extent::new(0, bytes, whole.len()).map_err(|error| unreadable(&error.to_string()))?;
            sizes.insert(name.to_string(), bytes);
            let data = whole.slice(extent);
            let has_place = responder.output_slot(index).is_some();
            if !has_place && responder.takes_shared(index) && block.may_keep(bytes) && bytes >= SHARED_BYTES_MIN {
                check_strings(&name, datatype, &shape, &data)?;
                passed_on::note(&data, block.sharers());
                responder.put_buffer(index, datatype, shape, data);
                return Ok(());
            }
            deliver(responder, (index, &name), datatype, shape, &data)?;
        }
        Kind::Unknown => deliver(responder, (index, &name), datatype, shape, &Buffer::empty())?,
    }
    Ok(())
}

/// Keeps a state that the model set for the next request of the sequence.
fn keep_state(responder: &mut Responder, targets: &mut Vec<OutputTarget>, made: TensorAt<'_>) -> Result<(), Status> {
    let TensorAt { name, datatype, shape, location, bytes } = made;
    let at =
        targets.iter().position(|target| target.name == name).ok_or_else(|| unreadable("there is no such state"))?;
    let target = targets.swap_remove(at);
    check_size(name, datatype, &shape, bytes)?;
    let data = match target.kind {
        Kind::Block(block) if location == target.location && bytes <= target.capacity => {
            let whole = block.buffer();
            let extent = Extent::new(0, bytes, whole.len()).map_err(|error| unreadable(&error.to_string()))?;
            let data = whole.slice(extent);
            if block.may_keep(bytes) && bytes >= SHARED_BYTES_MIN {
                passed_on::note(&data, block.sharers());
                data
            } else {
                let own = data.try_private(Reason::InlineResponse);
                own.map_err(|refused| Status::no_memory(format_args!("state '{name}'"), refused))?
            }
        }
        _ if bytes == 0 => Buffer::empty(),
        _ => return Err(unreadable(&format!("state '{name}' lies where there was no room for it"))),
    };
    check_strings(name, datatype, &shape, &data)?;
    responder.keep_state(Tensor { name: name.into(), datatype, shape, data });
    Ok(())
}

/// Copies an output from the server's memory to where it belongs: the client's memory that the process could not
/// access, or the response.
fn deliver(
    responder: &mut Responder,
    (index, name): (usize, &str),
    datatype: DataType,
    shape: Shape,
    data: &Buffer,
) -> Result<(), Status> {
    if responder.output_slot(index).is_some() {
        let mut slot = responder.output_bytes(index, data.len())?;
        let filled = slot.fill_from(0, data, Reason::OutputPlacement);
        filled.map_err(|error| Status::internal(format!("output '{name}': {error}")))?;
        responder.put(index, datatype, shape, slot.filled());
        return Ok(());
    }
    // The model may still write to this memory. Bytes that are sent to a socket must not change.
    let own = data
        .try_private(Reason::InlineResponse)
        .map_err(|refused| Status::no_memory(format_args!("output '{name}'"), refused))?;
    check_strings(name, datatype, &shape, &own)?;
    responder.put_buffer(index, datatype, shape, own);
    Ok(())
}

fn check_size(name: &str, datatype: DataType, shape: &[i64], bytes: usize) -> Result<(), Status> {
    let needs = byte_size(datatype, shape).map_err(|error| Status::internal(format!("output '{name}': {error}")))?;
    match needs {
        Some(needs) if needs != bytes => {
            Err(unreadable(&format!("output '{name}' has {bytes} bytes, its shape and datatype need {needs}")))
        }
        _ => Ok(()),
    }
}

/// Checks the encoding of strings, to report mistakes of the model. The process may still change strings that stay in its memory, so each later
/// reader checks them again.
fn check_strings(name: &str, datatype: DataType, shape: &[i64], data: &Buffer) -> Result<(), Status> {
    if datatype.size().is_some() {
        return Ok(());
    }
    let wrong = |why: String| Status::internal(format!("output '{name}': {why}"));
    let elements = element_count(shape).map_err(|error| wrong(error.to_string()))?;
    strings::walk(data, elements, |_| ()).map_err(|error| wrong(error.to_string()))
}

fn unreachable_memory(name: &str) -> Status {
    Status::unavailable(format!(
        "the place for output '{name}' cannot be given to the model's process: the server has no descriptor left; raise its \
         limit on open files"
    ))
}

fn unreadable(why: &str) -> Status {
    Status::internal(format!("the model's process gave an answer that cannot be used: {why}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Mutex;

    use nerite_backend::Times;
    use nerite_memory::{Access, Slot, copied_bytes};
    use nerite_request::{Code, Deliver, InferResponse, Parameter, Recycled, Reply, Response as Given, Wanted};
    use nerite_shm::{LeaseLimits, Pools};
    use serde_json::{Value, json};

    use super::*;
    use crate::packets::Said;
    use crate::plan::tests::{job, nobody, plan, wanted};
    use crate::words::code_word;

    /// Settles `response`, in which `"S"` means the segment of the output's place.
    fn settled(slot: Option<Slot>, known: Option<usize>, response: &Value) -> (Ended, Recycled<InferResponse>) {
        settled_through(|reply| reply, slot, known, response)
    }

    /// The same for a request with another reply.
    fn settled_through(
        way: impl FnOnce(Reply) -> Reply,
        slot: Option<Slot>,
        known: Option<usize>,
        response: &Value,
    ) -> (Ended, Recycled<InferResponse>) {
        let (shares, blocks) = nobody();
        let seen = Arc::new(Mutex::new(None));
        let into = Arc::clone(&seen);
        let reply = Reply::new(move |response: Given| *into.lock().unwrap() = response.into_content());
        let reply = way(reply);
        let mut sizes: HashMap<String, usize> = known.map(|size| ("x".to_owned(), size)).into_iter().collect();
        let outputs: Vec<Wanted> = vec![wanted("x", slot)];
        let (mut planned, packet, _) = plan(job(Vec::new(), outputs, reply), &shares, &blocks, &sizes);
        let segment = &packet["outputs"][0][1];
        let response: Value =
            serde_json::from_str(&response.to_string().replace("\"S\"", &segment.to_string())).unwrap();
        let Planned { job, targets, .. } = &mut planned;
        let ended = settle(job.responder_mut(), targets, Some(&Response::new(response)), &mut sizes);
        let result = if matches!(ended, Ended::Done) { Ok(()) } else { Err(Status::internal("see the other")) };
        planned.job.finish(result, Times::begin());
        let content = seen.lock().unwrap().take().unwrap();
        (ended, content.unwrap_or_default())
    }

    #[track_caller]
    fn check_failed(slot: Option<Slot>, known: Option<usize>, response: Value, words: &str) {
        let (ended, _) = settled(slot, known, &response);
        let Ended::Failed(status) = ended else { panic!("{ended:?}") };
        assert!(status.message.contains(words), "'{status}' does not say '{words}'");
    }

    fn place(bytes: usize) -> Slot {
        let lease = Pools::new(LeaseLimits::default()).open().take(4096).unwrap();
        lease.slot(Extent::new(64, bytes, 4096).unwrap())
    }

    fn outputs(outputs: Value) -> Value {
        json!({ "outputs": outputs })
    }

    #[test]
    fn an_output_in_the_clients_place_or_in_ours_is_taken() {
        let answer = outputs(json!([["x", "INT8", [2, 2], "S", 64, 4], ["unasked", "INT8", [1], 1, 0, 1]]));
        let (ended, response) = settled(Some(place(10)), None, &answer);
        assert!(matches!(ended, Ended::Done), "{ended:?}");
        assert_eq!((response.outputs.len(), response.outputs[0].placed, response.outputs[0].data.len()), (1, true, 4));
        let answer =
            json!({ "outputs": [["x", "INT8", [4], "S", 0, 4]], "parameters": { "a": 1, "b": "c", "d": true } });
        let (ended, response) = settled(None, Some(4), &answer);
        assert!(matches!(ended, Ended::Done), "{ended:?}");
        assert_eq!(
            (response.outputs[0].placed, response.outputs[0].data.private_bytes()),
            (false, Some(&[0u8; 4][..]))
        );
        assert_eq!(response.parameters.get("a"), Some(&Parameter::Int(1)));
        assert_eq!(response.parameters.len(), 3);
        let (ended, response) = settled(None, None, &outputs(json!([["x", "INT8", [0], null, 0, 0]])));
        assert!(matches!(ended, Ended::Done), "{ended:?}");
        assert!(response.outputs[0].data.is_empty());
    }

    /// A reply to another model.
    struct Onward(Reply);

    impl Deliver for Onward {
        fn deliver(&mut self, response: Given) {
            self.0.send(response);
        }

        fn takes_shared(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_large_output_for_another_model_stays_where_the_process_wrote_it() {
        let onward = |reply| Reply::through(Onward(reply));
        for (bytes, stays) in [(SHARED_BYTES_MIN, true), (SHARED_BYTES_MIN - 1, false)] {
            let answer = outputs(json!([["x", "INT8", [bytes], "S", 0, bytes]]));
            let (ended, response) = settled_through(onward, None, Some(bytes), &answer);
            assert!(matches!(ended, Ended::Done), "{ended:?}");
            let data = &response.outputs[0].data;
            assert_eq!((data.len(), data.access() == Access::Shared), (bytes, stays));
            assert_eq!(passed_on::number(data).is_some(), stays);
            let (_, response) = settled(None, Some(bytes), &answer);
            assert_eq!(response.outputs[0].data.access(), Access::Private, "what is sent does not change");
        }
        // The previous response was larger, so there is enough memory.
        let answer = outputs(json!([["x", "INT8", [SHARED_BYTES_MIN], "S", 0, SHARED_BYTES_MIN]]));
        let (_, response) = settled_through(onward, None, Some(4 * SHARED_BYTES_MIN), &answer);
        assert_eq!(response.outputs[0].data.access(), Access::Private, "it would hold four times its bytes");
        // Empty strings: four bytes each.
        let bytes = 4 * SHARED_BYTES_MIN;
        let strings = |count: usize| outputs(json!([["x", "BYTES", [count], "S", 0, bytes]]));
        let (ended, response) = settled_through(onward, None, Some(bytes), &strings(SHARED_BYTES_MIN));
        assert!(matches!(ended, Ended::Done), "{ended:?}");
        assert_eq!(response.outputs[0].data.access(), Access::Shared);
        let (ended, _) = settled_through(onward, None, Some(bytes), &strings(SHARED_BYTES_MIN - 1));
        assert!(matches!(&ended, Ended::Failed(error) if error.message.contains("string elements")), "{ended:?}");
        // The client's own memory is preferred.
        let answer = outputs(json!([["x", "INT8", [4], "S", 64, 4]]));
        assert!(settled_through(onward, Some(place(10)), None, &answer).1.outputs[0].placed);
    }

    #[test]
    fn an_invalid_answer_is_refused() {
        let at = |shape: Value, offset: u64, bytes: u64| outputs(json!([["x", "INT8", shape, "S", offset, bytes]]));
        check_failed(Some(place(10)), None, at(json!([4]), 0, 4), "lies where there was no room for it");
        check_failed(Some(place(10)), None, at(json!([4]), 64, 5), "has 5 bytes, its shape and datatype need 4");
        check_failed(Some(place(10)), None, at(json!([-1]), 64, 1), "output 'x'");
        check_failed(None, Some(4), at(json!([8192]), 0, 8192), "lies where there was no room for it");
        check_failed(None, None, outputs(json!([["x", "INT8", [4], 1, 0, 4]])), "lies where there was no room for it");
        check_failed(None, None, outputs(json!([["x", "INT7", [4], 1, 0, 4]])), "words that make no sense");
        check_failed(None, None, outputs(json!(["x"])), "words that make no sense");
        let strings = outputs(json!([["x", "BYTES", [2], "S", 0, 4]]));
        check_failed(None, Some(4), strings, "output 'x': expected 2 string elements, got 1");
        let (shares, blocks) = nobody();
        let (mut planned, _, _) =
            plan(job(Vec::new(), vec![wanted("x", None)], Reply::new(|_| ())), &shares, &blocks, &HashMap::new());
        let Planned { job, targets, .. } = &mut planned;
        let ended = settle(job.responder_mut(), targets, None, &mut HashMap::new());
        assert!(matches!(ended, Ended::Failed(_)));
    }

    #[test]
    fn a_result_larger_than_the_clients_place_says_both_numbers() {
        let answer = outputs(json!([["x", "INT8", [11], null, 0, 11]]));
        let text =
            "shared memory size specified with the request for output 'x' (10 bytes) should be at least 11 bytes";
        check_failed(Some(place(10)), None, answer, text);
    }

    #[track_caller]
    fn check_said(error: Value, code: Code, text: &str) {
        let (ended, _) = settled(None, None, &json!({ "error": error }));
        let Ended::Said(status) = ended else { panic!("{ended:?}") };
        assert_eq!((status.code, status.message.as_str()), (code, text));
    }

    #[test]
    fn a_failure_of_the_runtimes_is_none_of_the_models_answers() {
        for code in [Code::Internal, Code::InvalidArg, Code::Unavailable, Code::Unsupported, Code::Cancelled] {
            let (ended, _) = settled(None, None, &json!({ "failed": [code_word(code), "text"] }));
            let Ended::Failed(status) = ended else { panic!("{ended:?}") };
            assert_eq!((status.code, status.message.as_str()), (code, "text"));
        }
    }

    #[test]
    fn copies_that_the_process_made_are_counted_here() {
        let before = copied_bytes(Reason::Convert);
        let said = |text: &str| Said::read(text.as_bytes()).unwrap();
        note_copied(said(r#"{"copied":{"convert":12,"unheard_of":7,"strings":"x"}}"#).copied());
        note_copied(said("{}").copied());
        assert_eq!(copied_bytes(Reason::Convert) - before, 12);
    }

    #[test]
    fn an_error_of_the_models_keeps_its_code() {
        check_said(json!(["NOT_FOUND", "gone"]), Code::NotFound, "gone");
        check_said(json!(["INTERNAL", "x"]), Code::Internal, "x");
        check_said(json!(["CANCELLED", ""]), Code::Cancelled, "");
        check_said(json!("plain"), Code::Internal, "plain");
    }

    #[test]
    fn memory_is_found_once_the_size_is_known() {
        let (shares, blocks) = nobody();
        let (planned, _, _) =
            plan(job(Vec::new(), vec![wanted("x", None)], Reply::new(|_| ())), &shares, &blocks, &HashMap::new());
        let mut planned = [planned];
        let mut answer = |need: Value| {
            let said = Said::read(json!({ "need": need }).to_string().as_bytes()).unwrap();
            let (text, _) = find_space(&mut planned, said.need().unwrap(), &shares, &blocks);
            serde_json::from_str::<Value>(&text).unwrap()
        };
        assert_eq!(answer(json!([0, "x", 5000]))["at"][2].as_u64().map(|capacity| capacity >= 5000), Some(true));
        for nonsense in [json!([1, "x", 1]), json!([0, "y", 1]), json!([0, "x", -1]), json!("x")] {
            assert!(answer(nonsense)["error"].is_string());
        }
    }
}
