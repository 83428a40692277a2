//! Images of one binary, written without Docker: a node's containerd imports them.

use crate::files::FileError;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::path::Path;

/// Where the binary lies in its image; kubeadm's manifests name it without a folder.
const FOLDER: &str = "usr/local/bin";

/// An image of one statically linked binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OneBinary<'a> {
    /// Name and tag, such as `registry.k8s.io/kube-apiserver:v1.34.4`.
    pub image: &'a str,
    /// The name of the file in the image.
    pub name: &'a str,
    /// What it runs when its pod does not say.
    pub entrypoint: &'a [&'a str],
}

/// The image as an archive of the form that `docker save` writes. The same binary gives the same bytes.
///
/// # Errors
/// The binary cannot be read.
pub fn image_archive(image: &OneBinary<'_>, binary: &Path) -> Result<Vec<u8>, FileError> {
    let content = std::fs::read(binary).map_err(|source| FileError::new("read", binary, source))?;
    archive_of(image, &content).map_err(|source| FileError::new("put into an image", binary, source))
}

fn archive_of(image: &OneBinary<'_>, content: &[u8]) -> io::Result<Vec<u8>> {
    let layer = layer(image.name, content)?;
    let digest = hex::encode(Sha256::digest(&layer));
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {"Entrypoint": image.entrypoint, "Env": [format!("PATH=/{FOLDER}")]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let config = config.to_string().into_bytes();
    let config_name = format!("{}.json", hex::encode(Sha256::digest(&config)));
    let layer_name = format!("{digest}.tar");
    let manifest = json!([{"Config": config_name, "RepoTags": [image.image], "Layers": [layer_name]}]);
    let mut archive = tar::Builder::new(Vec::with_capacity(layer.len() + 8192));
    append(&mut archive, &config_name, 0o644, &config)?;
    append(&mut archive, &layer_name, 0o644, &layer)?;
    append(&mut archive, "manifest.json", 0o644, manifest.to_string().as_bytes())?;
    archive.into_inner()
}

fn layer(name: &str, content: &[u8]) -> io::Result<Vec<u8>> {
    let mut layer = tar::Builder::new(Vec::with_capacity(content.len() + 8192));
    append(&mut layer, &format!("{FOLDER}/{name}"), 0o755, content)?;
    layer.into_inner()
}

/// Appends a file of root without a time, so that the bytes depend on the content alone.
fn append(archive: &mut tar::Builder<impl Write>, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    archive.append_data(&mut header, path, content)
}

/// The processor as image configurations spell it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeMap;
    use std::io::Read;

    const IMAGE: OneBinary<'_> = OneBinary {
        image: "registry.k8s.io/kube-apiserver:v1.34.4",
        name: "kube-apiserver",
        entrypoint: &["/usr/local/bin/kube-apiserver"],
    };

    fn files(archive: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (path, (entry.header().mode().unwrap(), content))
        });
        entries.collect()
    }

    #[test]
    fn the_manifest_leads_to_the_configuration_and_the_layer_with_matching_digests() {
        let archive = files(&archive_of(&IMAGE, b"#!/bin/sh\n").unwrap());
        let manifest: Value = serde_json::from_slice(&archive["manifest.json"].1).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "registry.k8s.io/kube-apiserver:v1.34.4");
        let layer = &archive[manifest[0]["Layers"][0].as_str().unwrap()].1;
        let config_name = manifest[0]["Config"].as_str().unwrap();
        let config = &archive[config_name].1;
        assert_eq!(config_name, format!("{}.json", hex::encode(Sha256::digest(config))));
        let config: Value = serde_json::from_slice(config).unwrap();
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", hex::encode(Sha256::digest(layer))));
        assert_eq!(config["config"]["Entrypoint"][0], "/usr/local/bin/kube-apiserver");
        let binary = &files(layer)["usr/local/bin/kube-apiserver"];
        assert_eq!(binary, &(0o755, b"#!/bin/sh\n".to_vec()));
    }

    #[test]
    fn the_same_binary_gives_the_same_bytes() {
        assert_eq!(archive_of(&IMAGE, b"x").unwrap(), archive_of(&IMAGE, b"x").unwrap());
    }
}
