//! What an apiserver means when it refuses a call: status and message sorted into the cases of upstream's `alloc.go`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// 422: the address asked for belongs to somebody.
    StaticTaken,
    /// 500: the server picked an address itself and found it taken (dual write, a bit free but an IPAddress there).
    DynamicTaken,
    /// 500: no free address, or (up to 1.34) any other error of the new allocator.
    RangeFull,
    /// 422: the address asked for lies in no range of the server.
    StaticOutOfRange,
    /// 500: the address picked lies in no ready ServiceCIDR (dual write while the default ServiceCIDR is going).
    DynamicOutOfRange,
    /// 422 or 500: the allocator has not filled its caches yet.
    NotReady,
    /// 422 or 500: the server is stopping and cannot reach itself any more to make the IPAddress. A client that takes 422
    /// for final gives up although another server would have granted the address.
    Stopping,
    /// 409: an object of this name exists.
    AlreadyExists,
    /// 409: somebody else changed the object meanwhile.
    Conflict,
    /// 404: no such object.
    NotFound,
    /// 403: a policy, quota or role forbids it.
    Forbidden,
    /// 422: the server has no range of the family asked for.
    FamilyNotConfigured,
}

impl Refusal {
    /// Whether the allocator itself gave up on an address that it picks: these count against rule E6.
    pub fn is_failed_allocation(self) -> bool {
        match self {
            Refusal::DynamicTaken | Refusal::RangeFull | Refusal::DynamicOutOfRange => true,
            Refusal::StaticTaken
            | Refusal::StaticOutOfRange
            | Refusal::NotReady
            | Refusal::Stopping
            | Refusal::AlreadyExists
            | Refusal::Conflict
            | Refusal::NotFound
            | Refusal::Forbidden
            | Refusal::FamilyNotConfigured => false,
        }
    }

    /// Whether an address belonged to somebody else.
    pub fn is_taken(self) -> bool {
        matches!(self, Refusal::StaticTaken | Refusal::DynamicTaken)
    }

    /// A short name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::StaticTaken => "422 already allocated",
            Refusal::DynamicTaken => "500 already allocated",
            Refusal::RangeFull => "500 range is full",
            Refusal::StaticOutOfRange => "422 not in range",
            Refusal::DynamicOutOfRange => "500 not in range",
            Refusal::NotReady => "allocator not ready",
            Refusal::Stopping => "stopping",
            Refusal::AlreadyExists => "409 already exists",
            Refusal::Conflict => "409 conflict",
            Refusal::NotFound => "404 not found",
            Refusal::Forbidden => "403 forbidden",
            Refusal::FamilyNotConfigured => "422 family not configured",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Sorts a refusal by HTTP status, reason and message; `None` for one that is not known, which no scenario may accept.
pub fn classify(code: u16, reason: &str, message: &str) -> Option<Refusal> {
    let says = |text: &str| message.contains(text);
    let out_of_range = says("does not match the current range") || says("is not in the valid range");
    match code {
        422 | 500 if says("failed to allocate") && says("connect: connection refused") => Some(Refusal::Stopping),
        422 if says("provided IP is already allocated") => Some(Refusal::StaticTaken),
        422 if out_of_range => Some(Refusal::StaticOutOfRange),
        422 if says("not configured") => Some(Refusal::FamilyNotConfigured),
        422 | 500 if says("allocator not ready") => Some(Refusal::NotReady),
        500 if !says("failed to allocate") => None,
        500 if says("provided IP is already allocated") => Some(Refusal::DynamicTaken),
        500 if says("range is full") => Some(Refusal::RangeFull),
        500 if out_of_range => Some(Refusal::DynamicOutOfRange),
        409 if reason == "AlreadyExists" => Some(Refusal::AlreadyExists),
        409 => Some(Refusal::Conflict),
        404 => Some(Refusal::NotFound),
        403 => Some(Refusal::Forbidden),
        _ => None,
    }
}

/// Whether the answer itself says that nothing was stored: any 4xx, and a failed allocation, which comes before the
/// write. Every other 5xx leaves it open.
pub fn is_definite(code: u16, reason: &str, message: &str) -> bool {
    (400..500).contains(&code) || (code == 500 && classify(code, reason, message).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_of_the_allocator_are_told_apart() {
        #[track_caller]
        fn is(code: u16, message: &str, expected: Option<Refusal>) {
            assert_eq!(classify(code, "", message), expected, "{code} {message}");
        }
        let failed = "Internal error occurred: failed to allocate a serviceIP:";
        is(500, &format!("{failed} range is full"), Some(Refusal::RangeFull));
        is(500, &format!("{failed} provided IP is already allocated"), Some(Refusal::DynamicTaken));
        is(
            500,
            &format!("{failed} the provided network does not match the current range"),
            Some(Refusal::DynamicOutOfRange),
        );
        let invalid =
            "Service \"a\" is invalid: spec.clusterIPs: Invalid value: [\"10.0.0.9\"]: failed to allocate IP 10.0.0.9:";
        is(422, &format!("{invalid} provided IP is already allocated"), Some(Refusal::StaticTaken));
        is(422, &format!("{invalid} provided IP is not in the valid range"), Some(Refusal::StaticOutOfRange));
        is(422, &format!("{invalid} allocator not ready"), Some(Refusal::NotReady));
        let itself = "Post \"https://127.0.0.1:1/apis/x\": dial tcp 127.0.0.1:1: connect: connection refused";
        is(422, &format!("{invalid} {itself}"), Some(Refusal::Stopping));
        is(500, "Internal error occurred: etcdserver: request timed out", None);
        is(422, "Service \"A\" is invalid: metadata.name: Invalid value", None);
        is(503, "the server is currently unable to handle the request", None);
    }

    #[test]
    fn only_a_4xx_or_a_failed_allocation_says_that_nothing_was_stored() {
        assert!(is_definite(422, "Invalid", "anything"));
        assert!(is_definite(500, "InternalError", "failed to allocate a serviceIP: range is full"));
        assert!(!is_definite(500, "InternalError", "etcdserver: request timed out"));
        assert!(!is_definite(504, "Timeout", "request timed out"));
    }
}
