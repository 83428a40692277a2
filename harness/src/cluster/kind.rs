//! Control planes of real nodes: a kind cluster with one control-plane node per server.

pub mod archive;
pub mod engine;
pub mod node_image;
pub mod releases;
