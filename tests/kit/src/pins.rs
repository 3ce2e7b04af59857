//! Pinned BPF programs that one test after the other uses.
//!
//! Loading programs is most of the time of a test that sends a few frames, above all in an emulated virtual machine. So a
//! datapath that ends leaves its pins, and the next one of the same kind finds empty maps beside programs that are loaded,
//! as an agent does after a restart.

mod map;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread,
};

use anyhow::{Context as _, Result};

use crate::Netns;

/// Folders of a datapath: maps, programs and links.
const PARTS: usize = 3;
/// Directories of one key; more are removed at once.
const KEPT: usize = 4;

/// Directories with pins that no datapath uses. `R` removes its directory when it is dropped.
pub struct Pool<R> {
    free: Mutex<Vec<(String, R)>>,
    at_exit: Once,
}

impl<R: AsRef<Path>> Pool<R> {
    #[expect(clippy::new_without_default, reason = "a pool is a static")]
    pub const fn new() -> Pool<R> {
        Pool { free: Mutex::new(vec![]), at_exit: Once::new() }
    }

    /// Lends a directory of this key, or one that `make` returns, to the datapath in the namespace `node`. Its maps are empty,
    /// except those in `kept`. Without a key it is never lent again. `drop_all` is a function that calls [`Pool::drop_all`];
    /// it is called when the process ends.
    pub fn lend(
        &'static self,
        (key, kept): (Option<String>, &[&str]),
        node: &Netns,
        make: impl FnOnce() -> Result<R>,
        drop_all: extern "C" fn(),
    ) -> Result<Lent<R>> {
        let root = match key.as_deref().and_then(|key| self.take(key, kept)) {
            Some(root) => root,
            None => make()?,
        };
        let path = root.as_ref().to_owned();
        Ok(Lent { root: Some(root), path, key, node: node.clone(), pool: self, drop_all })
    }

    fn take(&self, key: &str, kept: &[&str]) -> Option<R> {
        loop {
            let root = {
                let mut free = self.free();
                let at = free.iter().position(|(of, _)| of == key)?;
                free.remove(at).1
            };
            match instances(root.as_ref()).and_then(|maps| empty(&maps, kept)) {
                Ok(()) => return Some(root),
                // The next one, or a test that loads the programs.
                Err(error) => eprintln!("pins in {} are not used again: {error:#}", root.as_ref().display()),
            }
        }
    }

    /// Keeps a directory whose datapath has ended, unless the test panics. The interfaces in the namespace are set down:
    /// filters without a pin stay attached.
    fn give(&self, key: &str, root: R, node: &Netns, drop_all: extern "C" fn()) {
        if thread::panicking() || !root.as_ref().exists() {
            return;
        }
        match retire(root.as_ref(), node) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                eprintln!("pins in {} are not used again: {error:#}", root.as_ref().display());
                return;
            }
        }
        self.at_exit.call_once(|| {
            // SAFETY: the function may be called at any time.
            unsafe { libc::atexit(drop_all) };
        });
        let mut free = self.free();
        if free.iter().filter(|(of, _)| of == key).count() < KEPT {
            free.push((key.to_owned(), root));
        }
    }

    /// Removes all directories.
    pub fn drop_all(&self) {
        self.free().clear();
    }

    fn free(&self) -> MutexGuard<'_, Vec<(String, R)>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A directory of a pool, to which it returns when this is dropped: after the datapath, before the namespace's interfaces.
pub struct Lent<R: AsRef<Path> + 'static> {
    root: Option<R>,
    path: PathBuf,
    key: Option<String>,
    node: Netns,
    pool: &'static Pool<R>,
    drop_all: extern "C" fn(),
}

impl<R: AsRef<Path>> Lent<R> {
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl<R: AsRef<Path>> Drop for Lent<R> {
    fn drop(&mut self) {
        if let (Some(root), Some(key)) = (self.root.take(), &self.key) {
            self.pool.give(key, root, &self.node, self.drop_all);
        }
    }
}

/// Folders of maps, one below each instance of each version. A BPF file system may have files of the kernel, too.
fn instances(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![];
    for version in list(root)?.into_iter().filter(|path| path.is_dir()) {
        for instance in list(&version)? {
            found.push(instance.join("maps"));
        }
    }
    Ok(found)
}

fn list(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).with_context(|| format!("list {}", directory.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn empty(folders: &[PathBuf], kept: &[&str]) -> Result<()> {
    for maps in folders {
        for path in list(maps)? {
            if !kept.iter().any(|name| path.file_name().is_some_and(|file| file == *name)) {
                map::empty(&path).with_context(|| format!("empty the map {}", path.display()))?;
            }
        }
    }
    Ok(())
}

/// Detaches all programs from the interfaces. False if there is more than the pins of one datapath of one version, or one of its
/// tables is being replaced.
fn retire(root: &Path, node: &Netns) -> Result<bool> {
    node.all_down()?;
    let [maps] = &instances(root)?[..] else { return Ok(false) };
    let links = maps.with_file_name("links");
    if !links.is_dir() || list(maps.parent().unwrap_or(root))?.len() != PARTS {
        return Ok(false);
    }
    for link in list(&links)? {
        fs::remove_file(&link).with_context(|| format!("remove the pin {}", link.display()))?;
    }
    Ok(true)
}
