//! What runs the servers, and what of a scenario it cannot do.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What runs the servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// Processes of this host.
    #[default]
    Local,
    /// Nodes of kind clusters.
    Kind,
    /// Somebody else: servers that run already, reached by kubeconfigs.
    Existing,
    /// Containers on this host.
    Containers,
}

/// An operation that not every provider has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Need {
    /// etcd is paused as a whole. On nodes it has several members, and a paused one is replaced by the others.
    PauseEtcd,
    /// A server is paused. A kubelet kills one that no longer answers its probes.
    PauseServer,
    /// A server joins later. A kind cluster cannot grow.
    AddServer,
    /// A control plane starts on the data of an earlier one. Nodes and containers keep theirs to themselves.
    ReuseData,
    /// Servers are started, stopped or replaced. Servers of somebody else are left alone.
    Control,
    /// etcd is read or written past the apiservers. A kubeconfig does not reach it.
    RawEtcd,
    /// The servers have a service range of the scenario's choice, which it may fill.
    OwnRange,
}

impl Need {
    /// The providers that have the operation.
    fn providers(self) -> &'static [Provider] {
        match self {
            Need::ReuseData => &[Provider::Local],
            Need::PauseEtcd | Need::PauseServer | Need::AddServer => &[Provider::Local, Provider::Containers],
            Need::Control | Need::RawEtcd | Need::OwnRange => &[Provider::Local, Provider::Kind, Provider::Containers],
        }
    }
}

impl Provider {
    /// Every provider.
    pub const ALL: [Provider; 4] = [Provider::Local, Provider::Kind, Provider::Containers, Provider::Existing];

    /// Whether it has an operation.
    pub fn has(self, need: Need) -> bool {
        need.providers().contains(&self)
    }

    /// The first of the operations that it does not have.
    pub fn lacking(self, needs: &[Need]) -> Option<Lacking> {
        let need = needs.iter().copied().find(|need| !self.has(*need))?;
        Some(Lacking { provider: self, need })
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Provider::Local => "local",
            Provider::Kind => "kind",
            Provider::Existing => "existing",
            Provider::Containers => "containers",
        })
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Need::PauseEtcd => "pause etcd",
            Need::PauseServer => "pause a server",
            Need::AddServer => "add a server later",
            Need::ReuseData => "start on the data of an earlier control plane",
            Need::Control => "start, stop or replace servers",
            Need::RawEtcd => "reach etcd past the apiservers",
            Need::OwnRange => "give the servers a service range of the scenario's own",
        })
    }
}

impl FromStr for Provider {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Provider::ALL.into_iter().find(|provider| provider.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is no provider; there are local, kind, containers and existing"))
    }
}

/// An operation that the provider of a run does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the provider {provider} cannot {need}; --provider local can")]
pub struct Lacking {
    /// The provider.
    pub provider: Provider,
    /// What it cannot do.
    pub need: Need,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_survives_printing_and_parsing() {
        for provider in Provider::ALL {
            assert_eq!(provider.to_string().parse(), Ok(provider));
        }
        assert!("kidn".parse::<Provider>().unwrap_err().contains("local, kind, containers and existing"));
    }

    #[test]
    fn what_a_provider_lacks_is_said_with_the_one_that_has_it() {
        let lacking = Lacking { provider: Provider::Kind, need: Need::AddServer };
        assert_eq!(lacking.to_string(), "the provider kind cannot add a server later; --provider local can");
    }

    #[test]
    fn the_first_need_that_a_provider_lacks_is_the_reason() {
        let needs = [Need::RawEtcd, Need::AddServer];
        assert_eq!(Provider::Local.lacking(&needs), None);
        assert_eq!(Provider::Kind.lacking(&needs).map(|lacking| lacking.need), Some(Need::AddServer));
        assert_eq!(Provider::Existing.lacking(&needs).map(|lacking| lacking.need), Some(Need::RawEtcd));
        assert_eq!(Provider::Existing.lacking(&[]), None);
    }
}
