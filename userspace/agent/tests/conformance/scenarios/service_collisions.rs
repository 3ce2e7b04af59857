//! Connections of a client by one port that are one to their backend.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use netplugin::datapath::{Backend, Object, Scope, Service};
use testkit::wait_until;

use crate::{
    harness::Harness,
    scenarios::services::{datagram, world},
    topology::{Net, ip, pod, to_pod},
    world::World,
};

const SOON: Duration = Duration::from_secs(5);
const CLIENT_PORT: u16 = 4000;
/// Last parts of addresses of services.
const VIPS: [u8; 2] = [200, 201];
const SERVICE_PORT: u16 = 53;
/// Last part of the address of the backend of both services, and its port.
const BACKEND: (u8, u16) = (2, 5353);

fn service(net: &Net, name: &str, vip: u8) -> Result<Object> {
    Ok(Object::Service(Service {
        ports: vec!["53:5353:UDP".parse()?],
        backends: vec![Backend::on(net.encap, ip(BACKEND.0))],
        ..Service::new(name, Scope::network(&net.plain()), ip(vip))
    }))
}

/// Pod 1 asks there, and gets the answer of the backend from there.
fn exchange<H: Harness>(world: &mut World<H>, to: (u8, u16)) -> Result<()> {
    let to_backend = |port| datagram((BACKEND.0, 1), (ip(1), port), (ip(BACKEND.0), BACKEND.1));
    let from = |source: (u8, u16), port| datagram((1, BACKEND.0), (ip(source.0), source.1), (ip(1), port));
    let request = datagram((to.0, 1), (ip(1), CLIENT_PORT), (ip(to.0), to.1));
    let came = world.outcome(&pod("pa"), &request.build())?;
    // A datapath may give the second of two connections another port.
    let port = came.first().and_then(|copy| copy.frame.get(34..)?.first_chunk::<2>());
    let port = u16::from_be_bytes(*port.with_context(|| format!("{to:?}: {came:?} instead of a datagram"))?);
    ensure!(came == [to_pod("pb", &to_backend(port))], "{to:?}: {came:?}");
    world.sends(&pod("pb"), &from(BACKEND, port), [to_pod("pa", &from(to, CLIENT_PORT))])
}

/// A client asks two services with one backend, and the backend itself, by one port.
pub(crate) fn replies_have_the_address_that_was_asked<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        for (name, vip) in ["one:t", "two:t"].into_iter().zip(VIPS) {
            world.set(service(&net, name, vip)?)?;
        }
        for _ in 0..2 {
            for to in VIPS.map(|vip| (vip, SERVICE_PORT)).into_iter().chain([BACKEND]) {
                exchange(&mut world, to)?;
            }
        }
        world.check_in_sync()?;
    }
    Ok(())
}

/// Another service with the same backend gets the address of the one that a client has a connection to.
pub(crate) fn connections_go_on_with_another_service<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let (vip, to) = (VIPS[0], (VIPS[0], SERVICE_PORT));
        let first = service(&net, "one:t", vip)?;
        world.set(first.clone())?;
        exchange(&mut world, to)?;
        world.delete(first.id())?;
        world.set(service(&net, "two:t", vip)?)?;
        wait_until(SOON, "an answer from the address", || Ok(exchange(&mut world, to).ok()))?;
        world.check_in_sync()?;
    }
    Ok(())
}
