//! The end-to-end test binary: a module per suite, a function per scenario, an rstest case per combo.
#![allow(missing_docs, reason = "a test's name is its claim")]

mod combos;
mod skew;
