//! The throw-away Go module that a release is built from. Text in, text out.

use super::table::Release;

/// The go.mod of a module that requires the release as the release requires its own parts.
///
/// k8s.io/kubernetes takes its staging modules from its own tree by `replace k8s.io/x => ./staging/src/k8s.io/x`; a
/// module that depends on it must name their published versions instead, `v0.<minor>.<patch>`. The `go` line and the
/// `godebug` settings are kept, since they change how the binary behaves.
pub(super) fn go_mod(release: Release, its_go_mod: &str) -> String {
    let mut lines = vec!["module skewlab.local/build".to_string()];
    let mut block = None;
    for line in its_go_mod.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, rest) = match (&block, words.as_slice()) {
            (_, [")"]) => {
                block = None;
                continue;
            }
            (None, [verb, "("]) => {
                block = Some((*verb).to_string());
                continue;
            }
            (Some(verb), rest) => (verb.as_str(), rest),
            (None, [verb, rest @ ..]) => (*verb, rest),
            (None, []) => continue,
        };
        match (verb, rest) {
            ("go", [version]) => lines.push(format!("go {version}")),
            ("godebug", [setting]) => lines.push(format!("godebug {setting}")),
            ("replace", [module, "=>", target]) if target.starts_with("./staging/") => {
                lines.extend(staging_version(release).map(|version| format!("replace {module} => {module} {version}")));
            }
            _ => {}
        }
    }
    lines.push(format!("require {} {}", release.go_module(), release.version()));
    lines.join("\n") + "\n"
}

/// The version that the staging modules of a release are published as.
fn staging_version(release: Release) -> Option<String> {
    match release {
        Release::Etcd(_) | Release::CriTools(_) | Release::Kind(_) => None,
        Release::Kubernetes(version) => Some(format!("v0.{}.{}", version.minor.0, version.patch)),
    }
}

/// The value of `-ldflags`: no debug information, and the version that the release scripts of Kubernetes stamp in.
/// Without it a server reports v0.0.0 and refuses to emulate. etcd and kind have their version in their source.
pub(super) fn ldflags(release: Release) -> String {
    let mut flags = "-s -w".to_string();
    match release {
        Release::Etcd(_) | Release::Kind(_) => {}
        Release::CriTools(version) => {
            let bare = version.to_string();
            let bare = bare.trim_start_matches('v');
            flags.push_str(&format!(" -X sigs.k8s.io/cri-tools/pkg/version.Version={bare}"));
        }
        Release::Kubernetes(version) => {
            for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
                let minor = version.minor.0;
                flags.push_str(&format!(
                    " -X {package}.gitVersion={version} -X {package}.gitMajor=1 -X {package}.gitMinor={minor} \
                     -X {package}.gitTreeState=clean"
                ));
            }
        }
    }
    flags
}

/// What the module proxy says it does not have, from the output of `go`: `k8s.io/kubectl@v0.32.13 (403 Forbidden)`. A
/// proxy that does not answer is another matter and yields `None`.
pub(super) fn not_on_proxy(output: &str) -> Option<String> {
    const DEFINITE: [&str; 4] = ["403 Forbidden", "404 Not Found", "410 Gone", "unknown revision"];
    let mut modules: Vec<String> = Vec::new();
    for line in output.lines() {
        let Some(status) = DEFINITE.into_iter().find(|status| line.contains(status)) else { continue };
        // `[file.go:1:2: ]MODULE@VERSION: reading URL: 403 Forbidden`, `MODULE@VERSION: invalid version: unknown ...`.
        let head = line.split_once(": reading ").or_else(|| line.split_once(": invalid version")).map(|(head, _)| head);
        let module = head.and_then(|head| head.split_whitespace().last()).unwrap_or(line.trim());
        let module = format!("{module} ({status})");
        if !modules.contains(&module) {
            modules.push(module);
        }
    }
    (!modules.is_empty()).then(|| modules.join(", "))
}

/// The last lines in which `go` tells what went wrong, without its reports of progress.
pub(super) fn complaint(lines: &[String]) -> String {
    let told = lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty() && !line.contains(": downloading "));
    let last: Vec<&str> = told.rev().take(5).collect();
    last.into_iter().rev().collect::<Vec<_>>().join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binaries::ToolVersion;
    use crate::version::KubeVersion;

    const KUBERNETES: Release = Release::Kubernetes(KubeVersion::new(33, 13));

    #[test]
    fn staging_modules_are_replaced_by_their_published_versions() {
        let theirs = "module k8s.io/kubernetes\n\ngo 1.24.0\n\ngodebug default=go1.24\n\nrequire (\n\tgo.uber.org/zap v1.27.0 \
                      // indirect\n)\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n\tk8s.io/kms => \
                      ./staging/src/k8s.io/kms // why\n\tother.org/x => other.org/y v1.0.0\n)\n";
        assert_eq!(
            go_mod(KUBERNETES, theirs),
            "module skewlab.local/build\ngo 1.24.0\ngodebug default=go1.24\nreplace k8s.io/api => k8s.io/api \
             v0.33.13\nreplace k8s.io/kms => k8s.io/kms v0.33.13\nrequire k8s.io/kubernetes v1.33.13\n"
        );
    }

    #[test]
    fn godebug_blocks_and_single_replaces_are_read_too() {
        let theirs = "go 1.23.0\ngodebug (\n\tdefault=go1.23\n\twinsymlink=0\n)\nreplace k8s.io/api => ./staging/src/k8s.io/api\n";
        let ours = go_mod(KUBERNETES, theirs);
        assert!(
            ours.contains("godebug default=go1.23\ngodebug winsymlink=0\nreplace k8s.io/api => k8s.io/api v0.33.13\n")
        );
    }

    #[test]
    fn etcd_keeps_its_own_replaces_to_itself() {
        let theirs = "module go.etcd.io/etcd/server/v3\ngo 1.25.0\nreplace go.etcd.io/etcd/api/v3 => ../api\n";
        let ours = go_mod(Release::Etcd(ToolVersion::ETCD), theirs);
        assert_eq!(ours, "module skewlab.local/build\ngo 1.25.0\nrequire go.etcd.io/etcd/server/v3 v3.6.16\n");
    }

    #[test]
    fn kubernetes_is_stamped_with_its_version_in_both_places() {
        let flags = ldflags(KUBERNETES);
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.33.13"));
        assert!(flags.contains("-X k8s.io/client-go/pkg/version.gitMinor=33"));
    }

    #[test]
    fn a_module_the_proxy_lacks_is_told_from_a_proxy_that_is_away() {
        let lacking = "go: downloading k8s.io/api v0.32.13\n/go/pkg/mod/k8s.io/kubernetes@v1.32.13/pkg/a.go:42:2: \
                       k8s.io/endpointslice@v0.32.13: reading https://proxy.golang.org/k8s.io/endpointslice/@v/v0.32.13.zip: \
                       403 Forbidden\n\tserver response: This module version is not available.\n";
        assert_eq!(not_on_proxy(lacking).as_deref(), Some("k8s.io/endpointslice@v0.32.13 (403 Forbidden)"));
        let direct = "k8s.io/kubernetes@v1.33.99: invalid version: unknown revision v1.33.99";
        assert_eq!(not_on_proxy(direct).as_deref(), Some("k8s.io/kubernetes@v1.33.99 (unknown revision)"));
        let away = "k8s.io/kubernetes@v1.33.13: Get \"https://proxy.golang.org/...\": dial tcp: i/o timeout";
        assert_eq!(not_on_proxy(away), None);
    }
}
