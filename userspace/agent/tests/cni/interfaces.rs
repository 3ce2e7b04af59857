//! Several interfaces of a pod, and names that are alike.

use testkit::{Netns, needs};

use crate::world::{Call, World};

fn netns(pod: &Netns) -> String {
    pod.path().display().to_string()
}

fn list(container: &str, ifname: &str) -> String {
    format!(r#""cni.dev/valid-attachments":[{{"containerID":"{container}","ifname":"{ifname}"}}],"#)
}

#[test]
fn interfaces_of_a_pod_come_and_go_one_by_one() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    World::run(async |world| {
        let path = netns(&pod);
        let call = |command, ifname| Call { container: "c1", ifname, netns: &path, ..Call::new(command) };
        let first = world.invoke(&call("ADD", "eth0")).await.unwrap();
        let second = world.invoke(&call("ADD", "net1")).await.unwrap();
        assert_eq!(world.local_endpoints(), ["n.t-c1", "n.t-c1-net1"]);
        assert_eq!(world.record("n.t-c1-net1").await.unwrap().intf_name, "net1");
        assert_ne!(first["ips"][0]["address"], second["ips"][0]["address"]);
        // The default route stays with the first interface.
        assert_eq!((first["routes"][0]["dst"].as_str(), second.get("routes")), (Some("0.0.0.0/0"), None));
        assert!(pod.ip("route show default").unwrap().contains("dev eth0"));
        assert_eq!(world.invoke(&call("ADD", "net1")).await.unwrap(), second);
        for (ifname, result) in [("eth0", &first), ("net1", &second)] {
            let fields = format!(r#""prevResult":{result},"#);
            world.invoke(&Call { fields: &fields, ..call("CHECK", ifname) }).await.unwrap();
        }

        world.invoke(&call("DEL", "net1")).await.unwrap();
        assert_eq!(
            (pod.links().unwrap(), world.local_endpoints()),
            (vec!["eth0".into()], vec!["n.t-c1".into()])
        );
        let second = world.invoke(&call("ADD", "net1")).await.unwrap();
        world.invoke(&call("DEL", "eth0")).await.unwrap();
        let only_second = || world.local_endpoints() == ["n.t-c1-net1"] && pod.links().unwrap() == ["net1"];
        assert!(only_second());
        // The default route was that of the first interface.
        let fields = format!(r#""prevResult":{second},"#);
        world.invoke(&Call { fields: &fields, ..call("CHECK", "net1") }).await.unwrap();
        world.invoke(&Call { fields: &list("c1", "net1"), ..Call::new("GC") }).await.unwrap();
        assert!(only_second());
        world.invoke(&Call { fields: &list("c1", "eth0"), ..Call::new("GC") }).await.unwrap();
        world.assert_nothing_left().await;
        assert!(pod.links().unwrap().is_empty());
    });
}

#[test]
fn containers_whose_names_lead_to_one_id_do_not_disturb_each_other() {
    needs!(root());
    let pods = [(); 2].map(|()| Netns::new("pod").unwrap());
    World::run(async |world| {
        let (first, second) = (netns(&pods[0]), netns(&pods[1]));
        let call = Call { container: "c1", ifname: "net1", netns: &first, ..Call::new("ADD") };
        world.invoke(&call).await.unwrap();
        let other = |command| Call { container: "c1-net1", netns: &second, ..Call::new(command) };
        let refused = world.invoke(&other("ADD")).await.unwrap_err();
        assert!(refused.details.contains("interface net1 of container c1"), "{refused:?}");
        world.invoke(&other("DEL")).await.unwrap();
        assert_eq!(world.local_endpoints(), ["n.t-c1-net1"]);
        assert_eq!((pods[0].links().unwrap(), pods[1].links().unwrap()), (vec!["net1".to_owned()], vec![]));

        world.invoke(&Call { fields: &list("c1", "net1"), ..Call::new("GC") }).await.unwrap();
        assert_eq!(world.local_endpoints(), ["n.t-c1-net1"]);
        world.invoke(&Call { fields: &list("c1-net1", "eth0"), ..Call::new("GC") }).await.unwrap();
        world.assert_nothing_left().await;
    });
}

/// Docker's sandboxes, and nodes that were booted so.
#[test]
fn ipv6_is_enabled_on_an_interface_with_an_ipv6_address() {
    needs!(root());
    let pod = Netns::new("pod").unwrap();
    for all in ["all", "default"] {
        pod.sysctl(&format!("net/ipv6/conf/{all}/disable_ipv6"), "1").unwrap();
    }
    World::run(async |world| {
        world.add("c1", pod.path()).await.unwrap();
        assert!(pod.ip("-6 address show eth0").unwrap().contains("2001:db8:9::1/64"));
    });
}
