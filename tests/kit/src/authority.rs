//! A certificate authority for tests.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;

use crate::resource::scratch::scratch_dir;

/// A certificate authority. All files are PEM and are removed with it.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
    /// File with the certificate of the authority.
    pub ca: PathBuf,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Certified {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    pub fn new() -> Result<Authority> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let directory = scratch_dir("pki")?;
        let ca = directory.path().join("ca.pem");
        fs::write(&ca, issuer.pem())?;
        Ok(Authority { issuer, directory, ca })
    }

    /// Signs a certificate for servers at `names` (DNS names or addresses) and for clients. A second call with the same
    /// label replaces the files.
    pub fn sign(&self, label: &str, names: &[&str]) -> Result<Certified> {
        self.sign_in(label, names, None)
    }

    /// Like [`Authority::sign`], for a subject in an organization.
    pub fn sign_in(&self, label: &str, names: &[&str], organization: Option<&str>) -> Result<Certified> {
        let mut params =
            CertificateParams::new(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, label);
        if let Some(organization) = organization {
            params.distinguished_name.push(DnType::OrganizationName, organization);
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let path = |end: &str| self.directory.path().join(format!("{label}{end}"));
        let files = Certified { certificate: path(".pem"), key: path(".key") };
        write_secret(&files.key, &key.serialize_pem())?;
        fs::write(&files.certificate, certificate.pem())?;
        Ok(files)
    }
}

/// Writes a file with mode 0600.
pub fn write_secret(path: &Path, text: &str) -> Result<()> {
    if !path.exists() {
        fs::write(path, "")?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
    }
    Ok(fs::write(path, text)?)
}
