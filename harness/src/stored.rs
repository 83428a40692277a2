//! Decoding and encoding of the objects Kubernetes stores in etcd, as far as ClusterIPs are concerned.
//!
//! A value is either JSON, or the four bytes `k8s\0` and a `runtime.Unknown` whose `raw` is the protobuf message of the
//! kind. Field numbers are those of the `generated.proto` files of k8s.io/api and k8s.io/apimachinery.

use crate::history::{
    Change, RangeKey, ServiceKey, ServiceType, StoredIpAddress, StoredRange, StoredService, StoredServiceCidr,
};
use ipnet::IpNet;
use prost::Message;
use std::net::IpAddr;

pub mod event;
mod json;
mod proto;

/// Label and value of the IPAddress objects that belong to the allocator.
pub const MANAGED_BY: (&str, &str) = ("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io");
/// What a protobuf value begins with (`protobuf.Serializer`).
const PROTOBUF_PREFIX: &[u8] = b"k8s\0";

/// Where each kind is stored under the default `--etcd-prefix`.
pub mod keys {
    /// Everything of one cluster.
    pub const REGISTRY: &str = "/registry/";
    /// Events of both API groups: `<namespace>/<name>` follows.
    pub const EVENTS: &str = "/registry/events/";
    /// Services: `<namespace>/<name>` follows.
    pub const SERVICES: &str = "/registry/services/specs/";
    /// IPAddresses: the address follows.
    pub const IP_ADDRESSES: &str = "/registry/ipaddresses/";
    /// ServiceCIDRs: the name follows.
    pub const SERVICE_CIDRS: &str = "/registry/servicecidrs/";
    /// The bitmap of the first range of the flag.
    pub const PRIMARY_RANGE: &str = "/registry/ranges/serviceips";
    /// The bitmap of the second range of the flag.
    pub const SECONDARY_RANGE: &str = "/registry/ranges/secondaryserviceips";
}

/// An object of a kind that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// A Service.
    Service(StoredService),
    /// An IPAddress.
    IpAddress(StoredIpAddress),
    /// A ServiceCIDR.
    ServiceCidr(StoredServiceCidr),
    /// A bitmap.
    Range(StoredRange),
}

/// A key of a kind that is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredKey {
    /// A Service.
    Service(ServiceKey),
    /// An IPAddress.
    IpAddress(IpAddr),
    /// A ServiceCIDR.
    ServiceCidr(String),
    /// A bitmap.
    Range(RangeKey),
}

impl From<Stored> for Change {
    /// It was written.
    fn from(stored: Stored) -> Change {
        match stored {
            Stored::Service(service) => Change::PutService(service),
            Stored::IpAddress(object) => Change::PutIpAddress(object),
            Stored::ServiceCidr(cidr) => Change::PutServiceCidr(cidr),
            Stored::Range(range) => Change::PutRange(range),
        }
    }
}

impl From<StoredKey> for Change {
    /// It was removed.
    fn from(key: StoredKey) -> Change {
        match key {
            StoredKey::Service(key) => Change::DeleteService(key),
            StoredKey::IpAddress(ip) => Change::DeleteIpAddress(ip),
            StoredKey::ServiceCidr(name) => Change::DeleteServiceCidr(name),
            StoredKey::Range(key) => Change::DeleteRange(key),
        }
    }
}

/// What a key stands for; `None` for keys that have nothing to do with ClusterIPs.
///
/// # Errors
/// A key under one of the recorded prefixes that does not end as its kind demands.
pub fn parse_key(key: &[u8]) -> Result<Option<StoredKey>, DecodeError> {
    let Ok(key) = std::str::from_utf8(key) else { return Ok(None) };
    let bad = |what| DecodeError::BadKey { key: key.to_string(), what };
    if let Some(rest) = key.strip_prefix(keys::SERVICES) {
        let (namespace, name) = rest.split_once('/').ok_or_else(|| bad("namespace and name"))?;
        return Ok(Some(StoredKey::Service(ServiceKey { namespace: namespace.into(), name: name.into() })));
    }
    if let Some(rest) = key.strip_prefix(keys::IP_ADDRESSES) {
        return Ok(Some(StoredKey::IpAddress(rest.parse().map_err(|_| bad("an address"))?)));
    }
    if let Some(rest) = key.strip_prefix(keys::SERVICE_CIDRS) {
        return Ok(Some(StoredKey::ServiceCidr(rest.to_string())));
    }
    Ok(match key {
        keys::PRIMARY_RANGE => Some(StoredKey::Range(RangeKey::Primary)),
        keys::SECONDARY_RANGE => Some(StoredKey::Range(RangeKey::Secondary)),
        _ => None,
    })
}

