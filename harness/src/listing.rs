//! What one apiserver lists and watches of Services, IPAddresses and ServiceCIDRs, as the changes of a recording.
//!
//! A resource version is the etcd revision that wrote the object, of all kinds in one count.

use crate::history::replay::State;
use crate::history::{Change, ServiceKey, StoredIpAddress};
use crate::stored::{DecodeError, Stored, StoredKey, decode};
use serde::Deserialize;
use serde_json::Value;
use std::net::IpAddr;

/// The version in which a server serves IPAddress and ServiceCIDR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Networking {
    /// From 1.33 on.
    V1,
    /// 1.31 and 1.32, where it is switched on.
    V1beta1,
}

impl Networking {
    fn group_version(self) -> &'static str {
        match self {
            Networking::V1 => "networking.k8s.io/v1",
            Networking::V1beta1 => "networking.k8s.io/v1beta1",
        }
    }

    /// What a server serves; `None` where it knows neither kind.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn of(client: &kube::Client) -> Result<Option<Networking>, kube::Error> {
        for version in [Networking::V1, Networking::V1beta1] {
            match client.list_api_group_resources(version.group_version()).await {
                Ok(list) => {
                    let has = |name: &str| list.resources.iter().any(|resource| resource.name == name);
                    if has("ipaddresses") && has("servicecidrs") {
                        return Ok(Some(version));
                    }
                }
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// A kind that is recorded, as a server serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Services.
    Service,
    /// IPAddresses.
    IpAddress(Networking),
    /// ServiceCIDRs.
    ServiceCidr(Networking),
}

impl Kind {
    /// The kinds that a server has.
    pub fn all(networking: Option<Networking>) -> Vec<Kind> {
        let more = networking.map(|version| [Kind::IpAddress(version), Kind::ServiceCidr(version)]);
        [Kind::Service].into_iter().chain(more.into_iter().flatten()).collect()
    }

    /// Where all objects of the kind are listed.
    pub fn path(self) -> String {
        match self {
            Kind::Service => "/api/v1/services".into(),
            Kind::IpAddress(version) => format!("/apis/{}/ipaddresses", version.group_version()),
            Kind::ServiceCidr(version) => format!("/apis/{}/servicecidrs", version.group_version()),
        }
    }

    fn api_version(self) -> &'static str {
        match self {
            Kind::Service => "v1",
            Kind::IpAddress(version) | Kind::ServiceCidr(version) => version.group_version(),
        }
    }
}

/// The first of several servers that serves every kind, by its place; else the first one, which serves Services.
///
/// # Errors
/// A server does not answer.
pub async fn first_with_all(clients: &[kube::Client]) -> Result<(usize, Option<Networking>), kube::Error> {
    for (index, client) in clients.iter().enumerate() {
        if let Some(networking) = Networking::of(client).await? {
            return Ok((index, Some(networking)));
        }
    }
    Ok((0, None))
}

/// Everything of the kinds at one revision.
#[derive(Debug, Clone, PartialEq)]
pub struct Listing {
    /// The revision.
    pub revision: i64,
    /// The last write of each object with its revision, in order.
    pub writes: Vec<(i64, Change)>,
}

impl Listing {
    /// The state that the writes amount to.
    pub fn state(&self) -> State {
        let mut state = State::default();
        self.writes.iter().for_each(|(_, change)| state.apply(change.clone()));
        state
    }
}

/// What a list answers.
#[derive(Deserialize)]
struct ListAnswer {
    metadata: ListMetadata,
    #[serde(default)]
    items: Option<Vec<Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
}

/// Lists all kinds at one revision: the one that is given, else the newest, which the first read tells.
///
/// # Errors
/// The server does not answer, or an object does not decode.
pub async fn list(
    client: &kube::Client,
    networking: Option<Networking>,
    at: Option<i64>,
) -> Result<Listing, ListError> {
    let mut listing = Listing { revision: at.unwrap_or_default(), writes: Vec::new() };
    for kind in Kind::all(networking) {
        let exactly = match listing.revision {
            0 => String::new(),
            revision => format!("?resourceVersion={revision}&resourceVersionMatch=Exact"),
        };
        let request = http::Request::get(kind.path() + &exactly).body(Vec::new()).map_err(kube::Error::HttpError)?;
        let answer: ListAnswer = client.request(request).await?;
        if listing.revision == 0 {
            listing.revision = number(&answer.metadata.resource_version)?;
        }
        for object in answer.items.unwrap_or_default() {
            listing.writes.push(written(kind, object)?);
        }
    }
    listing.writes.sort_by_key(|(revision, _)| *revision);
    Ok(listing)
}

