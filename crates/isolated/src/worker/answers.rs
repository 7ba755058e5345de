//! How is an engine's response told to the server?

use nerite_memory::Reason;
use nerite_process::parameters_text;
use nerite_request::{Output, Response, Status};
use serde_json::{Value, json};

use super::requests::Asked;
use super::talk::OutputSpace;

/// As a packet tells it: where each output lies, or the failure.
pub(super) fn told(asked: &Asked, response: Response) -> Value {
    if let Some(error) = &response.error {
        return json!({ "failed": super::told(error) });
    }
    let outputs: Result<Vec<Value>, Status> =
        response.outputs.iter().map(|output| output_told(asked, output)).collect();
    match outputs {
        Ok(outputs) => json!({ "outputs": outputs, "parameters": parameters_text(&response.parameters) }),
        Err(status) => json!({ "failed": super::told(&status) }),
    }
}

fn output_told(asked: &Asked, output: &Output) -> Result<Value, Status> {
    let Output { name, datatype, shape, data, .. } = output;
    let shape: &[i64] = shape;
    if data.is_empty() {
        return Ok(json!([name.as_str(), datatype.name(), shape, null, 0, 0]));
    }
    let OutputSpace { segment, offset, .. } = placed(asked, output)?;
    Ok(json!([name.as_str(), datatype.name(), shape, segment, offset, data.len()]))
}

/// Where the output lies, or is copied to, if the engine left it in memory of its own.
fn placed(asked: &Asked, output: &Output) -> Result<OutputSpace, Status> {
    let Output { name, data, .. } = output;
    let place = asked.place(name);
    if let Some(space) = place.and_then(|place| place.space).filter(|space| asked.lies_in(*space, data)) {
        return Ok(space);
    }
    if place.is_some_and(|place| place.fixed) {
        return Err(Status::internal(format!("output '{name}' was not left in the client's place")));
    }
    let found = asked.space(name, data.len())?;
    let (space, mut slot) = found.ok_or_else(|| Status::internal(format!("output '{name}' has no place")))?;
    let filled = slot.fill_from(0, data, Reason::ModelProcess);
    filled.map_err(|error| Status::internal(format!("output '{name}': {error}")))?;
    Ok(space)
}
