//! Combos: the named sets of server specifications that scenarios run on. This is the only list of them.

use crate::gates::{AllocatorMode, Gate, GateSet};
use crate::server::{ServerSpec, SpecError};
use crate::version::KubeVersion;
use serde::{Deserialize, Serialize};

/// Two or three servers that share one etcd. The first is the old one, the last the new one; they start in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Combo {
    /// The servers in order.
    pub servers: Vec<ServerSpec>,
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

/// The version the gate matrix runs at: the only minor whose release can be in all three modes.
pub const MATRIX_VERSION: KubeVersion = KubeVersion::new(33, 13);

/// A 1.33 server in a mode.
pub fn v1_33(mode: AllocatorMode) -> ServerSpec {
    let server = ServerSpec::new(MATRIX_VERSION);
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

/// Every combo with a name.
pub fn all() -> Vec<Combo> {
    gate_matrix()
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
