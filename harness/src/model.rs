//! A pure model of the three allocators with their repair loops, in virtual time: the same plan and seed give the same
//! recording.
//!
//! What is modelled: one etcd with revisions; servers that are `Bitmap`, `DualWrite` (1.33 order: bit first) or
//! `IpAddress`, with informers that lag; static and dynamic creations in steps, so that calls of different servers
//! interleave; deletions; SIGKILL between steps; the bitmap repair (every 3 min, a leak is cleared by the third pass
//! that sees it) and the IPAddress repair (missing objects, orphans after 60 s, duplicates by Event). What is not: more
//! than one ServiceCIDR, dual stack, admission.

use crate::gates::{AllocatorMode, Gate};
use crate::history::{Entry, Micros};
use crate::net::ServiceRange;
use crate::server::ServerSpec;
use crate::version::KubeVersion;
use ipnet::IpNet;

mod client;
mod cluster;
pub mod random;
mod repair;
mod run;

#[cfg(test)]
mod tests;

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The mode of each server.
    pub modes: Vec<AllocatorMode>,
    /// The service range.
    pub range: IpNet,
    /// How many clients create and delete at once.
    pub clients: u16,
    /// How long they do, in virtual time.
    pub traffic: Micros,
    /// How long the recording goes on in quiet after that.
    pub quiet: Micros,
    /// Percentage of creations that ask for an address.
    pub static_percent: u64,
    /// Percentage of calls that delete.
    pub delete_percent: u64,
    /// Whether one server is killed and started again in the middle of the traffic.
    pub kill: bool,
}

impl Plan {
    /// A small range, four clients, half a minute of traffic, and quiet for longer than the slowest repair of these
    /// servers needs.
    pub fn new(modes: &[AllocatorMode]) -> Self {
        let quiet = if modes.contains(&AllocatorMode::Bitmap) { 720 } else { 330 };
        Plan {
            modes: modes.to_vec(),
            range: "10.0.0.0/27".parse().expect("the range of the model is a CIDR"),
            clients: 4,
            traffic: Micros(30_000_000),
            quiet: Micros(quiet * 1_000_000),
            static_percent: 50,
            delete_percent: 40,
            kill: false,
        }
    }
}

/// The recording of a simulated run.
pub fn simulate(plan: &Plan, seed: u64) -> Vec<Entry> {
    run::Run::new(plan, Behavior::default(), seed).entries()
}

/// How the modelled servers behave, where a fault is worth finding. A value, so that tests can alter one part and see
/// which rule notices.
#[derive(Debug, Clone)]
struct Behavior {
    /// Where the dynamic band begins, relative to the right place.
    band_shift: i32,
    /// Dynamic allocation ignores the bands.
    ignores_bands: bool,
    /// `IPAddress already exists` is taken as success.
    already_exists_is_ok: bool,
    /// A bit that is set is taken as free.
    set_bit_is_ok: bool,
    /// Dual write leaves out the bit, in this percentage of creations.
    loses_bit_percent: u64,
    /// Dual write leaves out the IPAddress.
    skips_ip_address: bool,
    /// Writing one bit sets its neighbor as well.
    sets_neighbor_bit: bool,
    /// Age at which an orphan is removed, in microseconds; `None` for never.
    orphan_age: Option<u64>,
    /// Orphans are removed without looking whether their Service lives.
    removes_held_ip_addresses: bool,
    /// How many passes must see a leak before it is cleared; `None` for never.
    leak_passes: Option<u32>,
    /// The bitmap repair clears bits of Services instead of leaks.
    clears_held_bits: bool,
    /// The bitmap repair sets missing bits.
    sets_missing_bits: bool,
    /// The IPAddress repair creates missing objects.
    creates_missing_ip_addresses: bool,
    /// Duplicates are reported.
    reports_duplicates: bool,
    /// Locks are released before the Service is removed.
    releases_first: bool,
    /// The bit is released.
    releases_bit: bool,
    /// The IPAddress is released.
    releases_ip_address: bool,
    /// A grant answers with success without storing the Service, in this percentage of creations.
    loses_write_percent: u64,
    /// A creation is refused although it was stored, in this percentage.
    refuses_stored_percent: u64,
    /// A static creation is granted another address.
    grants_another: bool,
    /// The network address is granted as well.
    grants_network: bool,
    /// A dynamic creation is refused as soon as the upper band is full.
    full_without_lower_band: bool,
    /// A started server never becomes ready.
    never_ready: bool,
    /// Both repairs rewrite the ServiceCIDR back and forth.
    fights: bool,
}

impl Default for Behavior {
    fn default() -> Self {
        Behavior {
            band_shift: 0,
            ignores_bands: false,
            already_exists_is_ok: false,
            set_bit_is_ok: false,
            loses_bit_percent: 0,
            skips_ip_address: false,
            sets_neighbor_bit: false,
            orphan_age: Some(60_000_000),
            removes_held_ip_addresses: false,
            leak_passes: Some(3),
            clears_held_bits: false,
            sets_missing_bits: true,
            creates_missing_ip_addresses: true,
            reports_duplicates: true,
            releases_first: false,
            releases_bit: true,
            releases_ip_address: true,
            loses_write_percent: 0,
            refuses_stored_percent: 0,
            grants_another: false,
            grants_network: false,
            full_without_lower_band: false,
            never_ready: false,
            fights: false,
        }
    }
}

/// A 1.33 server in a mode: the one minor where all three are possible.
fn spec(mode: AllocatorMode, range: &ServiceRange) -> ServerSpec {
    let spec = ServerSpec::new(KubeVersion::new(33, 13)).ranges(&[range.net()]);
    match mode {
        AllocatorMode::Bitmap => spec.gate(Gate::MultiCidrServiceAllocator, false),
        AllocatorMode::DualWrite => spec,
        AllocatorMode::IpAddress => spec.gate(Gate::DisableAllocatorDualWrite, true),
    }
}
