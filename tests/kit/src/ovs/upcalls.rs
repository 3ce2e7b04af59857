//! What ovs-vswitchd does with packets that the kernel's datapath has no flow for (upcalls), as `/proc` shows it (proc(5)).

use std::{fs, path::Path};

use anyhow::{Context as _, Result};

/// Protocol of generic netlink, by which upcalls come.
const GENERIC_NETLINK: &str = "16";
/// System calls of a handler that waits for upcalls: `poll`, `epoll_wait`, `ppoll` and `epoll_pwait` of x86-64.
const WAITING: [&str; 4] = ["7", "232", "271", "281"];

/// A thread that handles upcalls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Handler {
    thread: String,
    system_call: String,
    /// How often it has waited.
    waits: String,
}

impl Handler {
    /// Whether it waits for an upcall.
    pub(super) fn waits(&self) -> bool {
        WAITING.contains(&self.system_call.as_str())
    }
}

/// The handlers of the process with this folder of `/proc`.
pub(super) fn handlers(process: &Path) -> Result<Vec<Handler>> {
    let tasks = process.join("task");
    let mut handlers = vec![];
    for task in fs::read_dir(&tasks).with_context(|| format!("read {}", tasks.display()))? {
        let task = task?.path();
        let read = |file: &str| {
            let path = task.join(file);
            fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
        };
        let thread = read("comm")?;
        if !thread.starts_with("handler") {
            continue;
        }
        let system_call = read("syscall")?.split_whitespace().next().unwrap_or_default().to_owned();
        let status = read("status")?;
        let waits = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
        handlers.push(Handler { thread, system_call, waits: waits.unwrap_or_default().to_owned() });
    }
    Ok(handlers)
}

/// Whether a socket of generic netlink in the namespace of the process has messages.
pub(super) fn are_queued(process: &Path) -> Result<bool> {
    let path = process.join("net/netlink");
    let sockets = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    // sk, protocol, port, groups, bytes to be received, ...
    let has_messages = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1) == Some(&GENERIC_NETLINK) && fields.get(4).is_some_and(|bytes| *bytes != "0")
    };
    Ok(sockets.lines().any(has_messages))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It has no handlers, and no messages wait for it.
    #[test]
    fn own_process_has_no_upcalls() {
        let process = Path::new("/proc/self");
        assert_eq!(handlers(process).unwrap(), []);
        assert!(!are_queued(process).unwrap());
    }
}
