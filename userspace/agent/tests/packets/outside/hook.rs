//! Where XDP runs, and who has the place.

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

use aya::maps::{Map, MapData, PerCpuArray};
use contiv_abi::{ABI_VERSION, DropCount, DsrHook, maps};
use netplugin::datapath::ebpf::{Attachment, Ebpf};
use testkit::wait_until;

use super::*;
use crate::{
    node::Node,
    restart::{age, chain},
};

/// How `ip link` calls a place of ours.
const PLACES: [(XdpWish, &str, &str); 2] =
    [(XdpWish::Generic, "generic", "xdpgeneric"), (XdpWish::Native, "native", "xdp")];

fn mode(node: &Node) -> String {
    node.datapath.inspect()["xdp"]["mode"].as_str().unwrap().to_owned()
}

/// Where a program runs on the uplink, in the words of `ip link`, and its number.
fn running(node: &Node) -> Result<Option<(String, u32)>> {
    let shown = node.ns.ip("-d -o link show trunk")?;
    let words: Vec<_> = shown.split_whitespace().collect();
    let Some(at) = words.windows(2).position(|pair| pair == ["prog/xdp", "id"]) else { return Ok(None) };
    let place = words.iter().find(|word| ["xdp", "xdpgeneric"].contains(word)).context("xdp, but where?")?;
    Ok(Some(((*place).to_owned(), words[at + 2].parse()?)))
}

/// The number of the program that is pinned.
fn ours(node: &Node) -> Result<u32> {
    Ok(Xdp::from_pin(node.pin(XDP), XdpAttachType::Interface)?.info()?.id())
}

fn assert_ours_runs(node: &Node, place: &str) -> Result<()> {
    assert_eq!(running(node)?, Some((place.to_owned(), ours(node)?)));
    Ok(())
}

/// A rig whose program is where it is wanted.
fn rig(label: &str, wish: XdpWish) -> Result<Rig> {
    let mut rig = Rig::v4(label, &[HERE, THERE])?;
    rig.node.options.xdp = wish;
    rig.node.restart();
    rig.node.converge()?;
    Ok(rig)
}

#[test]
fn xdp_is_where_it_is_wanted_and_stays_there() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-modes", &[HERE, THERE])?;
    // On a veth pair, whose other end may not take what the driver's program sends.
    assert_eq!(mode(&rig.node), "generic");
    for (wish, name, shown) in [
        (XdpWish::Generic, "generic", Some("xdpgeneric")),
        (XdpWish::Native, "native", Some("xdp")),
        (XdpWish::Auto, "generic", Some("xdpgeneric")),
        (XdpWish::Off, "off", None),
        (XdpWish::Native, "native", Some("xdp")),
    ] {
        rig.node.options.xdp = wish;
        rig.node.restart();
        rig.node.converge()?;
        let there = running(&rig.node)?;
        assert_eq!(there, shown.map(|place| (place.to_owned(), ours(&rig.node).unwrap())));
        // Found again, nothing is touched; the program is there all the while.
        rig.node.restart();
        let observed = rig.node.observe()?;
        assert_eq!((rig.node.datapath.writes(), observed.orphans), (0, 0));
        assert_eq!(running(&rig.node)?, there);
        assert_eq!(mode(&rig.node), name);
        assert!(rig.node.datapath.stats().hooks.contains(&("xdp", name.to_owned())));
    }
    rig.node.cleanup()?;
    wait_until(SOON, "the program is off the uplink", || Ok(running(&rig.node)?.is_none().then_some(())))
}

#[test]
fn how_programs_are_attached_is_told() -> Result<()> {
    needs!(root());
    for attachment in [Attachment::Auto, Attachment::Clsact] {
        let mut rig = Rig::v4("out-told", &[HERE, THERE])?;
        rig.node.cleanup()?;
        rig.node.options.attachment = attachment;
        rig.node.restart();
        rig.node.converge()?;
        let told = rig.node.datapath.inspect()["attachment"].as_str().unwrap().to_owned();
        assert!(rig.node.datapath.stats().hooks.contains(&("tc", told.clone())));
        assert!(attachment == Attachment::Auto || told == "clsact", "{told}");
        let pinned =
            links(&rig.node).join(format!("pod-{}", rig.node.ifindex(&rig.pod.local.port)?)).exists();
        let filters = rig.node.ns.output("tc", &["filter", "show", "dev", &rig.pod.local.port, "ingress"])?;
        assert_eq!(
            (pinned, filters.contains(FROM_POD)),
            (told == "tcx", told == "clsact"),
            "{told}: {filters}"
        );
    }
    Ok(())
}

