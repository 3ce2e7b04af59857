//! Files that only their owner may read: tokens, passwords.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A secret cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is accessible to others (mode {mode:04o}); chmod 600 it", path.display())]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{} is empty", path.display())]
    Empty { path: PathBuf },
}

/// Reads a file that only its owner may read.
///
/// # Errors
///
/// Fails if the file cannot be read, or if its mode allows access by group or others.
pub fn read(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(Error::Exposed { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// The first line of such a file, without surrounding white space.
///
/// # Errors
///
/// As [`read`], and if the line is empty.
pub fn read_line(path: &Path) -> Result<String, Error> {
    match read(path)?.lines().next().map(str::trim) {
        Some(line) if !line.is_empty() => Ok(line.to_owned()),
        _ => Err(Error::Empty { path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    #[test]
    fn files_readable_by_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, " s3cret \n# more\n").unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            match read_line(&path) {
                Ok(secret) => assert!(good && secret == "s3cret", "{mode:o}"),
                Err(error) => assert!(!good && error.to_string().contains("chmod 600"), "{mode:o}: {error}"),
            }
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "\nx").unwrap();
        assert!(read_line(&path).unwrap_err().to_string().ends_with("is empty"));
    }
}
