//! Combos: the named sets of server specifications that scenarios run on. This is the only list of them.

use crate::binaries::{KubeComponent, default_version};
use crate::gates::{AllocatorMode, Gate, GateSet};
use crate::server::{ServerSpec, SpecError};
use crate::version::{KubeVersion, Minor};
use serde::{Deserialize, Serialize};

/// Servers that share one etcd. The first is the old one, the last the new one. Scenarios of skew run all of them side by
/// side and start them in this order; scenarios of upgrades take their servers from each to the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Combo {
    /// The servers in order.
    pub servers: Vec<ServerSpec>,
}

/// The oldest server of several combos; `None` without servers.
pub fn oldest<'a>(combos: impl IntoIterator<Item = &'a Combo>) -> Option<KubeVersion> {
    combos.into_iter().flat_map(|combo| &combo.servers).map(|server| server.version).min()
}

impl Combo {
    /// A combo of these servers.
    pub fn new(servers: impl IntoIterator<Item = ServerSpec>) -> Self {
        Combo { servers: servers.into_iter().collect() }
    }

    /// The stable id, a Rust identifier and a file name: `v1_33_bitmap__v1_33_ip_address`.
    ///
    /// # Errors
    /// A server that no release would start.
    pub fn id(&self) -> Result<String, SpecError> {
        let ids = self.servers.iter().map(ServerSpec::id).collect::<Result<Vec<_>, _>>()?;
        Ok(ids.join("__"))
    }

    /// The allocator mode of each server.
    ///
    /// # Errors
    /// A server that no release would start.
    pub fn modes(&self) -> Result<Vec<AllocatorMode>, SpecError> {
        self.servers.iter().map(ServerSpec::validate).collect()
    }

    /// Whether two of the servers share no lock, so that one address can be granted twice.
    ///
    /// # Errors
    /// A server that no release would start.
    pub fn lacks_shared_lock(&self) -> Result<bool, SpecError> {
        let modes = self.modes()?;
        Ok(modes.iter().any(|a| modes.iter().any(|b| !a.shares_lock_with(*b))))
    }

    /// Whether the servers meet the gate lists: some server runs with all values of each list, and no server serves
    /// two lists.
    ///
    /// # Errors
    /// A server that no release would start.
    pub fn meets(&self, wanted: &[GateSet]) -> Result<bool, SpecError> {
        let effective = self.servers.iter().map(ServerSpec::effective_gates).collect::<Result<Vec<_>, _>>()?;
        let runs_with = |server: usize, list: &GateSet| {
            list.iter().all(|(gate, value)| effective[server].get(&gate) == Some(&value))
        };
        fn assign(lists: &[GateSet], free: &[usize], fits: &dyn Fn(usize, &GateSet) -> bool) -> bool {
            let Some((list, rest)) = lists.split_first() else { return true };
            free.iter().any(|server| {
                let others: Vec<usize> = free.iter().copied().filter(|it| it != server).collect();
                fits(*server, list) && assign(rest, &others, fits)
            })
        }
        Ok(assign(wanted, &(0..self.servers.len()).collect::<Vec<_>>(), &runs_with))
    }
}

/// A server of a minor with release defaults, in the patch of the table of binaries.
pub fn release(minor: u16) -> ServerSpec {
    let version = default_version(KubeComponent::Apiserver, Minor(minor));
    ServerSpec::new(version.expect("every known minor must have a default patch"))
}

/// A 1.33 server in a mode: 1.33 is the only minor whose release can be in all three.
pub fn v1_33(mode: AllocatorMode) -> ServerSpec {
    let server = release(33);
    match mode {
        AllocatorMode::Bitmap => server.gate(Gate::MultiCidrServiceAllocator, false),
        AllocatorMode::DualWrite => server,
        AllocatorMode::IpAddress => server.gate(Gate::DisableAllocatorDualWrite, true),
    }
}

/// The v1.33 gate matrix: every ordered pair of the three modes, because who starts first initializes the bitmap, and
/// all three together.
pub fn gate_matrix() -> Vec<Combo> {
    let modes = [AllocatorMode::Bitmap, AllocatorMode::DualWrite, AllocatorMode::IpAddress];
    let pairs = modes.into_iter().flat_map(|old| modes.map(|new| Combo::new([v1_33(old), v1_33(new)])));
    pairs.chain([Combo::new(modes.map(v1_33))]).collect()
}

