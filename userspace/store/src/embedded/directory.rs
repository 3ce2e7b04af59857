//! The directory of the store's file: the seam below which a test can put a disk that loses writes.

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use redb::StorageBackend;
use redb::backends::FileBackend;
use std::fmt::Debug;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Files of one directory, by name. Changes of names are durable after [`Directory::sync`], and
/// contents of a file after its own `sync_data`.
pub(super) trait Directory: Debug + Send + Sync + 'static {
    /// Path for messages.
    fn path(&self) -> &Path;

    /// Opens an existing file. Reads return what is on the disk, not what the system could not
    /// write there.
    /// Fails with `NotFound` if there is no such file.
    fn open(&self, name: &str) -> io::Result<Box<dyn StorageBackend>>;

    /// Creates a file that only this user can read.
    /// Fails with `AlreadyExists` if there is such a file.
    fn create(&self, name: &str) -> io::Result<Box<dyn StorageBackend>>;

    /// Gives the file `name` a second name.
    /// Fails with `AlreadyExists` if there is a file with that name.
    fn link(&self, name: &str, second: &str) -> io::Result<()>;

    /// Removes a name.
    /// Fails with `NotFound` if there is no such file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Names of all files.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Makes the names durable.
    fn sync(&self) -> io::Result<()>;

    /// Size of a file in bytes; 0 if it cannot be read.
    fn size(&self, name: &str) -> u64;
}

/// A directory of the file system.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Opens the directory, and creates it if it is missing.
    pub(super) fn new(dir: &Path) -> io::Result<Folder> {
        make_dir(dir)?;
        Ok(Folder(dir.to_owned()))
    }
}

impl Directory for Folder {
    fn path(&self) -> &Path {
        &self.0
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        let file = OpenOptions::new().read(true).write(true).open(self.0.join(name))?;
        // A killed process may have left writes that are not on the disk. After a failed write-back
        // the kernel keeps pages that differ from the disk, and takes them for written: they are
        // dropped, else a later power failure would undo what was read here.
        file.sync_all()?;
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        backend(file)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        let options = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).to_owned();
        backend(options.open(self.0.join(name))?)
    }

    fn link(&self, name: &str, second: &str) -> io::Result<()> {
        fs::hard_link(self.0.join(name), self.0.join(second))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.0)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn sync(&self) -> io::Result<()> {
        sync_dir(&self.0)
    }

    fn size(&self, name: &str) -> u64 {
        fs::metadata(self.0.join(name)).map_or(0, |m| m.len())
    }
}

fn backend(file: File) -> io::Result<Box<dyn StorageBackend>> {
    Ok(Box::new(FileBackend::new(file).map_err(io::Error::other)?))
}

/// Creates a missing directory and those above it, each durable in its parent. Sets the mode only of
/// directories that are created here: an existing one may be shared on purpose.
fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_dir(parent)?;
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists || !dir.is_dir() => Err(e),
        _ => sync_dir(parent),
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
