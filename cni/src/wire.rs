//! What the plugin and the agent say to each other: HTTP on a unix socket, JSON of the original (INVENTORY 6.1) and
//! a few members more, which the original's programs ignore.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

/// Where the agent listens.
pub const SOCKET: &str = "/run/contiv/contiv-cni.sock";
/// The path of ADD.
pub const ADD: &str = "/ContivCNI.AddPod";
/// The path of DEL.
pub const DEL: &str = "/ContivCNI.DelPod";
/// The only content type that is taken.
pub const CONTENT_TYPE: &str = "application/json";

/// The labels that say where a pod belongs.
pub mod labels {
    /// What they begin with.
    pub const PREFIX: &str = "io.contiv.";
    /// The tenant; [`DEFAULT_TENANT`] without it.
    pub const TENANT: &str = "io.contiv.tenant";
    /// The network; [`DEFAULT_NETWORK`] without it.
    pub const NETWORK: &str = "io.contiv.network";
    /// The endpoint group; none without it.
    pub const GROUP: &str = "io.contiv.net-group";
    /// The tenant of pods that name none.
    pub const DEFAULT_TENANT: &str = "default";
    /// The network of pods that name none.
    pub const DEFAULT_NETWORK: &str = "default-net";
}

/// The body of ADD and DEL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// The pod's name, or empty.
    #[serde(rename = "K8S_POD_NAME")]
    pub pod_name: String,
    /// The pod's namespace, or empty.
    #[serde(rename = "K8S_POD_NAMESPACE")]
    pub pod_namespace: String,
    /// The id of the container that holds the pod's namespaces, or empty.
    #[serde(rename = "K8S_POD_INFRA_CONTAINER_ID")]
    pub infra_container: String,
    /// The path of the network namespace; empty when it is gone.
    #[serde(rename = "CNI_NETNS")]
    pub netns: PathBuf,
    /// The interface's name in the container.
    #[serde(rename = "CNI_IFNAME")]
    pub ifname: String,
    /// The runtime's id of the container; ours.
    #[serde(rename = "CNI_CONTAINERID")]
    pub container: String,
    /// Of the network configuration; ours.
    #[serde(rename = "cniVersion")]
    pub cni_version: String,
    /// From the network configuration and CNI_ARGS; ours.
    pub labels: BTreeMap<String, String>,
}

impl Request {
    /// What the orchestrator calls the endpoint: the container, and the interface if it is not the usual one.
    pub fn endpoint(&self) -> String {
        let container = if self.infra_container.is_empty() { &self.container } else { &self.infra_container };
        match self.ifname.as_str() {
            "" | "eth0" => container.clone(),
            ifname => format!("{container}-{ifname}"),
        }
    }

    /// A label's value, or `default`.
    pub fn label<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.labels.get(key).map(String::as_str).filter(|value| !value.is_empty()).unwrap_or(default)
    }
}

/// The agent's answer. On failure only `result`, `errmsg`, `errinfo` and `code` are set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reply {
    /// 0, or 1 on failure.
    #[serde(skip_serializing_if = "is_zero")]
    pub result: u32,
    /// What the orchestrator calls the endpoint.
    #[serde(rename = "endpointid", skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// The address and its prefix length.
    #[serde(rename = "ipaddress", skip_serializing_if = "Option::is_none")]
    pub ip: Option<Ipv4Net>,
    /// The IPv6 address and its prefix length.
    #[serde(rename = "ipv6address", skip_serializing_if = "Option::is_none")]
    pub ip6: Option<Ipv6Net>,
    /// What failed.
    #[serde(rename = "errmsg", skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Why.
    #[serde(rename = "errinfo", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The network's gateway; ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Ipv4Addr>,
    /// The network's IPv6 gateway; ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway6: Option<Ipv6Addr>,
    /// The Ethernet address of the container's end; ours.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The name of the node's end; ours.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub port: String,
    /// The Ethernet address of the node's end; ours.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub port_mac: String,
    /// Of both ends; ours.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// The specification's number of the failure; ours.
    #[serde(skip_serializing_if = "is_zero")]
    pub code: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_originals_request_is_understood() {
        let text = r#"{"K8S_POD_NAME":"p1","K8S_POD_NAMESPACE":"default","K8S_POD_INFRA_CONTAINER_ID":"cid-p1",
                       "CNI_NETNS":"/proc/12/ns/net","CNI_IFNAME":"eth0"}"#;
        let request: Request = serde_json::from_str(text).unwrap();
        assert_eq!(request.endpoint(), "cid-p1");
        assert_eq!(request.label(labels::TENANT, labels::DEFAULT_TENANT), "default");
    }

    #[test]
    fn the_endpoint_is_named_by_container_and_unusual_interface() {
        let request =
            |ifname: &str| Request { container: "c1".into(), ifname: ifname.into(), ..Request::default() };
        assert_eq!(request("eth0").endpoint(), "c1");
        assert_eq!(request("net1").endpoint(), "c1-net1");
    }

    #[test]
    fn replies_leave_out_what_is_empty_as_the_original() {
        let reply =
            Reply { endpoint: "c1".into(), ip: Some("20.1.1.1/24".parse().unwrap()), ..Reply::default() };
        assert_eq!(
            serde_json::to_string(&reply).unwrap(),
            r#"{"endpointid":"c1","ipaddress":"20.1.1.1/24"}"#
        );
        let failed = Reply { result: 1, error: "x".into(), reason: "Err: y".into(), ..Reply::default() };
        assert_eq!(
            serde_json::to_string(&failed).unwrap(),
            r#"{"result":1,"errmsg":"x","errinfo":"Err: y"}"#
        );
    }
}
