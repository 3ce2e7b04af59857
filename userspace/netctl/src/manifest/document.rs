//! Files of `apply` and `delete`: documents with the fields of the API and a `kind`.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::{Map, Value};

use crate::{
    error::Error,
    objects::{self, KINDS},
    output::printable,
    schema::{Field, Kind, format::is_empty},
};

/// Arguments of `netctl delete`, and some of `netctl apply`.
#[derive(Args, Debug)]
pub struct Files {
    /// File, folder with .yaml, .yml and .json files, or - for standard input; repeatable.
    #[arg(long = "file", short, required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Show the changes without making them.
    #[arg(long)]
    pub dry_run: bool,
}

/// Where an object comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file.
    Document {
        /// Name of the file.
        file: String,
        /// Number of the document in the file, from 1; empty documents are not counted.
        document: usize,
        /// Number of the item in a list, from 1.
        item: Option<usize>,
    },
    /// The store of netmaster; the files do not have the object.
    Netmaster,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Document { file, document, item: None } => write!(f, "{file} document {document}"),
            Origin::Document { file, document, item: Some(item) } => {
                write!(f, "{file} document {document} item {item}")
            }
            Origin::Netmaster => f.write_str("netmaster"),
        }
    }
}

/// An object of a file, or one that the files do not have. Its fields are valid; its references are not checked.
#[derive(Debug)]
pub struct Manifest {
    /// Kind of the object.
    pub kind: &'static Kind,
    /// Key of the object.
    pub key: String,
    /// Fields, without `kind`.
    pub object: Value,
    /// Where it comes from.
    pub origin: Origin,
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), printable(&self.key))
    }
}

/// Purpose of reading a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Required fields must be present.
    Apply,
    /// Only the key fields must be present.
    Delete,
}

/// Reads files, folders and, as `-`, standard input.
///
/// # Errors
///
/// [`Error::Several`] has one line per error in all files.
pub fn read(paths: &[PathBuf], purpose: Purpose) -> Result<Vec<Manifest>, Error> {
    let mut errors = vec![];
    let mut manifests = vec![];
    for (file, text) in texts(paths)? {
        let documents = match documents(&file, &text) {
            Ok(documents) => documents,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        if documents.is_empty() {
            errors.push(format!("{file}: no document in the file"));
        }
        for (origin, document) in documents {
            match check(document, purpose, origin) {
                Ok(manifest) => manifests.push(manifest),
                Err(all) => errors.extend(all),
            }
        }
    }
    errors.extend(repeated(&manifests));
    if errors.is_empty() { Ok(manifests) } else { Err(Error::Several(errors)) }
}

/// Reads each file; returns name and content.
fn texts(paths: &[PathBuf]) -> Result<Vec<(String, String)>, Error> {
    let mut texts = vec![];
    for path in paths {
        if path == Path::new("-") {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text)?;
            texts.push(("standard input".to_owned(), text));
            continue;
        }
        for file in files(path)? {
            let text = fs::read_to_string(&file).map_err(Error::file("read", &file))?;
            texts.push((file.display().to_string(), text));
        }
    }
    Ok(texts)
}

/// Expands a folder to its YAML and JSON files, sorted by name.
fn files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = vec![];
    for entry in fs::read_dir(path).map_err(Error::file("read", path))? {
        let file = entry.map_err(Error::file("read", path))?.path();
        let extension = file.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("yaml" | "yml" | "json")) && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    match files.is_empty() {
        true => Err(Error::Several(vec![format!(
            "{}: no .yaml, .yml or .json file in the folder",
            path.display()
        )])),
        false => Ok(files),
    }
}

/// Splits a text into objects; each item of a list is an object.
fn documents(file: &str, text: &str) -> Result<Vec<(Origin, Value)>, String> {
    let mut found = vec![];
    for (document, value) in (1..).zip(values(file, text)?) {
        let origin = |item| Origin::Document { file: file.to_owned(), document, item };
        match value {
            Value::Null => {}
            Value::Array(items) => {
                found.extend((1..).zip(items).map(|(item, value)| (origin(Some(item)), value)));
            }
            value => found.push((origin(None), value)),
        }
    }
    Ok(found)
}

