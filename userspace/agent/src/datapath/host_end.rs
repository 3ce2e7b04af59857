//! The host ends of endpoints' veth pairs.
//!
//! A host end that belongs to no endpoint of the datapath must be down. Otherwise packets that its pod still sends would
//! enter the network stack of the node and bypass all checks and rules.

use std::{
    io,
    time::{Duration, Instant},
};

use crate::netdevice::Requests;

const UP: libc::c_short = libc::IFF_UP as libc::c_short;
/// The interface is up, and the kernel has noticed that the other end is up, too.
const RUNNING: libc::c_short = libc::IFF_RUNNING as libc::c_short;
/// Time limit for the kernel to notice that the other end is up, if it is.
const RUNNING_TIMEOUT: Duration = Duration::from_secs(1);
const RUNNING_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Prefix of the names of host ends.
const PREFIX: &str = "vvport";

/// The name of a host end by its index, in the network namespace of the calling thread; `None` for another interface.
pub(crate) fn by_index(ifindex: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(ifindex).ok()?.into_string().ok()?;
    name.starts_with(PREFIX).then_some(name)
}

/// Whether the interface exists and is down, in the network namespace of the calling thread.
pub(crate) fn is_down(name: &str) -> bool {
    Requests::new(name).and_then(|mut requests| requests.flags()).is_ok_and(|flags| flags & UP == 0)
}

/// Sets the interface down; true if it was up. Succeeds if it does not exist.
pub(crate) fn set_down(name: &str) -> io::Result<bool> {
    change(name, |flags| flags & !UP)
}

/// Sets the interface up, and waits until it forwards frames if its other end is up. Returns true if it was down.
/// Succeeds if it does not exist.
pub(crate) async fn set_up(name: &str) -> io::Result<bool> {
    if !change(name, |flags| flags | UP)? {
        return Ok(false);
    }
    let deadline = Instant::now() + RUNNING_TIMEOUT;
    // CNI ADD sets the other end up last.
    while has_link(name) && !is_running(name) && Instant::now() < deadline {
        tokio::time::sleep(RUNNING_POLL_INTERVAL).await;
    }
    Ok(true)
}

fn has_link(name: &str) -> bool {
    Requests::new(name).and_then(|mut requests| requests.has_link()).unwrap_or_default()
}

fn is_running(name: &str) -> bool {
    Requests::new(name).and_then(|mut requests| requests.flags()).is_ok_and(|flags| flags & RUNNING != 0)
}

/// Changes the flags of an interface if they differ. Returns true if they did.
fn change(name: &str, flags: impl FnOnce(libc::c_short) -> libc::c_short) -> io::Result<bool> {
    let changed = || -> io::Result<bool> {
        let mut requests = Requests::new(name)?;
        let before = requests.flags()?;
        let after = flags(before);
        if before != after {
            requests.set_flags(after)?;
        }
        Ok(before != after)
    };
    match changed() {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        changed => changed,
    }
}

#[cfg(test)]
mod tests {
    use testkit::{Netns, needs};

    use super::*;

    #[test]
    fn a_host_end_is_set_up_at_once_while_its_other_end_is_down() {
        needs!(root());
        let (node, pod) = (Netns::new("host-end").unwrap(), Netns::new("host-end-pod").unwrap());
        node.veth("vvport1", &pod, "eth0").unwrap();
        let set_up = || {
            node.run(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let start = Instant::now();
                let changed = runtime.block_on(set_up("vvport1"))?;
                Ok((changed, start.elapsed(), is_running("vvport1")))
            })
            .unwrap()
        };
        let (changed, took, is_running) = set_up();
        assert!(changed && took < RUNNING_TIMEOUT && !is_running, "{took:?}");
        assert!(!set_up().0, "it is up already");
        node.run(|| Ok(set_down("vvport1")?)).unwrap();
        pod.up("eth0").unwrap();
        let (changed, _, is_running) = set_up();
        assert!(changed && is_running);
    }
}
