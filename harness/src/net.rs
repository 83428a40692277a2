//! Service ranges: which addresses of a CIDR can become ClusterIPs, and which part is static or dynamic.
//!
//! The rules are those of `calculateRangeOffset` and `NewInMemory` in upstream's `ipallocator` package and of KEP-3070.

use ipnet::IpNet;
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Smallest and largest size of the static band, in addresses (KEP-3070).
const STATIC_BAND_MIN: u128 = 16;
const STATIC_BAND_MAX: u128 = 256;
/// The bitmap holds at most this many addresses of an IPv6 range, base included (`ipallocator.New`).
const BITMAP_IPV6_ADDRESSES: u128 = 65_536;
/// Longest host part of a service range, in bits, while a bitmap is written (`validateClusterIPFlags`).
pub const BITMAP_MAX_HOST_BITS: u8 = 20;

/// Addresses from `first` to `last`, both included, of one family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Band {
    /// The first address.
    pub first: IpAddr,
    /// The last address.
    pub last: IpAddr,
}

impl Band {
    /// Whether the address lies in the band.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.first.is_ipv4() == ip.is_ipv4() && self.first <= ip && ip <= self.last
    }

    /// How many addresses the band has.
    pub fn len(&self) -> u128 {
        to_bits(self.last) - to_bits(self.first) + 1
    }

    /// A band is never empty; present because `len` is.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The addresses in ascending order.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let v4 = self.first.is_ipv4();
        (to_bits(self.first)..=to_bits(self.last)).map(move |bits| from_bits(bits, v4))
    }
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// The CIDR of a ServiceCIDR or of `--service-cluster-ip-range`, with at least one usable address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServiceRange {
    net: IpNet,
}

impl ServiceRange {
    /// The range of a CIDR; host bits are dropped as `net.IPNet.String()` does.
    ///
    /// # Errors
    /// A CIDR without a usable address: IPv4 longer than /30, IPv6 longer than /127.
    pub fn new(net: IpNet) -> Result<Self, RangeError> {
        let shortest_host = if net.addr().is_ipv4() { 2 } else { 1 };
        if net.max_prefix_len() - net.prefix_len() < shortest_host {
            return Err(RangeError::NoUsableAddress { net });
        }
        Ok(ServiceRange { net: net.trunc() })
    }

    /// The CIDR.
    pub fn net(&self) -> IpNet {
        self.net
    }

    /// Whether the range is IPv4.
    pub fn is_ipv4(&self) -> bool {
        self.net.addr().is_ipv4()
    }

    /// The base address, never a ClusterIP.
    pub fn network(&self) -> IpAddr {
        self.net.network()
    }

    /// The broadcast address, never a ClusterIP; IPv6 has none.
    pub fn broadcast(&self) -> Option<IpAddr> {
        self.is_ipv4().then(|| self.net.broadcast())
    }

    /// Every address that can become a ClusterIP of the new allocator.
    pub fn usable(&self) -> Band {
        let first = to_bits(self.network()) + 1;
        let last = to_bits(self.net.broadcast()) - u128::from(self.is_ipv4());
        self.band(first, last)
    }

    /// What the bitmap can hold: the usable addresses, of IPv6 at most the first 65,535.
    pub fn usable_in_bitmap(&self) -> Band {
        let usable = self.usable();
        let last = to_bits(usable.last);
        let cap = to_bits(self.network()).saturating_add(BITMAP_IPV6_ADDRESSES - 1);
        self.band(to_bits(usable.first), if self.is_ipv4() { last } else { last.min(cap) })
    }

    /// The lower band, kept for addresses that users ask for; `None` in ranges of 16 addresses or fewer.
    pub fn static_band(&self) -> Option<Band> {
        let first = to_bits(self.usable().first);
        let offset = self.static_band_len();
        (offset > 0).then(|| self.band(first, first + offset - 1))
    }

    /// The upper band, from which addresses are picked first when a Service names none.
    pub fn dynamic_band(&self) -> Band {
        let usable = self.usable();
        self.band(to_bits(usable.first) + self.static_band_len(), to_bits(usable.last))
    }