fn values(file: &str, text: &str) -> Result<Vec<Value>, String> {
    let is_json = Path::new(file).extension().is_some_and(|extension| extension == "json");
    if is_json || text.trim_start().starts_with(['{', '[']) {
        let values: Result<_, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
        match values {
            Ok(values) => return Ok(values),
            Err(error) if is_json => return Err(format!("{file}: invalid JSON: {error}")),
            // YAML may start with these characters, too.
            Err(_) => {}
        }
    }
    // In YAML 1.2, `no`, `y` and `off` are strings. They are valid names of networks.
    let options = serde_saphyr::options! {
        strict_booleans: true,
        // The default limits are for untrusted input: 1,500 rules exceed its 1,024 documents.
        budget: serde_saphyr::budget! { max_documents: usize::MAX, max_nodes: usize::MAX, max_events: usize::MAX },
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let error = error.to_string();
        format!("{file}: invalid YAML: {}", error.lines().next().unwrap_or_default())
    })
}

fn check(document: Value, purpose: Purpose, origin: Origin) -> Result<Manifest, Vec<String>> {
    let Value::Object(mut fields) = document else {
        return Err(vec![format!("{origin}: expected fields such as `kind: network`, got {document}")]);
    };
    let word = fields.shift_remove("kind");
    let Some(kind) = word.as_ref().and_then(Value::as_str).and_then(objects::by_word) else {
        let known: Vec<_> = KINDS.iter().map(|kind| kind.name()).collect();
        let got = word.map(|word| format!(" {word}")).unwrap_or_default();
        return Err(vec![format!("{origin}: kind{got}: expected one of {}", known.join(", "))]);
    };
    let object = Value::Object(fields);
    let key = kind.key_of(&object);
    let errors = errors(kind, object.as_object().unwrap_or(&Map::new()), purpose);
    if errors.is_empty() {
        return Ok(Manifest { kind, key, object, origin });
    }
    Err(errors.into_iter().map(|error| format!("{origin}: {} {key}: {error}", kind.name())).collect())
}

fn errors(kind: &Kind, object: &Map<String, Value>, purpose: Purpose) -> Vec<String> {
    let known = |name: &str| kind.fields.iter().find(|field| field.name == name);
    let wrong = object.iter().filter_map(|(name, value)| match known(name) {
        None => Some(unknown(kind, name)),
        Some(field) if !field.format.accepts(value) => {
            Some(format!("{name} {}", field.format.mismatch(value)))
        }
        Some(_) => None,
    });
    let needed = |field: &&Field| match purpose {
        Purpose::Apply => field.required,
        Purpose::Delete => kind.key_fields.contains(&field.name),
    };
    let missing =
        kind.fields.iter().filter(needed).filter(|field| object.get(field.name).is_none_or(is_empty));
    wrong
        .chain(missing.map(|field| format!("{} is missing: expected {}", field.name, field.format)))
        .collect()
}

fn unknown(kind: &Kind, name: &str) -> String {
    if ["key", "links", "link-sets"].contains(&name) {
        return format!("{name}: netmaster sets this field; remove it");
    }
    match kind.fields.iter().find(|field| field.name.eq_ignore_ascii_case(name)) {
        Some(field) => format!("{name}: no such field; expected {}", field.name),
        None => {
            let known: Vec<_> = kind.fields.iter().map(|field| field.name).collect();
            format!("{name}: no such field; expected one of {}", known.join(", "))
        }
    }
}

