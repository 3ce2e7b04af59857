//! The guest: its initial file system, which mounts the host's root, and its jobs.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use super::{Part, Share, kernel::Kernel};
use crate::{
    suite::programs::TestProgram,
    workspace::{Workspace, find_program, output},
};

/// Starts the guest's last line, followed by the exit status. Without this line the guest did not finish.
pub(super) const END: &str = "VM_EXIT=";

/// Needed to mount the host's root.
const ROOT_MODULES: &[&str] = &["virtio_pci", "virtio_rng", "9pnet_virtio", "9p", "overlay"];
/// The kernel would load these on demand; loaded at start so that no test waits for it.
const MODULES: &[&str] = &["veth", "vxlan", "bonding", "cls_bpf", "sch_ingress"];
/// Seconds. Before, ovs-vswitchd starts no handler threads and every upcall is lost.
const SWITCH_UPTIME: u32 = 11;
const SKIPS: &str = "/tmp/skips";
/// Fewer cases than on the host, and more time to wait: emulation is many times slower.
const SLOW: &str =
    "CONTIV_EQUIVALENCE_CASES=2000 CONTIV_FUZZ_CASES=8000 CONTIV_OVS_ENDPOINTS=200 CONTIV_TEST_PATIENCE=6";
/// Variables of the host that the guest has, too.
const INHERITED: [&str; 2] = ["CONTIV_BPF_TOOLCHAIN", "CONTIV_FAULTS_SEED"];

/// One run of a test program.
#[derive(Debug)]
pub(super) struct Job {
    program: TestProgram,
    arguments: Vec<String>,
    environment: &'static [(&'static str, &'static str)],
    /// Modules of the kernel that are loaded before.
    modules: &'static [&'static str],
    needs_switch: bool,
    /// Tests that run at a time.
    threads: u8,
}

pub(super) fn jobs(programs: &[TestProgram], shares: &[Share]) -> Vec<Job> {
    let job = |name: &str, prefix: &str, filter: &[String]| {
        let program = programs.iter().find(|program| program.target == name)?.clone();
        // libtest runs what has any of the words in its name.
        let mut arguments: Vec<_> = filter.iter().map(|filter| format!("{prefix}{filter}")).collect();
        if arguments.is_empty() && !prefix.is_empty() {
            arguments.push(prefix.to_owned());
        }
        Some(Job { program, arguments, environment: &[], modules: &[], needs_switch: false, threads: 2 })
    };
    let jobs = shares.iter().filter_map(|Share { part, filter }| match part {
        Part::Packets => job("packets", "", filter),
        Part::Conformance => job("conformance", "ebpf::", filter),
        Part::Ovs => job("ovs", "", filter).map(on_switch),
        Part::OvsConformance => job("conformance", "ovs::", filter).map(on_switch),
        Part::OvsAttacks => job("attacks", "ovs", filter).map(on_switch),
        Part::Changes => job("e2e", "replace_datapath::", filter).map(on_switch).map(alone),
        Part::Faults => job("e2e", "faults::", filter)
            .map(|job| Job { modules: &["bridge", "loop", "ext4"], ..job })
            .map(alone),
    });
    jobs.collect()
}

/// The job uses the kernel's switch.
fn on_switch(job: Job) -> Job {
    let modules = &["openvswitch", "vport-vxlan"];
    Job { environment: &[("CONTIV_TEST_OVS", "system")], modules, needs_switch: true, ..job }
}

/// Each test starts a cluster. Under emulation, two at a time exceed the time limits of requests, which are those of a real node.
fn alone(job: Job) -> Job {
    Job { threads: 1, ..job }
}

/// The jobs with these tests only. A program that has none of them runs none.
pub(super) fn exactly(jobs: &[Job], tests: &[String]) -> Vec<Job> {
    let arguments: Vec<_> = ["--exact".to_owned()].into_iter().chain(tests.iter().cloned()).collect();
    let only = |job: &Job| Job {
        program: job.program.clone(),
        arguments: arguments.clone(),
        environment: job.environment,
        modules: job.modules,
        needs_switch: job.needs_switch,
        threads: job.threads,
    };
    jobs.iter().map(only).collect()
}

/// The shell script that runs the jobs. Its status is 1 if a job failed.
pub(super) fn script(kernel: &Kernel, jobs: &[Job]) -> String {
    let mut text = format!(
        "status=0\nuname -a\nmount --bind {modules} /lib/modules/{release}\nfor module in {load}; do modprobe $module; done\n",
        modules = quote(&kernel.modules()),
        release = kernel.release(),
        load = MODULES.join(" "),
    );
    _ = writeln!(text, "export CONTIV_SKIP_LOG={SKIPS} CI=true RUST_BACKTRACE=1 {SLOW}");
    for name in INHERITED {
        if let Some(value) = std::env::var_os(name) {
            _ = writeln!(text, "export {name}={}", quote(Path::new(&value)));
        }
    }
    for job in jobs {
        for module in job.modules {
            _ = writeln!(text, "modprobe {module} || status=1");
        }
        if job.needs_switch {
            _ = writeln!(
                text,
                "while [ \"$(cut -d. -f1 /proc/uptime)\" -lt {SWITCH_UPTIME} ]; do sleep 0.5; done"
            );
        }
        let arguments: Vec<_> = job.arguments.iter().map(|word| quote(Path::new(word))).collect();
        let environment: String =
            job.environment.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        _ = writeln!(
            text,
            "echo '-- {name} {words}'\ncd {folder} && CARGO_MANIFEST_DIR=$PWD {environment}{file} --test-threads {threads} --nocapture {words} </dev/null || status=1",
            threads = job.threads,
            name = job.program.target,
            folder = quote(&job.program.folder),
            file = quote(&job.program.file),
            words = arguments.join(" "),
        );
    }
    _ = writeln!(text, "cat {SKIPS} 2>/dev/null\nexit $status");
    text
}