/// Decodes the value stored under a key.
///
/// # Errors
/// Bytes that are neither JSON nor protobuf of the kind, or fields that are not what the kind demands.
pub fn decode(key: &StoredKey, value: &[u8]) -> Result<Stored, DecodeError> {
    let raw = Encoded::of(value)?;
    match key {
        StoredKey::Service(key) => raw.service(key).map(Stored::Service),
        StoredKey::IpAddress(ip) => raw.ip_address(*ip).map(Stored::IpAddress),
        StoredKey::ServiceCidr(name) => raw.service_cidr(name).map(Stored::ServiceCidr),
        StoredKey::Range(key) => raw.range(*key).map(Stored::Range),
    }
}

/// A bitmap as an apiserver would store it, in protobuf.
pub fn encode_range(range: &StoredRange) -> Vec<u8> {
    let message = proto::RangeAllocation {
        metadata: Some(proto::ObjectMeta::default()),
        range: range.range.map_or(String::new(), |net| net.to_string()),
        data: range.data.clone(),
    };
    envelope("v1", "RangeAllocation", message.encode_to_vec())
}

/// A bitmap as an apiserver with `--storage-media-type=application/json` would store it.
pub fn encode_range_json(range: &StoredRange) -> Vec<u8> {
    json::encode_range(range)
}

fn envelope(api_version: &str, kind: &str, raw: Vec<u8>) -> Vec<u8> {
    let type_meta = proto::TypeMeta { api_version: api_version.into(), kind: kind.into() };
    let unknown = proto::Unknown { type_meta: Some(type_meta), raw };
    [PROTOBUF_PREFIX, &unknown.encode_to_vec()].concat()
}

enum Encoded<'a> {
    Protobuf { api_version: String, raw: Vec<u8> },
    Json(&'a [u8]),
}

impl<'a> Encoded<'a> {
    fn of(value: &'a [u8]) -> Result<Self, DecodeError> {
        if let Some(envelope) = value.strip_prefix(PROTOBUF_PREFIX) {
            let unknown = proto::Unknown::decode(envelope).map_err(|error| DecodeError::protobuf("Unknown", error))?;
            let api_version = unknown.type_meta.unwrap_or_default().api_version;
            Ok(Encoded::Protobuf { api_version, raw: unknown.raw })
        } else if value.trim_ascii_start().first() == Some(&b'{') {
            Ok(Encoded::Json(value))
        } else {
            Err(DecodeError::UnknownEncoding { first_bytes: hex::encode(&value[..value.len().min(8)]) })
        }
    }

    fn service(self, key: &ServiceKey) -> Result<StoredService, DecodeError> {
        match self {
            Encoded::Json(text) => json::service(key, text),
            Encoded::Protobuf { raw, .. } => {
                let service =
                    proto::Service::decode(raw.as_slice()).map_err(|error| DecodeError::protobuf("Service", error))?;
                let (metadata, spec) = (service.metadata.unwrap_or_default(), service.spec.unwrap_or_default());
                Ok(StoredService {
                    key: key.clone(),
                    uid: metadata.uid,
                    service_type: ServiceType::parse(&spec.service_type),
                    ips: cluster_ips(&spec.cluster_ip, &spec.cluster_ips)?,
                    deleting: metadata.deletion_timestamp.is_some(),
                })
            }
        }
    }

