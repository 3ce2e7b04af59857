//! Attachment of XDP programs, and occupied hooks.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use contiv_abi::ABI_VERSION;
use netplugin::datapath::ebpf::{AttachMode, Ebpf};
use testkit::wait_until;

use super::*;
use crate::{
    node::Node,
    restart::{age, chain},
};

/// Preferences and their names in the debug dump and in `ip link`.
const PLACES: [(XdpPreference, &str, &str); 2] =
    [(XdpPreference::Generic, "generic", "xdpgeneric"), (XdpPreference::Native, "native", "xdp")];

fn mode(node: &Node) -> String {
    node.datapath.inspect()["xdp"]["mode"].as_str().unwrap().to_owned()
}

/// Mode of the program on the uplink as `ip link` prints it, and its id.
fn running(node: &Node) -> Result<Option<(String, u32)>> {
    let shown = node.ns.ip("-d -o link show trunk")?;
    let words: Vec<_> = shown.split_whitespace().collect();
    let Some(at) = words.windows(2).position(|pair| pair == ["prog/xdp", "id"]) else { return Ok(None) };
    let place = words.iter().find(|word| ["xdp", "xdpgeneric"].contains(word)).context("xdp, but where?")?;
    Ok(Some(((*place).to_owned(), words[at + 2].parse()?)))
}

/// Id of the pinned program.
fn ours(node: &Node) -> Result<u32> {
    Ok(Xdp::from_pin(node.pin(XDP), XdpAttachType::Interface)?.info()?.id())
}

fn assert_ours_runs(node: &Node, place: &str) -> Result<()> {
    assert_eq!(running(node)?, Some((place.to_owned(), ours(node)?)));
    Ok(())
}

/// A rig with XDP in the preferred mode.
fn rig(label: &str, preference: XdpPreference) -> Result<Rig> {
    let mut rig = Rig::v4(label, &[HERE, THERE])?;
    rig.node.options.xdp = preference;
    rig.node.restart();
    rig.node.converge()?;
    Ok(rig)
}

#[test]
fn xdp_is_attached_in_the_preferred_mode_and_stays_attached() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-modes", &[HERE, THERE])?;
    // Generic on a veth pair: its peer may not deliver frames that native XDP transmits.
    assert_eq!(mode(&rig.node), "generic");
    for (preference, name, shown) in [
        (XdpPreference::Generic, "generic", Some("xdpgeneric")),
        (XdpPreference::Native, "native", Some("xdp")),
        (XdpPreference::Auto, "generic", Some("xdpgeneric")),
        (XdpPreference::Off, "off", None),
        (XdpPreference::Native, "native", Some("xdp")),
    ] {
        rig.node.options.xdp = preference;
        rig.node.restart();
        rig.node.converge()?;
        let expected = shown.map(|place| (place.to_owned(), ours(&rig.node).unwrap()));
        // The kernel detaches a program some time after its link was removed.
        let there = wait_until(TIMEOUT, "the program in its place", || {
            let there = running(&rig.node)?;
            Ok((there == expected).then_some(there))
        })?;
        // A restart writes nothing, and the program stays attached.
        rig.node.restart();
        let observed = rig.node.observe()?;
        assert_eq!((rig.node.datapath.writes(), observed.orphans), (0, 0));
        assert_eq!(running(&rig.node)?, there);
        assert_eq!(mode(&rig.node), name);
        assert!(rig.node.datapath.stats().hooks.contains(&("xdp", name.to_owned())));
    }
    rig.node.cleanup()?;
    wait_until(TIMEOUT, "the program is off the uplink", || Ok(running(&rig.node)?.is_none().then_some(())))
}

