//! What is stored as IPAddress and ServiceCIDR, and whether every server that serves those kinds can read all of it.
//!
//! A server stores `networking.k8s.io/v1beta1` up to 1.33 and `v1` from 1.34 on, and an object keeps its version until
//! it is written again; a downgrade works only if the older server knows the newer version (KEP-1880, downgrade strategy).

use crate::case::Case;
use harness::etcd::Etcd;
use harness::history::ServerId;
use harness::record::Observed;
use harness::server::ServerSpec;
use harness::stored::{Stored, decode, keys, parse_key};
use harness::version::Minor;
use harness::wait::{self, NotYet};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// The versions of `networking.k8s.io` that have had both kinds.
const VERSIONS: [&str; 2] = ["v1beta1", "v1"];
/// The kinds, with their plural and their prefix in etcd.
const KINDS: [(&str, &str, &str); 2] =
    [("IPAddress", "ipaddresses", keys::IP_ADDRESSES), ("ServiceCIDR", "servicecidrs", keys::SERVICE_CIDRS)];
/// Repair may make or remove an object between two lists; that ends within seconds.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// What was stored, and who read all of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadBack {
    /// Stored API versions, such as `networking.k8s.io/v1`.
    stored: BTreeSet<String>,
    /// The API versions through which servers of a minor read everything; none if they serve neither.
    read: BTreeMap<Minor, BTreeSet<&'static str>>,
}

impl ReadBack {
    /// What both saw.
    pub fn merge(&mut self, other: ReadBack) {
        self.stored.extend(other.stored);
        for (minor, versions) in other.read {
            self.read.entry(minor).or_default().extend(versions);
        }
    }
}

impl fmt::Display for ReadBack {
    /// `stored as v1, v1beta1; read by 1.33 (v1), 1.34 (v1); not served by 1.32`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |texts: Vec<String>| if texts.is_empty() { "nothing".to_string() } else { texts.join(", ") };
        let short = |version: &String| version.rsplit('/').next().unwrap_or(version).to_string();
        let readers = |served: bool| self.read.iter().filter(move |(_, versions)| versions.is_empty() != served);
        write!(f, "stored as {}", join(self.stored.iter().map(short).collect()))?;
        let read =
            readers(true).map(|(minor, it)| format!("{minor} ({})", it.iter().copied().collect::<Vec<_>>().join(", ")));
        let read: Vec<String> = read.collect();
        if !read.is_empty() {
            write!(f, ", read by {}", read.join(", "))?;
        }
        let without: Vec<String> = readers(false).map(|(minor, _)| minor.to_string()).collect();
        if !without.is_empty() {
            write!(f, ", not served by {}", without.join(", "))?;
        }
        Ok(())
    }
}

/// Reads both kinds through every running server in every version it serves, and compares them with etcd. What a server
/// serves and cannot read whole goes to `wrong`.
///
/// # Errors
/// etcd does not answer, or a server does not run.
pub async fn read_back(case: &Case, step: usize, observed: &mut Observed) -> anyhow::Result<ReadBack> {
    let etcd = case.plane.etcd()?;
    let mut seen = ReadBack::default();
    for server in case.plane.server_ids() {
        let (client, minor) = (case.plane.client(server)?, case.plane.spec(server)?.version.minor);
        for version in VERSIONS {
            for (kind, plural, prefix) in KINDS {
                let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(version, kind, plural));
                match compare(&api, &etcd, prefix).await {
                    Ok(Some(stored)) => {
                        seen.stored.extend(stored);
                        seen.read.entry(minor).or_default().insert(version);
                    }
                    Ok(None) => {
                        seen.read.entry(minor).or_default();
                    }
                    Err(why) => observed
                        .wrong
                        .push(format!("step {step}: {server} does not read every {kind} as {version}: {why}")),
                }
            }
        }
    }
    Ok(seen)
}

