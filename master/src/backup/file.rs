//! Backup files: lines of JSON, first a header, then a line for each key, last the SHA-256 of all
//! lines before.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use contiv_model::key::ROOT;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::Error;

const FORMAT: &str = "contiv-backup-1";

/// State of a cluster at one revision of its store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Cluster id of the store.
    pub cluster: u64,
    /// Identity of the cluster.
    pub identity: String,
    pub revision: i64,
    /// Keys with their values, in the order of the keys.
    pub items: Vec<(String, Bytes)>,
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    /// Hexadecimal.
    cluster: String,
    identity: String,
    revision: i64,
    keys: usize,
}

#[derive(Serialize, Deserialize)]
struct Item {
    key: String,
    #[serde(flatten)]
    value: Value,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Value {
    Text(String),
    Base64(String),
}

#[derive(Serialize, Deserialize)]
struct Checksum {
    sha256: String,
}

impl Backup {
    /// Writes the file, with mode 0600, in place of an older one.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let bytes = self.encode()?;
        let failed = |source| Error::File { operation: "write", path: path.to_owned(), source };
        replace(path, &bytes).map_err(failed)
    }

    /// Reads a file and verifies it.
    pub fn read(path: &Path) -> Result<Backup, Error> {
        let failed = |source| Error::File { operation: "read", path: path.to_owned(), source };
        let bytes = fs::read(path).map_err(failed)?;
        Backup::decode(&bytes).map_err(|why| Error::Damaged { path: path.to_owned(), why })
    }

    fn encode(&self) -> serde_json::Result<Vec<u8>> {
        let mut file = vec![];
        line(
            &mut file,
            &Header {
                format: FORMAT.to_owned(),
                cluster: format!("{:x}", self.cluster),
                identity: self.identity.clone(),
                revision: self.revision,
                keys: self.items.len(),
            },
        )?;
        for (key, value) in &self.items {
            let value = match std::str::from_utf8(value) {
                Ok(text) => Value::Text(text.to_owned()),
                Err(_) => Value::Base64(STANDARD.encode(value)),
            };
            line(&mut file, &Item { key: key.clone(), value })?;
        }
        let sha256 = sha256(&file);
        line(&mut file, &Checksum { sha256 })?;
        Ok(file)
    }

    fn decode(file: &[u8]) -> Result<Backup, String> {
        let cut = |_| "not a backup, or damaged".to_owned();
        let content = file.strip_suffix(b"\n").ok_or("incomplete")?;
        let last = content.iter().rposition(|byte| *byte == b'\n').ok_or("incomplete")? + 1;
        let checksum: Checksum = serde_json::from_slice(&content[last..]).map_err(|_| "incomplete")?;
        if checksum.sha256 != sha256(&file[..last]) {
            return Err("damaged: its checksum is not that of its content".to_owned());
        }
        let mut lines = content[..last - 1].split(|byte| *byte == b'\n');
        let header: Header = serde_json::from_slice(lines.next().unwrap_or_default()).map_err(cut)?;
        if header.format != FORMAT {
            return Err(format!("format {:?} is not supported; expected {FORMAT}", header.format));
        }
        let items = lines.map(item).collect::<Result<Vec<_>, String>>()?;
        if items.len() != header.keys {
            return Err(format!("{} keys instead of {}", items.len(), header.keys));
        }
        if let Some((key, _)) = items.iter().find(|(key, _)| !key.starts_with(ROOT)) {
            return Err(format!("key {key:?} is not below {ROOT}"));
        }
        // The store refuses a transaction that names a key twice.
        if let Some(pair) = items.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
            return Err(format!("key {:?} is not in order", pair[1].0));
        }
        let cluster = u64::from_str_radix(&header.cluster, 16).map_err(|error| error.to_string())?;
        Ok(Backup { cluster, identity: header.identity, revision: header.revision, items })
    }
}

fn item(line: &[u8]) -> Result<(String, Bytes), String> {
    let Item { key, value } = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let value = match value {
        Value::Text(text) => text.into_bytes(),
        Value::Base64(text) => STANDARD.decode(text).map_err(|error| format!("{key}: {error}"))?,
    };
    Ok((key, value.into()))
}

fn line(file: &mut Vec<u8>, value: &impl Serialize) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *file, value)?;
    file.push(b'\n');
    Ok(())
}

fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes a temporary file beside `path`, and renames it when it is on disk.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    name.push(".partial");
    let partial = path.with_file_name(name);
    // One that an earlier run has left, or that another program has put there, may have another mode.
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
    let written = (|| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)?;
        // The name of the file is on disk when its directory is.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    })();
    if written.is_err() {
        // The first error is the one to report.
        let _removed = fs::remove_file(&partial);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup() -> Backup {
        let item = |key: &str, value: &'static [u8]| (format!("/contiv.io/{key}"), value.into());
        let items = vec![item("a", b"{\"x\":1}"), item("b", b""), item("c", b"\xff\n")];
        Backup { cluster: u64::MAX, identity: "i".into(), revision: 7, items }
    }

    #[test]
    fn files_are_read_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        backup().write(&path).unwrap();
        backup().write(&path).unwrap();
        assert_eq!(Backup::read(&path).unwrap(), backup());
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        assert_eq!((mode & 0o777, fs::read_dir(dir.path()).unwrap().count()), (0o600, 1));
        let empty = Backup { items: vec![], ..backup() };
        empty.write(&path).unwrap();
        assert_eq!(Backup::read(&path).unwrap(), empty);
    }

    /// Only the owner may read a backup.
    #[test]
    fn the_temporary_file_is_always_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let (path, partial) = (dir.path().join("backup"), dir.path().join("backup.partial"));
        let mode = || std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&path).unwrap().permissions());
        fs::write(&partial, "of an earlier run").unwrap();
        backup().write(&path).unwrap();
        assert_eq!((mode() & 0o777, partial.exists()), (0o600, false));
        let other = dir.path().join("other");
        fs::write(&other, "of another program").unwrap();
        std::os::unix::fs::symlink(&other, &partial).unwrap();
        backup().write(&path).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "of another program");
        assert_eq!(Backup::read(&path).unwrap(), backup());
    }

    #[test]
    fn keys_are_below_the_root_and_in_order() {
        let with = |keys: &[&str]| {
            let items = keys.iter().map(|key| ((*key).to_owned(), Bytes::new())).collect();
            Backup::decode(&Backup { items, ..backup() }.encode().unwrap())
        };
        assert!(with(&["/contiv.io/a", "/contiv.io/b"]).is_ok());
        assert!(with(&["/contiv.io/a", "/registry/pods/a"]).unwrap_err().contains("/registry/pods/a"));
        for wrong in [["/contiv.io/b", "/contiv.io/a"], ["/contiv.io/a", "/contiv.io/a"]] {
            assert!(with(&wrong).unwrap_err().ends_with("is not in order"));
        }
    }

    #[test]
    fn every_change_of_a_file_is_noticed() {
        let file = backup().encode().unwrap();
        for n in 0..file.len() {
            let mut changed = file.clone();
            changed[n] ^= 1;
            assert!(Backup::decode(&changed).is_err(), "byte {n}");
            assert!(Backup::decode(&file[..n]).is_err(), "the first {n} bytes");
        }
        let lines: Vec<&[u8]> = file.split_inclusive(|byte| *byte == b'\n').collect();
        assert!(Backup::decode(&[&lines[..2], &lines[3..]].concat().concat()).is_err());
    }
}
