//! Where the kernel's objects are kept so that they outlive the agent.

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

/// Where every distribution mounts it.
const BPFFS: &str = "/sys/fs/bpf";

/// `<root>/v<ABI>/<instance>/{maps,programs,links}`.
#[derive(Clone, Debug)]
pub(crate) struct Pins {
    root: PathBuf,
    directory: PathBuf,
}

impl Pins {
    pub(crate) fn new(root: &Path, instance: &str) -> Self {
        Pins { root: root.to_owned(), directory: root.join(format!("v{ABI_VERSION}")).join(instance) }
    }

    /// Those that an agent with another layout of the maps has left for this instance.
    pub(crate) fn of_other_layouts(&self) -> Vec<Pins> {
        let (Ok(entries), Some(instance)) = (fs::read_dir(&self.root), self.directory.file_name()) else {
            return vec![];
        };
        let layout = |name: &str| name.strip_prefix('v')?.parse::<u32>().ok();
        let others = entries.flatten().filter_map(|entry| layout(entry.file_name().to_str()?));
        let others = others.filter(|layout| *layout != ABI_VERSION);
        let directories = others.map(|layout| self.root.join(format!("v{layout}")).join(instance));
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

    /// Makes the directories, and mounts the file system where it is not.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        self.mount()?;
        for directory in [self.maps(), self.directory.join("programs"), self.links()] {
            fs::create_dir_all(&directory)
                .map_err(|error| failed(format!("make the directory {}", directory.display()), error))?;
        }
        Ok(())
    }

    /// Sees to it that nobody else works with what is pinned, of whatever layout, as long as the value lives: two who write
    /// would each undo what the other does. None where nothing was ever pinned.
    pub(crate) fn claim(&self) -> Result<Option<Flock<File>>, Error> {
        let what = || format!("have {} alone", self.root.display());
        let directory = match File::open(&self.root) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(what(), error)),
        };
        Flock::lock(directory, FlockArg::LockExclusiveNonblock).map(Some).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => failed(
                what(),
                "another netplugin works with it (stop that one first; agents of several nodes on one machine need a \
                 --bpf-root each)",
            ),
            other => failed(what(), other),
        })
    }

    fn mount(&self) -> Result<(), Error> {
        // The root may not be there yet: what is the file system of the nearest directory that is?
        let there = self.root.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let found = statfs(there)
            .map_err(|error| failed(format!("look at the file system of {}", there.display()), error))?;
        if found.filesystem_type() == BPF_FS_MAGIC {
            return Ok(());
        }
        let place = if self.root.starts_with(BPFFS) { Path::new(BPFFS) } else { &self.root };
        fs::create_dir_all(place)
            .map_err(|error| failed(format!("make the directory {}", place.display()), error))?;
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

    /// The names of the pinned links.
    pub(crate) fn link_names(&self) -> Result<Vec<String>, Error> {
        let directory = self.links();
        let listed = fs::read_dir(&directory).and_then(|entries| {
            entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
        });
        match listed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
            result => result.map_err(|error| failed(format!("list {}", directory.display()), error)),
        }
    }

    /// Removes a pin; true if it was there.
    pub(crate) fn unpin(&self, path: &Path) -> Result<bool, Error> {
        match fs::remove_file(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed(format!("remove the pin {}", path.display()), error)),
        }
    }

    /// Removes all pins of the instance, and the directories above that are empty then.
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
                // Other instances, or a mount point.
                Err(_) => break,
            }
        }
        Ok(removed)
    }
}
