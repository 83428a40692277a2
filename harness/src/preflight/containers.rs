//! What runs in containers need of their host: an engine that answers, and images.

use super::Line;
use super::kind::{Engine, engine};
use crate::binaries::Wanted;
use crate::cluster::containers::images::{made_here, published};

/// A line per fact, for these components below this registry and path.
pub fn judge(found: &Result<Engine, String>, prefix: &str, wanted: &[Wanted]) -> Vec<Line> {
    let mut lines = vec![engine(found)];
    lines.extend(found.as_ref().ok().map(|found| images(&found.images, prefix, wanted)));
    lines
}

fn images(there: &[String], prefix: &str, wanted: &[Wanted]) -> Line {
    let is_here =
        |wanted: &&Wanted| there.contains(&published(prefix, **wanted)) || there.contains(&made_here(**wanted));
    let missing: Vec<String> =
        wanted.iter().filter(|wanted| !is_here(wanted)).map(|wanted| published(prefix, *wanted)).collect();
    let seen = format!("{} of {}", wanted.len() - missing.len(), wanted.len());
    match missing.is_empty() {
        true => Line::fine("images", seen),
        false => Line::doubtful(
            "images",
            format!("{seen}; missing: {}", missing.join(", ")),
            "they are pulled; where no registry answers, Linux makes them from binaries",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binaries::ToolVersion;

    const ETCD: [Wanted; 1] = [Wanted::Etcd(ToolVersion::ETCD)];

    fn lines(images: &[&str]) -> Vec<String> {
        let images = images.iter().map(ToString::to_string).collect();
        let engine = Engine { command: "docker".into(), version: "29.0".into(), runtime: None, disk: None, images };
        judge(&Ok(engine), "registry.example", &ETCD).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_image_counts_whether_it_was_pulled_or_made_here() {
        for image in ["registry.example/etcd:3.6.8-0", "skewlab/etcd:v3.6.16"] {
            let line = &lines(&[image])[1];
            assert!(line.starts_with("ok") && line.contains("1 of 1"), "{line}");
        }
        let line = &lines(&["registry.k8s.io/etcd:3.6.8-0"])[1];
        assert!(line.starts_with("maybe") && line.contains("missing: registry.example/etcd:3.6.8-0"), "{line}");
    }

    #[test]
    fn without_an_engine_there_are_no_containers() {
        let lines = judge(&Err("docker: cannot connect".into()), "registry.example", &ETCD);
        assert!(lines.len() == 1 && lines[0].is_failure());
    }
}
