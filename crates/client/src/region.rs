//! How is a caller's own shared memory made, and when is it unregistered?

use std::fmt::Debug;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;

use nerite_shm::OwnedRegion;

use crate::{Error, SharedMemory, runtime};

/// A POSIX shared memory object that this process has made and mapped. It is unlinked when the region is dropped.
///
/// ```no_run
/// use nerite_client::{Region, http};
///
/// # async fn call(client: http::Client) -> Result<(), nerite_client::Error> {
/// let region = Region::create("/my_app_input", 4096)?;
/// region.write(0, &[1.5f32, 2.5])?;
/// let registered = region.register(&client, "input").await?;
/// // … requests with `.input_in_region("INPUT0", DataType::Fp32, &[2], &registered, 0)` …
/// registered.unregister().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Region {
    memory: SharedMemory,
}

impl Region {
    /// Makes an object of `byte_size` zero bytes with this key (with or without a leading slash). Fails if an object with the key exists.
    pub fn create(key: &str, byte_size: usize) -> Result<Region, Error> {
        let owned = OwnedRegion::create(key, byte_size)
            .map_err(|reason| Error::Region { key: key.to_owned(), reason: reason.to_string() })?;
        Ok(Region { memory: SharedMemory::of_region(owned, key) })
    }

    /// The POSIX key.
    pub fn key(&self) -> &str {
        self.memory.called()
    }

    /// Registers the whole region with a server as `name`. Dropping the guard unregisters it.
    pub async fn register(self, client: impl Into<Registrar>, name: &str) -> Result<RegisteredRegion, Error> {
        let client = client.into();
        client.0.register(name, self.key(), self.byte_size() as u64).await?;
        Ok(RegisteredRegion { region: self, name: name.to_owned(), client: Some(client) })
    }
}

impl Deref for Region {
    type Target = SharedMemory;

    fn deref(&self) -> &SharedMemory {
        &self.memory
    }
}

/// A region that is registered with a server. [`RegisteredRegion::unregister`] ends the registration and returns any error. If the guard is only dropped,
/// the region is unregistered in the background, as long as the runtime runs.
#[derive(Debug)]
pub struct RegisteredRegion {
    region: Region,
    name: String,
    client: Option<Registrar>,
}

impl RegisteredRegion {
    /// The name under which the region is registered.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Unregisters the region, then unlinks and unmaps it.
    pub async fn unregister(mut self) -> Result<(), Error> {
        match self.client.take() {
            Some(client) => client.0.unregister(&self.name).await,
            None => Ok(()),
        }
    }
}

impl Deref for RegisteredRegion {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl Drop for RegisteredRegion {
    fn drop(&mut self) {
        let (Some(client), Some(runtime)) = (self.client.take(), runtime::background()) else { return };
        let name = std::mem::take(&mut self.name);
        // Best effort: there is nobody to whom a failure could be reported. The object itself is unlinked now in any case. The server's mapping stays valid
        // until it has unregistered the region.
        runtime.spawn(async move { client.0.unregister(&name).await });
    }
}

/// The client through which a region was registered.
#[derive(Clone, Debug)]
pub struct Registrar(Arc<dyn Registers>);

impl Registrar {
    pub(crate) fn new(client: impl Registers + 'static) -> Registrar {
        Registrar(Arc::new(client))
    }
}

/// The calls that register regions, of a client of either protocol.
pub(crate) trait Registers: Debug + Send + Sync {
    /// Registers the whole object `key` as `name`.
    fn register<'c>(&'c self, name: &'c str, key: &'c str, byte_size: u64) -> Registration<'c>;

    /// Unregisters the region `name`.
    fn unregister<'c>(&'c self, name: &'c str) -> Registration<'c>;
}

/// The future of a call that registers or unregisters a region.
pub(crate) type Registration<'c> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'c>>;

#[cfg(test)]
mod tests {
    use nerite_memory::CellsMut;

    use super::*;

    /// A region of its own for each test.
    fn region(test: &str, byte_size: usize) -> Region {
        Region::create(&format!("/nerite_client_{}_{test}", std::process::id()), byte_size).expect("room for a page")
    }

    #[test]
    fn numbers_are_found_where_they_were_put() {
        let region = region("numbers", 64);
        region.write(8, &[1.5f64, 2.5]).expect("within");
        region.edit(24, 2, |mut place: CellsMut<'_, i32>| place.fill(7)).expect("within");
        region.write_bytes(33, b"odd").expect("bytes may lie anywhere");
        assert_eq!(region.view::<f64>(8, 2).expect("within").to_vec(), [1.5, 2.5]);
        assert_eq!(region.view::<i32>(24, 2).expect("within").to_vec(), [7, 7]);
        assert_eq!(region.read_bytes(33, 3).expect("within"), b"odd");
    }

    #[track_caller]
    fn refused(outcome: Result<(), Error>, reason: &str) {
        let error = outcome.expect_err("refused").to_string();
        assert!(error.ends_with(reason), "{error}");
    }

    #[test]
    fn nothing_reaches_past_the_end_or_between_numbers() {
        let region = region("bounds", 64);
        refused(region.write(60, &[1u32, 2]), "has 64 bytes, asked to reach 68");
        refused(region.write_bytes(usize::MAX, b"a"), &format!("asked to reach {}", usize::MAX));
        refused(region.view::<u64>(0, usize::MAX).map(drop), &format!("asked to reach {}", usize::MAX));
        refused(region.write(2, &[1u32]), "offset 2 is no multiple of the element size 4");
        refused(region.view::<u16>(1, 1).map(drop), "offset 1 is no multiple of the element size 2");
    }

    #[test]
    fn a_key_belongs_to_one_region_and_is_free_after_it() {
        let first = region("twice", 64);
        assert!(matches!(Region::create(first.key(), 64), Err(Error::Region { .. })));
        let key = first.key().to_owned();
        drop(first);
        drop(Region::create(&key, 64).expect("the key is free again"));
    }

    #[test]
    fn a_view_outlives_its_region() {
        let region = region("outlives", 64);
        region.write(0, &[9u8]).expect("within");
        let view = region.view::<u8>(0, 1).expect("within");
        drop(region);
        assert_eq!(view.to_vec(), [9]);
    }
}
