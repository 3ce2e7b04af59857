//! A file system of its own, whose disk can stall.

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

use crate::resource::{netns::run_program, scratch::scratch_dir};

/// An ext4 file system in a file. Unmounted when dropped, or by the next test process.
#[derive(Debug)]
pub struct Disk {
    mount_point: TempDir,
    /// Has the image.
    _directory: TempDir,
}

/// A stall of a disk. Dropping it waits for its end.
#[derive(Debug)]
pub struct Stall(Child);

impl Disk {
    /// Creates and mounts a file system of so many MB. Needs root and a free loop device.
    pub fn mount(label: &str, megabytes: u64) -> Result<Disk> {
        let (directory, mount_point) = (scratch_dir("image")?, scratch_dir(label)?);
        let image = directory.path().join("image");
        std::fs::File::create(&image)?.set_len(megabytes << 20).context("create the image of a disk")?;
        let (image, path) = (image.to_string_lossy(), mount_point.path().to_string_lossy());
        run_program("mkfs.ext4", &["-q", "-E", "lazy_itable_init=1", &image])?;
        run_program("mount", &["-o", "loop", &image, &path])?;
        Ok(Disk { mount_point, _directory: directory })
    }

    pub fn path(&self) -> &Path {
        self.mount_point.path()
    }

    /// Blocks all writes for the duration. A process of its own ends the stall, also if this process is killed.
    pub fn stall(&self, duration: Duration) -> Result<Stall> {
        let script = "fsfreeze --freeze \"$0\" && echo && sleep \"$1\"; fsfreeze --unfreeze \"$0\"";
        let mut child = Command::new("sh")
            .args(["-c", script])
            .arg(self.path())
            .arg(format!("{:.3}", duration.as_secs_f64()))
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C on the terminal must not reach it.
            .process_group(0)
            .spawn()
            .context("run fsfreeze")?;
        let mut begun = [0];
        let output = child.stdout.as_mut().context("no output of fsfreeze")?;
        match std::io::Read::read(output, &mut begun)? {
            0 => bail!("freeze {}: {}", self.path().display(), child.wait()?),
            _ => Ok(Stall(child)),
        }
    }
}

impl Stall {
    pub fn wait(mut self) -> Result<()> {
        self.0.wait().map(drop).context("wait for the end of the stall")
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        if let Err(error) = self.0.wait() {
            eprintln!("wait for the end of the stall: {error}");
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Detached: a process that was just killed may still have a file open.
        if let Err(error) = umount2(self.path(), MntFlags::MNT_DETACH) {
            eprintln!("unmount {}: {error}", self.path().display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, thread, time::Duration};

    use super::Disk;

    #[test]
    fn writes_wait_for_the_end_of_a_stall() {
        crate::needs!(root(), binary("mkfs.ext4"), binary("fsfreeze"));
        let disk = Disk::mount("stall", 16).unwrap();
        let file = disk.path().join("file");
        fs::write(&file, "before").unwrap();
        let stall = disk.stall(Duration::from_millis(500)).unwrap();
        let writer = thread::spawn({
            let file = file.clone();
            move || fs::write(file, "meanwhile").unwrap()
        });
        thread::sleep(Duration::from_millis(100));
        assert_eq!(fs::read_to_string(&file).unwrap(), "before");
        stall.wait().unwrap();
        writer.join().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "meanwhile");
    }
}
