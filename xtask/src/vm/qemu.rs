//! One run of a virtual machine.

use std::{
    fmt, fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::{
    guest::{self, END, Files},
    kernel::Kernel,
};

const MEMORY_MB: u32 = 3072;
const CPUS: u32 = 2;
const NICE: &str = "5";
/// One thread emulates all CPUs of a guest in turn. With a thread for each, one CPU may run the old translation of code that
/// another one patches (`Oops: int3` in code with static keys, and in `bpf_dispatcher_xdp_func`); and guests on different
/// processors of the host are more than one guest on several. The clock of a guest is the host's: one that counts instructions
/// (`-icount`) hangs Linux 6.1 at its second CPU, and a guest with Linux 6.12 once returned from an interrupt with flags that were
/// part of a pointer.
const EMULATION: &str = "tcg,thread=single";
/// With five levels of page tables the kernel takes longer to start under emulation. With `erms` it clears each page byte by
/// byte, which was a third of its time: the maps of one test have 9,000 pages.
const CPU: &str = "max,la57=off,erms=off";
/// `no_timer_check`: at start the kernel waits for timer ticks and panics without them; an emulated processor that had
/// to wait for a real one may miss them. Debian's kernels clear all memory that they allocate, and check copies: a tenth of the
/// time of a test.
const COMMAND_LINE: &str = "console=ttyS0 loglevel=4 mitigations=off panic=-1 oops=panic random.trust_cpu=on no_timer_check \
     init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off audit=0";
/// Tells tests that no other program needs the clock of the machine; read by `testkit::is_guest`. The kernel ignores it.
const GUEST_MARK: &str = "contiv.guest";
/// Within this time a kernel says with KVM that it has started.
const PROBE: Duration = Duration::from_secs(10);
/// In the first line of a kernel's log.
const STARTED: &[u8] = b"Linux version";
/// Lines of the kernel's log in an error.
const TAIL: usize = 30;

/// Boots, calls `line` for each line of the jobs' output, and returns their exit status. A guest without output for
/// `silence` has hung.
pub(super) fn run(
    accelerator: Accelerator,
    kernel: &Kernel,
    folder: &Path,
    files: &Files,
    silence: Duration,
    mut line: impl FnMut(&str),
) -> Result<i32> {
    let console = folder.join("console.log");
    let initial = guest::initial_file_system(kernel, folder, files)?;
    let mut qemu = machine(accelerator, &console);
    qemu.args(["-serial", "stdio"]);
    qemu.args(["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]);
    qemu.args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host", "-device", "virtio-rng-pci"]);
    qemu.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(initial);
    qemu.args(["-append", &format!("{COMMAND_LINE} {GUEST_MARK} {}", files.parameters)]);
    let mut child =
        qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("run qemu-system-x86_64")?;
    let output = child.stdout.take().context("qemu has an output")?;
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        for bytes in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let text = String::from_utf8_lossy(&bytes).trim_end_matches('\r').to_owned();
            if sender.send(text).is_err() {
                return;
            }
        }
    });
    let mut status = None;
    let hung = loop {
        match lines.recv_timeout(silence) {
            Ok(text) => match text.strip_prefix(END) {
                Some(number) => status = number.trim().parse().ok(),
                None => line(&text),
            },
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    if hung {
        child.kill().context("end qemu")?;
    }
    child.wait().context("wait for qemu")?;
    // The reader ends with the pipe.
    if reader.join().is_err() {
        bail!("the reader of qemu's output panicked");
    }
    match status {
        _ if hung => bail!("no output for {} minutes; {}", silence.as_secs() / 60, console_tail(&console)),
        Some(status) => Ok(status),
        None => bail!("the guest ended without the result of the tests; {}", console_tail(&console)),
    }
}

/// How a guest's instructions are carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Accelerator {
    Kvm,
    /// Many times slower, and works everywhere.
    Emulation,
}

impl Accelerator {
    fn argument(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Emulation => EMULATION,
        }
    }

    /// Chooses KVM if this kernel starts with it. That /dev/kvm can be opened proves little in a nested virtual machine: there,
    /// setting up a processor may fail, or the processor stops at the first instructions, or it is slower than emulation.
    pub(super) fn choose(kernel: &Kernel, folder: &Path) -> Result<Accelerator> {
        if !Path::new("/dev/kvm").exists() {
            return Ok(Accelerator::Emulation);
        }
        let console = folder.join("probe.log");
        fs::write(&console, "").with_context(|| format!("write {}", console.display()))?;
        let mut probe = machine(Accelerator::Kvm, &console);
        probe
            .arg("-kernel")
            .arg(kernel.image())
            .args(["-append", "console=ttyS0 earlyprintk=ttyS0 panic=-1"]);
        let mut child = probe
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("run qemu-system-x86_64")?;
        let started = has_started(&mut child, &console);
        // It may have ended already, because it has no root file system.
        drop(child.kill());
        child.wait().context("wait for qemu")?;
        Ok(if started? { Accelerator::Kvm } else { Accelerator::Emulation })
    }
}

/// Waits until the kernel of a probe writes to its console; `false` if it ends before, or takes too long.
fn has_started(child: &mut Child, console: &Path) -> Result<bool> {
    let end = Instant::now() + PROBE;
    loop {
        let text = fs::read(console).with_context(|| format!("read {}", console.display()))?;
        if text.windows(STARTED.len()).any(|text| text == STARTED) {
            return Ok(true);
        }
        if child.try_wait().context("wait for qemu")?.is_some() || Instant::now() > end {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accelerator::Kvm => "KVM",
            Accelerator::Emulation => "emulated",
        })
    }
}

/// A virtual machine without a kernel.
fn machine(accelerator: Accelerator, console: &Path) -> Command {
    // Tests here, which mostly wait, go first.
    let mut qemu = Command::new("nice");
    qemu.args(["-n", NICE, "qemu-system-x86_64"]);
    qemu.args(["-accel", accelerator.argument(), "-cpu", CPU]);
    qemu.args(["-M", "q35", "-nodefaults", "-display", "none", "-no-reboot"]);
    qemu.args(["-smp", &CPUS.to_string(), "-m", &MEMORY_MB.to_string()]);
    qemu.args(["-serial", &format!("file:{}", console.display())]);
    qemu
}

fn console_tail(console: &Path) -> String {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<_> = text.lines().collect();
    format!(
        "last lines of the kernel's log {}:\n{}",
        console.display(),
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    )
}
