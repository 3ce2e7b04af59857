//! Objects that all clients write and read, as registers: their requests, and what the responses mean.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{linear::Action, random::Random};
use crate::http::Client;

/// Network of the groups and endpoints, and network of the services.
pub(super) const GROUPS_ON: &str = "registers";
pub(super) const SERVICES_ON: &str = "services";
/// Number of policies that groups choose from.
const POLICIES: usize = 4;
/// Number of rules of the large policy, and of groups that the application profile chooses from: attaching or
/// detaching all takes more than one transaction of etcd.
const MANY: usize = 140;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Policy,
    Rule,
    Group,
    /// A group that the large policy is attached to and detached from.
    LargeGroup,
    Netprofile,
    Service,
    Network,
    Endpoint,
    /// An application profile of up to [`MANY`] groups.
    LargeProfile,
}

const KINDS: [Kind; 9] = [
    Kind::Policy,
    Kind::Rule,
    Kind::Group,
    Kind::LargeGroup,
    Kind::Netprofile,
    Kind::Service,
    Kind::Network,
    Kind::Endpoint,
    Kind::LargeProfile,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Register {
    pub(super) kind: Kind,
    number: usize,
}

/// A request, and what it does if it is carried out.
pub(super) struct Request {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) body: Option<Value>,
    pub(super) action: Action,
}

/// Creates the objects that the registers refer to.
pub(super) fn create_referenced(client: &Client) -> Result<()> {
    let put = |path: String, body: Value| client.post_json(&path, &body).map(drop);
    let policy = |name: &str| {
        put(format!("/api/v1/policys/default:{name}/"), json!({"tenantName": "default", "policyName": name}))
    };
    for number in 0..POLICIES {
        policy(&policy_name(number))?;
        let name = policy_name(number);
        let rule = rule(&name, "1", 1000 + number);
        put(format!("/api/v1/rules/default:{name}:1/"), rule)?;
    }
    policy("rules")?;
    policy("large")?;
    for number in 1..=MANY {
        let rule = rule("large", &number.to_string(), number);
        put(format!("/api/v1/rules/default:large:{number}/"), rule)?;
        let name = member_name(number);
        let group = json!({"tenantName": "default", "groupName": name, "networkName": GROUPS_ON});
        put(format!("/api/v1/endpointGroups/default:{name}/"), group)?;
    }
    Ok(())
}

fn policy_name(number: usize) -> String {
    format!("choice{number}")
}

/// Name of a group that the application profile chooses.
fn member_name(number: usize) -> String {
    format!("member{number}")
}

fn rule(policy: &str, id: &str, port: usize) -> Value {
    json!({
        "tenantName": "default", "policyName": policy, "ruleId": id, "direction": "in", "action": "allow",
        "protocol": "tcp", "port": port, "priority": 1,
    })
}

impl Register {
    pub(super) fn all() -> Vec<Register> {
        KINDS
            .into_iter()
            .flat_map(|kind| (0..kind.count()).map(move |number| Register { kind, number }))
            .collect()
    }

    fn name(self) -> String {
        format!("{:?}{}", self.kind, self.number).to_lowercase()
    }

    fn path(self) -> String {
        let name = self.name();
        let (types, key) = match self.kind {
            Kind::Policy => ("policys", name),
            Kind::Rule => ("rules", format!("rules:{name}")),
            Kind::Group | Kind::LargeGroup => ("endpointGroups", name),
            Kind::Netprofile => ("netprofiles", name),
            Kind::Service => ("serviceLBs", name),
            Kind::Network => ("networks", name),
            Kind::Endpoint => return format!("/api/v1/inspect/endpoints/{name}/"),
            Kind::LargeProfile => ("appProfiles", name),
        };
        format!("/api/v1/{types}/default:{key}/")
    }

    pub(super) fn read(self) -> Request {
        Request { method: "GET", path: self.path(), body: None, action: Action::Read(None) }
    }

    pub(super) fn delete(self) -> Request {
        let action = Action::Delete;
        if self.kind == Kind::Endpoint {
            let body = json!({"TenantName": "default", "NetworkName": GROUPS_ON, "EndpointID": self.name()});
            return Request {
                method: "POST",
                path: "/plugin/deleteEndpoint".into(),
                body: Some(body),
                action,
            };
        }
        Request { method: "DELETE", path: self.path(), body: None, action }
    }

