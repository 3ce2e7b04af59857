//! TLS of requests: trusted certificates, client certificate.

use std::{fs, path::Path};

use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, parse_pem};

use crate::{connection::Connection, error::Error};

/// TLS configuration of a connection.
pub(super) fn config(connection: &Connection) -> Result<TlsConfig, Error> {
    let roots = match &connection.cacert {
        None => RootCerts::PlatformVerifier,
        Some(file) => RootCerts::new_with_certs(&certificates("--cacert", file)?),
    };
    let own = match &connection.identity {
        None => None,
        Some((cert, key)) => {
            let text = fs::read(key).map_err(Error::file("read", key))?;
            let private = PrivateKey::from_pem(&text).map_err(|_| {
                Error::Usage(format!("--key {}: no private key (PEM) in the file", key.display()))
            })?;
            Some(ClientCert::new_with_certs(&certificates("--cert", cert)?, private))
        }
    };
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder()
        .root_certs(roots)
        .client_cert(own)
        .disable_verification(connection.insecure)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

fn certificates(flag: &str, file: &Path) -> Result<Vec<Certificate<'static>>, Error> {
    let text = fs::read(file).map_err(Error::file("read", file))?;
    let found: Vec<_> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    match found.is_empty() {
        true => Err(Error::Usage(format!("{flag} {}: no certificate (PEM) in the file", file.display()))),
        false => Ok(found),
    }
}
