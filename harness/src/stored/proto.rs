//! The protobuf messages, only with the fields in use; the decoder skips all others.

use prost::Message;
use std::collections::HashMap;

#[derive(Clone, PartialEq, Message)]
pub struct Unknown {
    #[prost(message, optional, tag = "1")]
    pub type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    pub raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TypeMeta {
    #[prost(string, tag = "1")]
    pub api_version: String,
    #[prost(string, tag = "2")]
    pub kind: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ObjectMeta {
    #[prost(string, tag = "5")]
    pub uid: String,
    #[prost(message, optional, tag = "9")]
    pub deletion_timestamp: Option<Time>,
    #[prost(map = "string, string", tag = "11")]
    pub labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Time {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Service {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub spec: Option<ServiceSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ServiceSpec {
    #[prost(string, tag = "3")]
    pub cluster_ip: String,
    #[prost(string, tag = "4")]
    pub service_type: String,
    #[prost(string, repeated, tag = "18")]
    pub cluster_ips: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct IpAddress {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub spec: Option<IpAddressSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub struct IpAddressSpec {
    #[prost(message, optional, tag = "1")]
    pub parent_ref: Option<ParentReference>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ParentReference {
    #[prost(string, tag = "1")]
    pub group: String,
    #[prost(string, tag = "2")]
    pub resource: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "4")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ServiceCidr {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    pub spec: Option<ServiceCidrSpec>,
    #[prost(message, optional, tag = "3")]
    pub status: Option<ServiceCidrStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ServiceCidrSpec {
    #[prost(string, repeated, tag = "1")]
    pub cidrs: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ServiceCidrStatus {
    #[prost(message, repeated, tag = "1")]
    pub conditions: Vec<Condition>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Condition {
    #[prost(string, tag = "1")]
    pub condition_type: String,
    #[prost(string, tag = "2")]
    pub status: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct RangeAllocation {
    #[prost(message, optional, tag = "1")]
    pub metadata: Option<ObjectMeta>,
    #[prost(string, tag = "2")]
    pub range: String,
    #[prost(bytes = "vec", tag = "3")]
    pub data: Vec<u8>,
}

/// `v1` Event.
#[derive(Clone, PartialEq, Message)]
pub struct CoreEvent {
    #[prost(message, optional, tag = "2")]
    pub involved_object: Option<ObjectReference>,
    #[prost(string, tag = "3")]
    pub reason: String,
    #[prost(string, tag = "4")]
    pub message: String,
    #[prost(message, optional, tag = "5")]
    pub source: Option<EventSource>,
    #[prost(int32, tag = "8")]
    pub count: i32,
    #[prost(message, optional, tag = "11")]
    pub series: Option<EventSeries>,
    #[prost(string, tag = "14")]
    pub reporting_component: String,
}

/// `events.k8s.io/v1` Event; v1beta1 has the same fields.
#[derive(Clone, PartialEq, Message)]
pub struct NewEvent {
    #[prost(message, optional, tag = "3")]
    pub series: Option<EventSeries>,
    #[prost(string, tag = "4")]
    pub reporting_controller: String,
    #[prost(string, tag = "7")]
    pub reason: String,
    #[prost(message, optional, tag = "8")]
    pub regarding: Option<ObjectReference>,
    #[prost(string, tag = "10")]
    pub note: String,
    #[prost(message, optional, tag = "12")]
    pub deprecated_source: Option<EventSource>,
    #[prost(int32, tag = "15")]
    pub deprecated_count: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ObjectReference {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct EventSource {
    #[prost(string, tag = "1")]
    pub component: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct EventSeries {
    #[prost(int32, tag = "1")]
    pub count: i32,
}
