//! Control planes of several Kubernetes versions and feature gates side by side, recorded and judged.
//!
//! The pure core takes values and returns values; it knows neither tokio nor kube. Around it stand the modules that
//! touch processes, sockets and files. Modules are listed in reading order.

// The pure core.
pub mod bitmap;
pub mod check;
pub mod gates;
pub mod history;
pub mod model;
pub mod net;
pub mod server;
pub mod stored;
pub mod version;
