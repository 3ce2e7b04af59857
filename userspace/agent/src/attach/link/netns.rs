//! Execution inside a pod's network namespace.

use std::{
    fs::File,
    future::Future,
    io,
    os::{
        fd::{AsRawFd as _, RawFd},
        unix::fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::sched::{CloneFlags, setns};
use rtnetlink::Handle;
use tokio::sync::oneshot;

use super::error::Error;
use crate::netdevice;

/// An open network namespace. The kernel keeps it while the value exists, and it stays the same even if the path is
/// reused for another one.
#[derive(Clone, Debug)]
pub struct Netns {
    path: PathBuf,
    file: Arc<File>,
}

impl Netns {
    /// Opens the namespace at `path`, such as `/run/netns/NAME` or `/proc/PID/ns/net`.
    pub fn open(path: &Path) -> Result<Netns, Error> {
        let failed = |source| Error::Namespace { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        if !is_namespace(&file).map_err(failed)? {
            return Err(failed(io::Error::other("not a network namespace")));
        }
        Ok(Netns { path: path.to_owned(), file: Arc::new(file) })
    }

    /// Reports whether `path` definitely does not refer to a namespace.
    pub fn is_gone(path: &Path) -> bool {
        match File::open(path) {
            Ok(file) => is_namespace(&file).is_ok_and(|is_namespace| !is_namespace),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// The network namespace of the calling thread.
    pub fn current() -> Result<Netns, Error> {
        Netns::open(Path::new("/proc/thread-self/ns/net"))
    }

    /// Whether this is the network namespace of the calling thread.
    pub fn is_current(&self) -> Result<bool, Error> {
        Ok(self.identity()? == Netns::current()?.identity()?)
    }

    /// Returns device and inode, which identify the namespace.
    fn identity(&self) -> Result<(u64, u64), Error> {
        let failed = |source| Error::Namespace { path: self.path.clone(), source };
        let metadata = self.file.metadata().map_err(failed)?;
        Ok((metadata.dev(), metadata.ino()))
    }

    /// Path given to [`open`](Self::open).
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Disables TX checksum offload of an interface in the namespace.
    pub async fn disable_tx_offload(&self, name: &str) -> Result<(), Error> {
        let name = name.to_owned();
        self.run(async move |_| {
            netdevice::disable_tx_checksum(&name)
                .map_err(Error::setting("disable TX checksum offload of", &name))
        })
        .await
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `work` inside the namespace, on a separate thread that ends afterwards. So no thread of the runtime ever
    /// enters a pod's namespace.
    pub(super) async fn run<T, F, W>(&self, work: W) -> Result<T, Error>
    where
        T: Send + 'static,
        W: FnOnce(Handle) -> F + Send + 'static,
        F: Future<Output = Result<T, Error>>,
    {
        let (done, result) = oneshot::channel();
        let namespace = self.clone();
        let failed = |source| Error::Thread { path: self.path.clone(), source };
        std::thread::Builder::new()
            .name("pod netns".into())
            .spawn(move || {
                // If the request was cancelled, the receiver has been dropped.
                drop(done.send(namespace.enter(work)));
            })
            .map_err(failed)?;
        result.await.unwrap_or_else(|_| Err(failed(io::Error::other("the thread ended early"))))
    }

    fn enter<T, F, W>(&self, work: W) -> Result<T, Error>
    where
        W: FnOnce(Handle) -> F,
        F: Future<Output = Result<T, Error>>,
    {
        let failed = |source| Error::Thread { path: self.path.clone(), source };
        setns(&*self.file, CloneFlags::CLONE_NEWNET).map_err(|e| failed(e.into()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
        runtime.block_on(async {
            let (connection, handle, _) = rtnetlink::new_connection().map_err(failed)?;
            tokio::spawn(connection);
            work(handle).await
        })
    }
}

fn is_namespace(file: &File) -> io::Result<bool> {
    const NSFS_MAGIC: libc::c_long = 0x6e73_6673;
    let stat = nix::sys::statfs::fstatfs(file)?;
    Ok(stat.filesystem_type().0 as libc::c_long == NSFS_MAGIC)
}
