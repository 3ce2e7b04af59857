//! Several interfaces of a pod, and names that are alike.

use testkit::{Netns, needs};

use crate::world::{Call, World};

fn netns(pod: &Netns) -> String {
    pod.path().display().to_string()
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

        let list = |container: &str, ifname: &str| {
            format!(r#""cni.dev/valid-attachments":[{{"containerID":"{container}","ifname":"{ifname}"}}],"#)
        };
        world.invoke(&Call { fields: &list("c1", "net1"), ..Call::new("GC") }).await.unwrap();
        assert_eq!(world.local_endpoints(), ["n.t-c1-net1"]);
        world.invoke(&Call { fields: &list("c1-net1", "eth0"), ..Call::new("GC") }).await.unwrap();
        world.assert_nothing_left().await;
    });
}
