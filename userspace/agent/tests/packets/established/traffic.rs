//! Real traffic.

use super::*;

/// Two nodes with real stacks: large segments with partial checksums in both directions, and segments with complete,
/// verified checksums.
#[test]
fn real_traffic_is_translated_on_both_nodes() -> Result<()> {
    needs!(root(), binary("ethtool"));
    for (n1, place) in [(network("n1.t", vxlan(10_001)), Some(2)), (network("n1.t", vlan(100)), None)] {
        let (mut a, mut b) = Node::pair("cut")?;
        let (client, server) = (a.pod(&n1, HERE)?, b.pod(&n1, OTHER)?);
        let near = a.pod(&n1, Endpoint(4))?;
        a.want_network(&n1).want_peer(2).want(Object::Remote(OTHER.remote(&n1, place.map(vtep))));
        b.want_network(&n1).want_peer(1).want(Object::Remote(HERE.remote(&n1, place.map(|_| vtep(1)))));
        for (vip, backend, family) in [
            (VIP.ip().into(), &server, 4),
            (Endpoint(251).ip().into(), &near, 4),
            (VIP.ip6().into(), &server, 6),
        ] {
            let ip = if family == 4 { backend.ip() } else { backend.ip6() };
            let mut served = service(vip, &[(ip, Readiness::Ready)]);
            served.id = format!("{vip}:t").into();
            served.scope = Scope::network(&n1);
            served.backends[0].encap = Some(n1.encap);
            a.want(Object::Service(served));
        }
        a.converge()?;
        b.converge()?;
        for offloads in [true, false] {
            for (vip, backend, ip) in [
                (VIP.ip().into(), &server, server.ip()),
                (Endpoint(251).ip().into(), &near, near.ip()),
                (VIP.ip6().into(), &server, server.ip6()),
            ] {
                let (service, at) = (SocketAddr::new(vip, 80), SocketAddr::new(ip, 8080));
                echo(&client, service, backend, at)?;
                echo_datagrams(&client, service, backend, at)?;
            }
            if offloads {
                [&client, &server, &near].iter().try_for_each(|pod| pod.ns.tx_checksum_off("eth0"))?;
            }
        }
        let reasons = [a.drops()?, b.drops()?];
        assert!(reasons.iter().all(|drops| !drops.contains_key(&DropReason::RewriteFailed)), "{reasons:?}");
    }
    Ok(())
}

/// One datagram after the other.
fn echo_datagrams(client: &Pod, target: SocketAddr, server: &Pod, at: SocketAddr) -> Result<()> {
    const COUNT: u32 = 200;
    let bind = |pod: &Pod, at: SocketAddr| -> Result<UdpSocket> {
        let socket = pod.ns.run(|| Ok(UdpSocket::bind(at)?))?;
        socket.set_read_timeout(Some(Duration::from_secs(5) * testkit::patience()))?;
        Ok(socket)
    };
    let served = bind(server, at)?;
    let any = if at.is_ipv4() { SocketAddr::from(([0; 4], 0)) } else { SocketAddr::from(([0_u16; 8], 0)) };
    let asking = bind(client, any)?;
    asking.connect(target)?;
    let (mut there, mut back) = ([0; 2048], [0; 2048]);
    for number in 0..COUNT {
        let sent: Vec<u8> = (0..number % 97).map(|at| (at * 31 + number) as u8).collect();
        asking.send(&sent)?;
        let (len, from) =
            served.recv_from(&mut there).with_context(|| format!("datagram {number} to {target}"))?;
        served.send_to(&there[..len], from)?;
        let len = asking.recv(&mut back).with_context(|| format!("answer {number} from {target}"))?;
        assert!(back[..len] == sent, "what came back from {target} is not what was sent");
    }
    Ok(())
}

fn echo(client: &Pod, target: SocketAddr, server: &Pod, at: SocketAddr) -> Result<()> {
    use std::io::{Read as _, Write as _};
    const PIECE: usize = 1 << 16;
    const PIECES: usize = 64;
    let listener = server.ns.run(|| Ok(TcpListener::bind(at)?))?;
    let served = thread::spawn(move || -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut data = vec![0; PIECE];
        for _ in 0..PIECES {
            stream.read_exact(&mut data)?;
            stream.write_all(&data)?;
        }
        Ok(())
    });
    let mut stream = client.ns.run(|| {
        let stream = TcpStream::connect_timeout(&target, Duration::from_secs(5))
            .with_context(|| format!("connect to {target}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(10) * testkit::patience()))?;
        Ok(stream)
    })?;
    let sent: Vec<u8> = (0..PIECE).map(|n| (n * 7 / 8) as u8).collect();
    let mut back = vec![0; PIECE];
    for _ in 0..PIECES {
        stream.write_all(&sent)?;
        stream.read_exact(&mut back)?;
        assert!(back == sent, "what came back from {target} is not what was sent");
    }
    served.join().map_err(|_| anyhow::anyhow!("the server failed"))?
}
