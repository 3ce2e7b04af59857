//! Random calls with the token of a tenant's operator find no way to other tenants.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::authorization::{ADMIN, BLUE, Site};
use crate::client::{Answer, call};

const CALLS: usize = 2000;
/// Tenants of others. The ids of state join names with dots.
const VICTIMS: [&str; 3] = ["red", "red.blue", "bluer"];
/// Values of the victims' objects that no call contains.
const SECRETS: [&str; 2] = ["ruby77", "10.77."];
const TYPES: [&str; 14] = [
    "aciGws",
    "appProfiles",
    "Bgps",
    "endpointGroups",
    "extContractsGroups",
    "globals",
    "netprofiles",
    "networks",
    "policys",
    "rules",
    "serviceLBs",
    "tenants",
    "volumes",
    "volumeProfiles",
];

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.next() % of.len()]
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.next().is_multiple_of(n)
    }

    fn tenant(&mut self) -> &'static str {
        self.pick(&[
            "blue", "blue", "blue", "red", "red.blue", "bluer", "default", "BLUE", "blue.red", "", "*",
        ])
    }

    fn name(&mut self) -> &'static str {
        self.pick(&[
            "net", "grp", "pol", "fast", "svc", "new", "net.red", "red:net", "other", "pol:1", "net.blue",
        ])
    }

    fn key(&mut self, types: &str) -> String {
        let tenant = self.tenant();
        let key = match types {
            "tenants" => tenant.to_owned(),
            "globals" => "global".into(),
            "Bgps" => "h9".into(),
            "aciGws" => "aciGw".into(),
            "rules" => format!("{tenant}:pol:{}", self.pick(&["1", "2"])),
            "networks" | "endpointGroups" if self.one_in(2) => {
                format!("{tenant}:{}", if types == "networks" { "net" } else { "grp" })
            }
            _ => format!("{tenant}:{}", self.name()),
        };
        if self.one_in(5) { self.encode(&key) } else { key }
    }

    /// Another spelling of the key.
    fn encode(&mut self, key: &str) -> String {
        match self.next() % 6 {
            0 => key.bytes().map(|b| format!("%{b:02x}")).collect(),
            1 => key.replace(':', "%3A"),
            2 => key.replace('.', "%2E"),
            3 => format!("blue:x/../{key}"),
            4 => format!("blue%2F..%2F{key}"),
            _ => key.replace(':', "%253A"),
        }
    }

    fn links(&mut self) -> Value {
        let mut links = serde_json::Map::new();
        for set in ["EndpointGroups", "Rules", "Policies", "Networks", "Services", "MatchRules", "Servicelbs"]
        {
            if self.one_in(3) {
                let tenant = self.tenant();
                let key = format!("{tenant}:{}", self.pick(&["grp", "pol:1", "pol", "net", "svc"]));
                links.insert(set.into(), json!({key.clone(): {"type": "x", "key": key}}));
            }
        }
        Value::Object(links)
    }

    fn link(&mut self) -> Value {
        let tenant = self.tenant();
        let key = format!("{tenant}:{}", self.pick(&["grp", "net", "fast"]));
        json!({"Tenant": {"type": "tenant", "key": tenant}, "Network": {"type": "network", "key": key.clone()},
            "NetProfile": {"type": "netprofile", "key": key.clone()}, "MatchEndpointGroup": {"type": "endpointGroup", "key": key}})
    }

    /// A body that may fit the key.
    fn body(&mut self, key: &str) -> String {
        let mut parts = key.split(':');
        let of_key = parts.next().unwrap_or_default();
        let (tenant, name) =
            (if self.one_in(6) { self.tenant() } else { of_key }, parts.next().unwrap_or("x"));
        let rule = parts.next().unwrap_or("1");
        let third = self.next() % 200;
        let mut body = json!({
            "tenantName": tenant, "networkName": name, "policyName": name, "profileName": name, "serviceName": name,
            "groupName": name, "ruleId": rule, "appProfileName": name, "contractsGroupName": name, "name": name,
            "contractsType": "provided", "encap": "vxlan", "subnet": format!("10.9.{third}.0/24"), "ports": ["80:80:TCP"],
            "selectors": ["a=b"], "direction": "in", "action": "deny", "protocol": "tcp", "bandwidth": "1 mbps",
            "fromEndpointGroup": self.pick(&["", "grp"]), "policies": [self.name()], "netProfile": self.pick(&["", "fast"]),
            "endpointGroups": [self.pick(&["grp", "other"])], "fwdMode": "routing", "hostname": "h9", "nwType": self.pick(&["data", "infra"]),
        });
        for field in ["networkName", "groupName"] {
            if self.one_in(2) {
                body[field] = json!(self.pick(&["net", "grp", "net.red"]));
            }
        }
        if self.one_in(2) {
            body["link-sets"] = self.links();
        }
        if self.one_in(3) {
            body["links"] = self.link();
        }
        let text = body.to_string();
        match self.next() % 8 {
            0 => text.replacen('{', &format!("{{\"tenantName\":\"{}\",", self.tenant()), 1),
            1 => text.replace("\"tenantName\"", "\"TENANTNAME\""),
            2 => text.replace("link-sets", "Link-Sets"),
            3 => text.replacen('}', &format!(",\"tenantname\":\"{}\"}}", self.tenant()), 1),
            _ => text,
        }
    }

    fn plugin(&mut self) -> (String, String) {
        let name = self.pick(&[
            "createEndpoint",
            "deleteEndpoint",
            "updateEndpoint",
            "allocAddress",
            "releaseAddress",
        ]);
        let tenant = self.tenant();
        let body = json!({"TenantName": tenant, "Tenant": tenant, "NetworkName": "net", "Network": "net",
            "EndpointID": format!("{tenant}-ep"), "ContainerID": "x", "Event": "start", "NetworkID": format!("net.{tenant}"),
            "ConfigEP": {"Container": format!("{tenant}-ep"), "Host": "h9"}});
        (format!("/plugin/{name}"), body.to_string())
    }

    fn request(&mut self) -> (&'static str, String, String) {
        let method = self.pick(&["GET", "GET", "POST", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"]);
        let types = self.pick(&TYPES);
        let key = self.key(types);
        let body = self.body(&key);
        let tenant = self.tenant();
        let path = match self.next() % 12 {
            0..=6 => format!("/api/v1/{types}/{key}/"),
            7 => format!("/api/v1/{types}/"),
            8 => format!("/api/v1/inspect/{types}/{key}/"),
            9 => {
                let (path, body) = self.plugin();
                return (self.pick(&["POST", "PUT"]), path, body);
            }
            10 => {
                let kind = self.pick(&["net", "group", "ep"]);
                let name = self.pick(&["net", "grp", "red-ep"]);
                return ("DELETE", format!("/debug/epcleanup/tenant/{tenant}/{kind}/{name}"), body);
            }
            _ => {
                let word = self.pick(&["red-ep", "e", "p", "-", "."]);
                let path = self.pick(&[
                    "/services",
                    "/info",
                    "/metrics",
                    "/debug/ofnet",
                    "/api/v1/inspect/nodes/",
                    "endpoint",
                    "service",
                ]);
                let path = match path {
                    "endpoint" => format!("/api/v1/inspect/endpoints/{word}/"),
                    "service" => format!("/service/svc:{tenant}"),
                    path => path.to_owned(),
                };
                return ("GET", path, body);
            }
        };
        (method, path, body)
    }
}

/// Query and header of a request; of some requests, ones that the original ignores.
fn options(random: &mut Random) -> (&'static str, Option<(&'static str, &'static str)>) {
    if !random.one_in(3) {
        return ("", None);
    }
    let query = random.pick(&[
        "",
        "?limit=1",
        "?limit=2&continue=blue",
        "?limit=1&continue=bluer:net",
        "?continue=red",
        "?fieldSelector=tenantName=red",
        "?fieldSelector=tenantName!=blue&limit=1",
        "?dryRun=All",
        "?dryRun=All&dryRun=0",
    ]);
    let header = match random.next() % 6 {
        0 => Some(("If-Match", "*")),
        1 => Some(("If-Match", "\"1\", \"9\"")),
        2 => Some(("If-None-Match", "*")),
        _ => None,
    };
    (query, header)
}

/// `more`: adds queries and conditions.
fn send(site: &Site, token: &str, random: &mut Random, more: Option<&mut Random>) -> (String, Answer) {
    let (method, path, body) = random.request();
    let (query, condition) = more.map_or(("", None), options);
    let path = format!("{path}{query}");
    let bearer = format!("Bearer {token}");
    let mut headers = vec![("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
    headers.extend(condition);
    for spoofed in [
        ("Via", "1.1 netmaster"),
        ("Netmaster-Client-Subject", "CN=anna,O=ops"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("X-Forwarded-User", "ops"),
        ("Accept", "application/problem+json"),
    ] {
        if random.one_in(6) {
            headers.push(spoofed);
        }
    }
    let answer = call(site.master.address, method, &path, &headers, &body).unwrap();
    (format!("{method} {path} {body}"), answer)
}

/// Everything that is not of tenant `blue`.
fn others(site: &Site) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for types in TYPES {
        for object in site.get(ADMIN, &format!("/api/v1/{types}/")).good().as_array().unwrap() {
            let key = object["key"].as_str().unwrap();
            if key.split(':').next() == Some("blue") {
                continue;
            }
            let path = format!("/api/v1/inspect/{types}/{key}/");
            // The state of the cluster counts the objects of all tenants.
            if types != "globals" {
                found.insert(path.clone(), site.get(ADMIN, &path).good());
            }
            found.insert(format!("{types} {key}"), object.clone());
        }
    }
    for tenant in VICTIMS {
        for path in [format!("/service/svc:{tenant}"), format!("/api/v1/inspect/endpoints/{tenant}-ep/")] {
            let answer = site.get(ADMIN, &path);
            found.insert(path, json!([answer.status, answer.body]));
        }
    }
    found
}

#[test]
fn random_calls_of_a_tenant_operator_stay_in_the_tenant() {
    let site = Site::start(&[]);
    site.create_tenant("blue", "10.1.0.0/24", "azure");
    for (n, tenant) in VICTIMS.iter().enumerate() {
        site.create_tenant(tenant, &format!("10.77.{n}.0/24"), "ruby77");
    }
    let before = others(&site);
    assert!(before.len() > 40, "{}", before.len());
    let (mut random, mut more) = (Random(0x5eed), Random(0x0b5));
    let mut statuses = BTreeMap::<u16, usize>::new();
    for _ in 0..CALLS {
        let (request, answer) = send(&site, BLUE, &mut random, Some(&mut more));
        *statuses.entry(answer.status).or_default() += 1;
        let leaked = SECRETS.iter().any(|secret| answer.body.contains(secret));
        assert!(!leaked, "{request}: {answer:?}");
        if let Some(link) = answer.header("link") {
            assert!(link.contains("continue=blue%3A"), "{request}: {answer:?}");
        }
    }
    assert_eq!(others(&site), before, "{statuses:?}");
    let count = |status: u16| statuses.get(&status).copied().unwrap_or_default();
    assert!(count(200) > 50 && count(403) > 500, "the calls reach both sides of the limit: {statuses:?}");

    // The same calls of an administrator change and read other tenants' objects.
    let (mut random, mut leaked) = (Random(0x5eed), false);
    for _ in 0..CALLS / 5 {
        let (_, answer) = send(&site, ADMIN, &mut random, None);
        leaked |= SECRETS.iter().any(|secret| answer.body.contains(secret));
    }
    assert!(leaked && others(&site) != before, "the calls find nothing");
}
