//! Traffic of programs instead of single frames.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use contiv_model::{mac::Mac, tag::Encap};
use netplugin::datapath::Desired;
use testkit::{Netns, Pinger, patience, wait_until};

use crate::{
    harness::Programs,
    topology::{NODE, Net, VTEPS, VXLAN_PORT, ip, ip6, mac, peers},
    world::World,
};

const SOON: Duration = Duration::from_secs(10);
const QUICKLY: Duration = Duration::from_millis(5);
const PORT: u16 = 7000;
/// Bytes per direction: more than all buffers on the path.
const LENGTH: usize = 8 << 20;

fn addresses(last: u8) -> [IpAddr; 2] {
    [ip(last).into(), ip6(last).into()]
}

/// Runs without a packet count: after the last request, `ping` waits only twice the longest round-trip time.
fn pings(from: &Netns, last: u8) -> Result<()> {
    for address in addresses(last) {
        let pinger = Pinger::start(from, address, QUICKLY)?;
        let answers = || Ok((pinger.answers() >= 5).then_some(()));
        wait_until(SOON, &format!("five answers from {address}"), answers)?;
        let ping = pinger.finish(SOON)?;
        ensure!(ping.lost() == 0, "{address}: {ping:?}");
    }
    Ok(())
}

/// Transfers data in both directions at once and checks all bytes.
fn talks(client: &Netns, server: &Netns, last: u8) -> Result<()> {
    for address in addresses(last) {
        let address = SocketAddr::new(address, PORT);
        let listener = server.run(|| Ok(TcpListener::bind(address)?))?;
        let echoed = thread::scope(|scope| {
            let echo = scope.spawn(|| -> Result<()> {
                let (mut stream, _) = listener.accept()?;
                let mut back = stream.try_clone()?;
                stream.set_read_timeout(Some(SOON * patience()))?;
                std::io::copy(&mut stream, &mut back)?;
                Ok(back.shutdown(std::net::Shutdown::Write)?)
            });
            let stream = client.run(|| Ok(TcpStream::connect_timeout(&address, SOON * patience())?));
            let exchanged = stream.and_then(exchange);
            if exchanged.is_err() {
                // The peer can be waiting for the connection.
                drop(server.run(|| Ok(TcpStream::connect(address)?)));
            }
            let echo = echo.join().map_err(|_| anyhow::anyhow!("the echo panicked"));
            exchanged.and_then(|sent_and_back| echo?.map(|()| sent_and_back))
        });
        ensure!(
            echoed.with_context(|| format!("TCP with {address}"))?,
            "TCP with {address}: other bytes came back"
        );
    }
    Ok(())
}

fn exchange(mut stream: TcpStream) -> Result<bool> {
    stream.set_read_timeout(Some(SOON * patience()))?;
    stream.set_write_timeout(Some(SOON * patience()))?;
    let bytes: Vec<u8> = (0..LENGTH).map(|at| (at / 7 % 251) as u8).collect();
    let mut sender = stream.try_clone()?;
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            sender.write_all(&bytes)?;
            sender.shutdown(std::net::Shutdown::Write)
        });
        let mut back = Vec::with_capacity(LENGTH);
        stream.read_to_end(&mut back)?;
        sending.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
        Ok(back == bytes)
    })
}

/// Creates a node with two pods.
fn pair<N: Programs>(net: &Net) -> Result<World<N>> {
    let objects = [net.network(), net.local("pa", 1), net.local("pb", 2)];
    let world = World::<N>::new(peers().into_iter().chain(objects))?;
    world.node.give_addresses("pa", 1)?;
    world.node.give_addresses("pb", 2)?;
    Ok(world)
}

pub(crate) fn local_pods_talk<N: Programs>() -> Result<()> {
    for net in Net::kinds()? {
        let world = pair::<N>(&net)?;
        let (a, b) = (world.node.pod("pa")?, world.node.pod("pb")?);
        pings(a, 2)?;
        pings(b, 1)?;
        talks(a, b, 2)?;
    }
    Ok(())
}

/// The peer is a VXLAN device of the kernel.
pub(crate) fn pods_talk_by_vxlan<N: Programs>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let Encap::Vxlan { vni, .. } = net.encap else { anyhow::bail!("{net:?} has no number") };
    let objects = [net.network(), net.local("pa", 1), net.remote(0, 11)];
    let world = World::<N>::new(peers().into_iter().chain(objects))?;
    world.node.give_addresses("pa", 1)?;
    let (a, wire) = (world.node.pod("pa")?, world.node.wire());
    wire.ip(&format!(
        "link add far type vxlan id {vni} local {} remote {NODE} dstport {VXLAN_PORT} noudpcsum",
        VTEPS[0]
    ))?;
    wire.mac("far", &Mac(mac(11)).to_string())?;
    wire.mtu("far", 1450)?;
    wire.run(|| Ok(std::fs::write("/proc/sys/net/ipv6/conf/far/disable_ipv6", "0")?))?;
    wire.address("far", &format!("{}/24", ip(11)))?;
    wire.address("far", &format!("{}/64", ip6(11)))?;
    // The device computes checksums before the encapsulation, as without hardware offload.
    wire.tx_checksum_off("far")?;
    wire.up("far")?;
    pings(a, 11)?;
    pings(wire, 1)?;
    talks(a, wire, 11)?;
    talks(wire, a, 1)
}

/// Restarts of the agent lose no ping.
pub(crate) fn restart_loses_no_ping<N: Programs>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = pair::<N>(&net)?;
        pings(world.node.pod("pa")?, 2)?;
        let pingers = addresses(2).map(|address| Pinger::start(world.node.pod("pa")?, address, QUICKLY));
        let [four, six] = pingers;
        let pingers = [four?, six?];
        let go_on = |count: usize| {
            wait_until(SOON, "the pings to go on", || {
                Ok(pingers.iter().all(|pinger| pinger.answers() >= count).then_some(()))
            })
        };
        go_on(5)?;
        for round in 1..=3 {
            world.node.restart()?;
            let before = pingers.iter().map(Pinger::answers).max().unwrap_or(0);
            world.check_in_sync()?;
            ensure!(world.node.writes() == 0, "{} writes in round {round}", world.node.writes());
            go_on(before + 5)?;
        }
        for pinger in pingers {
            let ping = pinger.finish(SOON)?;
            ensure!(ping.lost() == 0, "{ping:?}");
        }
    }
    Ok(())
}

/// Changes of other pods, and setting all objects again, lose no ping.
pub(crate) fn changes_lose_no_ping<N: Programs>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = pair::<N>(&net)?;
        pings(world.node.pod("pa")?, 2)?;
        let pinger = Pinger::start(world.node.pod("pa")?, ip(2).into(), QUICKLY)?;
        for round in 0..3 {
            let port = format!("c{round}");
            world.node.plug(&port)?;
            world.set(net.local(&port, 20 + round))?;
            world.set(net.remote(0, 40 + round))?;
            let installed: Desired = world.installed().clone();
            world.reconcile(&installed)?;
            world.delete(net.local_id(&port))?;
            world.delete(net.remote_id(40 + round))?;
        }
        let answers = pinger.answers();
        wait_until(SOON, "the pings to go on", || Ok((pinger.answers() >= answers + 3).then_some(())))?;
        let ping = pinger.finish(SOON)?;
        ensure!(ping.lost() == 0, "{ping:?}");
    }
    Ok(())
}
