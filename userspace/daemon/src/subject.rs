//! Subjects of X.509 certificates.

use std::fmt;

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::AttributeTypeAndValue;

/// The attributes of a certificate's subject that identify a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// None if the subject has no common name, or several.
    pub common_name: Option<String>,
    /// Organizations (`O`).
    pub organizations: Vec<String>,
}

impl Subject {
    /// Reads the subject of a certificate. Attributes that are no text are left out. None if it is no
    /// certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<Subject> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let text = |attribute: &AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
        let subject = certificate.subject();
        let mut names = subject.iter_common_name();
        let common_name = match (names.next(), names.next()) {
            (Some(only), None) => text(only),
            _ => None,
        };
        Some(Subject { common_name, organizations: subject.iter_organization().filter_map(text).collect() })
    }
}

impl fmt::Display for Subject {
    /// The form of the role file: `CN=web,O=ops`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let common_name = self.common_name.iter().map(|name| format!("CN={name}"));
        let organizations = self.organizations.iter().map(|name| format!("O={name}"));
        let attributes: Vec<String> = common_name.chain(organizations).collect();
        if attributes.is_empty() { f.write_str("without a name") } else { f.write_str(&attributes.join(",")) }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn subject(attributes: &[(DnType, &str)]) -> Subject {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in attributes {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Subject::of(certificate.der()).unwrap()
    }

    #[test]
    fn subjects_are_read() {
        let full = subject(&[
            (DnType::OrganizationName, "ops, O=admins"),
            (DnType::CommonName, "anna"),
            (DnType::OrganizationalUnitName, "unit"),
        ]);
        assert_eq!(full.common_name.as_deref(), Some("anna"));
        assert_eq!(full.organizations, ["ops, O=admins"]);
        assert_eq!(full.to_string(), "CN=anna,O=ops, O=admins");
        assert_eq!(subject(&[]), Subject::default());
        assert_eq!(subject(&[]).to_string(), "without a name");
        assert_eq!(Subject::of(&CertificateDer::from(vec![1, 2, 3])), None);
    }
}
