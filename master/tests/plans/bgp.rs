//! Settings of BGP speakers.

use serde_json::json;

use crate::fixture::Fixture;

#[test]
fn agents_read_the_latest_settings() {
    let mut fixture = Fixture::new();
    let set = |fixture: &mut Fixture, asn: &str| {
        let body = json!({"hostname": "h1", "routerip": "50.1.1.1/24", "as": asn, "neighbor": "50.1.1.2",
            "neighbor-as": "500"});
        fixture.put("Bgps", "h1", &body).unwrap()
    };
    assert_eq!(
        set(&mut fixture, "65000"),
        json!({"key": "h1", "as": "65000", "hostname": "h1", "neighbor": "50.1.1.2", "neighbor-as": "500",
            "routerip": "50.1.1.1/24"})
    );
    set(&mut fixture, "65001");
    assert_eq!(
        fixture.value("/contiv.io/state/bgp/h1").unwrap(),
        json!({"id": "h1", "hostname": "h1", "router-ip": "50.1.1.1/24", "as": "65001", "neighbor-as": "500",
            "neighbor": "50.1.1.2"})
    );
    let refused = fixture.put("Bgps", "h2", &json!({"hostname": "h2", "neighbor": "x"})).unwrap_err();
    assert_eq!(refused.text, "neighbor string invalid format");

    let mut fixture = fixture.loaded();
    fixture.delete("Bgps", "h1").unwrap();
    assert_eq!(fixture.keys("/contiv.io/state/bgp/"), [""; 0]);
    assert_eq!(fixture.keys("/contiv.io/obj/modeldb/Bgp/"), [""; 0]);
}

#[test]
fn routing_mode_is_kept_while_speakers_exist() {
    let mut fixture = Fixture::new();
    let mode = |fixture: &mut Fixture, mode: &str| {
        let body = json!({"name": "global", "networkInfraType": "default", "vlans": "1-4094",
            "vxlans": "1-10000", "fwdMode": mode, "arpMode": "proxy", "pvtSubnet": "172.19.0.0/16"});
        fixture.put("globals", "global", &body).map(drop).map_err(|problem| problem.text)
    };
    mode(&mut fixture, "routing").unwrap();
    fixture.put("Bgps", "h1", &json!({"hostname": "h1", "routerip": "50.1.1.1/24"})).unwrap();
    assert_eq!(mode(&mut fixture, "bridge"), Err("please delete existing Bgp configs".into()));
    fixture.delete("Bgps", "h1").unwrap();
    mode(&mut fixture, "bridge").unwrap();
}

#[test]
fn inspect_reports_what_the_agent_of_the_node_has_written() {
    let mut fixture = Fixture::new();
    let settings = json!({"hostname": "h1", "routerip": "50.1.1.1/24", "as": "65000", "neighbor": "50.1.1.2",
        "neighbor-as": "500"});
    fixture.put("Bgps", "h1", &settings).unwrap();
    let refused = |fixture: &Fixture| fixture.inspect("Bgps", "h1").unwrap_err().text;
    let record = "/contiv.io/oper/bgp/h1";
    let session = json!({"host": "h1", "adminStatus": "up", "neighborStatus": "established", "numRoutes": 2,
        "routes": ["10.1.1.5/32", "20.1.0.0/16"]});
    fixture.edit(record, Some(&session));
    // The record outlives the agent.
    assert_eq!(refused(&fixture), "inspect BGP: node h1 is not registered");
    let agent = json!({"ServiceName": "netplugin", "HostAddr": "10.0.0.1", "Port": 9002, "Hostname": "h1"});
    fixture.edit("/contiv.io/service/netplugin/10.0.0.1:9002", Some(&agent));
    let mut fixture = fixture.loaded();
    let config = fixture.value("/contiv.io/obj/modeldb/Bgp/h1").unwrap();
    assert_eq!(
        fixture.inspect("Bgps", "h1").unwrap(),
        json!({"Config": config, "Oper": {"adminStatus": "up", "neighborStatus": "established", "numRoutes": 2,
            "routes": ["10.1.1.5/32", "20.1.0.0/16"]}})
    );
    fixture.edit(
        record,
        Some(&json!({"host": "h1", "adminStatus": "up", "neighborStatus": "active", "failure": "no route"})),
    );
    assert_eq!(
        fixture.loaded().inspect("Bgps", "h1").unwrap()["Oper"],
        json!({"adminStatus": "up", "neighborStatus": "active", "failure": "no route"})
    );
    fixture.edit(record, None);
    assert_eq!(refused(&fixture.loaded()), "Error fetching bgp");
}
