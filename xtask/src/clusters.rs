//! The kind clusters of a run: making one takes a minute, so cases of one shape use the same, one after the other.

use harness::cluster::kind::cluster::Shape;
use harness::cluster::kind::engine::{Program, engine};
use harness::cluster::kind::owner::{self, Owner};

/// Clusters of a run, which are deleted when it ends.
#[derive(Debug)]
pub struct Clusters {
    engine: Program,
    owner: Owner,
    /// Most clusters there are at the same time; idle ones cost memory and some of a processor.
    most: usize,
    /// Those that no case has at the moment.
    idle: Vec<Lease>,
    lent: usize,
}

/// The right of one case to a cluster, which the case itself creates if it is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The name of the cluster.
    pub name: String,
    shape: Shape,
}

impl Clusters {
    /// None yet.
    pub fn new(most: usize) -> Clusters {
        Clusters { engine: engine(), owner: Owner::this(), most, idle: Vec::new(), lent: 0 }
    }

    /// Lends an idle cluster of this shape, or a new one; then another one that nobody uses may have to go.
    ///
    /// # Errors
    /// The engine does not delete it.
    pub async fn lend(&mut self, shape: Shape) -> anyhow::Result<Lease> {
        let same = self.idle.iter().position(|lease| lease.shape == shape);
        let lease = match same {
            Some(at) => self.idle.remove(at),
            None => {
                if !self.idle.is_empty() && self.idle.len() + self.lent >= self.most {
                    let longest_idle = self.idle.remove(0);
                    owner::remove_named(&self.engine, &longest_idle.name).await?;
                }
                Lease { name: self.owner.next_name(), shape }
            }
        };
        self.lent += 1;
        Ok(lease)
    }

    /// Takes a cluster back. One that its case has deleted is created by the next.
    pub fn take_back(&mut self, lease: Lease) {
        self.lent -= 1;
        self.idle.push(lease);
    }
}
