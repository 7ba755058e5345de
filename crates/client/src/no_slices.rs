//! Does the client lend a slice over memory that the server may write?
//!
//! A slice promises that nobody else writes its memory. The programs that are marked `compile_fail` must not compile. Before them is a program that differs
//! only in this point and compiles. So the slice is the reason why they do not compile.
//!
//! A region is edited as cells:
//!
//! ```no_run
//! # fn act(region: &nerite_client::Region) -> Result<(), nerite_client::Error> {
//! region.edit(0, 4, |mut place: nerite_client::CellsMut<'_, f32>| place.fill(1.0))
//! # }
//! ```
//! ```compile_fail
//! # fn act(region: &nerite_client::Region) -> Result<(), nerite_client::Error> {
//! region.edit(0, 4, |place: &mut [f32]| place.fill(1.0))
//! # }
//! ```
//!
//! Cells do not become a slice by themselves either:
//!
//! ```no_run
//! # fn act(region: &nerite_client::Region) -> Result<(), nerite_client::Error> {
//! region.edit(0, 4, |place: nerite_client::CellsMut<'_, f32>| drop(place.cells().to_vec()))
//! # }
//! ```
//! ```compile_fail
//! # fn act(region: &nerite_client::Region) -> Result<(), nerite_client::Error> {
//! region.edit(0, 4, |mut place: nerite_client::CellsMut<'_, f32>| { let _: &mut [f32] = &mut place; })
//! # }
//! ```
//! ```compile_fail
//! # fn act(region: &nerite_client::Region) -> Result<(), nerite_client::Error> {
//! region.edit(0, 4, |mut place: nerite_client::CellsMut<'_, f32>| { let _: &mut f32 = &mut place[0]; })
//! # }
//! ```
//!
//! Cells do not outlive the call that lends them:
//!
//! ```compile_fail
//! # fn act(region: &nerite_client::Region) -> Result<(), nerite_client::Error> {
//! let mut kept = None;
//! region.edit(0, 4, |place: nerite_client::CellsMut<'_, f32>| kept = Some(place))
//! # }
//! ```
//!
//! A region is viewed as cells, which can be copied:
//!
//! ```no_run
//! # fn act(region: &nerite_client::Region) -> Result<Vec<f32>, nerite_client::Error> {
//! let view = region.view::<f32>(0, 4)?;
//! Ok(view.cells().to_vec())
//! # }
//! ```
//! ```compile_fail
//! # fn act(region: &nerite_client::Region) -> Result<Vec<f32>, nerite_client::Error> {
//! let view = region.view::<f32>(0, 4)?;
//! let slice: &[f32] = &view;
//! Ok(slice.to_vec())
//! # }
//! ```
//! ```compile_fail
//! # fn act(region: &nerite_client::Region) -> Result<Vec<f32>, nerite_client::Error> {
//! let view = region.view::<f32>(0, 4)?;
//! let slice: &[f32] = view.as_ref();
//! Ok(slice.to_vec())
//! # }
//! ```
//! ```compile_fail
//! # fn act(region: &nerite_client::Region) -> Result<Vec<f32>, nerite_client::Error> {
//! let view = region.view::<f32>(0, 4)?;
//! let slice: &[f32] = &view.cells();
//! Ok(slice.to_vec())
//! # }
//! ```
//!
//! A lease is no different:
//!
//! ```no_run
//! # fn act(lease: &nerite_client::Lease) -> Result<Vec<f32>, nerite_client::Error> {
//! lease.edit(0, 4, |mut place: nerite_client::CellsMut<'_, f32>| place.fill(1.0))?;
//! Ok(lease.view::<f32>(0, 4)?.cells().to_vec())
//! # }
//! ```
//! ```compile_fail
//! # fn act(lease: &nerite_client::Lease) -> Result<Vec<f32>, nerite_client::Error> {
//! lease.edit(0, 4, |place: &mut [f32]| place.fill(1.0))?;
//! Ok(lease.view::<f32>(0, 4)?.cells().to_vec())
//! # }
//! ```
//! ```compile_fail
//! # fn act(lease: &nerite_client::Lease) -> Result<Vec<f32>, nerite_client::Error> {
//! lease.edit(0, 4, |mut place: nerite_client::CellsMut<'_, f32>| place.fill(1.0))?;
//! let view = lease.view::<f32>(0, 4)?;
//! let slice: &[f32] = &view.cells();
//! Ok(slice.to_vec())
//! # }
//! ```
