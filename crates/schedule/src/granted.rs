//! Which of the instances that may start runs next?

use crate::InstanceId;

/// The instances that may start, in the order in which they were granted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Granted(Vec<InstanceId>);

impl Granted {
    /// Adds an instance.
    pub fn push(&mut self, instance: InstanceId) {
        self.0.push(instance);
    }

    /// Removes an instance that may not start any more.
    pub fn withdraw(&mut self, instance: InstanceId) {
        self.0.retain(|granted| *granted != instance);
    }

    /// Whether no instance may start.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes the preferred instance if it may start. Otherwise takes the one that was granted last, because its memory is still in the caches.
    pub fn take(&mut self, prefers: Option<InstanceId>) -> Option<InstanceId> {
        let last = self.0.len().checked_sub(1)?;
        let at = prefers.and_then(|prefers| self.0.iter().position(|granted| *granted == prefers));
        Some(self.0.remove(at.unwrap_or(last)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preferred_instance_is_taken_if_it_may_start() {
        let mut granted = Granted::default();
        assert_eq!(granted.take(Some(InstanceId(0))), None);
        (0..4).map(InstanceId).for_each(|instance| granted.push(instance));
        granted.withdraw(InstanceId(2));
        let taken: Vec<_> = [Some(0), Some(2), None, None].map(|prefers| granted.take(prefers.map(InstanceId))).into();
        assert_eq!(taken, [Some(0), Some(3), Some(1), None].map(|taken| taken.map(InstanceId)));
        assert!(granted.is_empty());
    }
}