/// Quotes for a POSIX shell.
fn quote(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Runs from busybox before the host's root is mounted.
const INIT: &str = r#"#!/bin/busybox sh
busybox=/bin/busybox
$busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod $module || echo "$module did not load" >/dev/console; done
mount -t tmpfs -o mode=755 rw /rw
mkdir /rw/upper /rw/work
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /ro &&
mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work overlay /root || poweroff -f
mount --move /proc /root/proc
mount --move /dev /root/dev
mount -t tmpfs -o mode=755 run /root/run
cp /job /inside /kept-folders /root/run/
exec switch_root /root /bin/sh /run/inside
"#;

/// Runs with the host's root. Writes go to memory. Folders of this checkout below /tmp stay visible.
const INSIDE: &str = r#"export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C
mount -t sysfs sys /sys
while read -r folder; do mkdir -p /run/kept$folder && mount --bind $folder /run/kept$folder; done </run/kept-folders
mount -t tmpfs tmp /tmp
while read -r folder; do mkdir -p $folder && mount --bind /run/kept$folder $folder; done </run/kept-folders
mkdir -p /dev/pts /dev/shm /lib/modules/$(uname -r) /var/run
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup /sys/fs/cgroup
mount -t debugfs debug /sys/kernel/debug
mount -t tracefs trace /sys/kernel/tracing
ip link set lo up
ulimit -l unlimited
ulimit -n 65536
sh /run/job >/dev/ttyS1 2>&1 </dev/null
status=$?
sync
printf '\nVM_EXIT=%d\n' $status >/dev/ttyS1
sleep 0.3
echo o >/proc/sysrq-trigger
sleep 10
"#;

/// What the initial file system has besides the programs that start the guest.
#[derive(Debug)]
pub(super) struct Files {
    /// See [`script`].
    pub(super) script: String,
    /// See [`kept`].
    pub(super) kept: Vec<PathBuf>,
    /// More parameters of the kernel.
    pub(super) parameters: String,
}

/// Folders of this checkout that are below /tmp, which is empty in the guest otherwise.
pub(super) fn kept(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let target = workspace.metadata()?.target_directory.into_std_path_buf();
    let toolchain = std::env::var_os("CONTIV_BPF_TOOLCHAIN").map(PathBuf::from);
    let folders = [workspace.root().to_owned(), target].into_iter().chain(toolchain);
    Ok(folders.filter(|folder| folder.starts_with("/tmp") && folder.is_dir()).collect())
}

/// Packs the initial file system into `folder`.
pub(super) fn initial_file_system(kernel: &Kernel, folder: &Path, files: &Files) -> Result<PathBuf> {
    let tree = folder.join("initial");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    for directory in ["bin", "modules", "proc", "dev", "ro", "rw", "root"] {
        fs::create_dir_all(tree.join(directory))?;
    }
    let busybox = find_program("busybox").context("find busybox (Debian: busybox-static)")?;
    fs::copy(busybox, tree.join("bin/busybox"))?;
    for (number, file) in kernel.files_of(ROOT_MODULES)?.iter().enumerate() {
        insert_module(file, number, &tree.join("modules"))?;
    }
    fs::write(tree.join("init"), INIT)?;
    fs::write(tree.join("inside"), INSIDE)?;
    fs::write(tree.join("job"), &files.script)?;
    let kept: String = files.kept.iter().map(|folder| format!("{}\n", folder.display())).collect();
    fs::write(tree.join("kept-folders"), kept)?;
    output(Command::new("chmod").arg("0755").arg(tree.join("init")))?;
    pack(&tree, &folder.join("initial.cpio"))
}

/// Copies a module uncompressed: Debian compresses modules from 6.12 on, and busybox cannot load those.
fn insert_module(file: &Path, number: usize, folder: &Path) -> Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.split('.').next().unwrap_or_default();
    let target = folder.join(format!("{number:03}-{stem}.ko"));
    let program = match file.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => return Ok(fs::copy(file, target).map(drop)?),
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => bail!("{}: unknown compression of a module", file.display()),
    };
    let plain = fs::File::create(&target).with_context(|| format!("write {}", target.display()))?;
    let mut command = Command::new(program);
    let status =
        command.arg("-dc").arg(file).stdout(plain).status().with_context(|| format!("run {program}"))?;
    if !status.success() {
        bail!("{program} -dc {}: {status}", file.display());
    }
    Ok(())
}

fn pack(tree: &Path, archive: &Path) -> Result<PathBuf> {
    let names = output(Command::new("find").arg(".").current_dir(tree))?;
    let mut cpio = Command::new("cpio");
    cpio.args(["--create", "--format=newc", "--quiet"]).current_dir(tree);
    let target = fs::File::create(archive).with_context(|| format!("write {}", archive.display()))?;
    let mut child = cpio.stdin(Stdio::piped()).stdout(target).spawn().context("run cpio")?;
    if let Some(mut input) = child.stdin.take() {
        std::io::Write::write_all(&mut input, names.as_bytes())?;
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("cpio: {status}");
    }
    Ok(archive.to_owned())
}
