//! Feature gates of KEP-1880: defaults, stages and locks per minor, and the allocator mode that follows from them.
//!
//! Source of the table: `pkg/features/kube_features.go` of each release (k/k PR 125021, 128971, 131318, 133782).

use crate::version::{KubeVersion, Minor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A feature gate that decides how ClusterIPs are allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Gate {
    /// `MultiCIDRServiceAllocator`: IPAddress and ServiceCIDR objects instead of the bitmap.
    #[serde(rename = "MultiCIDRServiceAllocator")]
    MultiCidrServiceAllocator,
    /// `DisableAllocatorDualWrite`: the new allocator stops writing the old bitmap.
    DisableAllocatorDualWrite,
}

impl Gate {
    /// Every gate skewlab knows.
    pub const ALL: [Gate; 2] = [Gate::MultiCidrServiceAllocator, Gate::DisableAllocatorDualWrite];

    /// The name on the command line and in the `kubernetes_feature_enabled` metric.
    pub fn name(self) -> &'static str {
        match self {
            Gate::MultiCidrServiceAllocator => "MultiCIDRServiceAllocator",
            Gate::DisableAllocatorDualWrite => "DisableAllocatorDualWrite",
        }
    }

    /// What this gate is in an apiserver that behaves as `minor`; `None` where the gate or the minor is unknown.
    pub fn of(self, minor: Minor) -> Option<GateState> {
        use Stage::{Alpha, Beta, Ga};
        let (stage, default, locked) = match (self, minor.0) {
            (Gate::MultiCidrServiceAllocator, 31 | 32) => (Beta, false, false),
            (Gate::MultiCidrServiceAllocator, 33) => (Ga, true, false),
            (Gate::MultiCidrServiceAllocator, 34..=37) => (Ga, true, true),
            (Gate::DisableAllocatorDualWrite, 31 | 32) => (Alpha, false, false),
            (Gate::DisableAllocatorDualWrite, 33) => (Beta, false, false),
            (Gate::DisableAllocatorDualWrite, 34) => (Ga, true, false),
            (Gate::DisableAllocatorDualWrite, 35..=37) => (Ga, true, true),
            (Gate::MultiCidrServiceAllocator | Gate::DisableAllocatorDualWrite, _) => return None,
        };
        Some(GateState { stage, default, locked })
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Gate {
    type Err = GateTextError;
    fn from_str(text: &str) -> Result<Self, GateTextError> {
        let known = Gate::ALL.into_iter().find(|gate| gate.name() == text);
        known.ok_or_else(|| GateTextError::UnknownGate { text: text.to_string() })
    }
}

/// How far a gate has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Off by default, may vanish.
    Alpha,
    /// Complete, may still change.
    Beta,
    /// Generally available.
    Ga,
}

/// One row of the gate table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateState {
    /// Its stage.
    pub stage: Stage,
    /// The value without a `--feature-gates` entry.
    pub default: bool,
    /// Whether an apiserver refuses to start with the other value.
    pub locked: bool,
}

/// The `--feature-gates` of one server: only what is said, defaults are not filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GateSet(BTreeMap<Gate, bool>);

impl GateSet {
    /// No gate is said: the release defaults.
    pub fn defaults() -> Self {
        Self::default()
    }

    /// The same set with one gate said.
    #[must_use]
    pub fn with(mut self, gate: Gate, value: bool) -> Self {
        self.0.insert(gate, value);
        self
    }

