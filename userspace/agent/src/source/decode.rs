use contiv_model::{
    bgp,
    endpoint::{self, Endpoint},
    global::Config,
    group::{self, Group},
    key::Key,
    name::HostName,
    network::{self, Network},
    node,
    policy::{Policy, PolicyState},
    registry,
    service::{self, Providers, Service},
};
use contiv_store::KeyValue;
use serde::de::DeserializeOwned;

use crate::state::{BgpSpeaker, ClusterObject, Rejected, Vtep};

/// Decodes and validates the value at a key; `None` for keys that the agent does not use.
pub fn decode(key: &Key, value: &KeyValue) -> Option<Result<ClusterObject, Rejected>> {
    let object = match key {
        Key::MasterConfig => body::<Config>(value).map(ClusterObject::Config),
        Key::Network(id) => body::<network::State>(value)
            .and_then(|state| Network::try_from(&state).map_err(|e| e.to_string()))
            .and_then(|network| {
                same_id(id.as_str(), network.id.as_str()).map(|()| ClusterObject::Network(network))
            }),
        Key::Endpoint(id) => body::<endpoint::State>(value)
            .and_then(|state| Endpoint::try_from(&state).map_err(|e| e.to_string()))
            .and_then(|endpoint| {
                same_id(id.as_str(), endpoint.id.as_str()).map(|()| ClusterObject::Endpoint(endpoint))
            }),
        Key::Group(key) => body::<group::State>(value)
            .and_then(|state| Group::try_from(&state).map_err(|e| e.to_string()))
            .and_then(|group| {
                same_id(key.as_str(), group.key.as_str()).map(|()| ClusterObject::Group(group))
            }),
        Key::Policy(id) => body::<PolicyState>(value)
            .and_then(|state| Policy::try_from(&state).map_err(|e| e.to_string()))
            .and_then(|policy| {
                same_id(id.as_str(), policy.id.as_str()).map(|()| ClusterObject::Policy(policy))
            }),
        Key::ServiceLb(id) => body::<service::State>(value)
            .and_then(|state| Service::try_from(&state).map_err(|e| e.to_string()))
            .and_then(|service| {
                same_id(id.as_str(), service.id.as_str()).map(|()| ClusterObject::Service(service))
            }),
        Key::Providers(_) => body::<Providers>(value)
            .and_then(|providers| providers.addresses().map_err(|e| e.to_string()))
            .map(ClusterObject::Providers),
        Key::Service { name, .. } if name == registry::VTEP => body::<registry::ServiceInfo>(value)
            .and_then(|service| vtep(&service.hostname, &service.host_addr, service.port, value.mod_revision))
            .map(ClusterObject::Registration),
        Key::Bgp(host) => body::<bgp::State>(value)
            .and_then(|state| same_id(host.as_str(), &state.hostname).and_then(|()| bgp_speaker(&state)))
            .map(ClusterObject::Bgp),
        Key::NodeVtep(host) => body::<node::Vtep>(value)
            .and_then(|record| vtep(host.as_str(), &record.vtep_ip, record.vxlan_port, value.mod_revision))
            .map(ClusterObject::Node),
        _ => return None,
    };
    Some(object.map_err(|why| Rejected { key: value.key.clone(), why }))
}

/// The VTEP in a node status; `None` if it has none.
pub(super) fn vtep_of_status(host: &HostName, value: &KeyValue) -> Option<Vtep> {
    let status = body::<node::Status>(value).ok()?;
    vtep(host.as_str(), &status.vtep_ip, status.vxlan_port, value.mod_revision).ok()
}

/// netmaster accepts any text as an AS number, a missing neighbor, and ranges of router IPs.
fn bgp_speaker(state: &bgp::State) -> Result<BgpSpeaker, String> {
    let asn = |name: &str, text: &str| contiv_bgp::parse_as(text).map_err(|error| format!("{name}: {error}"));
    let router = state.router_ip.parse();
    Ok(BgpSpeaker {
        router: router.map_err(|_| format!("router-ip is {:?}, expected x.x.x.x/len", state.router_ip))?,
        asn: asn("as", &state.asn)?,
        neighbor: state
            .neighbor
            .parse()
            .map_err(|_| format!("neighbor is {:?}, expected an IPv4 address", state.neighbor))?,
        neighbor_as: asn("neighbor-as", &state.neighbor_as)?,
    })
}

fn body<T: DeserializeOwned>(value: &KeyValue) -> Result<T, String> {
    serde_json::from_slice(&value.value).map_err(|e| format!("not valid JSON: {e}"))
}

fn same_id(key: &str, body: &str) -> Result<(), String> {
    if key == body { Ok(()) } else { Err(format!("id is {body:?}, expected {key:?} as in the key")) }
}

