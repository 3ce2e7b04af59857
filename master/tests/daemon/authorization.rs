//! Roles of tokens.

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::write_secret;

use crate::client::{Answer, call};
use crate::master::Master;

pub(crate) const ADMIN: &str = "admin-token-0123456789";
pub(crate) const BLUE: &str = "blue-token-0123456789";
pub(crate) const NODE: &str = "node-token-0123456789";
const OTHER_NODE: &str = "other-node-token-0123456789";
const BOARD: &str = "board-token-0123456789";

/// A netmaster with tokens, and two tenants.
pub(crate) struct Site {
    pub(crate) master: Master,
    pub(crate) dir: TempDir,
}

impl Site {
    pub(crate) fn start(more: &[&str]) -> Site {
        let dir = testkit::scratch_dir("roles").unwrap();
        let tokens = dir.path().join("tokens");
        let lines = format!(
            "ops admin {ADMIN}\nblue-ci tenant-operator:blue {BLUE}\nh1 agent:h1 {NODE}\nh2 agent:h2 {OTHER_NODE}\n\
             board read-only {BOARD}\n"
        );
        write_secret(&tokens, &lines).unwrap();
        let flags = [&["--token-file", tokens.to_str().unwrap()], more].concat();
        let master = Master::start_unprobed(&dir.path().join("store"), &flags);
        Site { master, dir }
    }

    pub(crate) fn ask(&self, token: &str, method: &str, path: &str, body: &Value) -> Answer {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
        call(self.master.address, method, path, &headers, &body.to_string()).unwrap()
    }

    pub(crate) fn get(&self, token: &str, path: &str) -> Answer {
        self.ask(token, "GET", path, &Value::Null)
    }

    pub(crate) fn put(&self, token: &str, path: &str, body: &Value) -> Answer {
        self.ask(token, "POST", &format!("/api/v1/{path}/"), body)
    }

    /// Creates the tenant with a network, a group, a policy with a rule, a profile and a service.
    pub(crate) fn create_tenant(&self, tenant: &str, subnet: &str, secret: &str) {
        let put = |types: &str, name: &str, mut body: Value| {
            body["tenantName"] = json!(tenant);
            let key = if name.is_empty() { tenant.to_owned() } else { format!("{tenant}:{name}") };
            self.put(ADMIN, &format!("{types}/{key}"), &body).good();
        };
        put("tenants", "", json!({}));
        let network = json!({"networkName": "net", "encap": "vxlan", "subnet": subnet, "cfgdTag": format!("{secret}-n.{tenant}")});
        put("networks", "net", network);
        put("netprofiles", "fast", json!({"profileName": "fast", "bandwidth": "77 mbps", "DSCP": 7}));
        put("policys", "pol", json!({"policyName": "pol"}));
        let rule = json!({"policyName": "pol", "ruleId": "1", "direction": "in", "action": "allow", "protocol": "tcp",
            "port": 7777, "fromIpAddress": subnet});
        put("rules", "pol:1", rule);
        let group = json!({"groupName": "grp", "networkName": "net", "policies": ["pol"], "netProfile": "fast",
            "cfgdTag": format!("{secret}-g.{tenant}")});
        put("endpointGroups", "grp", group);
        let service = json!({"serviceName": "svc", "networkName": "net", "selectors": [format!("{secret}=yes")],
            "ports": ["80:8080:TCP"]});
        put("serviceLBs", "svc", service);
        self.create_endpoint(ADMIN, tenant, &format!("{tenant}-ep"), "h9", secret).good();
    }

    pub(crate) fn create_endpoint(
        &self,
        token: &str,
        tenant: &str,
        id: &str,
        host: &str,
        pod: &str,
    ) -> Answer {
        let body = json!({"TenantName": tenant, "NetworkName": "net", "EndpointID": id, "EPCommonName": format!("{pod}-pod"),
            "ConfigEP": {"Container": id, "Host": host, "ServiceName": "grp"}});
        self.ask(token, "POST", "/plugin/createEndpoint", &body)
    }
}

