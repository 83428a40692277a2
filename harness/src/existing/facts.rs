//! From what a running server says of itself to its specification. What it does not say is assumed, with a note.

use crate::combo::Combo;
use crate::expect::{Scenario, expectation};
use crate::gates::{Gate, GateSet};
use crate::server::ServerSpec;
use crate::version::{KubeVersion, Minor};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Addresses that are kept for documentation (RFC 5737, RFC 3849), so that hardly a cluster has them as ClusterIPs: asked
/// for one of them, a server refuses and names its range.
pub const OUTSIDE_EVERY_RANGE: [&str; 2] = ["192.0.2.1", "2001:db8:ffff::1"];

/// What a server says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// `gitVersion`: `v1.33.5+k3s1`.
    pub git_version: String,
    /// `emulationMinor`, from 1.33 on.
    pub emulation_minor: Option<String>,
    /// The gates in `kubernetes_feature_enabled`, or why `/metrics` cannot be read.
    pub gates: Result<BTreeMap<Gate, bool>, String>,
    /// The service ranges, primary family first.
    pub ranges: Vec<IpNet>,
}

/// The release in a version of a distribution: `v1.33.5+k3s1`, `v1.32.3-gke.100` and `v1.31.0-eks-5e0fdde` begin with
/// the upstream version they are built from. `None` for anything else.
pub fn release_of(git_version: &str) -> Option<KubeVersion> {
    let end = git_version.find(['+', '-']).unwrap_or(git_version.len());
    git_version[..end].parse().ok()
}

/// The specification that a server with these facts was started as, and what was assumed, as sentences about `name`.
///
/// # Errors
/// A version that is none, in words.
pub fn spec_of(name: &str, facts: &Facts) -> Result<(ServerSpec, Vec<String>), String> {
    let version =
        release_of(&facts.git_version).ok_or_else(|| format!("{name} has the version `{}`", facts.git_version))?;
    let emulated = facts.emulation_minor.as_ref().and_then(|minor| minor.parse().ok().map(Minor));
    let emulated = emulated.filter(|minor| *minor != version.minor);
    let effective = emulated.unwrap_or(version.minor);
    let nothing = BTreeMap::new();
    let (reported, mut notes) = match &facts.gates {
        Ok(gates) => (gates, Vec::new()),
        Err(why) => (&nothing, vec![format!("{name}: /metrics cannot be read ({why})")]),
    };
    let mut gates = GateSet::defaults();
    for gate in Gate::ALL {
        let default = gate.of(effective).map(|state| state.default);
        match (reported.get(&gate), default) {
            (Some(value), default) if default != Some(*value) => gates = gates.with(gate, *value),
            (Some(_), _) | (None, None) => {}
            (None, Some(default)) => {
                notes.push(format!("{name}: gate assumed, {gate}={default} as by default in {effective}"));
            }
        }
    }
    let mut spec = ServerSpec { emulated, gates, ..ServerSpec::new(version) }.ranges(&facts.ranges);
    if spec.gates.get(Gate::MultiCidrServiceAllocator) == Some(true) && effective < Minor(33) {
        // Without it the server would not have started.
        spec = spec.with_beta_api();
    }
    Ok((spec, notes))
}

