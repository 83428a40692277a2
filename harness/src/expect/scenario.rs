//! The scenarios, and what is known of each before it runs.

use crate::combo::Combo;
use crate::gates::AllocatorMode;
use crate::provider::Need;
use crate::server::SpecError;

/// A scenario with a row in the table. Its id is the name of the test function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scenario {
    /// `skew::same_static_ip_is_granted_once`.
    SameStaticIp,
    /// `skew::no_dynamic_ip_is_held_twice`.
    DynamicPressure,
    /// `skew::a_service_of_one_server_is_known_to_the_others`.
    Propagation,
    /// `skew::a_released_static_ip_is_free_on_every_server`.
    ReleaseElsewhere,
    /// `recording::a_planted_duplicate_is_found`.
    PlantedDuplicate,
    /// `upgrade::a_rolling_upgrade_downgrade_upgrade_keeps_every_address`.
    RollingUpgrade,
    /// `upgrade::a_rolling_upgrade_of_three_servers_keeps_every_address`.
    RollingOfThree,
    /// `upgrade::the_same_static_ip_is_granted_once_half_way`.
    HalfWay,
    /// `upgrade::a_downgrade_finds_a_bitmap_that_is_true`.
    BitmapAfterDowngrade,
    /// `upgrade::a_bitmap_that_was_rebuilt_makes_a_downgrade_safe`.
    BitmapRebuilt,
    /// `upgrade::services_that_nobody_touches_get_their_ip_addresses`.
    UntouchedServices,
    /// `upgrade::the_default_range_can_be_replaced`.
    ReplacedRange,
    /// `upgrade::switching_the_allocator_keeps_every_address`.
    Switching,
    /// `upgrade::a_chain_of_minors_and_back_keeps_every_address`.
    Chain,
    /// `upgrade::a_crash_in_the_middle_of_creates_loses_nothing`.
    Crash,
    /// `upgrade::a_pause_of_etcd_at_the_start_of_a_server_is_survived`.
    EtcdPausedAtStart,
    /// `upgrade::many_namespaces_do_not_keep_a_server_from_starting`.
    ManyNamespaces,
    /// `upgrade::a_leaked_bit_is_freed_on_the_third_pass`.
    LeakedBit,
    /// `upgrade::a_restart_begins_the_count_of_passes_anew`.
    LeakedBitRestart,
    /// `upgrade::objects_of_a_newer_minor_are_read_on_the_way_back`.
    StoredVersions,
    /// `flags::a_second_family_is_added_one_server_at_a_time`.
    SecondFamily,
    /// `flags::servers_with_different_ranges_stay_in_one`.
    DifferingRanges,
    /// `flags::an_upgrade_that_loses_the_range_keeps_the_old_one`.
    LostRange,
    /// `flags::a_short_lived_server_with_the_wrong_range_leaves_nothing`.
    ShortLivedWrongRange,
    /// `conformance::addresses_that_servers_choose_are_unique_ready_and_claimed`.
    ChosenAddresses,
    /// `conformance::a_run_in_a_cluster_of_somebody_else_leaves_no_trace`.
    NoTrace,
}

/// What is known of a scenario before it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Facts {
    /// The test module.
    suite: &'static str,
    /// The test function.
    name: &'static str,
    /// About how long a case takes with processes, in seconds.
    seconds: u32,
    first: First,
    /// Whether kube-controller-manager runs in it.
    controller_manager: bool,
    /// The operations it cannot do without that not every provider has.
    needs: &'static [Need],
}

/// The servers a case begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum First {
    /// Those of the combo.
    Whole,
    /// So many as the first of the combo: the scenario takes them to the others and back.
    Old(usize),
}

impl Facts {
    /// A scenario that begins with the servers of its combo, without kube-controller-manager, and runs everywhere.
    fn new(suite: &'static str, name: &'static str, seconds: u32) -> Facts {
        Facts { suite, name, seconds, first: First::Whole, controller_manager: false, needs: &[] }
    }

    fn begins_as_old(self, servers: usize) -> Facts {
        Facts { first: First::Old(servers), needs: &[Need::Control], ..self }
    }

    fn with_controller_manager(self) -> Facts {
        Facts { controller_manager: true, ..self }
    }

    fn needs(self, needs: &'static [Need]) -> Facts {
        Facts { needs, ..self }
    }
}

