//! Clusters that run already and belong to somebody else: which servers are meant, what they say of themselves, and the
//! one namespace that a case makes in them. Nothing else is created, changed or deleted there.

use serde::{Deserialize, Serialize};

pub mod facts;
pub mod endpoint;
pub mod ask;
pub mod namespace;

pub use endpoint::Endpoint;

/// The servers of one cluster as they were found when the run was planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Existing {
    /// The servers in order, at least one, all of one cluster.
    pub servers: Vec<Found>,
    /// What a reader of the report must know: what was assumed, what cannot be seen.
    pub notes: Vec<String>,
}

/// A server as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// How it is reached.
    pub endpoint: Endpoint,
    /// Its `gitVersion`, with the suffix of its distribution.
    pub git_version: String,
}
