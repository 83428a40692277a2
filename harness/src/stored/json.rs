//! The JSON form of the stored objects, read by the types of k8s-openapi.

use super::{DecodeError, MANAGED_BY, cluster_ips, networks, optional_network, service_reference};
use crate::history::{
    RangeKey, ServiceKey, ServiceType, StoredIpAddress, StoredRange, StoredService, StoredServiceCidr,
};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::net::IpAddr;

/// `v1` RangeAllocation is not a served API, so k8s-openapi does not have it.
#[derive(Serialize, Deserialize)]
struct RangeAllocation {
    #[serde(default)]
    range: String,
    #[serde(default)]
    data: Option<ByteString>,
}

pub fn service(key: &ServiceKey, text: &[u8]) -> Result<StoredService, DecodeError> {
    let service: Service = from_value("Service", parse_any_version("Service", text)?.1)?;
    let spec = service.spec.unwrap_or_default();
    Ok(StoredService {
        key: key.clone(),
        uid: service.metadata.uid.unwrap_or_default(),
        service_type: ServiceType::parse(spec.type_.as_deref().unwrap_or_default()),
        ips: cluster_ips(&spec.cluster_ip.unwrap_or_default(), &spec.cluster_ips.unwrap_or_default())?,
        deleting: service.metadata.deletion_timestamp.is_some(),
    })
}

pub fn ip_address(ip: IpAddr, text: &[u8]) -> Result<StoredIpAddress, DecodeError> {
    let (api_version, value) = parse_any_version("IPAddress", text)?;
    let object: IPAddress = from_value("IPAddress", value)?;
    let parent = object.spec.parent_ref;
    let labels = object.metadata.labels.unwrap_or_default();
    Ok(StoredIpAddress {
        ip,
        managed: labels.get(MANAGED_BY.0).map(String::as_str) == Some(MANAGED_BY.1),
        parent: service_reference(
            &parent.group.unwrap_or_default(),
            &parent.resource,
            parent.namespace.unwrap_or_default(),
            parent.name,
        ),
        api_version,
    })
}

pub fn service_cidr(name: &str, text: &[u8]) -> Result<StoredServiceCidr, DecodeError> {
    let (api_version, value) = parse_any_version("ServiceCIDR", text)?;
    let object: ServiceCIDR = from_value("ServiceCIDR", value)?;
    let conditions = object.status.and_then(|status| status.conditions).unwrap_or_default();
    Ok(StoredServiceCidr {
        name: name.to_string(),
        cidrs: networks(&object.spec.unwrap_or_default().cidrs.unwrap_or_default())?,
        ready: conditions.iter().find(|it| it.type_ == "Ready").map(|it| it.status == "True"),
        deleting: is_deleting(&object.metadata),
        api_version,
    })
}

pub fn range(key: RangeKey, text: &[u8]) -> Result<StoredRange, DecodeError> {
    let object: RangeAllocation = from_value("RangeAllocation", parse_any_version("RangeAllocation", text)?.1)?;
    let data = object.data.unwrap_or_default().0;
    Ok(StoredRange { key, range: optional_network(&object.range)?, data })
}

pub fn encode_range(range: &StoredRange) -> Vec<u8> {
    let object = serde_json::json!({
        "kind": "RangeAllocation",
        "apiVersion": "v1",
        "metadata": {},
        "range": range.range.map_or(String::new(), |net| net.to_string()),
        "data": ByteString(range.data.clone()),
    });
    object.to_string().into_bytes()
}

/// The `apiVersion`, and the object without `apiVersion` and `kind`: the same fields mean the same in v1beta1 and v1,
/// but the typed structs accept only their own version.
pub fn parse_any_version(kind: &'static str, text: &[u8]) -> Result<(String, Value), DecodeError> {
    let mut value: Value =
        serde_json::from_slice(text).map_err(|error| DecodeError::Json { kind, why: error.to_string() })?;
    let api_version = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_string();
    if let Some(object) = value.as_object_mut() {
        object.remove("apiVersion");
        object.remove("kind");
    }
    Ok((api_version, value))
}

pub fn from_value<T: for<'de> Deserialize<'de>>(kind: &'static str, value: Value) -> Result<T, DecodeError> {
    serde_json::from_value(value).map_err(|error| DecodeError::Json { kind, why: error.to_string() })
}

fn is_deleting(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some()
}