impl Scenario {
    /// Every scenario.
    pub const ALL: [Scenario; 26] = [
        Scenario::SameStaticIp,
        Scenario::DynamicPressure,
        Scenario::Propagation,
        Scenario::ReleaseElsewhere,
        Scenario::PlantedDuplicate,
        Scenario::RollingUpgrade,
        Scenario::RollingOfThree,
        Scenario::HalfWay,
        Scenario::BitmapAfterDowngrade,
        Scenario::BitmapRebuilt,
        Scenario::UntouchedServices,
        Scenario::ReplacedRange,
        Scenario::Switching,
        Scenario::Chain,
        Scenario::Crash,
        Scenario::EtcdPausedAtStart,
        Scenario::ManyNamespaces,
        Scenario::LeakedBit,
        Scenario::LeakedBitRestart,
        Scenario::StoredVersions,
        Scenario::SecondFamily,
        Scenario::DifferingRanges,
        Scenario::LostRange,
        Scenario::ShortLivedWrongRange,
        Scenario::ChosenAddresses,
        Scenario::NoTrace,
    ];

    fn facts(self) -> Facts {
        match self {
            Scenario::SameStaticIp => Facts::new("skew", "same_static_ip_is_granted_once", 25),
            Scenario::DynamicPressure => Facts::new("skew", "no_dynamic_ip_is_held_twice", 8).needs(&[Need::OwnRange]),
            Scenario::Propagation => {
                Facts::new("skew", "a_service_of_one_server_is_known_to_the_others", 190).needs(&[Need::RawEtcd])
            }
            Scenario::ReleaseElsewhere => Facts::new("skew", "a_released_static_ip_is_free_on_every_server", 12),
            Scenario::PlantedDuplicate => {
                Facts::new("recording", "a_planted_duplicate_is_found", 8).needs(&[Need::RawEtcd])
            }
            Scenario::RollingUpgrade => {
                Facts::new("upgrade", "a_rolling_upgrade_downgrade_upgrade_keeps_every_address", 60)
                    .begins_as_old(2)
                    .with_controller_manager()
            }
            Scenario::RollingOfThree => {
                Facts::new("upgrade", "a_rolling_upgrade_of_three_servers_keeps_every_address", 90)
                    .begins_as_old(3)
                    .with_controller_manager()
            }
            Scenario::HalfWay => Facts::new("upgrade", "the_same_static_ip_is_granted_once_half_way", 8),
            Scenario::BitmapAfterDowngrade => {
                Facts::new("upgrade", "a_downgrade_finds_a_bitmap_that_is_true", 20).begins_as_old(1)
            }
            Scenario::BitmapRebuilt => {
                Facts::new("upgrade", "a_bitmap_that_was_rebuilt_makes_a_downgrade_safe", 20).begins_as_old(1)
            }
            Scenario::UntouchedServices => {
                Facts::new("upgrade", "services_that_nobody_touches_get_their_ip_addresses", 20).begins_as_old(1)
            }
            Scenario::ReplacedRange => Facts::new("upgrade", "the_default_range_can_be_replaced", 20)
                .with_controller_manager()
                .needs(&[Need::OwnRange]),
            Scenario::Switching => Facts::new("upgrade", "switching_the_allocator_keeps_every_address", 60)
                .begins_as_old(1)
                .with_controller_manager(),
            Scenario::Chain => Facts::new("upgrade", "a_chain_of_minors_and_back_keeps_every_address", 90)
                .begins_as_old(1)
                .with_controller_manager(),
            Scenario::Crash => {
                Facts::new("upgrade", "a_crash_in_the_middle_of_creates_loses_nothing", 90).needs(&[Need::Control])
            }
            Scenario::EtcdPausedAtStart => {
                Facts::new("upgrade", "a_pause_of_etcd_at_the_start_of_a_server_is_survived", 60)
                    .needs(&[Need::PauseEtcd])
            }
            Scenario::ManyNamespaces => {
                Facts::new("upgrade", "many_namespaces_do_not_keep_a_server_from_starting", 60).begins_as_old(1)
            }
            Scenario::LeakedBit => {
                Facts::new("upgrade", "a_leaked_bit_is_freed_on_the_third_pass", 380).begins_as_old(1)
            }
            Scenario::LeakedBitRestart => {
                Facts::new("upgrade", "a_restart_begins_the_count_of_passes_anew", 580).begins_as_old(1)
            }
            Scenario::StoredVersions => {
                Facts::new("upgrade", "objects_of_a_newer_minor_are_read_on_the_way_back", 90).begins_as_old(1)
            }
            Scenario::SecondFamily => {
                Facts::new("flags", "a_second_family_is_added_one_server_at_a_time", 20).needs(&[Need::Control])
            }
            Scenario::DifferingRanges => {
                Facts::new("flags", "servers_with_different_ranges_stay_in_one", 20).needs(&[Need::OwnRange])
            }
            Scenario::LostRange => {
                Facts::new("flags", "an_upgrade_that_loses_the_range_keeps_the_old_one", 20).begins_as_old(1)
            }
            Scenario::ShortLivedWrongRange => {
                Facts::new("flags", "a_short_lived_server_with_the_wrong_range_leaves_nothing", 200)
                    .needs(&[Need::AddServer])
            }
            Scenario::ChosenAddresses => {
                Facts::new("conformance", "addresses_that_servers_choose_are_unique_ready_and_claimed", 8)
            }
            // The namespace that the run makes is removed by a controller.
            Scenario::NoTrace => Facts::new("conformance", "a_run_in_a_cluster_of_somebody_else_leaves_no_trace", 20)
                .with_controller_manager()
                .needs(&[Need::Control]),
        }
    }

