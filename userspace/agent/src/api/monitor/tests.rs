use std::{future, io, mem, time::SystemTime};

use contiv_model::{
    endpoint::Endpoint,
    event::Event,
    key::Key,
    network::{Kind, Network},
    tag::{Encap, Vlan},
};
use futures::future::BoxFuture;

use super::*;
use crate::{
    datapath,
    state::{self, ClusterObject, Update},
};

const TAG: u16 = 7;

/// A datapath with one event, which is ready at once.
#[derive(Debug)]
struct Once;

/// True if the event has not been returned yet.
struct Subscription(bool);

impl Telemetry for Once {
    fn counters(&self) -> Result<Counters, Error> {
        Ok(Counters::default())
    }

    fn connections(&self) -> Result<Vec<Connection>, Error> {
        Ok(vec![])
    }

    fn subscribe(&self) -> Result<Box<dyn PacketEvents>, Error> {
        Ok(Box::new(Subscription(true)))
    }
}

impl PacketEvents for Subscription {
    fn next(&mut self) -> BoxFuture<'_, Result<PacketEvent, Error>> {
        let end = PacketAddress { ip: Some([10, 1, 0, 1].into()), port: 1, mac: Mac([2, 2, 10, 1, 0, 1]) };
        let event = PacketEvent {
            at: SystemTime::UNIX_EPOCH,
            dropped: None,
            tag: Some(Tag::from(encap())),
            interface: None,
            ethertype: 0x800,
            protocol: 17,
            source: end,
            destination: end,
            backend: None,
            rules: vec![],
            len: 60,
        };
        let first = mem::take(&mut self.0);
        Box::pin(async move { if first { Ok(event) } else { future::pending().await } })
    }

    fn renew(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn lost(&self) -> Result<u64, Error> {
        Ok(0)
    }
}

fn encap() -> Encap {
    Encap::Vlan(Vlan::try_from(TAG).unwrap())
}

/// A state with one endpoint.
fn reader() -> Reader {
    let network = Network {
        id: "n.t".into(),
        tenant: "t".parse().unwrap(),
        name: "n".parse().unwrap(),
        kind: Kind::Data,
        encap: encap(),
        subnet: "10.1.0.0/24".parse().unwrap(),
        gateway: None,
        subnet_v6: None,
        gateway_v6: None,
    };
    let endpoint = Endpoint {
        id: "n.t-a".into(),
        network: "n.t".into(),
        group: None,
        group_number: None,
        ip: [10, 1, 0, 1].into(),
        ip6: None,
        mac: Mac([2, 2, 10, 1, 0, 1]),
        host: "h".into(),
        vtep: None,
    };
    let (mut writer, _, reader, _) = state::new(["objects"]);
    let objects = [
        (Key::Network("n.t".into()), ClusterObject::Network(network)),
        (Key::Endpoint("n.t-a".into()), ClusterObject::Endpoint(endpoint)),
    ];
    for (key, object) in objects {
        writer.apply(Update { source: "objects".into(), revision: 1, event: Event::Apply(key, Ok(object)) });
    }
    reader
}

/// A datapath whose events cannot be read.
#[derive(Debug)]
struct Broken;

impl Telemetry for Broken {
    fn counters(&self) -> Result<Counters, Error> {
        Ok(Counters::default())
    }

    fn connections(&self) -> Result<Vec<Connection>, Error> {
        Ok(vec![])
    }

    fn subscribe(&self) -> Result<Box<dyn PacketEvents>, Error> {
        Ok(Box::new(Unreadable))
    }
}

struct Unreadable;

impl PacketEvents for Unreadable {
    fn next(&mut self) -> BoxFuture<'_, Result<PacketEvent, Error>> {
        Box::pin(async {
            Err(Error::new(datapath::Kind::Fake, "read packet events", io::Error::other("gone")))
        })
    }

    fn renew(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn lost(&self) -> Result<u64, Error> {
        Ok(0)
    }
}

/// Subscribers can subscribe again.
#[tokio::test]
async fn a_failure_ends_the_events_of_subscribers() {
    let monitor = Monitor::new(Some(Arc::new(Broken)), "h".into(), reader());
    for _ in 0..2 {
        let mut receiver = monitor.subscribe().unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(10), monitor.next(&mut receiver));
        assert_eq!(ended.await.unwrap(), None);
    }
}

#[tokio::test]
async fn the_first_event_has_names() {
    // Each subscription is a race between the first event and the first update of the names.
    for _ in 0..32 {
        let monitor = Monitor::new(Some(Arc::new(Once)), "h".into(), reader());
        let mut receiver = monitor.subscribe().unwrap();
        let event = receiver.recv().await.unwrap();
        assert_eq!((event.network.as_str(), event.source.endpoint.as_str()), ("n.t", "n.t-a"));
    }
}