fn repeated(manifests: &[Manifest]) -> Vec<String> {
    let mut first: BTreeMap<(usize, &str), &Origin> = BTreeMap::new();
    let mut errors = vec![];
    for manifest in manifests {
        let key = (objects::rank(manifest.kind), manifest.key.as_str());
        if let Some(origin) = first.insert(key, &manifest.origin) {
            errors.push(format!("{}: {manifest}: duplicate of {origin}", manifest.origin));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors_of(text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.yaml");
        fs::write(&file, text).unwrap();
        let name = file.display().to_string();
        match read(&[file], Purpose::Apply) {
            Ok(_) => vec![],
            Err(Error::Several(lines)) => lines.iter().map(|line| line.replace(&name, "x.yaml")).collect(),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn errors_name_document_object_field_and_expected_format() {
        for (text, expected) in [
            ("kind: tenant\ntenantName: t1", vec![]),
            (
                "kind: network\ntenantName: t1\nnetworkName: n1\nencap: gre\nsubnet: 10.1\ngatway: 10.1.1.1",
                vec![
                    "x.yaml document 1: network t1:n1: encap \"gre\": expected vlan or vxlan",
                    "x.yaml document 1: network t1:n1: subnet 10.1: expected an IPv4 subnet such as 10.1.1.0/24 or \
                     10.1.1.10-10.1.1.20/24, as text: \"10.1\"",
                    "x.yaml document 1: network t1:n1: gatway: no such field; expected one of tenantName, networkName, \
                     nwType, encap, pktTag, subnet, gateway, ipv6Subnet, ipv6Gateway, cfgdTag",
                ],
            ),
            (
                "kind: tenant\ntenantName: t1\n---\n---\nkind: policy\ntenantname: t1\npolicyName: p1\nlinks: {}",
                vec![
                    "x.yaml document 2: policy :p1: tenantname: no such field; expected tenantName",
                    "x.yaml document 2: policy :p1: links: netmaster sets this field; remove it",
                    "x.yaml document 2: policy :p1: tenantName is missing: expected a name of letters, digits, \
                     hyphens and dots",
                ],
            ),
            (
                "- kind: tenant\n  tenantName: t1\n- kind: tenants\n  tenantName: t1\n- kind: endpoint",
                vec![
                    "x.yaml document 1 item 3: kind \"endpoint\": expected one of global, aciGw, tenant, network, \
                     netprofile, extContractsGroup, policy, rule, endpointGroup, serviceLB, appProfile, Bgp",
                    "x.yaml document 1 item 2: tenant t1: duplicate of x.yaml document 1 item 1",
                ],
            ),
            ("hello", vec!["x.yaml document 1: expected fields such as `kind: network`, got \"hello\""]),
            ("# nothing", vec!["x.yaml: no document in the file"]),
            (
                "[{\"kind\": \"tenant\", \"tenantName\": \"t1\"}]\n{\"kind\": \"tenant\", \"tenantName\": \"t2\"}",
                vec![],
            ),
            ("{kind: tenant, tenantName: t1}", vec![]),
            ("kind: aciGw\nname: aciGw\nenforcePolicies: yes\nphysicalDomain: n", vec![]),
        ] {
            assert_eq!(errors_of(text), expected, "{text}");
        }
    }

    #[test]
    fn number_of_documents_is_not_limited() {
        let text: String = (0..2_000).map(|n| format!("---\nkind: tenant\ntenantName: t{n}\n")).collect();
        assert_eq!(values("x.yaml", &text).unwrap().len(), 2_000);
        let list: String = (0..50_000).map(|n| format!("- {{kind: tenant, tenantName: t{n}}}\n")).collect();
        assert_eq!(values("x.yaml", &list).unwrap().len(), 1);
    }

    #[test]
    fn invalid_yaml_is_reported_in_one_line() {
        for text in ["kind: tenant\nkind: network", "kind: [", "kind: a: b"] {
            let errors = errors_of(text);
            assert_eq!(errors.len(), 1, "{text:?} {errors:?}");
            assert!(errors[0].starts_with("x.yaml: invalid YAML: "), "{text:?} {errors:?}");
            assert!(!errors[0].contains('\n'), "{errors:?}");
        }
    }
}
