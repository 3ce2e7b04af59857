use std::{
    fs::{self, File, OpenOptions},
    net::IpAddr,
    panic,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    fcntl::{Flock, FlockArg},
    mount::{MsFlags, mount},
    net::if_::{if_nameindex, if_nametoindex},
    sched::{CloneFlags, setns, unshare},
};

use super::{
    interface::{self, Interface},
    names::{NETNS_DIRECTORY, owned_prefix, remove_netns},
    sweep,
};
use crate::{ping::Ping, skip::find_program};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A network namespace under `/run/netns` with `lo` up; removed when its last clone is dropped.
#[derive(Debug, Clone)]
pub struct Netns(Arc<Owned>);

#[derive(Debug)]
struct Owned {
    name: String,
    path: PathBuf,
    handle: File,
}

impl Netns {
    /// Creates a namespace. Its name has the pid and a counter, which make it unique, and `label`.
    pub fn new(label: &str) -> Result<Netns> {
        sweep::once();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{count}-{label}", owned_prefix());
        let path = Path::new(NETNS_DIRECTORY).join(&name);
        create(&path).with_context(|| format!("create the network namespace {name}"))?;
        let handle = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let namespace = Netns(Arc::new(Owned { name, path, handle }));
        namespace.up("lo")?;
        Ok(namespace)
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Runs `work` on a separate thread inside the namespace; the caller's thread stays in its own namespace. Threads and
    /// processes that `work` starts are in the namespace, too.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let enter = || {
            setns(&self.0.handle, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("enter the network namespace {}", self.name()))?;
            work()
        };
        // The name of the test's thread, which a panic message contains.
        let name = thread::current().name().unwrap_or("testkit").to_owned();
        thread::scope(|scope| {
            let thread = thread::Builder::new().name(name).spawn_scoped(scope, enter)?;
            thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
        })
    }

    /// Runs `ip` in this namespace; arguments are split at spaces: `ns.ip("route add default via 10.0.0.1")`.
    pub fn ip(&self, arguments: &str) -> Result<String> {
        // Not `ip -n`, which creates a mount namespace for each call.
        self.output("ip", &arguments.split_whitespace().collect::<Vec<_>>())
    }

    /// Creates a veth pair, both ends down: `name` here, `peer_name` in `peer`.
    pub fn veth(&self, name: &str, peer: &Netns, peer_name: &str) -> Result<()> {
        let what = || format!("create {name} in {} and {peer_name} in {}", self.name(), peer.name());
        self.run(|| interface::veth(name, &peer.0.handle, peer_name)).with_context(what)
    }

    /// Adds an address with prefix length; IPv6 addresses skip duplicate address detection.
    pub fn address(&self, link: &str, address: &str) -> Result<()> {
        let what = || format!("add the address {address} to {link} in {}", self.name());
        self.run(|| interface::address(link, address)).with_context(what)
    }

    pub fn mac(&self, link: &str, mac: &str) -> Result<()> {
        let what = || format!("set the MAC address of {link} in {} to {mac}", self.name());
        self.run(|| interface::mac(link, mac)).with_context(what)
    }

    pub fn mtu(&self, link: &str, mtu: u16) -> Result<()> {
        let what = || format!("set the MTU of {link} in {}", self.name());
        self.run(|| interface::mtu(link, mtu)).with_context(what)
    }

    pub fn up(&self, link: &str) -> Result<()> {
        self.run(|| interface::up(link)).with_context(|| format!("set {link} up in {}", self.name()))
    }

    /// Sets down all interfaces that are in no group of their own.
    pub fn all_down(&self) -> Result<()> {
        self.run(interface::all_down).with_context(|| format!("set all interfaces down in {}", self.name()))
    }

    /// What the kernel says of an interface.
    pub fn interface(&self, link: &str) -> Result<Interface> {
        self.run(|| interface::find(link)).with_context(|| format!("query {link} in {}", self.name()))
    }

    /// Index of an interface.
    pub fn ifindex(&self, link: &str) -> Result<u32> {
        let what = || format!("query the index of {link} in {}", self.name());
        self.run(|| if_nametoindex(link).with_context(what))
    }

    /// Sets a parameter of the kernel that belongs to the namespace: `net/ipv4/ip_forward`.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        let what = || format!("set {name} in {}", self.name());
        self.run(|| fs::write(Path::new("/proc/sys").join(name), value).with_context(what))
    }

    /// Turns off transmit checksum offload: a userspace switch forwards frames without completing checksums.
    pub fn tx_checksum_off(&self, link: &str) -> Result<()> {
        self.run(|| run_program("ethtool", &["-K", link, "tx", "off"]).map(drop))
    }

    /// Names of the interfaces except `lo`.
    pub fn links(&self) -> Result<Vec<String>> {
        let names = || {
            let interfaces = if_nameindex()?;
            let names = interfaces.iter().map(|interface| interface.name().to_string_lossy().into_owned());
            Ok(names.filter(|name| name != "lo").collect())
        };
        self.run(names).with_context(|| format!("list the interfaces in {}", self.name()))
    }

    /// Runs a program in the namespace and returns its standard output; the error has its standard error.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Result<String> {
        self.run(|| run_program(program, arguments))
    }

    /// Sends `count` pings, one per `interval`.
    pub fn ping(&self, target: IpAddr, count: u32, interval: Duration) -> Result<Ping> {
        self.run(|| Ping::run(target, count, interval))
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if let Err(error) = remove_netns(&self.path) {
            eprintln!("remove the network namespace {}: {error}", self.name);
        }
    }
}

/// Runs a program and returns its standard output; the error has its standard error.
pub(crate) fn run_program(program: &str, arguments: &[&str]) -> Result<String> {
    let path = find_program(program)
        .with_context(|| format!("the program {program} is missing: run `cargo xtask setup`"))?;
    let output = Command::new(path)
        .args(arguments)
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("run {program}"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}: {}", arguments.join(" "), output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn create(path: &Path) -> Result<()> {
    fs::create_dir_all(NETNS_DIRECTORY)?;
    let _lock = share_directory()?;
    OpenOptions::new().write(true).create_new(true).open(path)?;
    let created = thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            mount(Some("/proc/thread-self/ns/net"), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        });
        thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    });
    if created.is_err() {
        fs::remove_file(path)?;
    }
    created.context("needs root or CAP_SYS_ADMIN")
}

/// Makes the directory a shared mount, as `ip netns add` does. A later `ip netns add` would otherwise mount over our
/// namespaces, and unmounting would remove only the upper mount.
fn share_directory() -> Result<Flock<File>> {
    let lock = Flock::lock(File::open(NETNS_DIRECTORY)?, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .with_context(|| format!("lock {NETNS_DIRECTORY}"))?;
    let share = MsFlags::MS_SHARED | MsFlags::MS_REC;
    if mount(None::<&str>, NETNS_DIRECTORY, None::<&str>, share, None::<&str>).is_err() {
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(NETNS_DIRECTORY), NETNS_DIRECTORY, None::<&str>, bind, None::<&str>)?;
        mount(None::<&str>, NETNS_DIRECTORY, None::<&str>, share, None::<&str>)?;
    }
    Ok(lock)
}
