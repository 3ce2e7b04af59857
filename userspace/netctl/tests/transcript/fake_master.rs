//! A netmaster that stores objects with links and rejects the requests that the recorded netmaster rejected.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
};

use serde_json::{Map, Value, json};

/// Serves until the process ends.
pub(crate) struct FakeMaster {
    address: SocketAddr,
}

type Objects = BTreeMap<(String, String), Value>;

impl FakeMaster {
    pub(crate) fn start() -> FakeMaster {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let mut objects = Objects::new();
            put(&mut objects, "tenant", "default", json!({"tenantName": "default"}));
            let global = json!({"name": "global", "arpMode": "proxy", "fwdMode": "bridge", "networkInfraType": "default",
                "pvtSubnet": "172.19.0.0/16", "vlans": "1-4094", "vxlans": "1-10000"});
            put(&mut objects, "global", "global", global);
            for stream in listener.incoming() {
                serve(&mut objects, stream.unwrap());
            }
        });
        FakeMaster { address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn serve(objects: &mut Objects, stream: TcpStream) {
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).unwrap();
        if header.trim().is_empty() {
            break;
        }
        let header = header.to_ascii_lowercase();
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (status, text) = match answer(objects, &method, &path, body) {
        Ok(value) => ("200 OK", value.to_string()),
        Err(message) => ("500 Internal Server Error", format!("{message}\nsome.Frame [file.go 1]\n")),
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
    (&stream).write_all(format!("{head}{text}").as_bytes()).unwrap();
}

fn answer(objects: &mut Objects, method: &str, path: &str, body: Value) -> Result<Value, String> {
    // The original ignores the query.
    let path = path.split('?').next().unwrap_or_default();
    if path == "/version" {
        return Ok(json!({"GitCommit": "96577306", "Version": "1.2.3", "BuildTime": ""}));
    }
    if path == "/info" {
        return Ok(json!({"current-state": "leader", "leader-ip": "127.0.0.1:9999"}));
    }
    let parts: Vec<&str> = path.strip_prefix("/api/v1/").unwrap().split('/').collect();
    if let ["inspect", types, key, ""] = parts[..] {
        let kind = types.strip_suffix('s').unwrap();
        if kind == "Bgp" {
            return Err(
                "Get \"http://:9090/inspect/bgp\": dial tcp :9090: connect: connection refused".into()
            );
        }
        let found = objects.get(&(kind.into(), key.into())).ok_or(format!("{kind} not found"))?;
        let mut answer = json!({"Config": found});
        if let Some(oper) = oper(kind) {
            answer["Oper"] = oper;
        }
        return Ok(answer);
    }
    let kind = parts[0].strip_suffix('s').unwrap();
    match (method, &parts[1..]) {
        ("GET", [""]) => {
            let mut list: Vec<Value> =
                objects.iter().filter(|((of, _), _)| of == kind).map(|(_, object)| object.clone()).collect();
            // In the wrong order: netctl must sort.
            list.reverse();
            Ok(Value::Array(list))
        }
        ("GET", [key, ""]) => {
            objects.get(&(kind.into(), (*key).into())).cloned().ok_or(format!("{kind} not found"))
        }
        ("POST", [key, ""]) => {
            reject(objects, kind, key, &body)?;
            put(objects, kind, key, body);
            Ok(json!({}))
        }
        ("DELETE", [key, ""]) => {
            if let ("network", "default:n1") = (kind, *key) {
                let groups = objects.keys().filter(|(kind, _)| kind == "endpointGroup").count();
                if groups > 0 {
                    return Err(format!("cannot delete n1 has {groups} endpoint groups"));
                }
            }
            if kind == "tenant" && objects.contains_key(&("network".into(), "t1:n2".into())) {
                return Err("cannot delete t1 has 1 networks".into());
            }
            objects.remove(&(kind.into(), (*key).into())).ok_or(format!("{kind} not found"))?;
            Ok(json!(key))
        }
        other => Err(format!("unexpected request {other:?}")),
    }
}

fn reject(objects: &Objects, kind: &str, key: &str, body: &Value) -> Result<(), String> {
    let is = |field: &str, value: &str| body[field] == value;
    let message = match kind {
        "tenant" if key == "bad_name" => "tenantName string invalid format",
        "tenant" if objects.contains_key(&(kind.into(), key.into())) => {
            "Cant change tenant parameters after its created"
        }
        "global" if is("vlans", "1-5000") => "invalid range 1-5000, vlan values exceed 4095 max allowed",
        "network" if is("subnet", "10.1.1.0/25") => "network n1 conflicts with subnet 10.1.1.0/25",
        "endpointGroup" if body["policies"] == json!(["xx"]) => "Policy not found",
        "serviceLB" if body["selectors"] == json!([]) => "Invalid selector options",
        _ => return Ok(()),
    };
    Err(message.into())
}

fn oper(kind: &str) -> Option<Value> {
    Some(match kind {
        "global" => json!({"clusterMode": "test"}),
        "network" => {
            json!({"allocatedIPAddresses": "10.1.1.254", "availableIPAddresses": "10.1.1.1-10.1.1.253",
            "externalPktTag": 1, "networkTag": "n1.default", "pktTag": 1})
        }
        "endpointGroup" => json!({"externalPktTag": 1, "groupTag": "web.default", "pktTag": 1}),
        "serviceLB" => json!({"serviceVip": "10.1.1.1"}),
        "netprofile" => return None,
        _ => json!({}),
    })
}

/// Stores an object as netmaster does: first the key, then the non-empty fields sorted by name, then the links.
fn put(objects: &mut Objects, kind: &str, key: &str, body: Value) {
    let mut object = Map::new();
    object.insert("key".into(), json!(key));
    let mut fields: Vec<(String, Value)> = body.as_object().unwrap().clone().into_iter().collect();
    fields.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, value) in fields {
        let empty = value == "" || value == 0 || value == json!([]);
        if !empty && !["key", "links", "link-sets"].contains(&name.as_str()) {
            object.insert(name, value);
        }
    }
    let link = |kind: &str, key: String| json!({"type": kind, "key": key});
    let tenant = link("tenant", key.split(':').next().unwrap().to_owned());
    let (sets, links) = match kind {
        "tenant" => (Some(json!({})), None),
        "network" | "policy" | "netprofile" => (Some(json!({})), Some(json!({"Tenant": tenant}))),
        "endpointGroup" => {
            let network = link("network", format!("default:{}", body["networkName"].as_str().unwrap()));
            let links = json!({"AppProfile": {}, "NetProfile": {}, "Network": network, "Tenant": tenant});
            (Some(json!({})), Some(links))
        }
        "rule" => {
            let policy = format!("default:{}", body["policyName"].as_str().unwrap());
            let (mut policies, mut rules) = (Map::new(), Map::new());
            rules.insert(key.to_owned(), link("rule", key.to_owned()));
            policies.insert(policy.clone(), link("policy", policy.clone()));
            if key.ends_with(":1")
                && let Some(policy) = objects.get_mut(&("policy".to_owned(), policy))
            {
                policy["link-sets"] = json!({"Rules": rules});
            }
            (Some(json!({"Policies": policies})), Some(json!({"MatchEndpointGroup": {}})))
        }
        "serviceLB" => {
            let network = link("network", format!("default:{}", body["networkName"].as_str().unwrap()));
            (None, Some(json!({"Network": network, "Tenant": tenant})))
        }
        _ => (None, None),
    };
    object.extend(sets.map(|sets| ("link-sets".to_owned(), sets)));
    object.extend(links.map(|links| ("links".to_owned(), links)));
    objects.insert((kind.into(), key.into()), Value::Object(object));
}