fn vtep(host: &str, address: &str, port: u16, since: i64) -> Result<Vtep, String> {
    let bad = |_| format!("VTEP address is {address:?}, expected an IP address");
    Ok(Vtep { host: HostName::from(host), address: address.parse().map_err(bad)?, port, since })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(key: &str, body: &str) -> Option<Result<ClusterObject, Rejected>> {
        let value = KeyValue {
            key: key.to_owned(),
            value: body.as_bytes().to_vec().into(),
            create_revision: 1,
            mod_revision: 7,
            version: 1,
            lease: 0,
        };
        decode(&key.parse().unwrap(), &value)
    }

    const ENDPOINT: &str = include_str!("../../../model/tests/golden/endpoint-c3.json");
    const NETWORK: &str = include_str!("../../../model/tests/golden/network-vx2.json");

    #[test]
    fn decodes_the_originals_records() {
        let good = |key, body| decoded(key, body).unwrap().unwrap();
        assert!(matches!(good("/contiv.io/state/eps/en.default-c3", ENDPOINT), ClusterObject::Endpoint(_)));
        assert!(matches!(good("/contiv.io/state/nets/vx2.default", NETWORK), ClusterObject::Network(_)));
        let registration = r#"{"ServiceName":"netplugin.vtep","Role":"","Version":"","TTL":10,
            "HostAddr":"192.168.77.12","Port":4789,"Hostname":"B"}"#;
        let ClusterObject::Registration(vtep) =
            good("/contiv.io/service/netplugin.vtep/192.168.77.12:4789", registration)
        else {
            panic!("no registration")
        };
        assert_eq!((vtep.host.as_str(), vtep.port, vtep.since), ("B", 4789, 7));
    }

    const GROUP: &str = include_str!("../../../model/tests/golden/group-gp.json");
    const POLICY: &str = r#"{"id":"t:g:t:p","EpgPolicyKey":"t:g:t:p","EndpointGroupID":3,"RuleMaps":{}}"#;
    const SERVICE: &str = r#"{"id":"web:t","servicename":"web","tenantname":"t","subnet":"n","ports":["80:80:TCP"],
        "selectors":{"app":"web"},"ipaddress":"10.1.1.9","providers":{}}"#;

    #[test]
    fn decodes_policies_and_services() {
        let good = |key, body| decoded(key, body).unwrap().unwrap();
        assert!(matches!(good("/contiv.io/state/endpointGroups/gp:default", GROUP), ClusterObject::Group(_)));
        assert!(matches!(good("/contiv.io/state/policy/t:g:t:p", POLICY), ClusterObject::Policy(_)));
        assert!(matches!(good("/contiv.io/state/serviceLB/web:t", SERVICE), ClusterObject::Service(_)));
        let providers = r#"{"id":"web:t","ServiceName":"web:t","Providers":["10.1.1.2"]}"#;
        assert!(matches!(good("/contiv.io/state/provider/web:t", providers), ClusterObject::Providers(_)));
        // The agent does not use the records of single rules.
        assert!(decoded("/contiv.io/state/policyRule/t:g:t:p:t:p:1:inRx", "{").is_none());
    }

    /// Recorded writes of the original netmaster: each key is followed by its value on the next line.
    #[test]
    fn decodes_all_recorded_records() {
        let recorded = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/recordings/store");
        let mut rules = 0;
        for file in std::fs::read_dir(recorded).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            for pair in lines.windows(2).filter(|pair| pair[0].starts_with("/contiv.io/state/")) {
                match decoded(pair[0], pair[1]) {
                    Some(Ok(ClusterObject::Policy(policy))) => rules += policy.rules.len(),
                    Some(Err(rejected)) => panic!("{rejected:?}"),
                    _ => {}
                }
            }
        }
        // There are 12 rules; one has a range that needs two prefixes. Rules with addresses also apply to the link-local
        // ones.
        assert_eq!(rules, 21);
    }

    #[test]
    fn decodes_bgp_settings() {
        let key = "/contiv.io/state/bgp/n1";
        let body = |router: &str, asn: &str, neighbor: &str| {
            format!(
                r#"{{"id":"n1","hostname":"n1","router-ip":"{router}","as":"{asn}","neighbor-as":"1.10","neighbor":"{neighbor}"}}"#
            )
        };
        let Some(Ok(ClusterObject::Bgp(speaker))) = decoded(key, &body("50.1.1.1/24", "65000", "50.1.1.2"))
        else {
            panic!("no BGP settings")
        };
        assert_eq!((speaker.router.to_string().as_str(), speaker.asn), ("50.1.1.1/24", 65000));
        assert_eq!((speaker.neighbor.to_string().as_str(), speaker.neighbor_as), ("50.1.1.2", 65546));
        for (router, asn, neighbor, why) in [
            ("50.1.1.1", "65000", "50.1.1.2", "router-ip is \"50.1.1.1\""),
            ("50.1.1.1-3/24", "65000", "50.1.1.2", "router-ip"),
            ("50.1.1.1/24", "", "50.1.1.2", "as: AS number \"\""),
            ("50.1.1.1/24", "65000", "", "neighbor is \"\""),
        ] {
            let rejected = decoded(key, &body(router, asn, neighbor)).unwrap().unwrap_err();
            assert!(rejected.why.contains(why), "{rejected:?}");
        }
        assert!(decoded("/contiv.io/state/bgp/n2", &body("50.1.1.1/24", "1", "50.1.1.2")).unwrap().is_err());
    }

    #[test]
    fn rejection_contains_the_reason() {
        let why = |key, body| decoded(key, body).unwrap().unwrap_err().why;
        assert!(why("/contiv.io/state/eps/en.default-c3", "{").starts_with("not valid JSON"));
        assert!(why("/contiv.io/state/eps/other", ENDPOINT).contains("expected \"other\""));
        assert!(why("/contiv.io/oper/vtep/n", r#"{"vtepIP":"x"}"#).contains("\"x\""));
        assert!(why("/contiv.io/state/policy/other", POLICY).contains("expected \"other\""));
        assert!(why("/contiv.io/state/provider/web:t", r#"{"Providers":["x"]}"#).contains("\"x\""));
        assert!(decoded("/contiv.io/service/netplugin/1.2.3.4:9002", "{").is_none());
    }
}