#[test]
fn the_attach_mode_is_reported() -> Result<()> {
    needs!(root());
    for mode in [AttachMode::Auto, AttachMode::Clsact] {
        let mut rig = Rig::v4("out-mode", &[HERE, THERE])?;
        rig.node.cleanup()?;
        rig.node.options.attach_mode = mode;
        rig.node.restart();
        rig.node.converge()?;
        let reported = rig.node.datapath.inspect()["attachment"].as_str().unwrap().to_owned();
        assert!(rig.node.datapath.stats().hooks.contains(&("tc", reported.clone())));
        assert!(mode == AttachMode::Auto || reported == "clsact", "{reported}");
        let pinned =
            links(&rig.node).join(format!("pod-{}", rig.node.ifindex(&rig.pod.local.port)?)).exists();
        let filters = rig.node.ns.output("tc", &["filter", "show", "dev", &rig.pod.local.port, "ingress"])?;
        assert_eq!(
            (pinned, filters.contains(FROM_POD)),
            (reported == "tcx", reported == "clsact"),
            "{reported}: {filters}"
        );
    }
    Ok(())
}

/// A foreign program stays attached.
#[test]
fn an_occupied_xdp_hook_is_reported() -> Result<()> {
    needs!(root());
    let mut rig = rig("out-taken", XdpPreference::Off)?;
    let other = Rig::v4("out-other", &[HERE, THERE])?;
    let mut program = Xdp::from_pin(other.node.pin(XDP), XdpAttachType::Interface)?;
    let theirs = program.info()?.id();
    rig.node.ns.run(|| Ok(program.attach("trunk", XdpMode::Skb)?))?;
    rig.node.options.xdp = XdpPreference::Auto;
    rig.node.restart();
    rig.node.converge()?;
    let reported = rig.node.datapath.inspect()["xdp"].clone();
    assert_eq!((&reported["wanted"], &reported["mode"]), (&"auto".into(), &"off".into()));
    assert!(reported["why"].as_str().unwrap().contains("busy"), "{reported}");
    rig.node.options.xdp = XdpPreference::Native;
    rig.node.restart();
    let said = chain(&*rig.node.observe().unwrap_err());
    assert!(said.contains("attach ctv_xdp to trunk as XDP (see --xdp)"), "{said}");
    assert_eq!(running(&rig.node)?, Some(("xdpgeneric".to_owned(), theirs)));
    Ok(())
}

fn links(node: &Node) -> PathBuf {
    node.bpf_root().join(format!("v{ABI_VERSION}/node/links"))
}

/// A stream of frames from an external client, all for a remote backend.
struct Stream {
    /// Frames forwarded earlier by TC and by XDP.
    before: (u64, u64),
    done: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Stream {
    fn start(rig: &Rig) -> Result<Stream> {
        let port = rig.port_to(THERE)?;
        let eth = Packet::eth(VIP.mac(), CLIENT.mac()).vlan(TAG);
        let frame = eth.ipv4(CLIENT.ip(), VIP.ip()).tcp(port, 80, ACK).payload(b"x").build();
        let wire = Tap::open(&rig.outside, "wire")?;
        let before = sent_on(&rig.node.datapath)?;
        let (done, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let thread = {
            let (done, sent) = (Arc::clone(&done), Arc::clone(&sent));
            thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    wire.send(&frame)?;
                    sent.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_micros(500));
                }
                Ok(())
            })
        };
        Ok(Stream { before, done, sent, thread })
    }

    fn wait(&self, more: u64) -> Result<()> {
        let sent = || self.sent.load(Ordering::Relaxed);
        let goal = sent() + more;
        wait_until(TIMEOUT, "frames", || Ok((sent() >= goal).then_some(())))
    }

    /// Number of frames.
    fn finish(self) -> Result<u64> {
        self.done.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        Ok(self.sent.load(Ordering::Relaxed))
    }
}

/// Frames forwarded by TC and by XDP.
pub(super) fn sent_on(datapath: &Ebpf) -> Result<(u64, u64)> {
    let counts = datapath.dsr_forwarded()?;
    let of = |name| counts.iter().find(|(by, _)| *by == name).map_or(0, |(_, count)| count.packets);
    Ok((of("tc"), of("xdp")))
}

