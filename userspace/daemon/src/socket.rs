//! Unix sockets that only the daemon's user may open.

use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

/// A socket cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("listen on {}{}", path.display(), if hint.is_empty() { String::new() } else { format!(" ({hint})") })]
pub struct SocketError {
    path: PathBuf,
    hint: String,
    #[source]
    source: io::Error,
}

/// Creates the socket with mode 0600; creates a missing directory with mode 0700. Replaces a socket that no process
/// listens on. `flags` names the flags that choose another path, for the error. Must be called within a tokio runtime.
pub fn listen(path: &Path, flags: &'static str) -> Result<UnixListener, SocketError> {
    let failed = |hint: String| move |source| SocketError { path: path.to_owned(), hint, source };
    if let Some(directory) = path.parent().filter(|directory| !directory.exists()) {
        let make = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        make.map_err(failed("is the directory writable?".into()))?;
    }
    // A killed daemon leaves its socket behind; connecting to it is refused.
    match UnixStream::connect(path) {
        Ok(_) => {
            let used = io::Error::from(io::ErrorKind::AddrInUse);
            return Err(failed("is another process of this daemon running on this machine?".into())(used));
        }
        // A regular file refuses connections as well.
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && is_socket(path) => {
            fs::remove_file(path).map_err(failed(String::new()))?;
        }
        Err(_) => {}
    }
    let listener = UnixListener::bind(path).map_err(failed(format!("try {flags}")))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed(String::new()))?;
    Ok(listener)
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_an_unused_socket_is_replaced_and_only_its_owner_may_open_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/daemon.sock");
        let first = listen(&path, "--socket PATH").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert!(listen(&path, "--socket PATH").unwrap_err().to_string().contains("another process"));
        drop(first);
        listen(&path, "--socket PATH").unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(listen(&path, "--socket PATH").is_err(), "a file is not replaced");
    }
}
