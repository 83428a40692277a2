//! Certificates and keys of one control plane, made in process. Elliptic curves: an RSA key costs 0.2 s each.

use crate::files::{FileError, write_private};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use std::path::{Path, PathBuf};

/// The files of one control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pki {
    /// The certificate authority of servers and clients.
    pub ca: PathBuf,
    /// Serving certificate of every apiserver, valid for loopback.
    pub serving: KeyFiles,
    /// Client certificate of an administrator (`system:masters`).
    pub admin: KeyFiles,
    /// Key that signs service account tokens.
    pub service_account_key: PathBuf,
    /// Its public half, which verifies them; kube-apiserver does not take a PKCS#8 private key for that.
    pub service_account_public_key: PathBuf,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFiles {
    /// PEM certificate.
    pub certificate: PathBuf,
    /// PEM private key, readable by the owner only.
    pub key: PathBuf,
}

impl Pki {
    /// The files a control plane in this directory has.
    pub fn at(dir: &Path) -> Pki {
        let pair = |name: &str| KeyFiles {
            certificate: dir.join(format!("{name}.crt")),
            key: dir.join(format!("{name}.key")),
        };
        Pki {
            ca: dir.join("ca.crt"),
            serving: pair("serving"),
            admin: pair("admin"),
            service_account_key: dir.join("service-account.key"),
            service_account_public_key: dir.join("service-account.pub"),
        }
    }

    /// Makes all keys and writes them; keeps what a directory already has, so that a kept case can start again.
    ///
    /// # Errors
    /// A certificate cannot be made or a file cannot be written.
    pub fn create(dir: &Path) -> Result<Pki, PkiError> {
        let pki = Pki::at(dir);
        if pki.ca.exists() {
            return Ok(pki);
        }
        std::fs::create_dir_all(dir).map_err(|source| FileError::new("create", dir, source))?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&[(DnType::CommonName, "skewlab-ca")]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

        let hosts = vec!["127.0.0.1".to_string(), "localhost".to_string()];
        let mut serving = CertificateParams::new(hosts)?;
        serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        serving.distinguished_name = name(&[(DnType::CommonName, "kube-apiserver")]);
        issue(serving, &ca, &pki.serving)?;

        let mut admin = CertificateParams::default();
        admin.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let identity = [(DnType::CommonName, "skewlab-admin"), (DnType::OrganizationName, "system:masters")];
        admin.distinguished_name = name(&identity);
        issue(admin, &ca, &pki.admin)?;

        let service_account = KeyPair::generate()?;
        write_private(&pki.service_account_key, service_account.serialize_pem().as_bytes())?;
        write_private(&pki.service_account_public_key, service_account.public_key_pem().as_bytes())?;
        // The authority comes last: its presence says that everything else is there.
        write_private(&pki.ca, ca.pem().as_bytes())?;
        Ok(pki)
    }
}

fn name(entries: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for (kind, value) in entries {
        name.push(kind.clone(), *value);
    }
    name
}

fn issue(params: CertificateParams, ca: &CertifiedIssuer<'_, KeyPair>, files: &KeyFiles) -> Result<(), PkiError> {
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, ca)?;
    write_private(&files.certificate, certificate.pem().as_bytes())?;
    write_private(&files.key, key.serialize_pem().as_bytes())?;
    Ok(())
}

/// Keys or certificates could not be made.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A certificate or key.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
}
