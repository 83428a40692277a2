//! The kind clusters of a run: making one takes a minute, so cases of one shape use the same, one after the other.

use harness::cluster::kind::cluster::Shape;
use harness::cluster::kind::engine::{Program, engine};
use harness::cluster::kind::owner::{self, Owner};

/// Clusters of a run, which are deleted when it ends.
#[derive(Debug)]
pub struct Clusters {
    engine: Program,
    owner: Owner,
    /// Most nodes there are at the same time, if the largest cluster has no more.
    most_nodes: usize,
    /// Those that no case has at the moment, longest first.
    idle: Vec<Lease>,
    /// Nodes of those that cases have.
    lent_nodes: usize,
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
    pub fn new(most_nodes: usize) -> Clusters {
        Clusters { engine: engine(), owner: Owner::this(), most_nodes, idle: Vec::new(), lent_nodes: 0 }
    }

    /// Whether a cluster of this shape can be lent now. The first always can: a host that carries no cluster will say why.
    pub fn has_room(&self, shape: Shape) -> bool {
        self.lent_nodes == 0 || self.lent_nodes + shape.nodes <= self.most_nodes
    }

    /// Whether a cluster of this shape is there that no case has.
    pub fn has_idle(&self, shape: Shape) -> bool {
        self.idle.iter().any(|lease| lease.shape == shape)
    }

    /// Lends an idle cluster of this shape, or a new one; then others that nobody uses may have to go.
    ///
    /// # Errors
    /// The engine does not delete one.
    pub async fn lend(&mut self, shape: Shape) -> anyhow::Result<Lease> {
        self.lent_nodes += shape.nodes;
        if let Some(at) = self.idle.iter().position(|lease| lease.shape == shape) {
            return Ok(self.idle.remove(at));
        }
        while !self.idle.is_empty() && self.lent_nodes + self.idle_nodes() > self.most_nodes {
            let longest_idle = self.idle.remove(0);
            owner::remove(&self.engine, &longest_idle.name).await?;
        }
        Ok(Lease { name: self.owner.next_name(), shape })
    }

    /// Takes a cluster back. One that its case has deleted is created by the next.
    pub fn take_back(&mut self, lease: Lease) {
        self.lent_nodes -= lease.shape.nodes;
        self.idle.push(lease);
    }

    fn idle_nodes(&self) -> usize {
        self.idle.iter().map(|lease| lease.shape.nodes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness::cluster::kind::config::Families;

    fn shape(nodes: usize) -> Shape {
        Shape { nodes, families: Families::V4 }
    }

    #[tokio::test]
    async fn cases_of_one_shape_share_a_cluster_and_nobody_shares_it_at_the_same_time() {
        let mut clusters = Clusters::new(6);
        let one = clusters.lend(shape(2)).await.unwrap();
        let two = clusters.lend(shape(2)).await.unwrap();
        assert_ne!(one.name, two.name);
        assert!(!clusters.has_idle(shape(2)));
        clusters.take_back(one.clone());
        assert!(clusters.has_idle(shape(2)) && !clusters.has_idle(shape(3)));
        assert_eq!(clusters.lend(shape(2)).await.unwrap(), one);
    }

    #[tokio::test]
    async fn what_does_not_fit_waits_until_clusters_come_back() {
        let mut clusters = Clusters::new(6);
        let three = clusters.lend(shape(3)).await.unwrap();
        let two = clusters.lend(shape(2)).await.unwrap();
        assert!(!clusters.has_room(shape(2)) && clusters.has_room(shape(1)));
        clusters.take_back(two);
        assert!(clusters.has_room(shape(3)));
        clusters.take_back(three);
        // A host too small for anything is not waited for.
        assert!(Clusters::new(0).has_room(shape(3)));
    }
}
