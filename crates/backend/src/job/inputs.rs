//! Where does the data of a request's inputs lie, and how is the data replaced?

use nerite_memory::{Buffer, Slot};

use super::{Job, JobParts};

impl Job {
    /// Replaces the data of the inputs by the data that the request has for instances of this host policy.
    pub fn choose_data(&mut self, policy: &str) {
        let JobParts { inputs, responder, .. } = &mut *self.0;
        for one in responder.policy_data().iter().filter(|one| one.policy == policy) {
            if let Some(input) = inputs.iter_mut().find(|input| input.name == one.input) {
                input.data = one.data.clone();
            }
        }
    }

    /// Replaces the data of the input at this position until [`Job::restore_data`] is called. The memory of the replaced data counts as used until
    /// then.
    pub(crate) fn replace_data(&mut self, at: usize, data: Buffer) {
        let JobParts { inputs, replaced, .. } = &mut *self.0;
        if let Some(input) = inputs.get_mut(at) {
            replaced.push((at, std::mem::replace(&mut input.data, data)));
        }
    }

    /// Restores the data that was replaced.
    pub(crate) fn restore_data(&mut self) {
        let JobParts { inputs, replaced, .. } = &mut *self.0;
        for (at, data) in replaced.drain(..) {
            if let Some(input) = inputs.get_mut(at) {
                input.data = data;
            }
        }
    }

    /// Whether any input, or data that was replaced, lies in the memory of `slot`.
    pub(crate) fn reads(&self, slot: &Slot) -> bool {
        let JobParts { inputs, replaced, .. } = &*self.0;
        let mut data = inputs.iter().map(|input| &input.data).chain(replaced.iter().map(|(_, data)| data));
        data.any(|data| slot.overlaps(data))
    }

    /// Whether all its inputs lie on the host.
    pub(crate) fn has_host_inputs(&self) -> bool {
        self.0.inputs.iter().all(|input| input.data.place().is_host())
    }

    /// Whether all its inputs, and all memory that its client chose for outputs, lie on the host.
    pub fn is_on_host(&self) -> bool {
        let mut slots = self.0.responder.wanted_outputs().iter().filter_map(|wanted| wanted.slot.as_ref());
        self.has_host_inputs() && slots.all(|slot| slot.place().is_host())
    }
}
