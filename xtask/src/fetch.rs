//! `cargo xtask fetch`: the binaries of the given versions, and nothing else.

use crate::exit::Ended;
use crate::progress::Terminal;
use clap::builder::PossibleValue;
use harness::binaries::{self, BinaryError, KubeComponent, Obtained, Sources, ToolVersion, Wanted};
use harness::version::{KubeVersion, Minor};
use std::path::PathBuf;
use std::str::FromStr;

/// Finds, downloads or builds binaries and prints their paths.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Kubernetes versions: v1.33.13, or 1.33 for the default patch of a minor
    #[arg(value_name = "VERSION", default_value = "1.33")]
    pub versions: Vec<Version>,
    /// Only these binaries [default: etcd, kube-apiserver and kube-controller-manager]
    #[arg(long = "component", value_name = "NAME")]
    pub components: Vec<Component>,
    /// A directory with binaries, looked at first [env: SKEWLAB_BIN_DIR]
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
    /// Neither download nor build
    #[arg(long)]
    pub offline: bool,
}

/// A version on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `1.33`.
    Default(Minor),
    /// `v1.33.13`.
    Exact(KubeVersion),
}

impl FromStr for Version {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let exact = text.parse().map(Version::Exact);
        exact.or_else(|_| text.parse().map(Version::Default)).map_err(|_: harness::version::VersionError| {
            format!("`{text}` is neither a version such as v1.33.13 nor a minor such as 1.33")
        })
    }
}

impl Version {
    /// The exact version for a component.
    ///
    /// # Errors
    /// A minor skewlab does not know.
    pub fn of(self, component: KubeComponent) -> Result<KubeVersion, BinaryError> {
        match self {
            Version::Exact(version) => Ok(version),
            Version::Default(minor) => {
                binaries::default_version(component, minor).ok_or(BinaryError::UnknownMinor { minor })
            }
        }
    }
}

/// A binary on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// etcd, in its default version.
    Etcd,
    /// A component of Kubernetes.
    Kube(KubeComponent),
    /// crictl, in its default version.
    Crictl,
    /// kind, in its default version.
    Kind,
}

impl clap::ValueEnum for Component {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [Component; 3 + KubeComponent::ALL.len()] = [
            Component::Etcd,
            Component::Kube(KubeComponent::ALL[0]),
            Component::Kube(KubeComponent::ALL[1]),
            Component::Kube(KubeComponent::ALL[2]),
            Component::Kube(KubeComponent::ALL[3]),
            Component::Kube(KubeComponent::ALL[4]),
            Component::Kube(KubeComponent::ALL[5]),
            Component::Crictl,
            Component::Kind,
        ];
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(match self {
            Component::Etcd => "etcd",
            Component::Kube(component) => component.name(),
            Component::Crictl => "crictl",
            Component::Kind => "kind",
        }))
    }
}

/// Runs the command: the paths go to standard output, everything else to standard error.
///
/// # Errors
/// As [`run`].
pub fn run_command(args: Args) -> anyhow::Result<Ended> {
    for found in run(args)?.iter() {
        println!("{}", found.path.display());
    }
    Ok(Ended::AsExpected)
}

/// Obtains the binaries.
///
/// # Errors
/// A minor skewlab does not know, or a binary that cannot be had.
fn run(args: Args) -> anyhow::Result<Obtained> {
    let wanted = wanted(&args)?;
    let sources = Sources { offline: args.offline, ..Sources::from_env(args.bin_dir)? };
    Ok(binaries::obtain(&wanted, &sources, &Terminal::new())?)
}

/// The components, each in every version that applies to it.
fn wanted(args: &Args) -> Result<Vec<Wanted>, BinaryError> {
    let servers = KubeComponent::SERVERS.map(Component::Kube);
    let local: Vec<Component> = [Component::Etcd].into_iter().chain(servers).collect();
    let components = if args.components.is_empty() { &local } else { &args.components };
    let mut wanted = Vec::new();
    for component in components {
        match component {
            Component::Etcd => wanted.push(Wanted::Etcd(ToolVersion::ETCD)),
            Component::Kube(component) => {
                for version in &args.versions {
                    wanted.push(Wanted::Kube(*component, version.of(*component)?));
                }
            }
            Component::Crictl => wanted.push(Wanted::Crictl(ToolVersion::CRICTL)),
            Component::Kind => wanted.push(Wanted::Kind(ToolVersion::KIND)),
        }
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn names(line: &[&str]) -> Result<Vec<String>, String> {
        let command = Command::try_parse_from([&["fetch"], line].concat()).map_err(|error| error.to_string())?;
        let wanted = wanted(&command.args).map_err(|error| error.to_string())?;
        Ok(wanted.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn without_a_version_the_default_run_is_served() {
        let expected = ["etcd v3.6.16", "kube-apiserver v1.33.13", "kube-controller-manager v1.33.13"];
        assert_eq!(names(&[]).unwrap(), expected);
    }

    #[test]
    fn a_minor_is_the_default_patch_of_each_component_and_an_exact_version_is_itself() {
        let expected = ["kube-apiserver v1.31.14", "kube-apiserver v1.33.6", "kube-controller-manager v1.31.0"];
        let line = ["1.31", "v1.33.6", "--component", "kube-apiserver"];
        assert_eq!(names(&line).unwrap(), expected[..2]);
        assert_eq!(names(&["1.31", "--component=kube-controller-manager"]).unwrap(), expected[2..]);
    }

    #[test]
    fn what_is_no_version_or_no_known_minor_is_refused_with_an_example() {
        assert!(names(&["latest"]).unwrap_err().contains("such as v1.33.13"));
        assert!(names(&["1.29"]).unwrap_err().contains("1.31 to 1.37"));
    }
}