/// The IPAddress of an address as a server reads it now.
///
/// # Errors
/// The server does not answer, or the object does not decode.
pub async fn ip_address(
    client: &kube::Client,
    networking: Networking,
    ip: IpAddr,
) -> Result<Option<StoredIpAddress>, ListError> {
    let kind = Kind::IpAddress(networking);
    let request =
        http::Request::get(format!("{}/{ip}", kind.path())).body(Vec::new()).map_err(kube::Error::HttpError)?;
    match client.request::<Value>(request).await {
        Ok(object) => Ok(match stored(kind, object)? {
            Stored::IpAddress(object) => Some(object),
            Stored::Service(_) | Stored::ServiceCidr(_) | Stored::Range(_) => None,
        }),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// An object that was written, with the revision that wrote it.
///
/// # Errors
/// It does not decode.
pub fn written(kind: Kind, object: Value) -> Result<(i64, Change), ListError> {
    Ok((revision_of(&object)?, stored(kind, object)?.into()))
}

fn stored(kind: Kind, mut object: Value) -> Result<Stored, ListError> {
    let key = key_of(kind, &object)?;
    // Items of a list do not say their version.
    object["apiVersion"] = kind.api_version().into();
    Ok(decode(&key, object.to_string().as_bytes())?)
}

/// An object that was removed, with the revision that removed it.
///
/// # Errors
/// It does not decode.
pub fn removed(kind: Kind, object: &Value) -> Result<(i64, Change), ListError> {
    Ok((revision_of(object)?, key_of(kind, object)?.into()))
}

fn key_of(kind: Kind, object: &Value) -> Result<StoredKey, ListError> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_string();
    let name = text("name");
    Ok(match kind {
        Kind::Service => StoredKey::Service(ServiceKey { namespace: text("namespace"), name }),
        Kind::IpAddress(_) => StoredKey::IpAddress(name.parse().map_err(|_| ListError::Name { name })?),
        Kind::ServiceCidr(_) => StoredKey::ServiceCidr(name),
    })
}

fn revision_of(object: &Value) -> Result<i64, ListError> {
    number(object["metadata"]["resourceVersion"].as_str().unwrap_or_default())
}

/// The number of a resource version.
///
/// # Errors
/// Text that is no number.
pub fn number(text: &str) -> Result<i64, ListError> {
    text.parse().map_err(|_| ListError::ResourceVersion { text: text.to_string() })
}

/// A list that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The server.
    #[error("{}", crate::client::root_cause(.0))]
    Server(#[from] kube::Error),
    /// An object.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// An IPAddress whose name is no address.
    #[error("IPAddress `{name}` is not named after an address")]
    Name {
        /// Its name.
        name: String,
    },
    /// A watch that ends at once.
    #[error("the server ends every watch at once")]
    WatchEnds,
    /// A resource version that does not tell the order of writes.
    #[error("resource version `{text}` is not a number, so that the order of writes is unknown")]
    ResourceVersion {
        /// What the server gave.
        text: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_object_of_a_list_becomes_the_write_that_a_recording_has() {
        let object = json!({
            "metadata": {"name": "10.0.0.9", "resourceVersion": "17",
                         "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
            "spec": {"parentRef": {"group": "", "resource": "services", "namespace": "a", "name": "b"}},
        });
        let kind = Kind::IpAddress(Networking::V1beta1);
        let (revision, change) = written(kind, object.clone()).unwrap();
        let Change::PutIpAddress(stored) = change else { panic!("{change:?}") };
        assert_eq!((revision, stored.managed, stored.api_version.as_str()), (17, true, "networking.k8s.io/v1beta1"));
        assert_eq!(stored.parent.unwrap().to_string(), "a/b");
        assert_eq!(removed(kind, &object).unwrap(), (17, Change::DeleteIpAddress("10.0.0.9".parse().unwrap())));
    }

    #[test]
    fn a_resource_version_that_is_no_number_is_refused() {
        let object = json!({"metadata": {"name": "kubernetes", "resourceVersion": "x1"}});
        let error = removed(Kind::ServiceCidr(Networking::V1), &object).unwrap_err().to_string();
        assert!(error.contains("`x1`"), "{error}");
    }
}