fn keys(answer: Answer) -> Vec<String> {
    let objects = answer.good();
    objects.as_array().unwrap().iter().map(|object| object["key"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_tenant_operator_reads_and_changes_the_own_tenant_only() {
    let site = Site::start(&[]);
    site.create_tenant("blue", "10.1.0.0/24", "azure");
    site.create_tenant("red", "10.2.0.0/24", "ruby");

    assert_eq!(keys(site.get(BLUE, "/api/v1/tenants/")), ["blue"]);
    assert_eq!(keys(site.get(BLUE, "/api/v1/networks/")), ["blue:net"]);
    assert_eq!(keys(site.get(BLUE, "/api/v1/rules/")), ["blue:pol:1"]);
    assert!(keys(site.get(BOARD, "/api/v1/networks/")).contains(&"red:net".to_owned()));
    let services = site.get(BLUE, "/services").body;
    assert!(services.contains("azure") && !services.contains("ruby"), "{services}");
    assert_eq!(site.get(BLUE, "/service/svc:red").body, "null");
    assert!(site.get(BLUE, "/service/svc:blue").body.contains("azure"));
    let endpoint = site.get(BLUE, "/api/v1/inspect/endpoints/blue-ep/").good();
    assert_eq!(endpoint["Oper"]["endpointID"], "blue-ep");
    for name in ["red-ep", "ruby", "red"] {
        let missing = site.get(BLUE, &format!("/api/v1/inspect/endpoints/{name}/"));
        assert_eq!(missing.bad(), "endpoint not found", "{name}");
    }
    for path in [
        "networks/red:net",
        "inspect/networks/red:net",
        "tenants/red",
        "networks/%72ed:net",
        "globals/global",
    ] {
        let refused = site.get(BLUE, &format!("/api/v1/{path}/"));
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
        assert!(refused.body.contains("requires admin") && refused.body.lines().count() == 1, "{refused:?}");
    }
    let policy = |tenant: &str| json!({"tenantName": tenant, "policyName": "new"});
    site.put(BLUE, "policys/blue:new", &policy("blue")).good();
    assert_eq!(site.put(BLUE, "policys/red:new", &policy("red")).status, 403);
    assert_eq!(site.put(BLUE, "policys/blue:new", &policy("red")).bad(), "Invalid Key");
    assert_eq!(site.put(BLUE, "tenants/blue2", &json!({"tenantName": "blue2"})).status, 403);
    assert_eq!(site.ask(BLUE, "DELETE", "/api/v1/tenants/blue/", &Value::Null).status, 403);
    assert_eq!(site.ask(BLUE, "DELETE", "/debug/epcleanup/tenant/blue/net/net", &Value::Null).status, 403);
    assert_eq!(site.create_endpoint(BLUE, "blue", "b2", "h1", "x").status, 403);
    assert_eq!(site.ask(BLUE, "DELETE", "/api/v1/policys/blue:new/", &Value::Null).good(), "blue:new");
    let infra = json!({"tenantName": "blue", "networkName": "infra", "nwType": "infra", "encap": "vxlan", "subnet": "10.9.0.0/24"});
    assert_eq!(site.put(BLUE, "networks/blue:infra", &infra).status, 403);
}

/// The record of a group has its profile, and the group cannot be deleted while it has one.
#[test]
fn a_tenant_operator_does_not_change_infra_groups_by_application_profiles() {
    let site = Site::start(&[]);
    site.create_tenant("blue", "10.1.0.0/24", "azure");
    let infra = json!({"tenantName": "blue", "networkName": "infra", "nwType": "infra", "encap": "vlan",
        "subnet": "10.9.0.0/24"});
    site.put(ADMIN, "networks/blue:infra", &infra).good();
    let group = json!({"tenantName": "blue", "groupName": "nodes", "networkName": "infra"});
    site.put(ADMIN, "endpointGroups/blue:nodes", &group).good();
    let stored = || site.get(ADMIN, "/api/v1/endpointGroups/blue:nodes/").good();
    let profile =
        |groups: &[&str]| json!({"tenantName": "blue", "appProfileName": "app", "endpointGroups": groups});
    let ask = |token: &str, method: &str, body: &Value| {
        site.ask(token, method, "/api/v1/appProfiles/blue:app/", body)
    };
    let refused = |method: &str, body: &Value| {
        let refused = ask(BLUE, method, body);
        assert_eq!(refused.status, 403, "{method} {body}: {refused:?}");
        assert!(refused.body.contains("infra networks"), "{refused:?}");
    };
    let before = stored();
    refused("POST", &profile(&["nodes"]));
    ask(BLUE, "POST", &profile(&["grp"])).good();
    for method in ["POST", "PUT"] {
        refused(method, &profile(&["grp", "nodes"]));
    }
    assert_eq!(stored(), before);

    ask(ADMIN, "POST", &profile(&["grp", "nodes"])).good();
    let attached = stored();
    assert_ne!(attached, before);
    for (method, body) in [("POST", profile(&["grp"])), ("PUT", profile(&["grp"])), ("DELETE", Value::Null)] {
        refused(method, &body);
    }
    assert_eq!(stored(), attached);
    ask(ADMIN, "DELETE", &Value::Null).good();
    assert_eq!(stored(), before);
}

/// The physical network would lead to its endpoints instead of hosts with the same addresses.
#[test]
fn a_tenant_operator_creates_no_routed_network() {
    let site = Site::start(&[]);
    site.put(ADMIN, "tenants/blue", &json!({"tenantName": "blue"})).good();
    let global = json!({"name": "global", "networkInfraType": "default", "vlans": "1-4094",
        "vxlans": "1-10000", "fwdMode": "routing", "arpMode": "proxy", "pvtSubnet": "172.19.0.0/16"});
    site.put(ADMIN, "globals/global", &global).good();
    let network = json!({"tenantName": "blue", "networkName": "a", "encap": "vlan", "subnet": "10.1.0.0/24",
        "gateway": "10.1.0.254"});
    let refused = site.put(BLUE, "networks/blue:a", &network);
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.body.contains("subnet 10.1.0.0/24: requires admin"), "{refused:?}");
    site.put(ADMIN, "networks/blue:a", &network).good();
}

/// A later change of the object would follow the links.
#[test]
fn links_to_objects_of_other_tenants_are_refused() {
    let site = Site::start(&[]);
    site.create_tenant("blue", "10.1.0.0/24", "azure");
    site.create_tenant("red", "10.2.0.0/24", "ruby");
    let before = site.get(ADMIN, "/api/v1/inspect/rules/red:pol:1/").body;
    let to = |key: &str| json!({key: {"type": "x", "key": key}});
    let profile = |links: Value| json!({"tenantName": "blue", "profileName": "p", "bandwidth": "1 mbps", "link-sets": links});
    let policy = |links: Value| json!({"tenantName": "blue", "policyName": "p", "link-sets": links});
    for (path, body) in [
        ("netprofiles/blue:p", profile(json!({"EndpointGroups": to("red:grp")}))),
        ("policys/blue:p", policy(json!({"Rules": to("red:pol:1")}))),
        ("policys/blue:p", policy(json!({"rules": to("red:pol:1")}))),
    ] {
        let refused = site.put(BLUE, path, &body);
        assert_eq!(refused.status, 403, "{body}: {refused:?}");
        let own = body.to_string().replace("red:", "blue:");
        site.put(BLUE, path, &serde_json::from_str(&own).unwrap()).good();
        site.put(ADMIN, path, &body).good();
    }
    assert_eq!(site.get(ADMIN, "/api/v1/inspect/rules/red:pol:1/").body, before);
}

#[test]
fn an_agent_creates_and_deletes_endpoints_of_its_node_only() {
    let site = Site::start(&[]);
    site.create_tenant("blue", "10.1.0.0/24", "azure");
    site.create_endpoint(NODE, "blue", "c1", "h1", "web").good();
    assert_eq!(site.create_endpoint(NODE, "blue", "c2", "h2", "web").status, 403);
    // An existing endpoint of another node is not returned.
    assert_eq!(site.create_endpoint(NODE, "blue", "blue-ep", "h1", "web").status, 403);
    let delete = |id: &str| {
        let body = json!({"TenantName": "blue", "NetworkName": "net", "EndpointID": id});
        site.ask(NODE, "POST", "/plugin/deleteEndpoint", &body)
    };
    let update = |event: &str, id: &str, container: &str| {
        let body = json!({"Tenant": "blue", "Network": "net", "EndpointID": id, "Event": event, "ContainerID": container,
            "Labels": {"a": "b"}});
        site.ask(NODE, "POST", "/plugin/updateEndpoint", &body)
    };
    update("start", "c1", "c1-id").good();
    assert_eq!(update("start", "blue-ep", "x").status, 403);
    let refused = delete("blue-ep");
    assert_eq!(refused.status, 403);
    assert!(refused.body.contains("the agent's node is h1"), "{refused:?}");
    assert_eq!(delete("c9").bad(), "key not found");
    site.get(NODE, "/api/v1/inspect/endpoints/c1/").good();
    assert_eq!(site.get(NODE, "/api/v1/inspect/endpoints/blue-ep/").bad(), "endpoint not found");
    assert_eq!(site.get(NODE, "/api/v1/networks/").status, 403);
    assert_eq!(site.ask(NODE, "POST", "/plugin/allocAddress", &json!({"NetworkID": "net.blue"})).status, 403);
    delete("c1").good();
    site.get(ADMIN, "/api/v1/inspect/endpoints/blue-ep/").good();
}

/// The endpoint of a node on an infra network has the node's name as its container.
#[test]
fn an_agent_does_not_take_the_infra_endpoint_of_another_node() {
    let site = Site::start(&[]);
    let network = json!({"tenantName": "default", "networkName": "infra", "nwType": "infra", "encap": "vlan",
        "subnet": "10.9.0.0/24"});
    site.put(ADMIN, "networks/default:infra", &network).good();
    let join = |token: &str, container: &str, host: &str| {
        let body = json!({"TenantName": "default", "NetworkName": "infra",
            "ConfigEP": {"Container": container, "Host": host}});
        site.ask(token, "POST", "/plugin/createEndpoint", &body)
    };
    let refused = join(NODE, "h2", "h1");
    assert_eq!(refused.status, 403, "{refused:?}");
    assert!(refused.body.contains("the agent's node is h1"), "{refused:?}");
    join(NODE, "h1", "h1").good();
    let own = join(OTHER_NODE, "h2", "h2").good();
    assert_eq!(own["EndpointConfig"]["homingHost"], "h2");
}
