//! Files that only their owner can read.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

use crate::error::Error;

/// Replaces a file by `text` in one step, with mode 0600. A missing folder is created with mode 0700.
pub fn write(path: &Path, text: &str) -> Result<(), Error> {
    if let Some(folder) = path.parent() {
        let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        created.map_err(Error::file("create", folder))?;
    }
    // Renaming makes the replacement atomic, and the file is never readable by others.
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let write = || {
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&new, path)
    };
    write().map_err(|error| {
        // The text is a secret, and the failure may be a full disk. What fails now has failed above.
        let _ = fs::remove_file(&new);
        Error::file("write", path)(error)
    })
}

/// Reads a file that may be missing.
pub fn read(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        text => text.map(Some).map_err(Error::file("read", path)),
    }
}
