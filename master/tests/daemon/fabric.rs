//! Synchronisation with an ACI gateway. The tests run a fake gateway that records its requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::client::{delete, get, post};
use crate::master::{Master, WAIT_TIMEOUT};

/// Behaviour of the fake gateway.
#[derive(Clone, Debug)]
enum Behaviour {
    /// Responds with status and body.
    Says(u16, Value),
    /// Does not respond.
    Silent,
}

struct Gateway {
    address: SocketAddr,
    behaviour: Arc<Mutex<Behaviour>>,
    calls: Receiver<(String, Value)>,
}

fn agrees() -> Behaviour {
    Behaviour::Says(200, json!({"result": "success", "info": ""}))
}

impl Gateway {
    fn start() -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let behaviour = Arc::new(Mutex::new(agrees()));
        let (sent, calls) = channel();
        let answers = behaviour.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (sent, behaviour) = (sent.clone(), answers.clone());
                thread::spawn(move || serve(&stream.unwrap(), &sent, &behaviour));
            }
        });
        Gateway { address, behaviour, calls }
    }

    fn set_behaviour(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    /// The next recorded request.
    fn call(&self) -> (String, Value) {
        self.calls.recv_timeout(WAIT_TIMEOUT).unwrap()
    }

    fn quiet(&self) -> bool {
        self.calls.try_recv().is_err()
    }
}

