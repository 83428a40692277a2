//! Who claims an address in etcd right now: the bit, and the IPAddress object.

use harness::bitmap::AllocationBitmap;
use harness::etcd::Etcd;
use harness::history::{RangeKey, ServiceKey, StoredRange, StoredService, StoredServiceCidr};
use harness::net::ServiceRange;
use harness::stored::{Stored, StoredKey, decode, keys, parse_key};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The claims on one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Whether its bit is set.
    pub bit: bool,
    /// The Service its IPAddress refers to, if it has an IPAddress.
    pub parent: Option<ServiceKey>,
}

/// Reads the claims on an address.
///
/// # Errors
/// etcd does not answer, or a value does not decode.
pub async fn claim_of(etcd: &Etcd, ip: IpAddr) -> anyhow::Result<Claim> {
    let object = etcd.get(&format!("{}{ip}", keys::IP_ADDRESSES)).await?;
    let parent = match object {
        None => None,
        Some(kv) => match decode(&StoredKey::IpAddress(ip), &kv.value)? {
            Stored::IpAddress(object) => object.parent,
            Stored::Service(_) | Stored::ServiceCidr(_) | Stored::Range(_) => None,
        },
    };
    let mut bit = false;
    for (key, name) in [(RangeKey::Primary, keys::PRIMARY_RANGE), (RangeKey::Secondary, keys::SECONDARY_RANGE)] {
        if let Some(stored) = stored_range(etcd, key, name).await? {
            bit |= bitmap(&stored)?.is_some_and(|bitmap| bitmap.contains(ip));
        }
    }
    Ok(Claim { bit, parent })
}

/// The bitmap of the first range; `None` if there is none or nothing was ever allocated.
///
/// # Errors
/// etcd does not answer, or a value does not decode.
pub async fn primary_bitmap(etcd: &Etcd) -> anyhow::Result<Option<AllocationBitmap>> {
    let stored = stored_range(etcd, RangeKey::Primary, keys::PRIMARY_RANGE).await?;
    Ok(match stored {
        Some(stored) => bitmap(&stored)?,
        None => None,
    })
}

/// Whether the default ServiceCIDR is there and not being deleted.
///
/// # Errors
/// etcd does not answer, or the value does not decode.
pub async fn default_cidr_exists(etcd: &Etcd) -> anyhow::Result<bool> {
    Ok(stored_cidr(etcd, crate::ranges::DEFAULT).await?.is_some_and(|cidr| !cidr.deleting))
}

/// A ServiceCIDR as etcd has it now.
///
/// # Errors
/// etcd does not answer, or the value does not decode.
pub async fn stored_cidr(etcd: &Etcd, name: &str) -> anyhow::Result<Option<StoredServiceCidr>> {
    let Some(kv) = etcd.get(&format!("{}{name}", keys::SERVICE_CIDRS)).await? else { return Ok(None) };
    Ok(match decode(&StoredKey::ServiceCidr(name.into()), &kv.value)? {
        Stored::ServiceCidr(cidr) => Some(cidr),
        Stored::Service(_) | Stored::IpAddress(_) | Stored::Range(_) => None,
    })
}

/// What Services and locks lack of each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Missing {
    /// Addresses of Services without an IPAddress of theirs.
    pub without_ip_address: Vec<IpAddr>,
    /// Addresses of Services that the bitmap could hold, without a bit.
    pub without_bit: Vec<IpAddr>,
    /// IPAddresses of the allocator whose Service does not exist.
    pub orphans: Vec<IpAddr>,
}

/// Compares Services, IPAddresses and the first bitmap as etcd has them now.
///
/// # Errors
/// etcd does not answer, or a value does not decode.
pub async fn missing_locks(etcd: &Etcd) -> anyhow::Result<Missing> {
    let services = stored_services(etcd).await?;
    let mut parents = BTreeMap::new();
    for kv in etcd.list(keys::IP_ADDRESSES).await?.kvs {
        if let Some(key) = parse_key(&kv.key)?
            && let Stored::IpAddress(object) = decode(&key, &kv.value)?
            && object.managed
        {
            parents.insert(object.ip, object.parent);
        }
    }
    let bitmap = primary_bitmap(etcd).await?;
    let mut missing = Missing::default();
    for service in &services {
        for ip in &service.ips {
            if parents.get(ip) != Some(&Some(service.key.clone())) {
                missing.without_ip_address.push(*ip);
            }
            if bitmap.as_ref().is_some_and(|bitmap| bitmap.range().can_grant(*ip) && !bitmap.contains(*ip)) {
                missing.without_bit.push(*ip);
            }
        }
    }
    let alive = |parent: &Option<ServiceKey>| services.iter().any(|service| Some(&service.key) == parent.as_ref());
    missing.orphans.extend(parents.iter().filter(|(_, parent)| !alive(parent)).map(|(ip, _)| *ip));
    Ok(missing)
}

/// Every Service as etcd has it now.
///
/// # Errors
/// etcd does not answer, or a value does not decode.
pub async fn stored_services(etcd: &Etcd) -> anyhow::Result<Vec<StoredService>> {
    let mut services = Vec::new();
    for kv in etcd.list(keys::SERVICES).await?.kvs {
        if let Some(key) = parse_key(&kv.key)?
            && let Stored::Service(service) = decode(&key, &kv.value)?
        {
            services.push(service);
        }
    }
    Ok(services)
}

async fn stored_range(etcd: &Etcd, key: RangeKey, name: &str) -> anyhow::Result<Option<StoredRange>> {
    let Some(kv) = etcd.get(name).await? else { return Ok(None) };
    Ok(match decode(&StoredKey::Range(key), &kv.value)? {
        Stored::Range(range) => Some(range),
        Stored::Service(_) | Stored::ServiceCidr(_) | Stored::IpAddress(_) => None,
    })
}

fn bitmap(stored: &StoredRange) -> anyhow::Result<Option<AllocationBitmap>> {
    let Some(net) = stored.range else { return Ok(None) };
    Ok(Some(AllocationBitmap::decode(ServiceRange::new(net)?, &stored.data)?))
}