/// The range in the refusal of an address outside of it: `... The range of valid IPs is 10.96.0.0/12` (`ErrNotInRange`
/// of upstream's `ipallocator`).
pub fn range_in_refusal(message: &str) -> Option<IpNet> {
    let (_, rest) = message.split_once("The range of valid IPs is ")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Sentences about addresses that belong to several Services already: nobody's doing in this run.
pub fn doubled(owners: &BTreeMap<IpAddr, BTreeSet<String>>) -> Vec<String> {
    let several = owners.iter().filter(|(_, services)| services.len() > 1);
    let text = |(ip, services): (&IpAddr, &BTreeSet<String>)| {
        let names: Vec<&str> = services.iter().map(String::as_str).collect();
        format!("before this run already {ip} belonged to {}", names.join(" and "))
    };
    several.map(text).collect()
}

/// What servers leave of each other's Services, as a sentence: the run deletes what it makes, and they may not give back
/// the addresses. `None` where they do, and for servers that no release would start.
pub fn left_behind(combo: &Combo) -> Option<String> {
    let hazards = expectation(Scenario::ReleaseElsewhere, combo).ok()?.hazards;
    let names: Vec<String> = hazards.iter().map(ToString::to_string).collect();
    (!names.is_empty()).then(|| {
        format!(
            "these servers do not give back all addresses of each other's Services ({}): some that this run uses may stay \
             refused after it",
            names.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gates::AllocatorMode;

    fn facts(git_version: &str, gates: Result<&[(Gate, bool)], &str>) -> Facts {
        Facts {
            git_version: git_version.into(),
            emulation_minor: None,
            gates: gates.map(|gates| gates.iter().copied().collect()).map_err(str::to_string),
            ranges: vec!["10.96.0.0/12".parse().unwrap()],
        }
    }

    #[test]
    fn the_version_of_a_distribution_is_that_of_the_release_it_is_built_from() {
        for text in ["v1.33.5", "v1.33.5+k3s1", "v1.33.5-gke.100", "v1.33.5-eks-5e0fdde", "v1.33.5+rke2r1"] {
            assert_eq!(release_of(text), Some(KubeVersion::new(33, 5)), "{text}");
        }
        for text in ["", "v1.33", "+k3s1", "v2.0.1", "v1.33.x+k3s1"] {
            assert_eq!(release_of(text), None, "{text}");
        }
    }

    #[test]
    fn gates_that_are_reported_are_taken_without_a_note() {
        let gates = [(Gate::MultiCidrServiceAllocator, false), (Gate::DisableAllocatorDualWrite, false)];
        let (spec, notes) = spec_of("a", &facts("v1.33.5+k3s1", Ok(&gates))).unwrap();
        assert_eq!((spec.id().unwrap().as_str(), notes), ("v1_33_bitmap", Vec::new()));
    }

    #[test]
    fn gates_that_cannot_be_read_are_the_defaults_of_the_version_with_a_note() {
        let (spec, notes) = spec_of("a", &facts("v1.32.3-gke.100", Err("403 Forbidden"))).unwrap();
        assert_eq!(spec.mode(), Ok(AllocatorMode::Bitmap));
        assert!(notes[0].contains("403 Forbidden"), "{notes:?}");
        assert!(notes[1..].iter().all(|note| note.contains("assumed")) && notes.len() == 3, "{notes:?}");
    }

    #[test]
    fn a_gate_that_the_server_no_longer_has_is_assumed() {
        let gates = [(Gate::MultiCidrServiceAllocator, true)];
        let (spec, notes) = spec_of("a", &facts("v1.37.2", Ok(&gates))).unwrap();
        assert_eq!(spec.mode(), Ok(AllocatorMode::IpAddress));
        assert_eq!(notes, ["a: gate assumed, DisableAllocatorDualWrite=true as by default in 1.37"]);
    }

    #[test]
    fn an_emulated_version_decides_what_the_defaults_are() {
        let gates = [(Gate::MultiCidrServiceAllocator, false), (Gate::DisableAllocatorDualWrite, false)];
        let emulating = Facts { emulation_minor: Some("33".into()), ..facts("v1.34.4", Ok(&gates)) };
        assert_eq!(spec_of("a", &emulating).unwrap().0.id().unwrap(), "v1_34_as_1_33_bitmap");
    }

    #[test]
    fn the_beta_allocator_of_1_32_is_one_that_can_have_been_started() {
        let gates = [(Gate::MultiCidrServiceAllocator, true), (Gate::DisableAllocatorDualWrite, false)];
        let (spec, _) = spec_of("a", &facts("v1.32.13", Ok(&gates))).unwrap();
        assert_eq!(spec.validate(), Ok(AllocatorMode::DualWrite));
    }

    #[test]
    fn the_range_is_read_from_the_refusal_of_an_address_outside_of_it() {
        let refusal = "Service \"x\" is invalid: spec.clusterIPs: Invalid value: []string{\"192.0.2.1\"}: failed to \
            allocate IP 192.0.2.1: the provided IP (192.0.2.1) is not in the valid range. The range of valid IPs is \
            10.0.0.0/16";
        assert_eq!(range_in_refusal(refusal), Some("10.0.0.0/16".parse().unwrap()));
        assert_eq!(range_in_refusal("the provided network does not match the current range"), None);
    }

    #[test]
    fn a_run_says_beforehand_where_addresses_may_stay_refused() {
        use AllocatorMode::{DualWrite, IpAddress};
        let left = |modes: [AllocatorMode; 2]| left_behind(&Combo::new(modes.map(crate::combo::v1_33)));
        assert_eq!(left([DualWrite, DualWrite]), None);
        assert!(left([DualWrite, IpAddress]).unwrap().contains("(stale-bit)"));
    }

    #[test]
    fn an_address_that_has_two_services_before_the_run_is_named_with_both() {
        let ip: IpAddr = "10.0.0.11".parse().unwrap();
        let owners = BTreeMap::from([(ip, BTreeSet::from(["a/b".to_string(), "c/d".to_string()]))]);
        assert_eq!(doubled(&owners), ["before this run already 10.0.0.11 belonged to a/b and c/d"]);
    }
}
