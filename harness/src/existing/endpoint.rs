//! Which servers are meant: contexts of kubeconfigs. What is kept is where to look, never a credential.

use crate::client::{self, root_cause};
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A server as kubeconfigs name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The file; without one `KUBECONFIG`, else `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// The context in it.
    pub context: String,
    /// The URL of its cluster.
    pub url: String,
}

impl Endpoint {
    /// A client without retries, whose requests have bounded times.
    ///
    /// # Errors
    /// The kubeconfig has changed, or names a file or a helper program that cannot be used.
    pub async fn client(&self) -> Result<kube::Client, EndpointError> {
        let config = client::without_retries(self.config().await?);
        kube::Client::try_from(config).map_err(|error| self.unusable(&error))
    }

    /// The same for watches: silence is no failure.
    ///
    /// # Errors
    /// As [`Endpoint::client`].
    pub async fn watching_client(&self) -> Result<kube::Client, EndpointError> {
        let mut config = client::without_retries(self.config().await?);
        config.read_timeout = None;
        kube::Client::try_from(config).map_err(|error| self.unusable(&error))
    }

    async fn config(&self) -> Result<Config, EndpointError> {
        let kubeconfig = read(self.kubeconfig.as_deref())?;
        let options = KubeConfigOptions { context: Some(self.context.clone()), ..Default::default() };
        Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| self.unusable(&error))
    }

    fn unusable(&self, error: &dyn std::error::Error) -> EndpointError {
        EndpointError::Unusable { context: self.context.clone(), why: root_cause(error) }
    }
}

/// The servers that these files and contexts name: each context where it is found; without contexts the current one of
/// each file. Without files kube's own rules say where to look.
///
/// # Errors
/// A file or context that is missing, or two of one URL.
pub async fn resolve(files: &[PathBuf], contexts: &[String]) -> Result<Vec<Endpoint>, EndpointError> {
    let places: Vec<Option<PathBuf>> =
        if files.is_empty() { vec![None] } else { files.iter().cloned().map(Some).collect() };
    let mut read_files = Vec::new();
    for place in places {
        // Absolute, because a test process may run in another directory.
        let place = place.map(|path| std::path::absolute(&path).unwrap_or(path));
        read_files.push((read(place.as_deref())?, place));
    }
    let mut chosen = Vec::new();
    if contexts.is_empty() {
        for (kubeconfig, place) in &read_files {
            let context = kubeconfig.current_context.clone().filter(|name| !name.is_empty());
            let none = || EndpointError::NoCurrentContext { file: text(place.as_deref()), there: names(kubeconfig) };
            chosen.push((context.ok_or_else(none)?, place.clone(), kubeconfig));
        }
    }
    for context in contexts {
        let mut having = read_files.iter().filter(|(kubeconfig, _)| names(kubeconfig).contains(context));
        let Some((kubeconfig, place)) = having.next() else {
            let there = read_files.iter().flat_map(|(kubeconfig, _)| names(kubeconfig)).collect();
            return Err(EndpointError::NoContext { context: context.clone(), there });
        };
        if having.next().is_some() {
            return Err(EndpointError::Ambiguous { context: context.clone() });
        }
        chosen.push((context.clone(), place.clone(), kubeconfig));
    }
    let mut endpoints = Vec::new();
    for (context, kubeconfig, content) in chosen {
        let options = KubeConfigOptions { context: Some(context.clone()), ..Default::default() };
        let config = Config::from_custom_kubeconfig(content.clone(), &options).await;
        let config =
            config.map_err(|error| EndpointError::Unusable { context: context.clone(), why: root_cause(&error) })?;
        let url = config.cluster_url.to_string().trim_end_matches('/').to_string();
        endpoints.push(Endpoint { kubeconfig, context, url });
    }
    distinct(&endpoints)?;
    Ok(endpoints)
}

/// Each server has a URL of its own: one that is named twice would race with itself, and that says nothing about two.
fn distinct(endpoints: &[Endpoint]) -> Result<(), EndpointError> {
    let mut contexts: BTreeMap<&str, &str> = BTreeMap::new();
    for endpoint in endpoints {
        if let Some(first) = contexts.insert(&endpoint.url, &endpoint.context) {
            let (first, second) = (first.to_string(), endpoint.context.clone());
            return Err(EndpointError::SameUrl { url: endpoint.url.clone(), first, second });
        }
    }
    Ok(())
}

fn read(file: Option<&Path>) -> Result<Kubeconfig, EndpointError> {
    let kubeconfig = match file {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    kubeconfig.map_err(|error| EndpointError::Unreadable { file: text(file), why: root_cause(&error) })
}

fn text(file: Option<&Path>) -> String {
    file.map_or("the default kubeconfig (KUBECONFIG, else ~/.kube/config)".into(), |path| path.display().to_string())
}

fn names(kubeconfig: &Kubeconfig) -> Vec<String> {
    kubeconfig.contexts.iter().map(|context| context.name.clone()).collect()
}

/// Servers that cannot be meant.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// A kubeconfig that cannot be read.
    #[error("cannot read {file}: {why}; --kubeconfig FILE names another")]
    Unreadable {
        /// Which.
        file: String,
        /// Why.
        why: String,
    },
    /// A file without a current context.
    #[error("{file} has no current context; --context chooses one of: {}", list(there))]
    NoCurrentContext {
        /// Which.
        file: String,
        /// The contexts it has.
        there: Vec<String>,
    },
    /// A context that is in no file.
    #[error("no context `{context}`; there are: {}", list(there))]
    NoContext {
        /// Which.
        context: String,
        /// The contexts there are.
        there: Vec<String>,
    },
    /// A context that several files have.
    #[error("context `{context}` is in several of the kubeconfigs; rename it, or give the files without --context")]
    Ambiguous {
        /// Which.
        context: String,
    },
    /// Two servers that are one.
    #[error("contexts `{first}` and `{second}` have the same URL {url}; each server must be given by a URL of its own")]
    SameUrl {
        /// The URL.
        url: String,
        /// The first context.
        first: String,
        /// The other one.
        second: String,
    },
    /// A context that names something that is not there.
    #[error("context `{context}` cannot be used: {why}")]
    Unusable {
        /// Which.
        context: String,
        /// Why.
        why: String,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Path, name: &str, current: &str, contexts: &[(&str, &str)]) -> PathBuf {
        let named = |key: &str, value: serde_json::Value, name: &str| serde_json::json!({"name": name, key: value});
        let clusters: Vec<_> =
            contexts.iter().map(|(name, url)| named("cluster", serde_json::json!({"server": url}), name)).collect();
        let contexts: Vec<_> = contexts
            .iter()
            .map(|(name, _)| named("context", serde_json::json!({"cluster": name, "user": "u"}), name))
            .collect();
        let users = [named("user", serde_json::json!({"token": "secret"}), "u")];
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": current,
            "clusters": clusters, "contexts": contexts, "users": users,
        });
        let path = dir.join(name);
        std::fs::write(&path, text.to_string()).unwrap();
        path
    }

    async fn contexts(files: &[&PathBuf], wanted: &[&str]) -> Result<Vec<String>, String> {
        let files: Vec<PathBuf> = files.iter().map(|path| path.to_path_buf()).collect();
        let wanted: Vec<String> = wanted.iter().map(ToString::to_string).collect();
        let endpoints = resolve(&files, &wanted).await.map_err(|error| error.to_string())?;
        Ok(endpoints.into_iter().map(|endpoint| format!("{} {}", endpoint.context, endpoint.url)).collect())
    }

    #[tokio::test]
    async fn each_file_gives_its_current_context_and_each_context_the_one_that_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let a = file(dir.path(), "a", "a1", &[("a1", "https://1.2.3.4:1"), ("a2", "https://1.2.3.4:2")]);
        let b = file(dir.path(), "b", "b1", &[("b1", "https://1.2.3.4:3/")]);
        assert_eq!(contexts(&[&a, &b], &[]).await.unwrap(), ["a1 https://1.2.3.4:1", "b1 https://1.2.3.4:3"]);
        assert_eq!(contexts(&[&a, &b], &["b1", "a2"]).await.unwrap(), ["b1 https://1.2.3.4:3", "a2 https://1.2.3.4:2"]);
    }

    #[tokio::test]
    async fn what_names_no_server_or_one_twice_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let a = file(dir.path(), "a", "", &[("a1", "https://1.2.3.4:1"), ("a2", "https://1.2.3.4:1/")]);
        let b = file(dir.path(), "b", "a1", &[("a1", "https://1.2.3.4:3")]);
        let broken = dir.path().join("broken");
        std::fs::write(&broken, "{").unwrap();
        let missing = dir.path().join("missing");
        for (files, wanted, words) in [
            (vec![&a], vec![], "no current context; --context chooses one of: a1, a2"),
            (vec![&a], vec!["a1", "a2"], "the same URL https://1.2.3.4:1"),
            (vec![&b], vec!["a1", "a1"], "the same URL"),
            (vec![&b], vec!["x"], "no context `x`; there are: a1"),
            (vec![&a, &b], vec!["a1"], "in several of the kubeconfigs"),
            (vec![&missing], vec![], "cannot read"),
            (vec![&broken], vec![], "cannot read"),
        ] {
            let error = contexts(&files, &wanted).await.unwrap_err();
            assert!(error.contains(words) && !error.contains("secret"), "{error}");
        }
    }

    #[tokio::test]
    async fn what_is_kept_of_an_endpoint_has_no_credential() {
        let dir = tempfile::tempdir().unwrap();
        let a = file(dir.path(), "a", "a1", &[("a1", "https://1.2.3.4:1")]);
        let kept = serde_json::to_string(&resolve(&[a], &[]).await.unwrap()).unwrap();
        assert!(!kept.contains("secret"), "{kept}");
    }
}
