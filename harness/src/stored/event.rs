//! Kubernetes Events as they are stored: those of both API groups lie under one prefix, each in the words of its group.

use super::{DecodeError, Encoded, json, proto};
use crate::history::Observation;
use k8s_openapi::api::core::v1::Event as CoreEvent;
use k8s_openapi::api::events::v1::Event as NewEvent;
use prost::Message;

/// The messages' and errors' name of the kind.
const KIND: &str = "Event";

/// The group an Event was stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    /// `v1`, what an apiserver stores unless it is told otherwise.
    Core,
    /// `events.k8s.io`.
    Events,
}

impl Group {
    fn of(api_version: &str) -> Result<Self, DecodeError> {
        match api_version.split_once('/') {
            None if api_version == "v1" => Ok(Group::Core),
            Some(("events.k8s.io", _)) => Ok(Group::Events),
            None | Some(_) => {
                Err(DecodeError::BadField { what: "an apiVersion of Events", text: api_version.to_string() })
            }
        }
    }
}

/// The fields of an Event that are recorded, in the words of `events.k8s.io`; what is absent is empty.
#[derive(Default)]
struct Fields {
    reason: String,
    note: String,
    /// Kind, namespace and name.
    regarding: [String; 3],
    controller: String,
    /// The component of `source`, which says the same in the old words.
    component: String,
    /// Of the series; `None` without one.
    series: Option<i32>,
    /// `count`, 0 if unset.
    count: i32,
}

impl From<Fields> for Observation {
    fn from(fields: Fields) -> Observation {
        let parts: Vec<String> = fields.regarding.into_iter().filter(|part| !part.is_empty()).collect();
        Observation::Event {
            reason: fields.reason,
            regarding: parts.join("/"),
            note: fields.note,
            reporter: if fields.controller.is_empty() { fields.component } else { fields.controller },
            count: fields.series.unwrap_or(fields.count.max(1)),
        }
    }
}

/// Decodes the value stored under a key of [`super::keys::EVENTS`] to an [`Observation::Event`].
///
/// # Errors
/// Bytes that are neither JSON nor protobuf of the kind, or an `apiVersion` that is not one of Events.
pub fn decode(value: &[u8]) -> Result<Observation, DecodeError> {
    let fields = match Encoded::of(value)? {
        Encoded::Protobuf { api_version, raw } => from_protobuf(Group::of(&api_version)?, &raw)?,
        Encoded::Json(text) => from_json(text)?,
    };
    Ok(fields.into())
}

fn from_protobuf(group: Group, raw: &[u8]) -> Result<Fields, DecodeError> {
    let failed = |error| DecodeError::protobuf(KIND, error);
    let reference = |it: Option<proto::ObjectReference>| {
        let it = it.unwrap_or_default();
        [it.kind, it.namespace, it.name]
    };
    Ok(match group {
        Group::Core => {
            let event = proto::CoreEvent::decode(raw).map_err(failed)?;
            Fields {
                reason: event.reason,
                note: event.message,
                regarding: reference(event.involved_object),
                controller: event.reporting_component,
                component: event.source.unwrap_or_default().component,
                series: event.series.map(|series| series.count),
                count: event.count,
            }
        }
        Group::Events => {
            let event = proto::NewEvent::decode(raw).map_err(failed)?;
            Fields {
                reason: event.reason,
                note: event.note,
                regarding: reference(event.regarding),
                controller: event.reporting_controller,
                component: event.deprecated_source.unwrap_or_default().component,
                series: event.series.map(|series| series.count),
                count: event.deprecated_count,
            }
        }
    })
}

