//! Paths of the pinned maps, programs and links, which outlive the agent.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use aya::maps::{Map, MapData, MapError};
use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    mount::{MsFlags, mount},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};

use super::syscall;
use crate::datapath::{Error, ebpf::failure::failed};

/// Mount point of the BPF file system on every distribution.
const BPFFS: &str = "/sys/fs/bpf";

/// Directory below that of an instance, with the maps of a flow table that is being replaced by one of another size.
const RESIZED: &str = "resized";

/// The directory `<root>/v<ABI version>/<instance>`, which contains `maps`, `programs` and `links`.
#[derive(Clone, Debug)]
pub(crate) struct Pins {
    root: PathBuf,
    directory: PathBuf,
    version: u32,
}

impl Pins {
    /// Pins of an instance in the directory of an ABI version.
    pub(crate) fn new(root: &Path, instance: &str, version: u32) -> Self {
        Pins { root: root.to_owned(), directory: root.join(format!("v{version}")).join(instance), version }
    }

    /// The ABI version of the directory.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// Directories of this instance that agents with another ABI version created.
    pub(crate) fn other_abi_versions(&self) -> Vec<Pins> {
        let (Ok(entries), Some(instance)) = (fs::read_dir(&self.root), self.directory.file_name()) else {
            return vec![];
        };
        let version = |name: &str| name.strip_prefix('v')?.parse::<u32>().ok();
        let others = entries.flatten().filter_map(|entry| version(entry.file_name().to_str()?));
        let mut versions: Vec<u32> = others.filter(|version| *version != self.version).collect();
        versions.sort_unstable();
        let others = versions.into_iter().map(|version| Pins {
            root: self.root.clone(),
            directory: self.root.join(format!("v{version}")).join(instance),
            version,
        });
        others.filter(|pins| pins.directory.is_dir()).collect()
    }

    /// Pins of the maps of a flow table that is being replaced by one of another size.
    pub(crate) fn resized(&self) -> Pins {
        Pins { root: self.root.clone(), directory: self.directory.join(RESIZED), version: self.version }
    }

    /// Moves the pin of a map to [`resized`](Self::resized). Moves nothing if there is no such pin, or if it was moved before.
    pub(crate) fn move_to_resized(&self, name: &str) -> Result<(), Error> {
        let (from, to) = (self.map(name), self.resized().map(name));
        if to.exists() || !from.exists() {
            return Ok(());
        }
        fs::create_dir_all(self.resized().maps())
            .and_then(|()| fs::rename(&from, &to))
            .map_err(|error| failed(format!("move the pin {} to {}", from.display(), to.display()), error))
    }

    /// Detaches the programs of all pinned links, and removes the pins. When it returns, no program is running any more.
    /// Returns the number of links.
    pub(crate) fn detach_links(&self) -> Result<usize, Error> {
        let names = self.link_names()?;
        for name in &names {
            let path = self.link(name);
            // The interface may have been deleted; the removal of the pin then removes the link.
            if let Err(error) = syscall::detach_link(&path) {
                tracing::debug!("detach {}: {error}", path.display());
            }
            self.unpin(&path)?;
        }
        Ok(names.len())
    }

    pub(crate) fn maps(&self) -> PathBuf {
        self.directory.join("maps")
    }

    /// Whether any map is pinned.
    pub(crate) fn has_maps(&self) -> bool {
        has_entries(&self.maps())
    }

    /// Whether any program is pinned. Programs are pinned when all of them are loaded.
    pub(crate) fn has_programs(&self) -> bool {
        has_entries(&self.programs())
    }

    pub(crate) fn map(&self, name: &str) -> PathBuf {
        self.maps().join(name)
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.programs().join(name)
    }

    fn programs(&self) -> PathBuf {
        self.directory.join("programs")
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
        for directory in [self.maps(), self.programs(), self.links()] {
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
        let resized = self.resized();
        let mut removed = if resized.directory.is_dir() { resized.remove_all()? } else { 0 };
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

fn has_entries(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
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