    fn ip_address(self, ip: IpAddr) -> Result<StoredIpAddress, DecodeError> {
        match self {
            Encoded::Json(text) => json::ip_address(ip, text),
            Encoded::Protobuf { api_version, raw } => {
                let object = proto::IpAddress::decode(raw.as_slice())
                    .map_err(|error| DecodeError::protobuf("IPAddress", error))?;
                let parent = object.spec.unwrap_or_default().parent_ref.unwrap_or_default();
                let labels = object.metadata.unwrap_or_default().labels;
                Ok(StoredIpAddress {
                    ip,
                    managed: labels.get(MANAGED_BY.0).map(String::as_str) == Some(MANAGED_BY.1),
                    parent: service_reference(&parent.group, &parent.resource, parent.namespace, parent.name),
                    api_version,
                })
            }
        }
    }

    fn service_cidr(self, name: &str) -> Result<StoredServiceCidr, DecodeError> {
        match self {
            Encoded::Json(text) => json::service_cidr(name, text),
            Encoded::Protobuf { api_version, raw } => {
                let object = proto::ServiceCidr::decode(raw.as_slice())
                    .map_err(|error| DecodeError::protobuf("ServiceCIDR", error))?;
                let conditions = object.status.unwrap_or_default().conditions;
                let ready = conditions.iter().find(|condition| condition.condition_type == "Ready");
                Ok(StoredServiceCidr {
                    name: name.to_string(),
                    cidrs: networks(&object.spec.unwrap_or_default().cidrs)?,
                    ready: ready.map(|condition| condition.status == "True"),
                    deleting: object.metadata.unwrap_or_default().deletion_timestamp.is_some(),
                    api_version,
                })
            }
        }
    }

    fn range(self, key: RangeKey) -> Result<StoredRange, DecodeError> {
        match self {
            Encoded::Json(text) => json::range(key, text),
            Encoded::Protobuf { raw, .. } => {
                let object = proto::RangeAllocation::decode(raw.as_slice())
                    .map_err(|error| DecodeError::protobuf("RangeAllocation", error))?;
                Ok(StoredRange { key, range: optional_network(&object.range)?, data: object.data })
            }
        }
    }
}

/// `spec.clusterIPs`, or `spec.clusterIP` where only that is set; `None` (headless) and empty mean no address.
fn cluster_ips(single: &str, all: &[String]) -> Result<Vec<IpAddr>, DecodeError> {
    let single = [single.to_string()];
    let texts = if all.is_empty() { &single[..] } else { all };
    texts.iter().filter(|text| !text.is_empty() && *text != "None").map(|text| parse("an address", text)).collect()
}

fn networks(texts: &[String]) -> Result<Vec<IpNet>, DecodeError> {
    texts.iter().map(|text| parse("a CIDR", text)).collect()
}

fn optional_network(text: &str) -> Result<Option<IpNet>, DecodeError> {
    if text.is_empty() { Ok(None) } else { parse("a CIDR", text).map(Some) }
}

fn parse<T: std::str::FromStr>(what: &'static str, text: &str) -> Result<T, DecodeError> {
    text.parse().map_err(|_| DecodeError::BadField { what, text: text.to_string() })
}

fn service_reference(group: &str, resource: &str, namespace: String, name: String) -> Option<ServiceKey> {
    (group.is_empty() && resource == "services").then_some(ServiceKey { namespace, name })
}

/// A key or value that is not what Kubernetes stores.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A key that does not end as its kind demands.
    #[error("etcd key `{key}` does not end in {what}")]
    BadKey {
        /// The key.
        key: String,
        /// What its end should be.
        what: &'static str,
    },
    /// Neither JSON nor the protobuf envelope.
    #[error("value is neither JSON nor protobuf, it begins with 0x{first_bytes}")]
    UnknownEncoding {
        /// Hexadecimal.
        first_bytes: String,
    },
    /// A message that does not decode.
    #[error("{kind} is not valid protobuf: {why}")]
    Protobuf {
        /// Which message.
        kind: &'static str,
        /// The decoder's words.
        why: String,
    },
    /// JSON that does not decode.
    #[error("{kind} is not valid JSON: {why}")]
    Json {
        /// Which kind.
        kind: &'static str,
        /// The decoder's words.
        why: String,
    },
    /// A field with a value its kind does not allow.
    #[error("`{text}` is not {what}")]
    BadField {
        /// What was wanted.
        what: &'static str,
        /// What was stored.
        text: String,
    },
}

