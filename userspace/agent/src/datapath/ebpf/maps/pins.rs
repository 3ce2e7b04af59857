//! Paths of the pinned maps, programs and links, which outlive the agent.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use aya::maps::{Map, MapData, MapError};
use contiv_abi::ABI_VERSION;
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    mount::{MsFlags, mount},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};

use crate::datapath::{Error, ebpf::failure::failed};

/// Mount point of the BPF file system on every distribution.
const BPFFS: &str = "/sys/fs/bpf";

/// The directory `<root>/v<ABI version>/<instance>`, which contains `maps`, `programs` and `links`.
#[derive(Clone, Debug)]
pub(crate) struct Pins {
    root: PathBuf,
    directory: PathBuf,
}

impl Pins {
    pub(crate) fn new(root: &Path, instance: &str) -> Self {
        Pins { root: root.to_owned(), directory: root.join(format!("v{ABI_VERSION}")).join(instance) }
    }

    /// Directories of this instance that agents with another ABI version created.
    pub(crate) fn other_abi_versions(&self) -> Vec<Pins> {
        let (Ok(entries), Some(instance)) = (fs::read_dir(&self.root), self.directory.file_name()) else {
            return vec![];
        };
        let version = |name: &str| name.strip_prefix('v')?.parse::<u32>().ok();
        let others = entries.flatten().filter_map(|entry| version(entry.file_name().to_str()?));
        let others = others.filter(|version| *version != ABI_VERSION);
        let directories = others.map(|version| self.root.join(format!("v{version}")).join(instance));
        directories
            .filter(|directory| directory.is_dir())
            .map(|directory| Pins { root: self.root.clone(), directory })
            .collect()
    }

    pub(crate) fn maps(&self) -> PathBuf {
        self.directory.join("maps")
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.directory.join("programs").join(name)
    }

    pub(crate) fn link(&self, name: &str) -> PathBuf {
        self.links().join(name)
    }

    fn links(&self) -> PathBuf {
        self.directory.join("links")
    }

    /// Creates the directories, and mounts the BPF file system if necessary.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        self.mount()?;
        for directory in [self.maps(), self.directory.join("programs"), self.links()] {
            fs::create_dir_all(&directory)
                .map_err(|error| failed(format!("create the directory {}", directory.display()), error))?;
        }
        Ok(())
    }

    /// Locks the root against other agents, of any ABI version, as long as the returned value lives: two writers would
    /// revert each other's changes. `None` if the root does not exist.
    pub(crate) fn lock(&self) -> Result<Option<Flock<File>>, Error> {
        let what = || format!("lock {}", self.root.display());
        let directory = match File::open(&self.root) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(what(), error)),
        };
        Flock::lock(directory, FlockArg::LockExclusiveNonblock).map(Some).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => failed(
                what(),
                "another netplugin uses it; stop that process first (on a machine with several nodes, give each agent its \
                 own --bpf-root)",
            ),
            other => failed(what(), other),
        })
    }

    fn mount(&self) -> Result<(), Error> {
        // The root may not exist yet: check the file system of its nearest existing ancestor.
        let existing = self.root.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let found = statfs(existing)
            .map_err(|error| failed(format!("query the file system of {}", existing.display()), error))?;
        if found.filesystem_type() == BPF_FS_MAGIC {
            return Ok(());
        }
        let place = if self.root.starts_with(BPFFS) { Path::new(BPFFS) } else { &self.root };
        fs::create_dir_all(place)
            .map_err(|error| failed(format!("create the directory {}", place.display()), error))?;
        let options = Some("mode=0700");
        mount(Some("bpf"), place, Some("bpf"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, options).map_err(
            |error| {
                let place = place.display();
                failed(format!("mount the BPF file system (try as root: mount -t bpf bpf {place})"), error)
            },
        )
    }

    /// Opens a pinned map.
    pub(crate) fn open_data(&self, name: &str) -> Result<MapData, Error> {
        let path = self.map(name);
        MapData::from_pin(&path).map_err(|error| failed(format!("open the map {}", path.display()), error))
    }

    /// Opens a pinned map as a map of the kind, key and value of `T`.
    pub(crate) fn open_map<T>(&self, name: &str) -> Result<T, Error>
    where
        T: TryFrom<Map, Error = MapError>,
    {
        Map::from_map_data(self.open_data(name)?)
            .and_then(T::try_from)
            .map_err(|error| failed(format!("open the map {}", self.map(name).display()), error))
    }

    /// Names of the pinned links.
    pub(crate) fn link_names(&self) -> Result<Vec<String>, Error> {
        names(&self.links())
    }

    /// Names of the pinned maps.
    pub(crate) fn map_names(&self) -> Result<Vec<String>, Error> {
        names(&self.maps())
    }

    /// Removes a pin; false if it does not exist.
    pub(crate) fn unpin(&self, path: &Path) -> Result<bool, Error> {
        match fs::remove_file(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(format!("remove the pin {}", path.display()), error)),
        }
    }

    /// Removes all pins of the instance, and its parent directories if they become empty. Returns the number of pins.
    pub(crate) fn remove_all(&self) -> Result<usize, Error> {
        let what = || format!("remove the pins in {}", self.directory.display());
        let mut removed = 0;
        for part in ["links", "programs", "maps"] {
            let directory = self.directory.join(part);
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(what(), error)),
            };
            for entry in entries {
                fs::remove_file(entry.map_err(|error| failed(what(), error))?.path())
                    .map_err(|error| failed(what(), error))?;
                removed += 1;
            }
            fs::remove_dir(&directory).map_err(|error| failed(what(), error))?;
        }
        for directory in self.directory.ancestors().take(3) {
            match fs::remove_dir(directory) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // Not empty because of other instances, or a mount point.
                Err(_) => break,
            }
        }
        Ok(removed)
    }
}

/// Names of the entries of a directory; none if it does not exist.
fn names(directory: &Path) -> Result<Vec<String>, Error> {
    let listed = fs::read_dir(directory).and_then(|entries| {
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    });
    match listed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
        result => result.map_err(|error| failed(format!("list {}", directory.display()), error)),
    }
}