    /// Whether the address lies in the CIDR, base and broadcast included.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.net.contains(&ip)
    }

    /// Whether the address can be granted from this range.
    pub fn can_grant(&self, ip: IpAddr) -> bool {
        self.usable().contains(ip)
    }

    /// The address of the Service `kubernetes` of an apiserver with this range: base+1.
    pub fn kubernetes_service_ip(&self) -> IpAddr {
        self.usable().first
    }

    /// `calculateRangeOffset`: 0 for 16 addresses or fewer, else a sixteenth between 16 and 256. The size counts base
    /// and broadcast, and for IPv6 what the bitmap would hold.
    fn static_band_len(&self) -> u128 {
        let host_bits = self.net.max_prefix_len() - self.net.prefix_len();
        let size = 1u128.checked_shl(u32::from(host_bits)).unwrap_or(u128::MAX);
        if size <= STATIC_BAND_MIN { 0 } else { (size / 16).clamp(STATIC_BAND_MIN, STATIC_BAND_MAX) }
    }

    fn band(&self, first: u128, last: u128) -> Band {
        Band { first: from_bits(first, self.is_ipv4()), last: from_bits(last, self.is_ipv4()) }
    }
}

impl fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.net.fmt(f)
    }
}

/// Addresses that a scenario may ask for in a cluster that is in use: of the static band of the first range, grantable by
/// all of them, without the first ten (the Service `kubernetes` has the first, and DNS by custom the tenth) and without
/// those in use.
pub fn free_static(ranges: &[ServiceRange], in_use: &BTreeSet<IpAddr>, count: usize) -> Vec<IpAddr> {
    let band = ranges.first().and_then(ServiceRange::static_band);
    let addresses = band.into_iter().flat_map(|band| band.addresses().skip(10));
    let free = addresses.filter(|ip| !in_use.contains(ip) && ranges.iter().all(|range| range.can_grant(*ip)));
    free.take(count).collect()
}

/// The address as a number.
pub fn to_bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// The number as an address; IPv4 keeps the low 32 bits.
pub fn from_bits(bits: u128, ipv4: bool) -> IpAddr {
    if ipv4 { IpAddr::V4(Ipv4Addr::from_bits(bits as u32)) } else { IpAddr::V6(Ipv6Addr::from_bits(bits)) }
}

