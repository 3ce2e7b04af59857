//! One run of a virtual machine.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use super::{
    guest::{self, END},
    kernel::Kernel,
};

const MEMORY_MB: u32 = 3072;
const CPUS: u32 = 2;
/// With five levels of page tables the kernel takes longer to start under emulation.
const CPU: &str = "max,la57=off";
/// `no_timer_check`: at the start the kernel waits for a few ticks of the timer, counted by its own clock, and panics
/// without them; an emulated processor that had to wait for a real one has missed them.
const COMMAND_LINE: &str =
    "console=ttyS0 loglevel=4 mitigations=off panic=-1 oops=panic random.trust_cpu=on no_timer_check";
/// Lines of the kernel's log that an error shows.
const TAIL: usize = 30;

/// Boots, hands each line of the jobs' output to `line`, and returns their exit status. A guest that says nothing for
/// `silence` has hung.
pub(super) fn run(
    kernel: &Kernel,
    folder: &Path,
    script: &str,
    silence: Duration,
    mut line: impl FnMut(&str),
) -> Result<i32> {
    let console = folder.join("console.log");
    let initial = guest::initial_file_system(kernel, folder, script)?;
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", if kvm_works()? { "kvm" } else { "tcg,thread=multi" }, "-cpu", CPU]);
    qemu.args(["-M", "q35", "-nodefaults", "-display", "none", "-no-reboot"]);
    qemu.args(["-smp", &CPUS.to_string(), "-m", &MEMORY_MB.to_string()]);
    qemu.args(["-serial", &format!("file:{}", console.display()), "-serial", "stdio"]);
    qemu.args(["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]);
    qemu.args(["-device", "virtio-9p-pci,fsdev=host,mount_tag=host", "-device", "virtio-rng-pci"]);
    qemu.arg("-kernel").arg(kernel.image()).arg("-initrd").arg(initial);
    qemu.args(["-append", COMMAND_LINE]);
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
    // It has ended with the pipe that it reads.
    if reader.join().is_err() {
        bail!("the reader of qemu's output panicked");
    }
    match status {
        _ if hung => bail!("not a word for {} minutes; {}", silence.as_secs() / 60, last_words(&console)),
        Some(status) => Ok(status),
        None => bail!("the guest ended without a word about the tests; {}", last_words(&console)),
    }
}

/// A device that can be opened proves nothing: inside some virtual machines setting up a processor fails.
fn kvm_works() -> Result<bool> {
    if !Path::new("/dev/kvm").exists() {
        return Ok(false);
    }
    let mut probe = Command::new("qemu-system-x86_64");
    probe.args(["-accel", "kvm", "-cpu", CPU, "-M", "q35", "-nodefaults", "-display", "none", "-S"]);
    probe.args(["-monitor", "stdio"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = probe.spawn().context("run qemu-system-x86_64")?;
    if let Some(mut monitor) = child.stdin.take() {
        // It may have ended before it could be asked to.
        drop(monitor.write_all(b"quit\n"));
    }
    Ok(child.wait()?.success())
}

fn last_words(console: &Path) -> String {
    let text = fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<_> = text.lines().collect();
    format!(
        "the kernel's last lines (all in {}):\n{}",
        console.display(),
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    )
}
