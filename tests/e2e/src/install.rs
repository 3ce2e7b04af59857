//! Runs the commands of the documentation pages *Install on three machines* and *Operate* verbatim, on machines made from
//! namespaces. Two pods ping each other during the commands of *Operate*, and no ping may be lost.
//!
//! A machine has its own network, mount, PID and UTS namespaces; its root is an overlay of a root file system, so the
//! packages are installed into it with `apt-get`, and the host does not change. Three programs of a real machine are
//! replaced: systemd (`systemctl` and `journalctl` start a unit's own `ExecStart`, see `systemctl.rs`) and `scp`.

mod machine;
mod page;
mod scp;
mod systemctl;
mod unit;

use std::{
    env, fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use testkit::Netns;

pub use self::machine::Inside;
use self::{
    machine::{Files, Machine},
    page::{Block, Page},
};
use crate::{interrupt, progress::step};

/// Longest time that one block of the page may take.
const BLOCK: Duration = Duration::from_secs(240);
/// The page leaves the address of a pod on another machine in PEER.
const PING: &str = "ip netns exec pod1 ping -q -i 0.01 $PEER > /run/pings 2>&1 & PINGING=$!";
const NO_LOSS: &str = "kill -INT $PINGING; wait $PINGING || true; cat /run/pings
                       grep -q ' 0% packet loss' /run/pings";
/// A block that contains this replaces the packages of daemons that run.
const UPGRADE: &str = "--only-upgrade";
/// Fails if a daemon runs a program that a package has replaced.
const RESTARTED: &str = "for pid in $(cat /run/units/netmaster.pid /run/units/netplugin.pid); do
                           if readlink /proc/$pid/exe | grep deleted; then false; fi
                         done";
/// The machines' default gateway.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

#[derive(Debug, Args)]
pub struct Options {
    /// Folder with the .deb files, which the machines see as /srv/contiv
    #[arg(long, value_name = "DIR")]
    packages: PathBuf,
    /// Markdown page whose shell blocks are run
    #[arg(long, value_name = "FILE", default_value = "docs/src/install.md")]
    page: PathBuf,
    /// Page whose shell blocks are run afterwards, while the pods ping; those that install /srv/contiv/next are
    /// skipped if there is no DIR/next [default: operate.md beside the page]
    #[arg(long, value_name = "FILE")]
    operate_page: Option<PathBuf>,
    /// Root file system that the machines' roots are overlays of
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Print what the commands print
    #[arg(long)]
    verbose: bool,
}

/// Installs three machines as the page says; fails with the first command that fails.
pub fn run(options: &Options) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("check the install page: namespaces need root; run the command again with sudo");
    }
    let packages = packages(&options.packages)?;
    let page = read(&options.page)?;
    if page.machines.is_empty() {
        bail!("read {}: no table row `| node1 | ADDRESS |`", options.page.display());
    }
    let operate_page =
        options.operate_page.clone().unwrap_or_else(|| options.page.with_file_name("operate.md"));
    let mut operate = read(&operate_page)?;
    if !packages.join("next").is_dir() {
        operate.blocks.retain(|block| !block.text.contains("/srv/contiv/next"));
    }
    page.check(&page.machines).with_context(|| format!("check {}", options.page.display()))?;
    operate.check(&page.machines).with_context(|| format!("check {}", operate_page.display()))?;
    let root = options.root.canonicalize().with_context(|| format!("find {}", options.root.display()))?;
    let files = Files { root, packages };
    interrupt::catch()?;
    let lan = Lan::new()?;
    let mut machines = step("start the machines", || lan.machines(&page, &files, options.verbose))?;
    run_page(&options.page, &page, &mut machines)?;
    machines[0].run(PING, BLOCK)?;
    run_page(&operate_page, &operate, &mut machines)?;
    step("no ping was lost meanwhile", || machines[0].run(NO_LOSS, BLOCK))?;
    Ok(())
}

fn read(path: &Path) -> Result<Page> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    Page::parse(&text).with_context(|| format!("parse {}", path.display()))
}

fn run_page(path: &Path, page: &Page, machines: &mut [Machine]) -> Result<()> {
    for block in &page.blocks {
        let what = format!("{}:{} {}", path.display(), block.line, block.title());
        step(&what, || run_block(block, machines))?;
    }
    println!("{}: {} blocks run on {} machines", path.display(), page.blocks.len(), machines.len());
    Ok(())
}

fn run_block(block: &Block, machines: &mut [Machine]) -> Result<()> {
    let chosen = machines.iter_mut().filter(|machine| block.machines.runs_on(machine.name()));
    for machine in chosen {
        interrupt::check()?;
        machine.run(&block.text, BLOCK)?;
        if block.text.contains(UPGRADE) {
            machine.run(RESTARTED, BLOCK).context("the packages restart the daemons")?;
        }
    }
    Ok(())
}

/// The folder, if it has packages.
fn packages(folder: &Path) -> Result<PathBuf> {
    let folder = folder.canonicalize().with_context(|| format!("find {}", folder.display()))?;
    let is_package = |path: &Path| path.extension().is_some_and(|extension| extension == "deb");
    for entry in fs::read_dir(&folder)? {
        if is_package(&entry?.path()) {
            return Ok(folder);
        }
    }
    bail!("read {}: no .deb file; run `cargo xtask package`", folder.display())
}

/// The switch between the machines.
struct Lan {
    namespace: Netns,
}

impl Lan {
    fn new() -> Result<Lan> {
        let namespace = Netns::new("lan")?;
        namespace.ip("link add br0 type bridge")?;
        namespace.address("br0", &format!("{GATEWAY}/24"))?;
        namespace.up("br0")?;
        Ok(Lan { namespace })
    }

    fn machines(&self, page: &Page, files: &Files, verbose: bool) -> Result<Vec<Machine>> {
        page.machines.iter().map(|(name, address)| self.machine(name, *address, files, verbose)).collect()
    }

    fn machine(&self, name: &str, address: Ipv4Addr, files: &Files, verbose: bool) -> Result<Machine> {
        let namespace = Netns::new(name)?;
        self.namespace.veth(name, &namespace, "eth0")?;
        self.namespace.ip(&format!("link set {name} master br0"))?;
        self.namespace.up(name)?;
        namespace.address("eth0", &format!("{address}/24"))?;
        namespace.up("eth0")?;
        namespace.ip(&format!("route add default via {GATEWAY}"))?;
        Machine::start(name, namespace, files, verbose)
    }
}

/// Runs a stand-in if the program was started under its name; none for the lab itself.
pub fn stand_in() -> Option<ExitCode> {
    let mut arguments = env::args();
    let program = PathBuf::from(arguments.next()?);
    let arguments: Vec<String> = arguments.collect();
    let result = match program.file_name()?.to_str()? {
        "systemctl" => systemctl::run(&arguments),
        "journalctl" => systemctl::journal(&arguments),
        "scp" => scp::run(&arguments),
        "scpd" => scp::serve(),
        _ => return None,
    };
    Some(result.unwrap_or_else(|error| {
        eprintln!("{}: {error:#}", program.display());
        ExitCode::FAILURE
    }))
}
