//! What were the last figures of the GPUs?

use std::sync::PoisonError;
use std::time::Instant;

use nerite_locks::Mutex;
use nerite_wire::prometheus::GpuMetrics;

/// The last figures of each GPU.
#[derive(Debug, Default)]
pub struct GpuFigures {
    /// The figures, each with the time at which the driver last answered.
    each: Mutex<Vec<(Instant, GpuMetrics)>>,
}

impl GpuFigures {
    /// Stores the figures of a GPU. `answered` says whether the driver gave any of them.
    pub fn note(&self, gpu: GpuMetrics, answered: bool) {
        let mut each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        match each.iter_mut().find(|(_, known)| known.uuid == gpu.uuid) {
            Some((at, known)) => {
                *known = gpu;
                if answered {
                    *at = Instant::now();
                }
            }
            None => each.push((Instant::now(), gpu)),
        }
    }

    /// Removes a GPU of which no figure is measured any more.
    pub fn forget(&self, uuid: &str) {
        self.each.lock().unwrap_or_else(PoisonError::into_inner).retain(|(_, known)| known.uuid != uuid);
    }

    /// The figures of all GPUs, with their age.
    pub(crate) fn report(&self) -> Vec<GpuMetrics> {
        let each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        each.iter().map(|(at, gpu)| GpuMetrics { age_s: at.elapsed().as_secs_f64(), ..gpu.clone() }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(uuid: &str, utilization: f64) -> GpuMetrics {
        GpuMetrics { uuid: uuid.to_owned(), utilization: Some(utilization), ..GpuMetrics::default() }
    }

    #[test]
    fn each_gpu_has_its_last_figures_and_the_age_of_the_last_answer() {
        let figures = GpuFigures::default();
        figures.note(gpu("a", 0.1), true);
        figures.note(gpu("b", 0.2), true);
        let noted = |at: usize| figures.each.lock().unwrap_or_else(PoisonError::into_inner)[at].0;
        let (first, second) = (noted(0), noted(1));
        figures.note(gpu("a", 0.3), true);
        figures.note(gpu("b", 0.4), false);
        let found: Vec<_> = figures.report().into_iter().map(|gpu| (gpu.uuid, gpu.utilization)).collect();
        assert_eq!(found, [("a".to_owned(), Some(0.3)), ("b".to_owned(), Some(0.4))]);
        assert!(noted(0) > first && noted(1) == second);
        assert!(figures.report().iter().all(|gpu| gpu.age_s >= 0.0));
    }

    #[test]
    fn a_gpu_of_which_nothing_is_asked_has_no_age() {
        let figures = GpuFigures::default();
        figures.note(gpu("a", 0.1), true);
        figures.note(gpu("b", 0.2), true);
        figures.forget("a");
        figures.forget("c");
        assert_eq!(figures.report().into_iter().map(|gpu| gpu.uuid).collect::<Vec<_>>(), ["b"]);
    }
}