/// A CIDR that is no service range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Too small.
    #[error("{net} has no usable address: IPv4 ranges end at /30, IPv6 ranges at /127")]
    NoUsableAddress {
        /// The CIDR.
        net: IpNet,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(text: &str) -> ServiceRange {
        ServiceRange::new(text.parse().unwrap()).unwrap()
    }

    /// The arithmetic oracle: CIDR, usable, static band, dynamic band, as upstream's `calculateRangeOffset` gives them.
    #[test]
    fn bands_equal_the_upstream_table() {
        #[track_caller]
        fn is(cidr: &str, usable: u128, static_band: &str, dynamic: &str) {
            let range = range(cidr);
            let band = range.static_band().map_or("none".to_string(), |band| band.to_string());
            let seen = (range.usable().len(), band, range.dynamic_band().to_string());
            assert_eq!(seen, (usable, static_band.to_string(), dynamic.to_string()), "{cidr}");
        }
        is("10.0.0.0/29", 6, "none", "10.0.0.1-10.0.0.6");
        is("10.0.0.0/28", 14, "none", "10.0.0.1-10.0.0.14");
        is("10.0.0.0/27", 30, "10.0.0.1-10.0.0.16", "10.0.0.17-10.0.0.30");
        is("10.0.0.0/24", 254, "10.0.0.1-10.0.0.16", "10.0.0.17-10.0.0.254");
        is("10.0.0.0/22", 1022, "10.0.0.1-10.0.0.64", "10.0.0.65-10.0.3.254");
        is("10.0.0.0/20", 4094, "10.0.0.1-10.0.1.0", "10.0.1.1-10.0.15.254");
        is("10.0.0.0/16", 65_534, "10.0.0.1-10.0.1.0", "10.0.1.1-10.0.255.254");
        is("10.0.0.0/12", 1_048_574, "10.0.0.1-10.0.1.0", "10.0.1.1-10.15.255.254");
        is("2001:db8::/125", 7, "none", "2001:db8::1-2001:db8::7");
        is("2001:db8::/120", 255, "2001:db8::1-2001:db8::10", "2001:db8::11-2001:db8::ff");
        is("2001:db8::/112", 65_535, "2001:db8::1-2001:db8::100", "2001:db8::101-2001:db8::ffff");
        is("2001:db8::/108", 1_048_575, "2001:db8::1-2001:db8::100", "2001:db8::101-2001:db8::f:ffff");
    }

    #[test]
    fn the_bitmap_holds_the_first_65535_addresses_of_a_wide_ipv6_range() {
        let wide = range("2001:db8::/108").usable_in_bitmap();
        assert_eq!((wide.len(), wide.to_string().as_str()), (65_535, "2001:db8::1-2001:db8::ffff"));
        assert_eq!(range("2001:db8::/120").usable_in_bitmap().len(), 255);
        assert_eq!(range("10.0.0.0/12").usable_in_bitmap().len(), 1_048_574);
    }

    #[test]
    fn free_addresses_are_static_ones_that_nobody_has_and_every_server_can_grant() {
        let in_use = BTreeSet::from(["10.0.0.12", "10.0.0.13"].map(|text| text.parse().unwrap()));
        let free = |ranges: &[&str], count| {
            let ranges: Vec<ServiceRange> = ranges.iter().map(|text| range(text)).collect();
            free_static(&ranges, &in_use, count).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(free(&["10.0.0.0/24"], 9), ["10.0.0.11", "10.0.0.14", "10.0.0.15", "10.0.0.16"]);
        assert_eq!(free(&["10.0.0.0/24", "10.0.0.0/28"], 9), ["10.0.0.11", "10.0.0.14"]);
        assert_eq!(free(&["10.0.0.0/16"], 2), ["10.0.0.11", "10.0.0.14"]);
        assert!(free(&["10.0.0.0/28"], 9).is_empty() && free(&[], 9).is_empty());
    }

    #[test]
    fn a_range_without_a_usable_address_is_refused() {
        for cidr in ["10.0.0.0/31", "10.0.0.0/32", "2001:db8::/128"] {
            assert!(ServiceRange::new(cidr.parse().unwrap()).is_err(), "{cidr}");
        }
        assert_eq!(range("10.0.0.0/30").usable().len(), 2);
        assert_eq!(range("2001:db8::/127").usable().len(), 1);
    }

    fn any_range() -> impl Strategy<Value = ServiceRange> {
        let v4 = (any::<u32>(), 0u8..=30).prop_map(|(bits, len)| IpNet::new(Ipv4Addr::from_bits(bits).into(), len));
        let v6 = (any::<u128>(), 0u8..=127).prop_map(|(bits, len)| IpNet::new(Ipv6Addr::from_bits(bits).into(), len));
        prop_oneof![v4, v6].prop_map(|net| ServiceRange::new(net.unwrap()).unwrap())
    }

    proptest! {
        #[test]
        fn the_bands_split_the_usable_addresses(range in any_range()) {
            let (usable, dynamic) = (range.usable(), range.dynamic_band());
            prop_assert_eq!(dynamic.last, usable.last);
            match range.static_band() {
                None => prop_assert_eq!(dynamic, usable),
                Some(band) => {
                    prop_assert_eq!(band.first, usable.first);
                    prop_assert_eq!(to_bits(band.last) + 1, to_bits(dynamic.first));
                    prop_assert!(band.len() <= 256 && band.len() >= 16);
                }
            }
        }

        #[test]
        fn network_and_broadcast_are_never_granted(range in any_range()) {
            prop_assert!(!range.can_grant(range.network()));
            if let Some(broadcast) = range.broadcast() {
                prop_assert!(!range.can_grant(broadcast));
            }
            prop_assert!(range.contains(range.usable().first) && range.contains(range.usable().last));
        }
    }
}
