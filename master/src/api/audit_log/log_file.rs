//! A file to which lines are appended, and which others may rotate.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    /// The last line was written in part.
    torn: bool,
}

impl LogFile {
    /// Opens or creates the file, with mode 0600.
    pub(super) fn open(path: &Path) -> io::Result<LogFile> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        let identity = identity(&file.metadata()?);
        Ok(LogFile { path: path.to_owned(), file, identity, torn: false })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line, to a new file if the file was renamed or removed.
    pub(super) fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let current = fs::metadata(&self.path).is_ok_and(|meta| identity(&meta) == self.identity);
        if !current {
            *self = LogFile::open(&self.path)?;
        }
        if self.torn {
            self.file.write_all(b"\n")?;
        }
        self.torn = true;
        self.file.write_all(line)?;
        self.torn = false;
        Ok(())
    }
}

fn identity(meta: &fs::Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_renamed_or_removed_file_is_created_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let old = dir.path().join("audit.log.1");
        let mut log = LogFile::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        log.append(b"1\n").unwrap();
        fs::rename(&path, &old).unwrap();
        log.append(b"2\n").unwrap();
        log.append(b"3\n").unwrap();
        assert_eq!(fs::read_to_string(&old).unwrap(), "1\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "2\n3\n");
        fs::remove_file(&path).unwrap();
        log.append(b"4\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "4\n");
        drop(log);
        LogFile::open(&path).unwrap().append(b"5\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "4\n5\n");
    }

    #[test]
    fn failures_are_reported_and_a_torn_line_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("logs");
        let path = folder.join("audit.log");
        fs::create_dir(&folder).unwrap();
        let mut log = LogFile::open(&path).unwrap();
        fs::rename(&folder, dir.path().join("gone")).unwrap();
        assert!(log.append(b"1\n").is_err());
        fs::create_dir(&folder).unwrap();
        log.append(b"2\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "2\n");
        // As after a full disk.
        log.file.write_all(b"par").unwrap();
        log.torn = true;
        log.append(b"3\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "2\npar\n3\n");
        let mut full = LogFile::open(Path::new("/dev/full")).unwrap();
        assert!(full.append(b"1\n").is_err());
    }
}