/// The paths a cluster can take in an upgrade or by a change of gates: from the first server's specification to the
/// last one's. The reason for each stands beside it.
pub fn upgrade_paths() -> Vec<Combo> {
    use AllocatorMode::{Bitmap, DualWrite, IpAddress};
    let multi_cidr = Gate::MultiCidrServiceAllocator;
    let beta = |minor| release(minor).with_beta_api().gate(multi_cidr, true);
    let paths = [
        // Release defaults, minor by minor.
        [release(31), release(32)],
        [release(32), release(33)],
        [release(33), release(34)],
        [release(34), release(35)],
        [release(35), release(36)],
        [release(36), release(37)],
        // Gates alone, at the one minor that has all modes.
        [v1_33(Bitmap), v1_33(DualWrite)],
        [v1_33(DualWrite), v1_33(IpAddress)],
        [v1_33(Bitmap), v1_33(IpAddress)],
        // The beta: the gate and its API switched on at 1.31 and 1.32.
        [release(31), beta(31)],
        [release(32), beta(32)],
        // The beta kept on into the release that has it by default.
        [beta(32), release(33)],
        // Dual write forced to stay on over 1.34.
        [release(33), release(34).gate(Gate::DisableAllocatorDualWrite, false)],
        // 1.33 opted out, then 1.34, where nobody can: inside the supported skew, and without a shared lock.
        [v1_33(Bitmap), release(34)],
        // The legal ways back to a bitmap once 1.33 is gone.
        [release(34), release(34).emulating(33).gate(multi_cidr, false)],
        [release(36), release(36).emulating(33).gate(multi_cidr, false)],
        // The newest binary behaving like 1.34.
        [release(36), release(37).emulating(34)],
    ];
    paths.map(Combo::new).to_vec()
}

/// The id of the combo that a user names with `--from` and `--to`, in the names of tests.
pub const FROM_TO: &str = "from_to";

/// The combo of servers that run already, in the names of tests.
pub const EXISTING: &str = "existing";

/// Release defaults from 1.32 to 1.37, for one server that goes all the way and back.
pub fn chain() -> Combo {
    Combo::new((32..=37).map(release))
}

/// The beta of 1.32 kept on up to 1.34, which stores objects in a version that 1.32 does not know.
pub fn beta_chain() -> Combo {
    Combo::new([release(32).with_beta_api().gate(Gate::MultiCidrServiceAllocator, true), release(33), release(34)])
}

/// One specification on all servers, for scenarios about a version rather than a pair.
fn uniform() -> Vec<Combo> {
    vec![Combo::new([release(34), release(34)])]
}

/// Every combo with a name.
pub fn all() -> Vec<Combo> {
    let mut combos = gate_matrix();
    for combo in upgrade_paths().into_iter().chain(uniform()).chain([chain(), beta_chain()]) {
        if !combos.contains(&combo) {
            combos.push(combo);
        }
    }
    combos
}

/// The combo with this id.
pub fn find(id: &str) -> Option<Combo> {
    all().into_iter().find(|combo| combo.id().as_deref() == Ok(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_named_combo_starts_and_has_its_own_identifier() {
        let ids: Vec<String> = all().iter().map(|combo| combo.id().unwrap()).collect();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        for (combo, id) in all().iter().zip(&ids) {
            combo.modes().unwrap();
            assert!(id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'), "{id}");
            assert_eq!(find(id).as_ref(), Some(combo));
        }
    }

    #[test]
    fn the_gate_matrix_has_nine_pairs_and_the_trio_and_three_of_them_lack_a_shared_lock() {
        let matrix = gate_matrix();
        assert_eq!(matrix.iter().map(|combo| combo.servers.len()).collect::<Vec<_>>(), [2, 2, 2, 2, 2, 2, 2, 2, 2, 3]);
        let without: Vec<_> =
            matrix.iter().filter(|it| it.lacks_shared_lock().unwrap()).map(|it| it.id().unwrap()).collect();
        assert_eq!(
            without,
            [
                "v1_33_bitmap__v1_33_ip_address",
                "v1_33_ip_address__v1_33_bitmap",
                "v1_33_bitmap__v1_33_dual_write__v1_33_ip_address"
            ]
        );
    }

    #[test]
    fn two_gate_lists_must_be_met_by_two_different_servers() {
        let lists = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<GateSet>>();
        let selected = |texts: &[&str]| {
            let lists = lists(texts);
            gate_matrix().into_iter().filter(|it| it.meets(&lists).unwrap()).count()
        };
        assert_eq!(selected(&[]), 10);
        // Every combo with a bitmap server: 5 pairs and the trio.
        assert_eq!(selected(&["MultiCIDRServiceAllocator=false"]), 6);
        // Both lists describe a bitmap server, so two of them are needed.
        assert_eq!(selected(&["MultiCIDRServiceAllocator=false", "MultiCIDRServiceAllocator=false"]), 1);
        assert_eq!(
            selected(&[
                "MultiCIDRServiceAllocator=false",
                "MultiCIDRServiceAllocator=true,DisableAllocatorDualWrite=true"
            ]),
            3
        );
    }
}
