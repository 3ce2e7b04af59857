//! Files that are replaced as a whole: a reader, and the next process, find the old content or the new one.

use std::{fs, io, path::Path};

/// Added to the name of a file whose content is not complete.
pub(crate) const UNFINISHED: &str = "new";

/// Replaces a file, without waiting for the disk. Nothing remains of the new content after a failure, which on a full disk would take
/// the room that is left.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_added_extension(UNFINISHED);
    let replaced = fs::write(&new, content).and_then(|()| fs::rename(&new, path));
    if replaced.is_err() {
        // The failure is returned; the next success replaces what this leaves.
        let _ = fs::remove_file(&new);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_leaves_the_old_content_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.json");
        replace(&path, b"old").unwrap();
        replace(&path, b"content").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"content");
        fs::remove_file(&path).unwrap();
        // A folder cannot be replaced.
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"new").is_err());
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names, [path]);
    }
}
