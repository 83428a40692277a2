//! The end-to-end test binary: a module per suite, a function per scenario, an rstest case per combo.
#![allow(missing_docs, reason = "the name of a test is its claim")]
#![allow(non_snake_case, reason = "two underscores separate the servers in the id of a combo")]

mod combos;
mod conformance;
mod flags;
mod recording;
mod skew;
mod upgrade;
