//! TLS 1.2 and 1.3 from PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Files of a certificate chain, the owner's certificate first, and its private key, in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// The files do not make a valid TLS configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read the {what} in {}", path.display())]
    Read {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: pem::Error,
    },
    #[error("{} contains no certificate; PEM is expected", path.display())]
    NoCertificate { path: PathBuf },
    #[error("a certificate in {} cannot be trusted", path.display())]
    Untrusted {
        path: PathBuf,
        #[source]
        source: rustls::Error,
    },
    #[error("use the certificate in {} with the key in {}", pair.certificate.display(), pair.key.display())]
    KeyPair {
        pair: KeyPair,
        #[source]
        source: rustls::Error,
    },
    #[error("check clients' certificates by {}", path.display())]
    ClientCa {
        path: PathBuf,
        #[source]
        source: VerifierBuilderError,
    },
    #[error("choose TLS versions")]
    Versions(#[source] rustls::Error),
}

/// A server's configuration with the certificate `own`. With `client_ca`, clients must present a
/// certificate that it signed.
pub fn server(own: &KeyPair, client_ca: Option<&Path>) -> Result<ServerConfig, Error> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(rustls::DEFAULT_VERSIONS)
        .map_err(Error::Versions)?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots(path)?.into(), provider());
            let failed = |source| Error::ClientCa { path: path.to_owned(), source };
            builder.with_client_cert_verifier(verifier.build().map_err(failed)?)
        }
    };
    let (chain, key) = own.load()?;
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|source| Error::KeyPair { pair: own.clone(), source })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// A client's configuration that verifies servers by `ca` and presents the certificate `own`.
pub fn client(ca: &Path, own: Option<&KeyPair>) -> Result<ClientConfig, Error> {
    client_of(roots(ca)?, own)
}

/// A client's configuration that trusts no server.
pub(crate) fn without_trust() -> Result<ClientConfig, Error> {
    client_of(RootCertStore::empty(), None)
}

fn client_of(roots: RootCertStore, own: Option<&KeyPair>) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(rustls::DEFAULT_VERSIONS)
        .map_err(Error::Versions)?
        .with_root_certificates(roots);
    let Some(own) = own else { return Ok(builder.with_no_client_auth()) };
    let (chain, key) = own.load()?;
    builder.with_client_auth_cert(chain, key).map_err(|source| Error::KeyPair { pair: own.clone(), source })
}

impl KeyPair {
    fn load(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
        let key = PrivateKeyDer::from_pem_file(&self.key);
        let failed = |source| Error::Read { what: "key", path: self.key.clone(), source };
        Ok((certificates(&self.certificate)?, key.map_err(failed)?))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let failed = |source| Error::Read { what: "certificate", path: path.to_owned(), source };
    let found = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    if found.is_empty() { Err(Error::NoCertificate { path: path.to_owned() }) } else { Ok(found) }
}

fn roots(path: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        let untrusted = |source| Error::Untrusted { path: path.to_owned(), source };
        roots.add(certificate).map_err(untrusted)?;
    }
    Ok(roots)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn errors_name_the_invalid_file() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let made = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let (one, other) = (made(), made());
        let certificate = write("cert.pem", &one.cert.pem());
        let pair = KeyPair {
            certificate: certificate.clone(),
            key: write("key.pem", &one.signing_key.serialize_pem()),
        };
        server(&pair, Some(&certificate)).unwrap();
        client(&certificate, Some(&pair)).unwrap();

        let wrong = KeyPair { key: write("other.pem", &other.signing_key.serialize_pem()), ..pair.clone() };
        assert!(server(&wrong, None).unwrap_err().to_string().contains("other.pem"));
        let missing = KeyPair { key: dir.path().join("none.pem"), ..pair.clone() };
        assert!(server(&missing, None).unwrap_err().to_string().contains("none.pem"));
        let empty = write("empty.pem", "nothing\n");
        assert!(client(&empty, None).unwrap_err().to_string().contains("contains no certificate"));
        assert!(server(&pair, Some(&empty)).unwrap_err().to_string().contains("empty.pem"));
    }
}
