//! What is kept of a response?

use nerite_memory::{NoMemory, Reason};
use nerite_request::{InferResponse, Output, Parameters};

use crate::limits::{OUTPUT_BYTES, RESPONSE_BYTES};

/// The outputs of a response, in memory of their own. The model or a client may change theirs without an effect here.
#[derive(Debug)]
pub struct Stored {
    /// Parameters that the model added.
    pub parameters: Parameters,
    /// The outputs, in the order of the response.
    pub outputs: Vec<Output>,
}

impl Stored {
    /// The bytes that a response counts for once it is kept.
    pub fn bytes_of(response: &InferResponse) -> u64 {
        let outputs = response.outputs.iter().map(|output| {
            let shape = size_of_val(&output.shape[..]);
            OUTPUT_BYTES + (output.data.len() + output.name.len() + shape) as u64
        });
        // Only texts count for their size, because other values are small.
        let parameters = response.parameters.iter().map(|(name, value)| {
            let text = if let nerite_request::Parameter::String(text) = value { text.len() } else { 0 };
            OUTPUT_BYTES + (name.len() + text) as u64
        });
        RESPONSE_BYTES + outputs.sum::<u64>() + parameters.sum::<u64>()
    }

    /// A copy of that response. The copied bytes are counted.
    pub fn copy_of(response: &InferResponse) -> Result<Stored, NoMemory> {
        let copy = |output: &Output| {
            let data = output.data.try_private(Reason::ResponseCache)?;
            Ok(Output { data, placed: false, ..output.clone() })
        };
        let outputs = response.outputs.iter().map(copy).collect::<Result<_, NoMemory>>()?;
        Ok(Stored { parameters: response.parameters.clone(), outputs })
    }

    /// Bytes of all outputs.
    pub fn output_bytes(&self) -> usize {
        self.outputs.iter().map(|output| output.data.len()).sum()
    }
}