/// Answers requests until the client closes the connection.
fn serve(stream: &TcpStream, sent: &Sender<(String, Value)>, behaviour: &Mutex<Behaviour>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or_default() == 0 {
            return;
        }
        let path = line.split(' ').nth(1).unwrap().to_owned();
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            match line.trim_end().split_once(": ") {
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                    length = value.parse().unwrap();
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        // The test may have ended.
        let _over = sent.send((path, serde_json::from_slice(&body).unwrap()));
        let behaviour = behaviour.lock().unwrap().clone();
        let Behaviour::Says(status, body) = behaviour else { return thread::sleep(WAIT_TIMEOUT) };
        let body = body.to_string();
        let response = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if (&mut &*stream).write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

const PROFILE: &str = "/api/v1/appProfiles/default:ap/";

fn master(dir: &std::path::Path, gateway: SocketAddr) -> Master {
    let master =
        Master::start_unprobed(dir, &["--infra", "aci", "--aci-gateway", &format!("http://{gateway}/")]);
    let to = master.address;
    let network = json!({"tenantName": "default", "networkName": "net", "encap": "vlan",
        "subnet": "10.1.0.0/24", "gateway": "10.1.0.254"});
    post(to, "/api/v1/networks/default:net/", &network).unwrap().good();
    for group in ["web", "db"] {
        let body = json!({"tenantName": "default", "groupName": group, "networkName": "net"});
        post(to, &format!("/api/v1/endpointGroups/default:{group}/"), &body).unwrap().good();
    }
    master
}

fn profile(groups: &[&str]) -> Value {
    json!({"tenantName": "default", "appProfileName": "ap", "endpointGroups": groups})
}

fn named() -> Value {
    json!({"tenant": "default", "app-prof": "ap"})
}

#[test]
fn profiles_are_sent_in_the_originals_protocol() {
    let (store, gateway) = (testkit::scratch_dir("store").unwrap(), Gateway::start());
    let master = master(store.path(), gateway.address);
    let to = master.address;
    let policy = json!({"tenantName": "default", "policyName": "p"});
    post(to, "/api/v1/policys/default:p/", &policy).unwrap().good();
    for (id, more) in [
        ("1", json!({"protocol": "tcp", "port": 80, "fromEndpointGroup": "db"})),
        ("2", json!({"protocol": "udp", "port": 53, "fromEndpointGroup": "db"})),
        ("3", json!({"action": "deny"})),
        ("4", json!({"protocol": "icmp"})),
    ] {
        let mut rule = json!({"tenantName": "default", "policyName": "p", "ruleId": id, "direction": "in",
            "action": "allow"});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(to, &format!("/api/v1/rules/default:p:{id}/"), &rule).unwrap().good();
    }
    let contracts = json!({"tenantName": "default", "contractsGroupName": "c", "contractsType": "consumed",
        "contracts": ["uni/tn-common/brc-x"]});
    post(to, "/api/v1/extContractsGroups/default:c/", &contracts).unwrap().good();
    let web = json!({"tenantName": "default", "groupName": "web", "networkName": "net", "policies": ["p"],
        "extContractsGrps": ["c"]});
    post(to, "/api/v1/endpointGroups/default:web/", &web).unwrap().good();
    let settings = json!({"name": "aciGw", "enforcePolicies": "yes", "includeCommonTenant": "no",
        "physicalDomain": "pd"});
    post(to, "/api/v1/aciGws/aciGw/", &settings).unwrap().good();
    assert!(gateway.quiet());

    post(to, PROFILE, &profile(&["web", "db"])).unwrap().good();
    let (call, sent) = gateway.call();
    assert_eq!(call, "/createAppProf");
    let mut settings = settings;
    settings["key"] = json!("aciGw");
    let internal = |kind: &str, name: &str| json!({"link-kind": kind, "contract-name": name, "contract-kind": "INTERNAL"});
    let wanted = json!({
        "aci-gw-api-version": "v1.2",
        "gw-config": settings,
        "tenant": "default",
        "app-prof": "ap",
        "contract-defs": [
            {"name": "pExpose", "filter-info": [{"protocol": "icmp", "servport": "0"}]},
            {"name": "pFrmdb", "filter-info": [{"protocol": "tcp", "servport": "80"},
                {"protocol": "udp", "servport": "53"}]},
        ],
        "epgs": [
            {"name": "db", "nw-name": "net", "gw-cidr": "10.1.0.254/24", "vlan-tag": "3",
                "contract-links": [internal("CONSUME", "pFrmdb")]},
            {"name": "web", "nw-name": "net", "gw-cidr": "10.1.0.254/24", "vlan-tag": "2",
                "contract-links": [internal("PROVIDE", "pFrmdb"), internal("PROVIDE", "pExpose"),
                    {"link-kind": "CONSUME", "contract-dn": "uni/tn-common/brc-x", "contract-kind": "EXTERNAL"}]},
        ],
    });
    assert_eq!(sent, wanted);

    // An update is sent as deletion and creation; so is a change of a rule.
    post(to, PROFILE, &profile(&["web"])).unwrap().good();
    assert_eq!(gateway.call(), ("/deleteAppProf".into(), named()));
    assert_eq!(gateway.call().1["epgs"].as_array().unwrap().len(), 1);
    delete(to, "/api/v1/rules/default:p:4/").unwrap().good();
    assert_eq!(gateway.call(), ("/deleteAppProf".into(), named()));
    assert_eq!(gateway.call().1["contract-defs"][0]["name"], "pFrmdb");

    delete(to, PROFILE).unwrap().good();
    assert_eq!(gateway.call(), ("/deleteAppProf".into(), named()));
    assert_eq!(get(to, PROFILE).unwrap().bad(), "appProfile not found");
    assert!(gateway.quiet());
}

#[test]
fn a_change_that_the_gateway_rejects_is_not_committed() {
    let (store, gateway) = (testkit::scratch_dir("store").unwrap(), Gateway::start());
    let master = master(store.path(), gateway.address);
    let to = master.address;
    gateway.set_behaviour(Behaviour::Says(200, json!({"result": "failed", "info": "no such domain"})));
    let refused = post(to, PROFILE, &profile(&["web"])).unwrap().bad();
    assert_eq!(refused, "Validation failed. Error: failed - no such domain");
    assert_eq!(get(to, PROFILE).unwrap().bad(), "appProfile not found");
    assert_eq!(gateway.call().0, "/createAppProf");
    // The failed request may have changed the fabric partly.
    assert_eq!(gateway.call(), ("/deleteAppProf".into(), named()));
    delete(to, "/api/v1/endpointGroups/default:web/").unwrap().good();

    gateway.set_behaviour(agrees());
    let made = post(to, PROFILE, &profile(&["db"])).unwrap().good();
    gateway.call();
    gateway.set_behaviour(Behaviour::Says(404, json!({})));
    let refused = post(to, PROFILE, &profile(&[])).unwrap().bad();
    assert!(refused.ends_with("/deleteAppProf: page not found"), "{refused}");
    let refused = delete(to, PROFILE).unwrap().bad();
    assert!(refused.starts_with("ACI gateway: http://"), "{refused}");
    assert_eq!(get(to, PROFILE).unwrap().good(), made);
    // As soon as the gateway works, the stored state is sent again.
    gateway.set_behaviour(agrees());
    loop {
        let (call, sent) = gateway.call();
        if call == "/createAppProf" {
            assert_eq!(sent["epgs"][0]["name"], "db");
            break;
        }
        assert_eq!((call.as_str(), sent), ("/deleteAppProf", named()));
    }
}

#[test]
fn an_unreachable_gateway_is_reported() {
    let store = testkit::scratch_dir("store").unwrap();
    let unreachable = SocketAddr::from(([127, 0, 0, 1], testkit::free_port().unwrap()));
    let master = master(store.path(), unreachable);
    let refused = post(master.address, PROFILE, &profile(&["web"])).unwrap().bad();
    assert!(refused.starts_with(&format!("ACI gateway: http://{unreachable}/createAppProf: ")), "{refused}");
    assert!(refused.ends_with("check that the gateway runs, and --aci-gateway"), "{refused}");
    assert_eq!(get(master.address, "/api/v1/appProfiles/").unwrap().good(), json!([]));
}

#[test]
fn a_netmaster_killed_during_a_change_leaves_no_partial_change() {
    let (store, gateway) = (testkit::scratch_dir("store").unwrap(), Gateway::start());
    let mut master = master(store.path(), gateway.address);
    let to = master.address;
    gateway.set_behaviour(Behaviour::Silent);
    let client = thread::spawn(move || post(to, PROFILE, &profile(&["web"])));
    assert_eq!(gateway.call().0, "/createAppProf");
    gateway.set_behaviour(agrees());
    master.restart();
    assert!(client.join().unwrap().is_err());
    // The gateway may have created the profile. The store does not have it, so it is deleted from
    // the fabric.
    assert_eq!(gateway.call(), ("/deleteAppProf".into(), named()));
    assert_eq!(get(to, PROFILE).unwrap().bad(), "appProfile not found");
    assert!(gateway.quiet());
}