    /// Creates or updates the object; `number` is from 0 to 65,000 and rarely used twice.
    pub(super) fn put(self, number: usize, random: &mut Random) -> Request {
        let name = self.name();
        let (mut body, action) = match self.kind {
            Kind::Policy => (json!({"policyName": name}), Action::Put(PRESENT.into())),
            Kind::Rule => {
                let port = 1 + number;
                (rule("rules", &name, port), Action::Create(port.to_string().into()))
            }
            Kind::Group | Kind::LargeGroup => {
                let mut policies: Vec<_> =
                    (0..POLICIES).filter(|_| random.percent(50)).map(policy_name).collect();
                if self.kind == Kind::LargeGroup && random.percent(50) {
                    policies.push("large".to_owned());
                }
                let value = join(policies.clone());
                let body = json!({"groupName": name, "networkName": GROUPS_ON, "policies": policies});
                (body, Action::Put(value.into()))
            }
            Kind::Netprofile => {
                let bandwidth = format!("{} kbps", 1 + number);
                (json!({"profileName": name, "bandwidth": bandwidth}), Action::Put(bandwidth.into()))
            }
            Kind::Service => {
                let port = format!("{}:8080:TCP", 1 + number);
                let body = json!({
                    "serviceName": name, "networkName": SERVICES_ON, "selectors": ["app=web"], "ports": [port],
                });
                (body, Action::Put(port.into()))
            }
            Kind::Network => {
                let subnet =
                    format!("172.{}.{}.{}/28", 16 + number / 4096, number / 16 % 256, number % 16 * 16);
                let encap = if number.is_multiple_of(2) { "vlan" } else { "vxlan" };
                let body = json!({"networkName": name, "encap": encap, "subnet": subnet});
                (body, Action::Create(subnet.into()))
            }
            Kind::Endpoint => {
                let body = json!({
                    "TenantName": "default", "NetworkName": GROUPS_ON, "EndpointID": name,
                    "ConfigEP": { "Container": name, "Host": "h1" },
                });
                let path = "/plugin/createEndpoint".into();
                return Request { method: "POST", path, body: Some(body), action: Action::Ensure(None) };
            }
            Kind::LargeProfile => {
                let few = random.below(3);
                let count = if random.percent(50) { few } else { MANY - few };
                let groups: Vec<_> = (1..=count).map(member_name).collect();
                let body = json!({"appProfileName": name, "endpointGroups": groups});
                (body, Action::Put(count.to_string().into()))
            }
        };
        body["tenantName"] = "default".into();
        Request { method: "POST", path: self.path(), body: Some(body), action }
    }

    /// Whether objects of this kind are changed less often, because a change takes long.
    pub(super) fn is_large(self) -> bool {
        matches!(self.kind, Kind::LargeGroup | Kind::LargeProfile)
    }

    /// What a response 200 to the request tells.
    pub(super) fn answered(self, request: &Request, body: &Value) -> Result<Action> {
        match (&request.action, self.kind) {
            (Action::Read(_), _) => Ok(Action::Read(Some(self.value(body)?.into()))),
            (Action::Ensure(_), _) => {
                let address = body["EndpointConfig"]["ipAddress"].as_str().context("no address")?;
                Ok(Action::Ensure(Some(address.into())))
            }
            (action, _) => Ok(action.clone()),
        }
    }

    /// What an error text tells, if it is expected.
    pub(super) fn refused(self, request: &Request, line: &str) -> Option<Action> {
        let exists = ["can not update a rule", "Cant change network parameters"];
        match request.action {
            Action::Read(_) | Action::Delete if line.ends_with("not found") => Some(Action::Read(None)),
            Action::Create(_) if exists.iter().any(|text| line.contains(text)) => Some(Action::Exists),
            _ => None,
        }
    }

    /// Value of the object in a response.
    fn value(self, body: &Value) -> Result<String> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let texts = |value: &Value| match value {
            Value::Null => Some(Vec::new()),
            list => list.as_array()?.iter().map(text).collect::<Option<Vec<_>>>(),
        };
        let value = match self.kind {
            Kind::Policy => text(&body["policyName"]).map(|_| PRESENT.to_owned()),
            Kind::Rule => body["port"].as_u64().map(|port| port.to_string()),
            Kind::Group | Kind::LargeGroup => texts(&body["policies"]).map(join),
            Kind::Netprofile => text(&body["bandwidth"]),
            Kind::Service => texts(&body["ports"]).map(join),
            Kind::Network => text(&body["subnet"]),
            Kind::Endpoint => text(&body["Oper"]["ipAddress"][0]),
            Kind::LargeProfile => texts(&body["endpointGroups"]).map(|groups| {
                let links = body["link-sets"]["EndpointGroups"].as_object().map_or(0, |links| links.len());
                let count = groups.len();
                if links == count { count.to_string() } else { format!("{count} groups, {links} links") }
            }),
        };
        value.with_context(|| format!("{self:?}: unexpected response {body}"))
    }
}

const PRESENT: &str = "present";

fn join(mut texts: Vec<String>) -> String {
    texts.sort_unstable();
    texts.join(" ")
}

impl Kind {
    fn count(self) -> usize {
        match self {
            Kind::LargeGroup | Kind::LargeProfile => 1,
            _ => 3,
        }
    }
}

/// Reads all registers through one netmaster.
pub(super) fn read_all(client: &Client) -> Result<Vec<(Register, Action)>> {
    let read = |register: Register| {
        let request = register.read();
        let response = client.get(&request.path)?;
        let action = match response.status {
            200 => register.answered(&request, &response.json()?)?,
            _ => {
                let line = response.first_line();
                register.refused(&request, line).with_context(|| format!("{}: {line}", request.path))?
            }
        };
        Ok((register, action))
    };
    Register::all().into_iter().map(read).collect()
}
