//! Which requests can be made to a server that can be reached only over HTTP?
//!
//! The calls are Triton's: they know names, keys and sizes of common regions, and no more.

use nerite_client::{Error, http};
use serde_json::Value;

use super::answer::{Answer, ListedRegion};
use super::command::Command;
use crate::certificates::Certificates;

pub(super) async fn query(client: http::Client, certificates: &Certificates, what: &Command) -> Result<Answer, String> {
    let explain = |error: Error| certificates.explain(&error);
    let answer = match what {
        Command::List => list(&client).await.map(Answer::Listed),
        Command::Show { name } => {
            let mut regions = list(&client).await.map_err(explain)?;
            regions.retain(|region| region.name == *name);
            if regions.is_empty() {
                return Err(format!("no region is called '{name}'"));
            }
            Ok(Answer::Listed(regions))
        }
        Command::Drop { name, session: 0 } => return drop_one(&client, name, explain).await,
        Command::DropAll => {
            let what = "all common system regions".to_owned();
            client.unregister_system_regions().await.map(|()| Answer::DroppedSilently { what })
        }
        Command::ShowSession { .. }
        | Command::Drop { .. }
        | Command::EndSession { .. }
        | Command::Pools
        | Command::Sessions => {
            return Err(
                "HTTP knows only the common regions (list, show NAME, drop NAME, drop --all); for sessions and \
                        leases ask over the session socket"
                    .to_owned(),
            );
        }
    };
    answer.map_err(explain)
}

async fn list(client: &http::Client) -> Result<Vec<ListedRegion>, Error> {
    let system = client.system_regions(None).await?.into_iter().map(|region| ListedRegion {
        name: region.name,
        kind: "system",
        place: region.key,
        offset: region.offset,
        byte_size: region.byte_size,
    });
    let mut regions: Vec<_> = system.collect();
    regions.extend(cuda_regions(&client.page("/v2/cudasharedmemory/status").await?));
    regions.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(regions)
}

fn cuda_regions(json: &str) -> Vec<ListedRegion> {
    let all: Value = serde_json::from_str(json).unwrap_or_default();
    let region = |one: &Value| {
        let name = one["name"].as_str()?.to_owned();
        let place = format!("device {}", one["device_id"].as_u64()?);
        Some(ListedRegion { name, kind: "cuda", place, offset: 0, byte_size: one["byte_size"].as_u64()? })
    };
    all.as_array().into_iter().flatten().filter_map(region).collect()
}

async fn drop_one(client: &http::Client, name: &str, explain: impl Fn(Error) -> String) -> Result<Answer, String> {
    let found = list(client).await.map_err(&explain)?.into_iter().find(|region| region.name == name);
    match found {
        None => return Err(format!("no region is called '{name}'")),
        Some(region) if region.kind != "system" => {
            return Err(format!("'{name}' is a CUDA region; drop it over the session socket"));
        }
        Some(_) => {}
    }
    client.unregister_system_region(name).await.map_err(explain)?;
    Ok(Answer::DroppedSilently { what: format!("region '{name}'") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuda_regions_are_read_as_triton_writes_them() {
        let json = r#"[{"name":"a","device_id":1,"byte_size":64},{"name":"b"}]"#;
        let place = "device 1".to_owned();
        let region = ListedRegion { name: "a".into(), kind: "cuda", place, offset: 0, byte_size: 64 };
        assert_eq!(cuda_regions(json), [region]);
        assert_eq!(cuda_regions("no JSON"), []);
    }
}
