//! What one kube-apiserver is started as: version, emulated version, gates, APIs and service ranges.

use crate::gates::{self, AllocatorMode, Gate, GateError, GateSet};
use crate::net::{BITMAP_MAX_HOST_BITS, RangeError, ServiceRange};
use crate::version::{KubeVersion, Minor};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One kube-apiserver as planned. The order of `service_ranges` is the order of the flag and decides the primary
/// family.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServerSpec {
    /// The binary.
    pub version: KubeVersion,
    /// `--emulated-version`, if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulated: Option<Minor>,
    /// `--feature-gates`, only what is said.
    #[serde(default)]
    pub gates: GateSet,
    /// `--runtime-config`.
    #[serde(default)]
    pub runtime_config: BTreeMap<String, bool>,
    /// `--service-cluster-ip-range`, one or two CIDRs.
    pub service_ranges: Vec<IpNet>,
}

/// The service range of every server that does not need another: small enough to fill, with a static band.
pub const DEFAULT_SERVICE_RANGE: &str = "10.0.0.0/16";

impl ServerSpec {
    /// A server with release defaults.
    pub fn new(version: KubeVersion) -> Self {
        let range = DEFAULT_SERVICE_RANGE.parse().expect("the default service range must be a CIDR");
        ServerSpec {
            version,
            emulated: None,
            gates: GateSet::defaults(),
            runtime_config: BTreeMap::new(),
            service_ranges: vec![range],
        }
    }

    /// The same server with one gate said.
    #[must_use]
    pub fn gate(mut self, gate: Gate, value: bool) -> Self {
        self.gates = self.gates.with(gate, value);
        self
    }

    /// The same server emulating an older minor.
    #[must_use]
    pub fn emulating(mut self, minor: u16) -> Self {
        self.emulated = Some(Minor(minor));
        self
    }

    /// The same server with `networking.k8s.io/v1beta1` served, which the allocator needs before 1.33.
    #[must_use]
    pub fn with_beta_api(mut self) -> Self {
        self.runtime_config.insert(gates::NETWORKING_V1BETA1.to_string(), true);
        self
    }

    /// The same server with other service ranges.
    #[must_use]
    pub fn ranges(mut self, ranges: &[IpNet]) -> Self {
        self.service_ranges = ranges.to_vec();
        self
    }

    /// The minor the server behaves as.
    pub fn effective_minor(&self) -> Minor {
        self.emulated.unwrap_or(self.version.minor)
    }

    /// The value of every gate, defaults filled in.
    ///
    /// # Errors
    /// The rule of the release that the specification breaks.
    pub fn effective_gates(&self) -> Result<BTreeMap<Gate, bool>, GateError> {
        gates::effective_gates(self.version, self.emulated, &self.gates, &self.runtime_config)
    }

    /// How the server allocates ClusterIPs.
    ///
    /// # Errors
    /// As [`ServerSpec::effective_gates`].
    pub fn mode(&self) -> Result<AllocatorMode, GateError> {
        Ok(gates::mode_of(&self.effective_gates()?))
    }

    /// Refuses what the release would refuse at start.
    ///
    /// # Errors
    /// A broken gate rule, or a service range the flags do not take in this mode.
    pub fn validate(&self) -> Result<AllocatorMode, SpecError> {
        let mode = self.mode()?;
        let ranges = self.service_ranges.iter().map(|net| ServiceRange::new(*net)).collect::<Result<Vec<_>, _>>()?;
        match ranges.as_slice() {
            [_] => {}
            [first, second] if first.is_ipv4() != second.is_ipv4() => {}
            [_, _] => return Err(SpecError::OneFamilyTwice { ranges: self.ranges_flag() }),
            [] | [_, _, ..] => return Err(SpecError::RangeCount { count: ranges.len() }),
        }
        for net in &self.service_ranges {
            let host_bits = net.max_prefix_len() - net.prefix_len();
            if mode.writes_bitmap() && host_bits > BITMAP_MAX_HOST_BITS {
                let longest = net.max_prefix_len() - BITMAP_MAX_HOST_BITS;
                return Err(SpecError::RangeTooWide { net: *net, mode, longest });
            }
        }
        Ok(mode)
    }

    /// The value of `--service-cluster-ip-range`.
    pub fn ranges_flag(&self) -> String {
        self.service_ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// `v1_33_bitmap`, or `v1_36_as_1_33_bitmap` for an emulating server: part of a combo id.
    ///
    /// # Errors
    /// As [`ServerSpec::effective_gates`].
    pub fn id(&self) -> Result<String, GateError> {
        let mode = self.mode()?.id();
        let emulated = self.emulated.map_or(String::new(), |minor| format!("_as_1_{}", minor.0));
        Ok(format!("v1_{}{emulated}_{mode}", self.version.minor.0))
    }
}

/// A server specification no release would start as planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A gate rule.
    #[error(transparent)]
    Gate(#[from] GateError),
    /// A CIDR that is no service range.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Neither one nor two ranges.
    #[error("--service-cluster-ip-range takes one or two CIDRs, not {count}")]
    RangeCount {
        /// How many were given.
        count: usize,
    },
    /// Two ranges of one family.
    #[error("--service-cluster-ip-range={ranges} has two ranges of one family; dual stack takes one of each")]
    OneFamilyTwice {
        /// The flag.
        ranges: String,
    },
    /// Wider than the bitmap can be.
    #[error(
        "{net} is too wide for a server in {mode} mode: while a bitmap is written the prefix must be /{longest} or longer (validateClusterIPFlags)"
    )]
    RangeTooWide {
        /// The CIDR.
        net: IpNet,
        /// The mode of the server.
        mode: AllocatorMode,
        /// The widest prefix allowed.
        longest: u8,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(ranges: &[&str]) -> ServerSpec {
        let ranges: Vec<IpNet> = ranges.iter().map(|text| text.parse().unwrap()).collect();
        ServerSpec::new(KubeVersion::new(33, 13)).ranges(&ranges)
    }

    #[test]
    fn ranges_the_flags_refuse_are_refused_before_a_server_starts() {
        assert!(matches!(spec(&[]).validate(), Err(SpecError::RangeCount { count: 0 })));
        assert!(matches!(spec(&["10.0.0.0/16", "10.1.0.0/16"]).validate(), Err(SpecError::OneFamilyTwice { .. })));
        assert!(matches!(spec(&["10.0.0.0/31"]).validate(), Err(SpecError::Range(_))));
        let wide = spec(&["2001:db8::/64"]);
        assert!(matches!(wide.validate(), Err(SpecError::RangeTooWide { longest: 108, .. })));
        assert_eq!(wide.gate(Gate::DisableAllocatorDualWrite, true).validate(), Ok(AllocatorMode::IpAddress));
        assert_eq!(spec(&["10.0.0.0/12", "fd00::/108"]).validate(), Ok(AllocatorMode::DualWrite));
    }

    #[test]
    fn the_id_spells_version_emulation_and_mode() {
        let at = |minor| ServerSpec::new(KubeVersion::new(minor, 1));
        assert_eq!(at(33).gate(Gate::MultiCidrServiceAllocator, false).id().unwrap(), "v1_33_bitmap");
        let emulated = at(36).emulating(33).gate(Gate::MultiCidrServiceAllocator, false);
        assert_eq!(emulated.id().unwrap(), "v1_36_as_1_33_bitmap");
    }
}
