//! The files of `apply` and `delete`: documents with the API's fields and a `kind`.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use crate::{
    Error,
    kind::{Field, KINDS, Kind, is_empty},
};

/// Where a document stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    file: String,
    /// From 1; empty ones are not counted.
    document: usize,
    /// In a list, from 1.
    item: Option<usize>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} document {}", self.file, self.document)?;
        self.item.map_or(Ok(()), |item| write!(f, " item {item}"))
    }
}

/// An object as a file has it; valid by itself.
#[derive(Debug)]
pub struct Wanted {
    /// Of which kind.
    pub kind: &'static Kind,
    /// Its key.
    pub key: String,
    /// Its fields, without `kind`.
    pub object: Value,
    /// Where it stands.
    pub origin: Origin,
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name(), self.key)
    }
}

/// What a file is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Objects must be whole.
    Apply,
    /// The fields of the key are enough.
    Delete,
}

/// Reads files, folders and, as `-`, standard input. All mistakes are told, each in one line.
pub fn read(paths: &[PathBuf], purpose: Purpose) -> Result<Vec<Wanted>, Error> {
    let mut mistakes = vec![];
    let mut wanted = vec![];
    for (file, text) in texts(paths)? {
        let documents = match documents(&file, &text) {
            Ok(documents) => documents,
            Err(mistake) => {
                mistakes.push(mistake);
                continue;
            }
        };
        if documents.is_empty() {
            mistakes.push(format!("{file}: there is no document in it"));
        }
        for (origin, document) in documents {
            match check(document, purpose, origin) {
                Ok(it) => wanted.push(it),
                Err(all) => mistakes.extend(all),
            }
        }
    }
    mistakes.extend(repeated(&wanted));
    if mistakes.is_empty() { Ok(wanted) } else { Err(Error::Several(mistakes)) }
}

/// Each file with its name.
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

/// A file itself; of a folder its YAML and JSON files by name.
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
            "{}: there is no .yaml, .yml or .json file in it",
            path.display()
        )])),
        false => Ok(files),
    }
}

/// The documents of a text; lists count as so many documents.
fn documents(file: &str, text: &str) -> Result<Vec<(Origin, Value)>, String> {
    let mut found = vec![];
    for (document, value) in (1..).zip(values(file, text)?) {
        let origin = |item| Origin { file: file.to_owned(), document, item };
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
            Err(error) if is_json => return Err(format!("{file}: not JSON: {error}")),
            // YAML may begin like this, too.
            Err(_) => {}
        }
    }
    // In YAML 1.2, `no`, `y` and `off` are texts: there are networks with such names.
    let options = serde_saphyr::options! {
        strict_booleans: true,
        // The limits of the library are for files of strangers; 1,500 rules are more than 1,024 documents.
        budget: serde_saphyr::budget! { max_documents: usize::MAX, max_nodes: usize::MAX, max_events: usize::MAX },
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let error = error.to_string();
        format!("{file}: not YAML: {}", error.lines().next().unwrap_or_default())
    })
}

fn check(document: Value, purpose: Purpose, origin: Origin) -> Result<Wanted, Vec<String>> {
    let Value::Object(mut fields) = document else {
        return Err(vec![format!("{origin}: expected fields such as `kind: network`, got {document}")]);
    };
    let word = fields.shift_remove("kind");
    let Some(kind) = word.as_ref().and_then(Value::as_str).and_then(Kind::by_word) else {
        let known: Vec<_> = KINDS.iter().map(|kind| kind.name()).collect();
        let got = word.map(|word| format!(" {word}")).unwrap_or_default();
        return Err(vec![format!("{origin}: kind{got}: expected one of {}", known.join(", "))]);
    };
    let object = Value::Object(fields);
    let key = kind.key_of(&object);
    let mistakes = mistakes(kind, object.as_object().unwrap_or(&Map::new()), purpose);
    if mistakes.is_empty() {
        return Ok(Wanted { kind, key, object, origin });
    }
    Err(mistakes.into_iter().map(|mistake| format!("{origin}: {} {key}: {mistake}", kind.name())).collect())
}