#[test]
fn another_abi_version_takes_over_the_link_without_a_gap() -> Result<()> {
    needs!(root());
    for (preference, name, shown) in PLACES {
        let mut rig = rig("out-over", preference)?;
        for _ in 0..2 {
            let stream = Stream::start(&rig)?;
            let before = stream.before;
            stream.wait(20)?;
            drop(age(&mut rig.node, &[])?);
            let theirs = running(&rig.node)?;
            // Until the new maps are filled, the older program processes the frames.
            rig.node.observe()?;
            assert_eq!(running(&rig.node)?, theirs);
            assert_eq!(mode(&rig.node), name);
            stream.wait(20)?;
            rig.node.converge()?;
            assert_ours_runs(&rig.node, shown)?;
            assert_eq!(mode(&rig.node), name);
            stream.wait(20)?;
            let sent = stream.finish()?;
            let counted = || -> Result<(u64, u64)> {
                let now = sent_on(&rig.node.datapath)?;
                Ok((now.0 - before.0, now.1 - before.1))
            };
            // The counters continue. Those of a frame that is counted while they are added may be lost.
            let all = || Ok((counted()?.1 + 2 >= sent).then_some(()));
            wait_until(TIMEOUT, "counts", all)?;
            assert!(counted()?.0 == 0 && counted()?.1 <= sent, "{:?} of {sent}", counted()?);
            rig.node.restart();
            rig.node.observe()?;
            assert_eq!(rig.node.datapath.writes(), 0);
        }
    }
    Ok(())
}

#[test]
fn another_abi_version_may_prefer_another_mode() -> Result<()> {
    needs!(root());
    for (was, preference, shown) in [
        (XdpPreference::Native, XdpPreference::Generic, Some("xdpgeneric")),
        (XdpPreference::Generic, XdpPreference::Native, Some("xdp")),
        (XdpPreference::Native, XdpPreference::Off, None),
        (XdpPreference::Off, XdpPreference::Native, Some("xdp")),
    ] {
        let mut rig = rig("out-move", was)?;
        rig.node.options.xdp = preference;
        age(&mut rig.node, &[])?;
        rig.node.converge()?;
        match shown {
            Some(place) => assert_ours_runs(&rig.node, place)?,
            None => wait_until(TIMEOUT, "no program", || Ok(running(&rig.node)?.is_none().then_some(())))?,
        }
    }
    Ok(())
}

/// State after a process died while another build took over: the links have new programs, which are not pinned yet.
#[test]
fn a_link_of_an_interrupted_takeover_is_adopted() -> Result<()> {
    needs!(root());
    for (preference, name, shown) in PLACES {
        let mut rig = rig("out-half", preference)?;
        let link = fs::metadata(links(&rig.node).join(format!("xdp-{}", rig.node.ifindex("trunk")?)))?.ino();
        for pin in [XDP, FROM_UPLINK] {
            fs::remove_file(rig.node.pin(pin))?;
        }
        rig.node.restart();
        rig.node.converge()?;
        assert_ours_runs(&rig.node, shown)?;
        assert_eq!(mode(&rig.node), name);
        let still = fs::metadata(links(&rig.node).join(format!("xdp-{}", rig.node.ifindex("trunk")?)))?.ino();
        assert_eq!(still, link, "replaced in place");
        rig.port_to(THERE)?;
    }
    Ok(())
}

/// Pins of an uplink that was recreated while no agent ran, with the same index and with another one.
#[test]
fn links_of_a_deleted_uplink_are_replaced() -> Result<()> {
    needs!(root());
    for (preference, _, shown) in PLACES {
        let mut rig = rig("out-anew", preference)?;
        for aged in [false, true] {
            let index = rig.node.ifindex("trunk")?;
            for index in [index, index + 100] {
                if aged {
                    age(&mut rig.node, &[])?;
                }
                rig.node.ns.ip("link del trunk")?;
                rig.node.ns.ip(&format!(
                    "link add trunk index {index} type veth peer name wire netns {}",
                    rig.outside.name()
                ))?;
                rig.node.ns.up("trunk")?;
                rig.outside.up("wire")?;
                rig.node.restart();
                rig.node.converge()?;
                // Pins of an older ABI version do not prevent the attachment.
                assert_ours_runs(&rig.node, shown)?;
                let pinned: Vec<_> = fs::read_dir(links(&rig.node))?
                    .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                    .filter(|name| name.starts_with("xdp-"))
                    .collect();
                assert_eq!(pinned, [format!("xdp-{index}")]);
            }
        }
    }
    Ok(())
}