/// What another has put there stays.
#[test]
fn a_place_that_is_taken_is_told() -> Result<()> {
    needs!(root());
    let mut rig = rig("out-taken", XdpWish::Off)?;
    let other = Rig::v4("out-other", &[HERE, THERE])?;
    let mut program = Xdp::from_pin(other.node.pin(XDP), XdpAttachType::Interface)?;
    let theirs = program.info()?.id();
    rig.node.ns.run(|| Ok(program.attach("trunk", XdpMode::Skb)?))?;
    rig.node.options.xdp = XdpWish::Auto;
    rig.node.restart();
    rig.node.converge()?;
    let told = rig.node.datapath.inspect()["xdp"].clone();
    assert_eq!((&told["wanted"], &told["mode"]), (&"auto".into(), &"off".into()));
    assert!(told["why"].as_str().unwrap().contains("busy"), "{told}");
    rig.node.options.xdp = XdpWish::Native;
    rig.node.restart();
    let said = chain(&*rig.node.observe().unwrap_err());
    assert!(said.contains("attach ctv_xdp to trunk as XDP (see --xdp)"), "{said}");
    assert_eq!(running(&rig.node)?, Some(("xdpgeneric".to_owned(), theirs)));
    Ok(())
}

fn links(node: &Node) -> PathBuf {
    node.bpf_root().join(format!("v{ABI_VERSION}/node/links"))
}

/// Frames of the service's client, one after the other, that are all for a backend elsewhere.
struct Stream {
    /// What was sent on before, by TC and by XDP.
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
        wait_until(SOON, "frames", || Ok((sent() >= goal).then_some(())))
    }

    /// How many there were.
    fn finish(self) -> Result<u64> {
        self.done.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        Ok(self.sent.load(Ordering::Relaxed))
    }
}

/// Frames that were sent on, by TC and by XDP.
pub(super) fn sent_on(datapath: &Ebpf) -> Result<(u64, u64)> {
    let counts = datapath.relayed()?;
    let of = |name| counts.iter().find(|(by, _)| *by == name).map_or(0, |(_, count)| count.packets);
    Ok((of("tc"), of("xdp")))
}

/// The same of maps that no datapath has open any more.
struct SentOn(PerCpuArray<MapData, DropCount>);

impl SentOn {
    fn open(node: &Node) -> Result<SentOn> {
        let map = MapData::from_pin(node.datapath.maps_directory().join(maps::DSR_STATS))?;
        Ok(SentOn(PerCpuArray::try_from(Map::PerCpuArray(map))?))
    }

    fn counts(&self) -> Result<(u64, u64)> {
        let packets = |by: DsrHook| -> Result<u64> {
            Ok(self.0.get(&(by as u32), 0)?.iter().map(|count| count.packets).sum())
        };
        Ok((packets(DsrHook::Tc)?, packets(DsrHook::Xdp)?))
    }
}

#[test]
fn another_layout_takes_the_place_over_and_no_frame_goes_by() -> Result<()> {
    needs!(root());
    for (wish, name, shown) in PLACES {
        let mut rig = rig("out-over", wish)?;
        for _ in 0..2 {
            let stream = Stream::start(&rig)?;
            let before = stream.before;
            stream.wait(20)?;
            let then = SentOn::open(&rig.node)?;
            drop(age(&mut rig.node, &[])?);
            let theirs = running(&rig.node)?;
            // As long as our maps are not filled, the older one goes on.
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
                let (then, now) = (then.counts()?, sent_on(&rig.node.datapath)?);
                Ok((then.0 - before.0 + now.0, then.1 - before.1 + now.1))
            };
            drop(wait_until(SOON, "counts", || Ok((counted()?.1 >= sent).then_some(()))));
            assert_eq!(counted()?, (0, sent));
            rig.node.restart();
            rig.node.observe()?;
            assert_eq!(rig.node.datapath.writes(), 0);
        }
    }
    Ok(())
}

#[test]
fn another_layout_may_be_wanted_in_another_place() -> Result<()> {
    needs!(root());
    for (was, wish, shown) in [
        (XdpWish::Native, XdpWish::Generic, Some("xdpgeneric")),
        (XdpWish::Generic, XdpWish::Native, Some("xdp")),
        (XdpWish::Native, XdpWish::Off, None),
        (XdpWish::Off, XdpWish::Native, Some("xdp")),
    ] {
        let mut rig = rig("out-move", was)?;
        rig.node.options.xdp = wish;
        age(&mut rig.node, &[])?;
        rig.node.converge()?;
        match shown {
            Some(place) => assert_ours_runs(&rig.node, place)?,
            None => wait_until(SOON, "no program", || Ok(running(&rig.node)?.is_none().then_some(())))?,
        }
    }
    Ok(())
}

/// Killed while another build took over, the links' programs replaced and theirs not pinned yet.
#[test]
fn a_link_of_a_run_that_died_while_it_took_over_is_found() -> Result<()> {
    needs!(root());
    for (wish, name, shown) in PLACES {
        let mut rig = rig("out-half", wish)?;
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

/// The pins of an uplink that was made anew while no agent ran, under the same number and under another one.
#[test]
fn links_of_an_uplink_that_has_gone_are_made_anew() -> Result<()> {
    needs!(root());
    for (wish, _, shown) in PLACES {
        let mut rig = rig("out-anew", wish)?;
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
                // What an older layout has left keeps nobody from the place.
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
