//! Removes the resources of test processes that were killed: only names with the pid of a testkit process that no longer
//! runs.

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Once,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::names::{BPF_MOUNT_POINT, NETNS_DIRECTORY, SCRATCH_PARENT, owned_prefix, owner, remove_netns};

static ONCE: Once = Once::new();

pub(crate) fn once() {
    ONCE.call_once(|| {
        // An error here must not fail the test. The next test process tries again.
        for error in sweep() {
            eprintln!("testkit: sweep of earlier runs: {error}");
        }
    });
}

/// Removes all orphans; returns the errors.
fn sweep() -> Vec<String> {
    let mut errors = vec![];
    let mut each = |folder: &Path, remove: fn(&Path) -> io::Result<()>| match orphans(folder) {
        Err(error) => errors.push(format!("{}: {error}", folder.display())),
        Ok(names) => {
            for path in names.iter().map(|name| folder.join(name)) {
                if let Err(error) = remove(&path) {
                    errors.push(format!("{}: {error}", path.display()));
                }
            }
        }
    };
    each(Path::new(NETNS_DIRECTORY), |namespace| {
        kill_processes(namespace)?;
        remove_netns(namespace)
    });
    each(Path::new(BPF_MOUNT_POINT), |pins| fs::remove_dir_all(pins));
    each(Path::new(SCRATCH_PARENT), |directory| {
        kill_recorded(directory);
        unmount(directory)?;
        fs::remove_dir_all(directory)
    });
    errors
}

/// Unmounts the BPF file system that some tests mount on their directory; files in it cannot be removed otherwise.
fn unmount(directory: &Path) -> io::Result<()> {
    match umount2(directory, MntFlags::MNT_DETACH) {
        Ok(()) | Err(Errno::EINVAL) => Ok(()), // EINVAL: nothing is mounted there
        Err(error) => Err(error.into()),
    }
}

/// Lists the namespaces, directories and pins of this process that are not removed.
pub fn leftovers() -> io::Result<Vec<PathBuf>> {
    let ours = |name: &str| name.starts_with(&owned_prefix());
    let mut left = vec![];
    for directory in [Path::new(NETNS_DIRECTORY), Path::new(SCRATCH_PARENT), Path::new(BPF_MOUNT_POINT)] {
        left.extend(names(directory, ours)?.into_iter().map(|name| directory.join(name)));
    }
    Ok(left)
}

/// Lists names in `directory` whose owner process no longer runs.
fn orphans(directory: &Path) -> io::Result<Vec<String>> {
    names(directory, |name| owner(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()))
}

fn names(directory: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(error),
    };
    let mut names = vec![];
    for entry in entries {
        names.extend(entry?.file_name().into_string().ok().filter(|name| wanted(name)));
    }
    Ok(names)
}

/// Kills all processes in an orphaned namespace.
fn kill_processes(namespace: &Path) -> io::Result<()> {
    let inode = fs::metadata(namespace)?.ino();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // The process may end meanwhile.
        if fs::metadata(entry.path().join("ns/net")).is_ok_and(|found| found.ino() == inode) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    Ok(())
}

/// Kills the process recorded in a scratch directory, unless its pid has been reused.
fn kill_recorded(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if entry.path().extension() == Some(OsStr::new("pid"))
            && let Ok(text) = fs::read_to_string(entry.path())
            && let Some((pid, started)) = text.trim().split_once(' ')
            && let Ok(pid) = pid.parse::<i32>()
            && start_time(pid).is_some_and(|now| now == started)
        {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// Start time of the process in clock ticks since boot; with the pid it identifies a process uniquely.
pub(crate) fn start_time(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command name is in parentheses and may contain any character; field 22 is the 20th after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19).map(str::to_owned)
}
