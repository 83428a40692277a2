//! What the scenarios share: the run of one case from plan to record, and the questions several of them ask.

pub mod case;
pub mod claims;
pub mod conformance;
pub mod crash;
pub mod downgrade;
pub mod events;
pub mod existing;
pub mod flags;
pub mod namespaces;
pub mod observe;
pub mod order;
pub mod race;
pub mod ranges;
pub mod readback;
pub mod release;
pub mod rolling;
pub mod step;
pub mod words;