impl DecodeError {
    fn protobuf(kind: &'static str, error: prost::DecodeError) -> Self {
        DecodeError::Protobuf { kind, why: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all_keys() -> [StoredKey; 4] {
        [
            StoredKey::Service(ServiceKey { namespace: "default".into(), name: "a".into() }),
            StoredKey::IpAddress("10.0.0.9".parse().unwrap()),
            StoredKey::ServiceCidr("kubernetes".into()),
            StoredKey::Range(RangeKey::Primary),
        ]
    }

    #[test]
    fn keys_of_services_addresses_ranges_and_nothing_else_are_recognized() {
        let parsed = |key: &str| parse_key(key.as_bytes());
        assert_eq!(parsed("/registry/services/specs/default/a").unwrap(), Some(all_keys()[0].clone()));
        assert_eq!(parsed("/registry/ipaddresses/10.0.0.9").unwrap(), Some(all_keys()[1].clone()));
        assert_eq!(
            parsed("/registry/ranges/secondaryserviceips").unwrap(),
            Some(StoredKey::Range(RangeKey::Secondary))
        );
        assert_eq!(parsed("/registry/ranges/servicenodeports").unwrap(), None);
        assert_eq!(parsed("/registry/services/endpoints/default/a").unwrap(), None);
        assert!(parsed("/registry/ipaddresses/nonsense").is_err());
        assert!(parsed("/registry/services/specs/noname").is_err());
    }

    #[test]
    fn a_service_in_json_and_in_protobuf_decodes_to_the_same() {
        let text = br#"{"kind":"Service","apiVersion":"v1","metadata":{"name":"a","namespace":"default","uid":"u1"},
            "spec":{"type":"ClusterIP","clusterIP":"10.0.0.9","clusterIPs":["10.0.0.9"]}}"#;
        let from_json = decode(&all_keys()[0], text).unwrap();
        let message = proto::Service {
            metadata: Some(proto::ObjectMeta { uid: "u1".into(), ..Default::default() }),
            spec: Some(proto::ServiceSpec {
                cluster_ip: "10.0.0.9".into(),
                cluster_ips: vec!["10.0.0.9".into()],
                service_type: "ClusterIP".into(),
            }),
        };
        let from_protobuf = decode(&all_keys()[0], &envelope("v1", "Service", message.encode_to_vec())).unwrap();
        assert_eq!(from_json, from_protobuf);
    }

    #[test]
    fn a_headless_service_holds_no_address() {
        let text = br#"{"spec":{"type":"ClusterIP","clusterIP":"None","clusterIPs":["None"]},"metadata":{"uid":"u"}}"#;
        let Stored::Service(service) = decode(&all_keys()[0], text).unwrap() else { panic!("must be a Service") };
        assert!(service.ips.is_empty());
    }

    #[test]
    fn a_foreign_ip_address_has_no_parent_service_and_is_not_managed() {
        let text = br#"{"apiVersion":"networking.k8s.io/v1","metadata":{},
            "spec":{"parentRef":{"group":"mygroup","resource":"services","name":"x"}}}"#;
        let Stored::IpAddress(object) = decode(&all_keys()[1], text).unwrap() else { panic!("must be an IPAddress") };
        assert_eq!((object.parent, object.managed), (None, false));
    }

    proptest! {
        #[test]
        fn a_bitmap_survives_both_encodings(data: Vec<u8>, set: bool) {
            let range = set.then(|| "10.0.0.0/16".parse().unwrap());
            let stored = StoredRange { key: RangeKey::Primary, range, data };
            let key = StoredKey::Range(RangeKey::Primary);
            prop_assert_eq!(decode(&key, &encode_range(&stored)).unwrap(), Stored::Range(stored.clone()));
            prop_assert_eq!(decode(&key, &encode_range_json(&stored)).unwrap(), Stored::Range(stored));
        }

        #[test]
        fn no_bytes_make_a_decoder_panic(which in 0usize..4, value: Vec<u8>, prefixed: bool) {
            let value = if prefixed { [PROTOBUF_PREFIX, &value].concat() } else { value };
            let _ = decode(&all_keys()[which], &value);
            let _ = decode(&all_keys()[which], &envelope("v1", "Any", value));
        }
    }
}
