//! Synchronisation with an ACI gateway. The tests run a fake gateway that records its requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use contiv_daemon::tls::{self, KeyPair};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use testkit::Authority;
use testkit::etcd::Etcd;

use crate::client::{delete, get, post};
use crate::master::{Master, WAIT_TIMEOUT};

/// Behaviour of the fake gateway.
#[derive(Clone, Debug)]
enum Behaviour {
    /// Responds with status and body.
    Says(u16, Value),
    /// Agrees after the barrier.
    Held(Arc<Barrier>),
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
        Gateway::start_with(None)
    }

    fn start_with(tls: Option<Arc<ServerConfig>>) -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let behaviour = Arc::new(Mutex::new(agrees()));
        let (sent, calls) = channel();
        let answers = behaviour.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (sent, behaviour, stream) = (sent.clone(), answers.clone(), stream.unwrap());
                let session = tls.clone().map(|tls| ServerConnection::new(tls).unwrap());
                thread::spawn(move || match session {
                    Some(session) => serve(StreamOwned::new(session, stream), &sent, &behaviour),
                    None => serve(stream, &sent, &behaviour),
                });
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
fn serve(stream: impl Read + Write, sent: &Sender<(String, Value)>, behaviour: &Mutex<Behaviour>) {
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
        let behaviour = behaviour.lock().unwrap().clone();
        // The test may have ended.
        let _over = sent.send((path, serde_json::from_slice(&body).unwrap()));
        let (status, body) = match behaviour {
            Behaviour::Says(status, body) => (status, body),
            Behaviour::Held(barrier) => {
                barrier.wait();
                (200, json!({"result": "success"}))
            }
            Behaviour::Silent => return thread::sleep(WAIT_TIMEOUT),
        };
        let body = body.to_string();
        let response = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let stream = reader.get_mut();
        if stream.write_all(response.as_bytes()).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

const PROFILE: &str = "/api/v1/appProfiles/default:ap/";

fn master(dir: &std::path::Path, gateway: SocketAddr) -> Master {
    let master =
        Master::start_unprobed(dir, &["--infra", "aci", "--aci-gateway", &format!("http://{gateway}/")]);
    objects(master.address);
    master
}

fn objects(to: SocketAddr) {
    let network = json!({"tenantName": "default", "networkName": "net", "encap": "vlan",
        "subnet": "10.1.0.0/24", "gateway": "10.1.0.254"});
    post(to, "/api/v1/networks/default:net/", &network).unwrap().good();
    for group in ["web", "db"] {
        let body = json!({"tenantName": "default", "groupName": group, "networkName": "net"});
        post(to, &format!("/api/v1/endpointGroups/default:{group}/"), &body).unwrap().good();
    }
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

/// A leader that hangs between two requests to the gateway is replaced.
#[test]
fn a_deposed_leader_sends_nothing_to_the_gateway() {
    testkit::needs!(binary("etcd"));
    let (etcd, gateway) = (Etcd::start().unwrap(), Gateway::start());
    let url = format!("http://{}", gateway.address);
    let flags =
        || ["--etcd", &etcd.endpoint(), "--infra", "aci", "--aci-gateway", &url].map(str::to_owned).to_vec();
    let old = Master::wait_leading(flags());
    let new = Master::follow(flags());
    objects(old.address);
    post(old.address, PROFILE, &profile(&["web"])).unwrap().good();
    assert_eq!(gateway.call().0, "/createAppProf");

    let barrier = Arc::new(Barrier::new(2));
    gateway.set_behaviour(Behaviour::Held(barrier.clone()));
    let to = old.address;
    let client = thread::spawn(move || post(to, PROFILE, &profile(&["web", "db"])));
    assert_eq!(gateway.call(), ("/deleteAppProf".into(), named()));
    old.process.freeze().unwrap();
    gateway.set_behaviour(agrees());
    // The new leader restores the stored profile.
    assert_eq!(gateway.call(), ("/deleteAppProf".into(), named()));
    assert_eq!(gateway.call().1["epgs"].as_array().unwrap().len(), 1);
    barrier.wait();
    old.process.signal(nix::sys::signal::Signal::SIGCONT).unwrap();
    assert!(client.join().unwrap().is_ok_and(|answer| answer.status != 200));
    thread::sleep(Duration::from_millis(500));
    assert!(gateway.quiet(), "the deposed leader has sent the refused change");
    assert_eq!(get(new.address, PROFILE).unwrap().good()["endpointGroups"], json!(["web"]));
}

#[test]
fn the_gateways_certificate_is_verified() {
    let (authority, strangers) = (Authority::new().unwrap(), Authority::new().unwrap());
    let files = authority.sign("gateway", &["127.0.0.1"]).unwrap();
    let pair = KeyPair { certificate: files.certificate, key: files.key };
    let gateway = Gateway::start_with(Some(tls::server(&pair, None).unwrap().into()));
    let url = format!("https://{}", gateway.address);
    for (ca, trusted) in [(&strangers.ca, false), (&authority.ca, true)] {
        let store = testkit::scratch_dir("store").unwrap();
        let flags = ["--infra", "aci", "--aci-gateway", &url, "--aci-gateway-ca", ca.to_str().unwrap()];
        let master = Master::start_unprobed(store.path(), &flags);
        objects(master.address);
        let answer = post(master.address, PROFILE, &profile(&["web"])).unwrap();
        if trusted {
            answer.good();
            assert_eq!(gateway.call().0, "/createAppProf");
        } else {
            let refused = answer.bad();
            assert!(refused.contains("/createAppProf: ") && refused.contains("certificate"), "{refused}");
            assert!(gateway.quiet());
        }
    }
}

#[test]
fn the_gateways_ca_bundle_is_reloaded() {
    let (authority, strangers) = (Authority::new().unwrap(), Authority::new().unwrap());
    let files = authority.sign("gateway", &["127.0.0.1"]).unwrap();
    let pair = KeyPair { certificate: files.certificate, key: files.key };
    let gateway = Gateway::start_with(Some(tls::server(&pair, None).unwrap().into()));
    let (store, dir) = (testkit::scratch_dir("store").unwrap(), testkit::scratch_dir("ca").unwrap());
    let ca = dir.path().join("ca.pem");
    std::fs::copy(&strangers.ca, &ca).unwrap();
    let url = format!("https://{}", gateway.address);
    let flags = ["--infra", "aci", "--aci-gateway", &url, "--aci-gateway-ca", ca.to_str().unwrap()];
    let master = Master::start_unprobed(store.path(), &flags);
    objects(master.address);
    let refused = post(master.address, PROFILE, &profile(&["web"])).unwrap().bad();
    assert!(refused.contains("certificate"), "{refused}");
    std::fs::copy(&authority.ca, &ca).unwrap();
    // The profile is pending: it is sent again until the gateway has accepted it.
    assert_eq!(gateway.call(), ("/deleteAppProf".into(), named()));
}