fn mistakes(kind: &Kind, object: &Map<String, Value>, purpose: Purpose) -> Vec<String> {
    let known = |name: &str| kind.fields.iter().find(|field| field.name == name);
    let wrong = object.iter().filter_map(|(name, value)| match known(name) {
        None => Some(unknown(kind, name)),
        Some(field) if !field.form.fits(value) => Some(format!("{name} {}", field.form.instead_of(value))),
        Some(_) => None,
    });
    let needed = |field: &&Field| match purpose {
        Purpose::Apply => field.required,
        Purpose::Delete => kind.key.contains(&field.name),
    };
    let missing =
        kind.fields.iter().filter(needed).filter(|field| object.get(field.name).is_none_or(is_empty));
    wrong.chain(missing.map(|field| format!("{} is missing: expected {}", field.name, field.form))).collect()
}

fn unknown(kind: &Kind, name: &str) -> String {
    if ["key", "links", "link-sets"].contains(&name) {
        return format!("{name}: netmaster makes it; leave it out");
    }
    match kind.fields.iter().find(|field| field.name.eq_ignore_ascii_case(name)) {
        Some(field) => format!("{name}: no such field; expected {}", field.name),
        None => {
            let known: Vec<_> = kind.fields.iter().map(|field| field.name).collect();
            format!("{name}: no such field; expected one of {}", known.join(", "))
        }
    }
}

fn repeated(wanted: &[Wanted]) -> Vec<String> {
    let mut first: BTreeMap<(usize, &str), &Origin> = BTreeMap::new();
    let mut mistakes = vec![];
    for it in wanted {
        if let Some(origin) = first.insert((it.kind.rank(), &it.key), &it.origin) {
            mistakes.push(format!("{}: {it}: it stands in {origin} already", it.origin));
        }
    }
    mistakes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mistakes(text: &str) -> Vec<String> {
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
    fn mistakes_name_document_object_field_and_what_is_expected() {
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
                    "x.yaml document 2: policy :p1: links: netmaster makes it; leave it out",
                    "x.yaml document 2: policy :p1: tenantName is missing: expected a name of letters, digits, \
                     hyphens and dots",
                ],
            ),
            (
                "- kind: tenant\n  tenantName: t1\n- kind: tenants\n  tenantName: t1\n- kind: endpoint",
                vec![
                    "x.yaml document 1 item 3: kind \"endpoint\": expected one of global, aciGw, tenant, network, \
                     netprofile, extContractsGroup, policy, rule, endpointGroup, serviceLB, appProfile, Bgp",
                    "x.yaml document 1 item 2: tenant t1: it stands in x.yaml document 1 item 1 already",
                ],
            ),
            ("hello", vec!["x.yaml document 1: expected fields such as `kind: network`, got \"hello\""]),
            ("# nothing", vec!["x.yaml: there is no document in it"]),
            (
                "[{\"kind\": \"tenant\", \"tenantName\": \"t1\"}]\n{\"kind\": \"tenant\", \"tenantName\": \"t2\"}",
                vec![],
            ),
            ("{kind: tenant, tenantName: t1}", vec![]),
            ("kind: aciGw\nname: aciGw\nenforcePolicies: yes\nphysicalDomain: n", vec![]),
        ] {
            assert_eq!(mistakes(text), expected, "{text}");
        }
    }

    #[test]
    fn a_file_has_as_many_documents_as_there_are_objects() {
        let text: String = (0..2_000).map(|n| format!("---\nkind: tenant\ntenantName: t{n}\n")).collect();
        assert_eq!(values("x.yaml", &text).unwrap().len(), 2_000);
        let list: String = (0..50_000).map(|n| format!("- {{kind: tenant, tenantName: t{n}}}\n")).collect();
        assert_eq!(values("x.yaml", &list).unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_yaml_is_one_line() {
        for text in ["kind: tenant\nkind: network", "kind: [", "kind: a: b"] {
            let mistakes = mistakes(text);
            assert_eq!(mistakes.len(), 1, "{text:?} {mistakes:?}");
            assert!(mistakes[0].starts_with("x.yaml: not YAML: "), "{text:?} {mistakes:?}");
            assert!(!mistakes[0].contains('\n'), "{mistakes:?}");
        }
    }
}
