//! What a refusal of the allocator means, read from its message (upstream-wide texts of `alloc.go`).

use serde::{Deserialize, Serialize};

/// Why a creation was refused. The texts are the same in 1.31 to 1.37; the status codes are not, so they do not decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// `range is full`; up to 1.34 also any other error of the new allocator.
    RangeFull,
    /// `provided IP is already allocated`.
    AlreadyAllocated,
    /// The address is in no ready range, or the bitmap's range is not the server's.
    NetworkMismatch,
    /// The address is outside the range of a bitmap server.
    OutOfRange,
    /// `allocator not ready`.
    NotReady,
    /// The name is taken.
    NameTaken,
    /// The server has no range of the family asked for.
    FamilyNotConfigured,
    /// Anything else.
    Other,
}

impl Refusal {
    /// Reads `reason` and `message` of a Status object.
    pub fn classify(reason: &str, message: &str) -> Self {
        const TEXTS: [(&str, Refusal); 7] = [
            ("range is full", Refusal::RangeFull),
            ("is already allocated", Refusal::AlreadyAllocated),
            ("does not match the current range", Refusal::NetworkMismatch),
            ("not in the valid range", Refusal::OutOfRange),
            ("allocator not ready", Refusal::NotReady),
            ("not configured on this cluster", Refusal::FamilyNotConfigured),
            ("not configured for dual-stack", Refusal::FamilyNotConfigured),
        ];
        if reason == "AlreadyExists" {
            return Refusal::NameTaken;
        }
        TEXTS.iter().find(|(text, _)| message.contains(text)).map_or(Refusal::Other, |(_, class)| *class)
    }

    /// Whether the allocator itself gave up on a dynamic address: these count against rule E6.
    pub fn is_failed_allocation(self) -> bool {
        match self {
            Refusal::RangeFull | Refusal::AlreadyAllocated | Refusal::NetworkMismatch | Refusal::OutOfRange => true,
            Refusal::NotReady | Refusal::NameTaken | Refusal::FamilyNotConfigured | Refusal::Other => false,
        }
    }
}
