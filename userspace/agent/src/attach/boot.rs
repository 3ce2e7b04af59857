use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Changes with each boot of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Detects whether interfaces may have vanished since an earlier boot. A file holds the id of the last boot in which all
/// such interfaces have been handled.
#[derive(Debug)]
pub(super) struct Boot {
    file: PathBuf,
    id: String,
}

impl Boot {
    /// Reads the id of this boot. The file is next to the CNI socket.
    pub(super) fn beside(socket: &Path) -> io::Result<Boot> {
        Ok(Boot { file: socket.with_extension("boot"), id: fs::read_to_string(BOOT_ID)? })
    }

    /// Whether attachments of earlier boots may exist.
    pub(super) fn is_new(&self) -> bool {
        !fs::read_to_string(&self.file).is_ok_and(|id| id == self.id)
    }

    /// Records that no attachment of an earlier boot exists.
    pub(super) fn settle(&self) -> io::Result<()> {
        fs::write(&self.file, &self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_is_new_until_it_is_settled() {
        let directory = tempfile::tempdir().unwrap();
        let boot = Boot::beside(&directory.path().join("cni.sock")).unwrap();
        assert!(boot.is_new());
        boot.settle().unwrap();
        assert!(!boot.is_new() && !Boot::beside(&directory.path().join("cni.sock")).unwrap().is_new());
        fs::write(directory.path().join("cni.boot"), "an earlier one").unwrap();
        assert!(boot.is_new());
    }
}