/// Takes a server to another specification. If the new one cannot start because of how objects are stored, the old one
/// is started again and writes them back, which must help; returns how many, or `None` if there was no need.
///
/// # Errors
/// A server does not start for another reason, or also not after that.
pub async fn replace_or_rewrite(case: &mut Case, server: ServerId, to: ServerSpec) -> anyhow::Result<Option<u64>> {
    let from = case.plane.spec(server)?.clone();
    match case.plane.replace_server(server, to.clone()).await {
        Err(error) if error.is_unreadable_storage() => {
            case.plane.respecify_server(server, from)?;
            case.plane.start_server(server).await?;
            let written = rewrite_all(&case.plane.client(server)?).await?;
            case.plane.replace_server(server, to).await?;
            Ok(Some(written))
        }
        replaced => Ok(replaced.map(|()| None)?),
    }
}

/// Writes every object of both kinds back unchanged through a server, which stores it in the version it prefers: what a
/// storage migration does.
///
/// # Errors
/// The server does not list the objects, or does not take one.
async fn rewrite_all(client: &kube::Client) -> anyhow::Result<u64> {
    let mut written = 0;
    for (kind, plural, _) in KINDS {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource("v1", kind, plural));
        for object in api.list(&ListParams::default()).await?.items {
            let name = object.metadata.name.clone().unwrap_or_default();
            api.replace(&name, &PostParams::default(), &object).await?;
            written += 1;
        }
    }
    Ok(written)
}

fn resource(version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("networking.k8s.io", version, kind), plural)
}

/// The stored API versions of a kind if the server reads all of its objects, `None` if it does not serve them.
async fn compare(
    api: &Api<DynamicObject>,
    etcd: &Etcd,
    prefix: &str,
) -> Result<Option<BTreeSet<String>>, wait::TimedOut> {
    let mut found = None;
    wait::until("every stored object in the list of a server", READ_TIMEOUT, async || {
        let listed = match api.list(&ListParams::default()).await {
            Ok(list) => list.items.into_iter().filter_map(|object| object.metadata.name).collect::<BTreeSet<String>>(),
            Err(kube::Error::Api(status)) if status.code == 404 => {
                found = None;
                return Ok(());
            }
            Err(error) => return Err(NotYet::new(error.to_string())),
        };
        let stored = stored(etcd, prefix).await.map_err(|error| NotYet::new(format!("{error:#}")))?;
        let differing: Vec<&String> = listed.iter().filter(|name| !stored.contains_key(*name)).collect();
        let missing: Vec<&String> = stored.keys().filter(|name| !listed.contains(*name)).collect();
        if differing.is_empty() && missing.is_empty() {
            found = Some(stored.into_values().collect());
            Ok(())
        } else {
            Err(NotYet::new(format!("missing {missing:?}, only in the list {differing:?}")))
        }
    })
    .await?;
    Ok(found)
}

/// The names of the stored objects of a kind, with the API version of each.
async fn stored(etcd: &Etcd, prefix: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::new();
    for kv in etcd.list(prefix).await?.kvs {
        let Some(key) = parse_key(&kv.key)? else { continue };
        let name = String::from_utf8_lossy(&kv.key[prefix.len()..]).into_owned();
        match decode(&key, &kv.value)? {
            Stored::IpAddress(object) => versions.insert(name, object.api_version),
            Stored::ServiceCidr(object) => versions.insert(name, object.api_version),
            Stored::Service(_) | Stored::Range(_) => None,
        };
    }
    Ok(versions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_is_stored_and_who_reads_it() {
        let versions = |texts: &[&'static str]| texts.iter().copied().collect::<BTreeSet<_>>();
        let mut seen = ReadBack { stored: BTreeSet::new(), read: BTreeMap::from([(Minor(32), versions(&[]))]) };
        assert_eq!(seen.to_string(), "stored as nothing, not served by 1.32");
        seen.merge(ReadBack {
            stored: ["networking.k8s.io/v1beta1".to_string()].into(),
            read: BTreeMap::from([(Minor(33), versions(&["v1"])), (Minor(32), versions(&["v1beta1"]))]),
        });
        assert_eq!(seen.to_string(), "stored as v1beta1, read by 1.32 (v1beta1), 1.33 (v1)");
    }
}