fn from_json(text: &[u8]) -> Result<Fields, DecodeError> {
    let (api_version, value) = json::parse_any_version(KIND, text)?;
    let reference = |it: k8s_openapi::api::core::v1::ObjectReference| {
        [it.kind, it.namespace, it.name].map(Option::unwrap_or_default)
    };
    Ok(match Group::of(&api_version)? {
        Group::Core => {
            let event: CoreEvent = json::from_value(KIND, value)?;
            Fields {
                reason: event.reason.unwrap_or_default(),
                note: event.message.unwrap_or_default(),
                regarding: reference(event.involved_object),
                controller: event.reporting_component.unwrap_or_default(),
                component: event.source.and_then(|source| source.component).unwrap_or_default(),
                series: event.series.map(|series| series.count.unwrap_or_default()),
                count: event.count.unwrap_or_default(),
            }
        }
        Group::Events => {
            let event: NewEvent = json::from_value(KIND, value)?;
            Fields {
                reason: event.reason.unwrap_or_default(),
                note: event.note.unwrap_or_default(),
                regarding: event.regarding.map(reference).unwrap_or_default(),
                controller: event.reporting_controller.unwrap_or_default(),
                component: event.deprecated_source.and_then(|source| source.component).unwrap_or_default(),
                series: event.series.map(|series| series.count),
                count: event.deprecated_count.unwrap_or_default(),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stored::{PROTOBUF_PREFIX, envelope};
    use proptest::prelude::*;

    const REPORTER: &str = "ipallocator-repair-controller";

    fn seen(count: i32) -> Observation {
        Observation::Event {
            reason: "ClusterIPAlreadyAllocated".into(),
            regarding: "Service/default/b".into(),
            note: "Cluster IP 10.0.0.9 was assigned to multiple services".into(),
            reporter: REPORTER.into(),
            count,
        }
    }

    fn reference() -> Option<proto::ObjectReference> {
        Some(proto::ObjectReference { kind: "Service".into(), namespace: "default".into(), name: "b".into() })
    }

    fn core_message(count: i32, series: Option<proto::EventSeries>) -> proto::CoreEvent {
        proto::CoreEvent {
            involved_object: reference(),
            reason: "ClusterIPAlreadyAllocated".into(),
            message: "Cluster IP 10.0.0.9 was assigned to multiple services".into(),
            source: None,
            count,
            series,
            reporting_component: REPORTER.into(),
        }
    }

    fn core_bytes(message: &proto::CoreEvent) -> Vec<u8> {
        envelope("v1", KIND, message.encode_to_vec())
    }

    #[test]
    fn an_event_of_the_core_group_decodes_to_the_same_in_both_encodings() {
        // As an apiserver stores what the repair loop of 1.33 has created in events.k8s.io.
        let text = br#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"b.18","namespace":"default",
            "creationTimestamp":"2026-01-02T03:04:05Z"},"involvedObject":{"kind":"Service","namespace":"default",
            "name":"b","apiVersion":"v1"},"reason":"ClusterIPAlreadyAllocated",
            "message":"Cluster IP 10.0.0.9 was assigned to multiple services","source":{},"firstTimestamp":null,
            "lastTimestamp":null,"type":"Warning","eventTime":"2026-01-02T03:04:05.123456Z",
            "action":"ClusterIPAllocation","reportingComponent":"ipallocator-repair-controller",
            "reportingInstance":"ipallocator-repair-controller-host"}"#;
        assert_eq!(decode(text), Ok(seen(1)));
        assert_eq!(decode(&core_bytes(&core_message(0, None))), Ok(seen(1)));
    }

    #[test]
    fn an_event_of_the_events_group_decodes_to_the_same_in_both_encodings() {
        let text = br#"{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"b.18"},
            "eventTime":"2026-01-02T03:04:05.123456Z","series":{"count":4,
            "lastObservedTime":"2026-01-02T03:05:05.123456Z"},"reportingController":"ipallocator-repair-controller",
            "reason":"ClusterIPAlreadyAllocated","regarding":{"kind":"Service","namespace":"default","name":"b"},
            "note":"Cluster IP 10.0.0.9 was assigned to multiple services","type":"Warning"}"#;
        let message = proto::NewEvent {
            series: Some(proto::EventSeries { count: 4 }),
            reporting_controller: REPORTER.into(),
            reason: "ClusterIPAlreadyAllocated".into(),
            regarding: reference(),
            note: "Cluster IP 10.0.0.9 was assigned to multiple services".into(),
            deprecated_source: None,
            deprecated_count: 0,
        };
        assert_eq!(decode(text), Ok(seen(4)));
        assert_eq!(decode(&envelope("events.k8s.io/v1", KIND, message.encode_to_vec())), Ok(seen(4)));
        assert_eq!(decode(&envelope("events.k8s.io/v1beta1", KIND, message.encode_to_vec())), Ok(seen(4)));
    }

    #[test]
    fn the_count_is_that_of_the_series_then_the_old_one_then_one() {
        let count = |count, series: Option<i32>| {
            let series = series.map(|count| proto::EventSeries { count });
            decode(&core_bytes(&core_message(count, series))).unwrap()
        };
        assert_eq!(count(0, None), seen(1));
        assert_eq!(count(3, None), seen(3));
        assert_eq!(count(3, Some(7)), seen(7));
    }

    #[test]
    fn the_component_of_the_source_reports_where_no_controller_does() {
        let source = Some(proto::EventSource { component: REPORTER.into() });
        let message = proto::CoreEvent { source, reporting_component: String::new(), ..core_message(1, None) };
        assert_eq!(decode(&core_bytes(&message)), Ok(seen(1)));
    }

    #[test]
    fn an_event_about_an_object_without_namespace_names_kind_and_name() {
        let object = proto::ObjectReference { kind: "IPAddress".into(), name: "10.0.0.9".into(), ..Default::default() };
        let message = proto::CoreEvent { involved_object: Some(object), ..Default::default() };
        let Ok(Observation::Event { regarding, .. }) = decode(&core_bytes(&message)) else { panic!("must decode") };
        assert_eq!(regarding, "IPAddress/10.0.0.9");
    }

    #[test]
    fn what_is_no_event_is_an_error() {
        let bad =
            |api_version: &str| DecodeError::BadField { what: "an apiVersion of Events", text: api_version.into() };
        assert_eq!(decode(&envelope("apps/v1", KIND, Vec::new())), Err(bad("apps/v1")));
        assert_eq!(decode(b"{}"), Err(bad("")));
        assert!(matches!(decode(b""), Err(DecodeError::UnknownEncoding { .. })));
        assert!(matches!(decode(br#"{"apiVersion":"v1","reason":7}"#), Err(DecodeError::Json { .. })));
        assert!(matches!(decode(&envelope("v1", KIND, vec![0x1a, 0xff])), Err(DecodeError::Protobuf { .. })));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(value: Vec<u8>, text: String) {
            let _ = decode(&value);
            let _ = decode(&[PROTOBUF_PREFIX, &value].concat());
            let _ = decode(&envelope("v1", KIND, value.clone()));
            let _ = decode(&envelope("events.k8s.io/v1", KIND, value));
            let _ = decode(format!("{{{text}}}").as_bytes());
        }
    }
}
