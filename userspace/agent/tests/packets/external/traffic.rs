//! Real connections of an external client.

use super::*;

/// The client's node has the network but not the service: the other nodes treat it as an external host.
struct Wire {
    client: (Node, Pod),
    first: (Node, Pod),
    second: (Node, Pod),
    /// Interfaces on the switch.
    _takers: Vec<Xdp>,
    _switch: Netns,
}

impl Wire {
    fn new(label: &str, xdp: XdpPreference) -> Result<Wire> {
        let switch = Netns::new(&format!("{label}-sw"))?;
        switch.ip("link add br0 type bridge")?;
        switch.up("br0")?;
        let n1 = network("n1.t", vlan(TAG));
        let service = web(VIP.ip().into(), [HERE.ip().into(), THERE.ip().into()]);
        let node = |name: &str, endpoint: Endpoint, others: &[Endpoint]| -> Result<(Node, Pod)> {
            let mut node = Node::fresh(&format!("{label}{name}"), |options: &mut Options| {
                options.uplinks = vec!["trunk".into()];
                options.xdp = xdp;
            })?;
            node.ns.veth("trunk", &switch, name)?;
            switch.ip(&format!("link set dev {name} master br0"))?;
            // As on a switch: tags are in the frames.
            switch.output("ethtool", &["-K", name, "txvlan", "off"])?;
            switch.up(name)?;
            node.ns.up("trunk")?;
            node.want_network(&n1);
            for other in others {
                node.want(Object::Remote(other.remote(&n1, None)));
            }
            if endpoint != CLIENT {
                node.want(Object::Service(service.clone()));
            }
            let pod = node.pod(&n1, endpoint)?;
            node.converge()?;
            Ok((node, pod))
        };
        let client = node("to-c", CLIENT, &[])?;
        let (first, second) = (node("to-a", HERE, &[THERE])?, node("to-b", THERE, &[HERE])?);
        // Native XDP on veth delivers transmitted frames only if the peer has a program as well. The client's node
        // has no services, so its program passes everything.
        let taker = |name: &str| {
            let mut program = Xdp::from_pin(client.0.pin(XDP), XdpAttachType::Interface)?;
            switch.run(|| Ok(program.attach(name, XdpMode::Driver)?))?;
            Ok(program)
        };
        let ends: &[&str] = if xdp == XdpPreference::Native { &["to-a", "to-b", "to-c"] } else { &[] };
        let takers = ends.iter().map(|name| taker(name)).collect::<Result<_>>()?;
        Ok(Wire { client, first, second, _takers: takers, _switch: switch })
    }

    fn connect(&self) -> Result<(TcpStream, Endpoint)> {
        let address = SocketAddr::new(VIP.ip().into(), 80);
        let mut stream = self.client.1.ns.run(|| Ok(TcpStream::connect_timeout(&address, TIMEOUT)?))?;
        stream.set_read_timeout(Some(TIMEOUT * testkit::patience()))?;
        let endpoint = ask(&mut stream)?;
        Ok((stream, endpoint))
    }
}

/// The backend at the other end.
fn ask(stream: &mut TcpStream) -> Result<Endpoint> {
    let mut answer = [0];
    stream.write_all(b"?")?;
    stream.read_exact(&mut answer)?;
    Ok(Endpoint(answer[0]))
}

/// Answers each byte with the pod's number.
fn serve(pod: &Pod) -> Result<()> {
    let listener = pod.ns.run(|| Ok(TcpListener::bind("0.0.0.0:8080")?))?;
    let endpoint = pod.endpoint;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let Ok(mut stream) = stream else { return };
                let mut question = [0];
                while stream.read_exact(&mut question).is_ok() && stream.write_all(&[endpoint.0]).is_ok() {}
            });
        }
    });
    Ok(())
}

fn serve_external_client(label: &str, xdp: XdpPreference) -> Result<()> {
    let mut wire = Wire::new(label, xdp)?;
    serve(&wire.first.1)?;
    serve(&wire.second.1)?;
    let mut connections = vec![];
    for _ in 0..24 {
        connections.push(wire.connect()?);
    }
    for endpoint in [HERE, THERE] {
        ensure!(connections.iter().any(|(_, asked)| *asked == endpoint), "{endpoint:?} was not asked");
    }
    let (tc, early) = xdp::sent_on(&wire.first.0.datapath)?;
    ensure!(
        if xdp == XdpPreference::Off { tc > 0 && early == 0 } else { early > 0 },
        "{tc} by TC, {early} by XDP"
    );
    ensure!(wire.second.0.datapath.dsr_forwarded()?.iter().all(|(_, count)| count.packets == 0));

    // One backend is removed, and the agents restart.
    let service = Object::Service(web(VIP.ip().into(), [HERE.ip().into()]));
    for (node, _) in [&mut wire.first, &mut wire.second] {
        node.want(service.clone());
        node.restart();
        node.converge()?;
    }
    for (stream, endpoint) in &mut connections {
        ensure!(ask(stream)? == *endpoint, "not with {endpoint:?} any more");
    }
    for _ in 0..8 {
        ensure!(wire.connect()?.1 == HERE);
    }
    Ok(())
}

#[test]
fn an_external_client_is_served_by_tc() -> Result<()> {
    needs!(root(), binary("ethtool"));
    serve_external_client("out-tc", XdpPreference::Off)
}

#[test]
fn an_external_client_is_served_by_generic_xdp() -> Result<()> {
    needs!(root(), binary("ethtool"));
    serve_external_client("out-skb", XdpPreference::Generic)
}

#[test]
fn an_external_client_is_served_by_native_xdp() -> Result<()> {
    needs!(root(), binary("ethtool"));
    serve_external_client("out-drv", XdpPreference::Native)
}
