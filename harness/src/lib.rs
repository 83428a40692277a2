//! Control planes of several Kubernetes versions and feature gates side by side, recorded and judged.
//!
//! The pure core takes values and returns values; it knows neither tokio nor kube. Around it stand the modules that
//! touch processes, sockets and files. Modules are listed in reading order.

// The pure core.
pub mod version;
pub mod gates;
pub mod hazard;
pub mod net;
pub mod bitmap;
pub mod server;
pub mod combo;
pub mod provider;
pub mod expect;
pub mod refusal;
pub mod startup;
pub mod history;
pub mod stored;
pub mod check;
pub mod model;
pub mod preflight;

// Around it: processes, sockets, files.
pub mod files;
pub mod binaries;
pub mod wait;
pub mod process;
pub mod pki;
pub mod etcd;
pub mod client;
pub mod listing;
pub mod journal;
pub mod recorder;
pub mod judged;
pub mod cluster;
pub mod existing;
pub mod traffic;
pub mod record;
pub mod outcome;
pub mod report;
pub mod host;