    /// Suite (test module) and test function.
    pub fn path(self) -> (&'static str, &'static str) {
        (self.facts().suite, self.facts().name)
    }

    /// About how long a case takes, in seconds: those that wait for a repair loop must start first, so that the others
    /// run meanwhile.
    pub fn typical_seconds(self) -> u32 {
        self.facts().seconds
    }

    /// The servers that a case of a combo begins with. An empty combo stays empty.
    pub fn first(self, combo: &Combo) -> Combo {
        match (self.facts().first, combo.servers.first()) {
            (First::Whole, _) | (First::Old(_), None) => combo.clone(),
            (First::Old(count), Some(old)) => Combo::new(std::iter::repeat_n(old.clone(), count)),
        }
    }

    /// Whether kube-controller-manager runs in it.
    pub fn needs_controller_manager(self) -> bool {
        self.facts().controller_manager
    }

    /// Whether a case waits most of its time for a pass of a repair loop (3 minutes apart), and keeps no processor busy.
    ///
    /// # Errors
    /// A combo with a server that no release would start.
    pub fn mostly_waits(self, combo: &Combo) -> Result<bool, SpecError> {
        let modes = combo.modes()?;
        let all_bitmap = modes.iter().all(|mode| *mode == AllocatorMode::Bitmap);
        Ok(match self {
            Scenario::LeakedBit | Scenario::LeakedBitRestart => true,
            // Until the bit of a Service of an IPAddress-only server is set.
            Scenario::Propagation => {
                modes.contains(&AllocatorMode::Bitmap) && modes.contains(&AllocatorMode::IpAddress)
            }
            // Until the range is put back.
            Scenario::ShortLivedWrongRange => all_bitmap,
            Scenario::SameStaticIp
            | Scenario::DynamicPressure
            | Scenario::ReleaseElsewhere
            | Scenario::PlantedDuplicate
            | Scenario::RollingUpgrade
            | Scenario::RollingOfThree
            | Scenario::HalfWay
            | Scenario::BitmapAfterDowngrade
            | Scenario::BitmapRebuilt
            | Scenario::UntouchedServices
            | Scenario::ReplacedRange
            | Scenario::Switching
            | Scenario::Chain
            | Scenario::Crash
            | Scenario::EtcdPausedAtStart
            | Scenario::ManyNamespaces
            | Scenario::StoredVersions
            | Scenario::SecondFamily
            | Scenario::DifferingRanges
            | Scenario::LostRange
            | Scenario::ChosenAddresses
            | Scenario::NoTrace => false,
        })
    }

    /// The operations it cannot do without that not every provider has.
    pub fn needs(self) -> &'static [Need] {
        self.facts().needs
    }

    /// The scenario of a test function.
    pub fn find(suite: &str, name: &str) -> Option<Scenario> {
        Scenario::ALL.into_iter().find(|it| it.path() == (suite, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::combo;

    #[test]
    fn a_path_begins_with_the_old_server_and_a_skew_with_all_of_them() {
        let combo = Combo::new([combo::release(33), combo::release(34)]);
        assert_eq!(Scenario::RollingOfThree.first(&combo).servers, vec![combo::release(33); 3]);
        assert_eq!(Scenario::HalfWay.first(&combo), combo);
        assert_eq!(Scenario::Switching.first(&Combo::new([])), Combo::new([]));
    }
}
