//! Control planes of real nodes: a kind cluster with one control-plane node per server.

pub mod archive;
pub mod config;
pub mod engine;
pub mod manifest;
pub mod node;
pub mod node_image;
pub mod nodes;
pub mod owner;
pub mod releases;
pub mod script;
pub mod cluster;
mod error;

pub use cluster::{Cluster, Nodes, Server};
pub use error::KindError;
