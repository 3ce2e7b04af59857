//! The gateway to an ACI fabric is told of application profiles. It is a double here, which keeps what it is told and
//! answers as the test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use crate::client::{delete, get, post};
use crate::master::{Master, PATIENCE};

/// How the double answers.
#[derive(Clone, Debug)]
enum Mood {
    /// Status and body.
    Says(u16, Value),
    /// Not at all.
    Silent,
}

struct Gateway {
    address: SocketAddr,
    mood: Arc<Mutex<Mood>>,
    calls: Receiver<(String, Value)>,
}

fn agrees() -> Mood {
    Mood::Says(200, json!({"result": "success", "info": ""}))
}

impl Gateway {
    fn start() -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mood = Arc::new(Mutex::new(agrees()));
        let (told, calls) = channel();
        let answers = mood.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (told, mood) = (told.clone(), answers.clone());
                thread::spawn(move || serve(&stream.unwrap(), &told, &mood));
            }
        });
        Gateway { address, mood, calls }
    }

    fn feels(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// The next call that it gets.
    fn call(&self) -> (String, Value) {
        self.calls.recv_timeout(PATIENCE).unwrap()
    }

    fn quiet(&self) -> bool {
        self.calls.try_recv().is_err()
    }
}

/// One request after the other, until the other side hangs up.
fn serve(stream: &TcpStream, told: &Sender<(String, Value)>, mood: &Mutex<Mood>) {
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
        // The test may be over.
        let _over = told.send((path, serde_json::from_slice(&body).unwrap()));
        let mood = mood.lock().unwrap().clone();
        let Mood::Says(status, body) = mood else { return thread::sleep(PATIENCE) };
        let body = body.to_string();
        let response = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        if (&mut &*stream).write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

const PROFILE: &str = "/api/v1/appProfiles/default:ap/";

fn master(dir: &std::path::Path, gateway: SocketAddr) -> Master {
    let master = Master::unasked(dir, &["--infra", "aci", "--aci-gateway", &format!("http://{gateway}/")]);
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
fn the_gateway_is_told_in_the_originals_words() {
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
    let (call, told) = gateway.call();
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
    assert_eq!(told, wanted);

    // Changed, it is told as deleted and made; a rule alone makes that, too.
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
fn what_the_gateway_refuses_is_not_done() {
    let (store, gateway) = (testkit::scratch_dir("store").unwrap(), Gateway::start());
    let master = master(store.path(), gateway.address);
    let to = master.address;
    gateway.feels(Mood::Says(200, json!({"result": "failed", "info": "no such domain"})));
    let refused = post(to, PROFILE, &profile(&["web"])).unwrap().bad();
    assert_eq!(refused, "Validation failed. Error: failed - no such domain");
    assert_eq!(get(to, PROFILE).unwrap().bad(), "appProfile not found");
    assert_eq!(gateway.call().0, "/createAppProf");
    // Half of it may be in the fabric.
    assert_eq!(gateway.call(), ("/deleteAppProf".into(), named()));
    delete(to, "/api/v1/endpointGroups/default:web/").unwrap().good();

    gateway.feels(agrees());
    let made = post(to, PROFILE, &profile(&["db"])).unwrap().good();
    gateway.call();
    gateway.feels(Mood::Says(404, json!({})));
    let refused = post(to, PROFILE, &profile(&[])).unwrap().bad();
    assert!(refused.ends_with("/deleteAppProf: page not found"), "{refused}");
    let refused = delete(to, PROFILE).unwrap().bad();
    assert!(refused.starts_with("ACI gateway: http://"), "{refused}");
    assert_eq!(get(to, PROFILE).unwrap().good(), made);
    // As soon as the gateway works, it hears again what is so.
    gateway.feels(agrees());
    loop {
        let (call, told) = gateway.call();
        if call == "/createAppProf" {
            assert_eq!(told["epgs"][0]["name"], "db");
            break;
        }
        assert_eq!((call.as_str(), told), ("/deleteAppProf", named()));
    }
}

#[test]
fn a_gateway_that_is_away_is_named() {
    let store = testkit::scratch_dir("store").unwrap();
    let nobody = SocketAddr::from(([127, 0, 0, 1], testkit::free_port().unwrap()));
    let master = master(store.path(), nobody);
    let refused = post(master.address, PROFILE, &profile(&["web"])).unwrap().bad();
    assert!(refused.starts_with(&format!("ACI gateway: http://{nobody}/createAppProf: ")), "{refused}");
    assert!(refused.ends_with("does it run, and is --aci-gateway right?"), "{refused}");
    assert_eq!(get(master.address, "/api/v1/appProfiles/").unwrap().good(), json!([]));
}

#[test]
fn a_netmaster_killed_between_leaves_nothing_half_done() {
    let (store, gateway) = (testkit::scratch_dir("store").unwrap(), Gateway::start());
    let mut master = master(store.path(), gateway.address);
    let to = master.address;
    gateway.feels(Mood::Silent);
    let client = thread::spawn(move || post(to, PROFILE, &profile(&["web"])));
    assert_eq!(gateway.call().0, "/createAppProf");
    gateway.feels(agrees());
    master.restart();
    assert!(client.join().unwrap().is_err());
    // The gateway may have made it; the store does not have it, and so neither does the fabric.
    assert_eq!(gateway.call(), ("/deleteAppProf".into(), named()));
    assert_eq!(get(to, PROFILE).unwrap().bad(), "appProfile not found");
    assert!(gateway.quiet());
}
