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
    /// As `CN=web,O=ops`. Names are escaped as in RFC 4514, so that different subjects have different
    /// texts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let common_name = self.common_name.iter().map(|name| format!("CN={}", escaped(name)));
        let organizations = self.organizations.iter().map(|name| format!("O={}", escaped(name)));
        let attributes: Vec<String> = common_name.chain(organizations).collect();
        if attributes.is_empty() { f.write_str("without a name") } else { f.write_str(&attributes.join(",")) }
    }
}

/// The value of an attribute (RFC 4514, section 2.4). Control characters are escaped as well.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for (at, c) in value.char_indices() {
        let is_outer = at == 0 || at + c.len_utf8() == value.len();
        match c {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => text.extend(['\\', c]),
            ' ' if is_outer => text.extend(['\\', c]),
            '#' if at == 0 => text.extend(['\\', c]),
            c if c.is_control() => {
                text.extend(c.encode_utf8(&mut [0; 4]).bytes().map(|byte| format!("\\{byte:02x}")));
            }
            c => text.push(c),
        }
    }
    text
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
        assert_eq!(full.to_string(), "CN=anna,O=ops\\, O=admins");
        assert_eq!(subject(&[]), Subject::default());
        assert_eq!(subject(&[]).to_string(), "without a name");
        assert_eq!(Subject::of(&CertificateDer::from(vec![1, 2, 3])), None);
    }

    #[test]
    fn different_subjects_have_different_texts() {
        let subject = |common_name: &str, organizations: &[&str]| Subject {
            common_name: Some(common_name.to_owned()),
            organizations: organizations.iter().map(|&name| name.to_owned()).collect(),
        };
        for (subject, text) in [
            (subject("anna", &["ops"]), "CN=anna,O=ops"),
            (subject("anna,O=ops", &[]), "CN=anna\\,O=ops"),
            (subject("anna\\", &["ops"]), "CN=anna\\\\,O=ops"),
            (subject(" a b ", &["#1 +<>;\"="]), "CN=\\ a b\\ ,O=\\#1 \\+\\<\\>\\;\\\"="),
            (subject("a\nb\u{9b}", &[""]), "CN=a\\0ab\\c2\\9b,O="),
        ] {
            assert_eq!(subject.to_string(), text);
        }
    }
}