    /// What is said of a gate, `None` if nothing.
    pub fn get(&self, gate: Gate) -> Option<bool> {
        self.0.get(&gate).copied()
    }

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The gates that are said, in the order of [`Gate::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Gate, bool)> + '_ {
        self.0.iter().map(|(gate, value)| (*gate, *value))
    }
}

impl fmt::Display for GateSet {
    /// The text of the flag: `A=true,B=false`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (gate, value)) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{gate}={value}")?;
        }
        Ok(())
    }
}

impl FromStr for GateSet {
    type Err = GateTextError;
    fn from_str(text: &str) -> Result<Self, GateTextError> {
        let mut set = GateSet::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| GateTextError::NoValue { text: part.to_string() })?;
            let gate: Gate = name.parse()?;
            let value = value.parse().map_err(|_| GateTextError::NotBool { gate, text: value.to_string() })?;
            if set.get(gate).is_some_and(|earlier| earlier != value) {
                return Err(GateTextError::Contradiction { gate });
            }
            set = set.with(gate, value);
        }
        if set.is_empty() {
            return Err(GateTextError::NoValue { text: text.to_string() });
        }
        Ok(set)
    }
}

/// Text that is not a gate list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateTextError {
    /// The gate is not one of KEP-1880.
    #[error("unknown feature gate `{text}`; known are MultiCIDRServiceAllocator and DisableAllocatorDualWrite")]
    UnknownGate {
        /// What was given.
        text: String,
    },
    /// An entry without a value.
    #[error("`{text}` is not GATE=true or GATE=false")]
    NoValue {
        /// What was given.
        text: String,
    },
    /// A value that is no boolean.
    #[error("{gate} takes true or false, not `{text}`")]
    NotBool {
        /// The gate.
        gate: Gate,
        /// What was given.
        text: String,
    },
    /// One gate with two values.
    #[error("{gate} is given both true and false in one list")]
    Contradiction {
        /// The gate.
        gate: Gate,
    },
}

/// How a server allocates ClusterIPs: what its version, emulated version and gates amount to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocatorMode {
    /// One bitmap per family in etcd, `/registry/ranges/serviceips`.
    Bitmap,
    /// An IPAddress object and the bit.
    DualWrite,
    /// An IPAddress object only.
    IpAddress,
}

impl AllocatorMode {
    /// The mode as part of a combo id: a Rust identifier.
    pub fn id(self) -> &'static str {
        match self {
            AllocatorMode::Bitmap => "bitmap",
            AllocatorMode::DualWrite => "dual_write",
            AllocatorMode::IpAddress => "ip_address",
        }
    }

    /// Whether a ClusterIP granted in this mode is first claimed in the bitmap.
    pub fn writes_bitmap(self) -> bool {
        match self {
            AllocatorMode::Bitmap | AllocatorMode::DualWrite => true,
            AllocatorMode::IpAddress => false,
        }
    }

    /// Whether a ClusterIP granted in this mode is claimed by an IPAddress object.
    pub fn writes_ip_addresses(self) -> bool {
        match self {
            AllocatorMode::DualWrite | AllocatorMode::IpAddress => true,
            AllocatorMode::Bitmap => false,
        }
    }

    /// Whether two servers in these modes meet at one lock for every address: the bitmap or the IPAddress key.
    pub fn shares_lock_with(self, other: AllocatorMode) -> bool {
        (self.writes_bitmap() && other.writes_bitmap()) || (self.writes_ip_addresses() && other.writes_ip_addresses())
    }
}

impl fmt::Display for AllocatorMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AllocatorMode::Bitmap => "bitmap",
            AllocatorMode::DualWrite => "dual write",
            AllocatorMode::IpAddress => "IPAddress only",
        })
    }
}

/// A rule of the release that a server specification breaks. The server would not start, or not as the plan says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// A minor outside the table.
    #[error("Kubernetes {minor} is outside the range skewlab knows ({oldest} to {newest})", oldest = Minor::OLDEST, newest = Minor::NEWEST)]
    UnknownMinor {
        /// The minor asked for.
        minor: Minor,
    },
    /// An emulated version the binary cannot emulate.
    #[error("{version} cannot emulate {emulated}: it emulates {floor} to {own} (KEP-4330)", floor = version.minor.oldest_emulated(), own = version.minor)]
    EmulationOutOfWindow {
        /// The binary.
        version: KubeVersion,
        /// The emulated minor asked for.
        emulated: Minor,
    },
    /// A gate locked to its default.
    #[error("{gate}={wanted} is impossible on {version}{}: the gate is locked to {} as of {effective}", emulating(*version, *effective), !wanted)]
    Locked {
        /// The gate.
        gate: Gate,
        /// The refused value.
        wanted: bool,
        /// The binary.
        version: KubeVersion,
        /// The minor it behaves as.
        effective: Minor,
    },
    /// DisableAllocatorDualWrite without the allocator it belongs to.
    #[error(
        "DisableAllocatorDualWrite=true needs MultiCIDRServiceAllocator=true on {version}{} (k/k PR 134365); without it there is no second allocator to stop",
        emulating(*version, *effective)
    )]
    DependsOnMultiCidr {
        /// The binary.
        version: KubeVersion,
        /// The minor it behaves as.
        effective: Minor,
    },
    /// The gate is on, but the API group version its informers need is not served.
    #[error(
        "MultiCIDRServiceAllocator=true on {version} needs --runtime-config={api}=true: {api} is off by default in {effective}"
    )]
    ApiNotServed {
        /// The binary.
        version: KubeVersion,
        /// The minor it behaves as.
        effective: Minor,
        /// The API group version to serve.
        api: &'static str,
    },
    /// Emulating a minor from before networking.k8s.io/v1 had these objects, with the gate on.
    #[error(
        "MultiCIDRServiceAllocator=true on {version} emulating {effective} is impossible: its controllers use networking.k8s.io/v1, which {effective} did not serve"
    )]
    ApiYoungerThanEmulation {
        /// The binary.
        version: KubeVersion,
        /// The minor it behaves as.
        effective: Minor,
    },
}

fn emulating(version: KubeVersion, effective: Minor) -> String {
    if version.minor == effective { String::new() } else { format!(" emulating {effective}") }
}

/// The group version of ServiceCIDR and IPAddress before 1.33.
pub const NETWORKING_V1BETA1: &str = "networking.k8s.io/v1beta1";

/// The value of every gate in a server of this version, emulated version and said gates.
///
/// # Errors
/// Any [`GateError`]: the release would refuse this combination or not behave as it says.
pub fn effective_gates(
    version: KubeVersion,
    emulated: Option<Minor>,
    said: &GateSet,
    runtime_config: &BTreeMap<String, bool>,
) -> Result<BTreeMap<Gate, bool>, GateError> {
    if !version.minor.is_known() {
        return Err(GateError::UnknownMinor { minor: version.minor });
    }
    let effective = emulated.unwrap_or(version.minor);
    if effective < version.minor.oldest_emulated() || effective > version.minor {
        return Err(GateError::EmulationOutOfWindow { version, emulated: effective });
    }
    let mut values = BTreeMap::new();
    for gate in Gate::ALL {
        let state = gate.of(effective).ok_or(GateError::UnknownMinor { minor: effective })?;
        let wanted = said.get(gate).unwrap_or(state.default);
        if state.locked && wanted != state.default {
            return Err(GateError::Locked { gate, wanted, version, effective });
        }
        values.insert(gate, wanted);
    }
    let multi_cidr = values[&Gate::MultiCidrServiceAllocator];
    if said.get(Gate::DisableAllocatorDualWrite) == Some(true) && !multi_cidr {
        return Err(GateError::DependsOnMultiCidr { version, effective });
    }
    // networking.k8s.io/v1 serves both kinds from 1.33 on; before it only v1beta1, off by default.
    let first_with_v1 = Minor(33);
    if multi_cidr && effective < first_with_v1 {
        if version.minor >= first_with_v1 {
            return Err(GateError::ApiYoungerThanEmulation { version, effective });
        }
        if runtime_config.get(NETWORKING_V1BETA1) != Some(&true) {
            return Err(GateError::ApiNotServed { version, effective, api: NETWORKING_V1BETA1 });
        }
    }
    Ok(values)
}

/// The allocator mode that gate values amount to.
pub fn mode_of(values: &BTreeMap<Gate, bool>) -> AllocatorMode {
    let on = |gate| values.get(&gate).copied().unwrap_or(false);
    match (on(Gate::MultiCidrServiceAllocator), on(Gate::DisableAllocatorDualWrite)) {
        (false, _) => AllocatorMode::Bitmap,
        (true, false) => AllocatorMode::DualWrite,
        (true, true) => AllocatorMode::IpAddress,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn mode(version: &str, emulated: Option<u16>, gates: &str, beta_api: bool) -> Result<AllocatorMode, GateError> {
        let said = if gates.is_empty() { GateSet::defaults() } else { gates.parse().unwrap() };
        let runtime_config = BTreeMap::from([(NETWORKING_V1BETA1.to_string(), beta_api)]);
        effective_gates(version.parse().unwrap(), emulated.map(Minor), &said, &runtime_config).map(|it| mode_of(&it))
    }

    #[test]
    fn release_defaults_are_bitmap_then_dual_write_then_ip_address() {
        use AllocatorMode::{Bitmap, DualWrite, IpAddress};
        let defaults = ["1.31.0", "1.32.13", "1.33.13", "1.34.4", "1.35.4", "1.36.3", "1.37.2"]
            .map(|version| mode(version, None, "", false).unwrap());
        assert_eq!(defaults, [Bitmap, Bitmap, DualWrite, IpAddress, IpAddress, IpAddress, IpAddress]);
    }

    /// Field case 27: gate combinations that brick an apiserver on upgrade, and the ones that look alike but work.
    #[test]
    fn impossible_gate_combinations_are_refused_with_rule_gate_and_version() {
        #[track_caller]
        fn refused(version: &str, emulated: Option<u16>, gates: &str, words: &[&str]) {
            let message = mode(version, emulated, gates, false).unwrap_err().to_string();
            for word in words {
                assert!(message.contains(word), "`{message}` does not say `{word}`");
            }
        }
        refused("1.34.4", None, "MultiCIDRServiceAllocator=false", &["MultiCIDR", "locked to true", "v1.34.4"]);
        refused("1.37.2", None, "MultiCIDRServiceAllocator=false", &["locked to true", "v1.37.2"]);
        refused("1.35.4", None, "DisableAllocatorDualWrite=false", &["DisableAllocatorDualWrite", "locked", "1.35"]);
        refused(
            "1.33.13",
            None,
            "MultiCIDRServiceAllocator=false,DisableAllocatorDualWrite=true",
            &["DisableAllocatorDualWrite", "needs MultiCIDRServiceAllocator", "v1.33.13"],
        );
        refused(
            "1.32.13",
            None,
            "MultiCIDRServiceAllocator=true",
            &["--runtime-config=networking.k8s.io/v1beta1=true"],
        );
        refused("1.32.13", None, "DisableAllocatorDualWrite=true", &["needs MultiCIDRServiceAllocator"]);
        refused("1.34.4", Some(32), "MultiCIDRServiceAllocator=true", &["emulating 1.32", "networking.k8s.io/v1"]);
        refused("1.37.2", Some(33), "", &["cannot emulate 1.33", "1.34 to 1.37"]);
        refused("1.31.0", Some(30), "", &["cannot emulate 1.30"]);
        refused("1.30.4", None, "", &["1.30", "1.31 to 1.37"]);
    }

    #[test]
    fn combinations_that_are_possible_have_their_mode() {
        use AllocatorMode::{Bitmap, DualWrite, IpAddress};
        #[track_caller]
        fn is(version: &str, emulated: Option<u16>, gates: &str, expected: AllocatorMode) {
            assert_eq!(mode(version, emulated, gates, true), Ok(expected));
        }
        is("1.34.4", Some(33), "MultiCIDRServiceAllocator=false,DisableAllocatorDualWrite=false", Bitmap);
        is("1.36.3", Some(33), "MultiCIDRServiceAllocator=false", Bitmap);
        is("1.33.13", None, "MultiCIDRServiceAllocator=false", Bitmap);
        is("1.33.13", None, "DisableAllocatorDualWrite=true", IpAddress);
        is("1.34.4", None, "DisableAllocatorDualWrite=false", DualWrite);
        is("1.37.2", Some(34), "DisableAllocatorDualWrite=false", DualWrite);
        is("1.34.4", Some(33), "", DualWrite);
        is("1.32.13", None, "MultiCIDRServiceAllocator=true", DualWrite);
        is("1.31.0", None, "MultiCIDRServiceAllocator=true,DisableAllocatorDualWrite=true", IpAddress);
    }

    #[test]
    fn only_bitmap_beside_ip_address_has_no_shared_lock() {
        use AllocatorMode::{Bitmap, DualWrite, IpAddress};
        let modes = [Bitmap, DualWrite, IpAddress];
        let without: Vec<_> =
            modes.iter().flat_map(|a| modes.map(|b| (*a, b))).filter(|(a, b)| !a.shares_lock_with(*b)).collect();
        assert_eq!(without, [(Bitmap, IpAddress), (IpAddress, Bitmap)]);
    }

    #[test]
    fn a_gate_list_with_a_mistake_names_it() {
        let message = |text: &str| text.parse::<GateSet>().unwrap_err().to_string();
        assert!(message("MultiCidr=true").contains("known are MultiCIDRServiceAllocator and"));
        assert!(message("DisableAllocatorDualWrite=maybe").contains("takes true or false, not `maybe`"));
        assert!(message("DisableAllocatorDualWrite").contains("GATE=true"));
        assert!(message("").contains("GATE=true"));
        assert!(message("DisableAllocatorDualWrite=true,DisableAllocatorDualWrite=false").contains("both"));
    }

    /// A minor, what a binary of it may emulate, and what it does as each of those under the nine things that can be said
    /// of the gates, in the order of [`SAID`]. `B` bitmap, `W` dual write, `I` IPAddress only; `w` and `i` the same where
    /// networking.k8s.io/v1beta1 is served, else refused; `D` refused for want of the other gate, `Y` because the API is
    /// younger, `M` and `L` because MultiCIDRServiceAllocator or DisableAllocatorDualWrite is locked. Written by hand from
    /// the releases, not from the code.
    #[rustfmt::skip]
    const RELEASES: [(u16, &[(u16, &str)]); 7] = [
        (31, &[(31, "BBD BBD wwi")]),
        (32, &[(31, "BBD BBD wwi"), (32, "BBD BBD wwi")]),
        (33, &[(31, "BBD BBD YYY"), (32, "BBD BBD YYY"), (33, "WWI BBD WWI")]),
        (34, &[(31, "BBD BBD YYY"), (32, "BBD BBD YYY"), (33, "WWI BBD WWI"), (34, "IWI MMM IWI")]),
        (35, &[(32, "BBD BBD YYY"), (33, "WWI BBD WWI"), (34, "IWI MMM IWI"), (35, "ILI MMM ILI")]),
        (36, &[(33, "WWI BBD WWI"), (34, "IWI MMM IWI"), (35, "ILI MMM ILI"), (36, "ILI MMM ILI")]),
        (37, &[(34, "IWI MMM IWI"), (35, "ILI MMM ILI"), (36, "ILI MMM ILI"), (37, "ILI MMM ILI")]),
    ];
    /// MultiCIDRServiceAllocator and DisableAllocatorDualWrite; a column of a word of [`RELEASES`] each.
    #[rustfmt::skip]
    const SAID: [(Option<bool>, Option<bool>); 9] = [
        (None, None), (None, Some(false)), (None, Some(true)),
        (Some(false), None), (Some(false), Some(false)), (Some(false), Some(true)),
        (Some(true), None), (Some(true), Some(false)), (Some(true), Some(true)),
    ];

    #[test]
    fn every_binary_emulation_and_gate_list_does_what_the_releases_do() {
        let row = |minor| RELEASES.into_iter().find(|(of, _)| *of == minor).map(|(_, row)| row);
        let mut seen = BTreeMap::<char, usize>::new();
        for (minor, emulated) in (28..=39).flat_map(|minor| (27..=40).map(move |it| (minor, (it > 27).then_some(it)))) {
            for (column, (beta, (multi, dual))) in
                [false, true].into_iter().flat_map(|b| SAID.map(|it| (b, it))).enumerate()
            {
                let (version, effective) = (KubeVersion::new(minor, 4), Minor(emulated.unwrap_or(minor)));
                let letter = row(minor).map(|row| row.iter().find(|(of, _)| *of == effective.0)).map_or('U', |cell| {
                    cell.map_or('O', |(_, word)| word.chars().filter(|it| *it != ' ').nth(column % 9).unwrap())
                });
                let locked = |gate, wanted| Err(GateError::Locked { gate, wanted, version, effective });
                let expected = match (letter, beta) {
                    ('B', _) => Ok(AllocatorMode::Bitmap),
                    ('W', _) | ('w', true) => Ok(AllocatorMode::DualWrite),
                    ('I', _) | ('i', true) => Ok(AllocatorMode::IpAddress),
                    ('w' | 'i', false) => {
                        Err(GateError::ApiNotServed { version, effective, api: "networking.k8s.io/v1beta1" })
                    }
                    ('D', _) => Err(GateError::DependsOnMultiCidr { version, effective }),
                    ('Y', _) => Err(GateError::ApiYoungerThanEmulation { version, effective }),
                    ('M', _) => locked(Gate::MultiCidrServiceAllocator, false),
                    ('L', _) => locked(Gate::DisableAllocatorDualWrite, false),
                    ('O', _) => Err(GateError::EmulationOutOfWindow { version, emulated: effective }),
                    (_, _) => Err(GateError::UnknownMinor { minor: version.minor }),
                };
                let said = gate_set(multi, dual);
                let runtime_config = BTreeMap::from([(NETWORKING_V1BETA1.to_string(), beta)]);
                let values = effective_gates(version, emulated.map(Minor), &said, &runtime_config);
                let context = format!("{version} as {emulated:?}, `{said}`, v1beta1 {beta}");
                assert_eq!(values.as_ref().map(mode_of), expected.as_ref().copied(), "{context}");
                for (gate, value) in values.iter().flat_map(|values| said.iter().map(move |it| (values[&it.0], it.1))) {
                    assert_eq!(gate, value, "{context}");
                }
                *seen.entry(letter).or_default() += 1;
            }
        }
        assert_eq!(seen.keys().collect::<String>(), "BDILMOUWYiw");
    }

    fn gate_set(multi: Option<bool>, dual: Option<bool>) -> GateSet {
        let said = Gate::ALL.into_iter().zip([multi, dual]).filter_map(|(gate, value)| Some((gate, value?)));
        said.fold(GateSet::defaults(), |set, (gate, value)| set.with(gate, value))
    }

    fn any_gate_set() -> impl Strategy<Value = GateSet> {
        any::<(Option<bool>, Option<bool>)>().prop_map(|(multi, dual)| gate_set(multi, dual))
    }

    proptest! {
        #[test]
        fn a_gate_list_survives_printing_and_parsing(set in any_gate_set().prop_filter("said", |set| !set.is_empty())) {
            prop_assert_eq!(set.to_string().parse::<GateSet>().unwrap(), set);
        }
    }
}
