//! Protocol between the plugin and the agent: HTTP on a unix socket, with the JSON of the original
//! (INVENTORY 6.1) and additional members, which the original's programs ignore.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    path::PathBuf,
};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

/// Default socket of the agent.
pub const SOCKET: &str = "/run/contiv/contiv-cni.sock";
/// Path of ADD.
pub const ADD: &str = "/ContivCNI.AddPod";
/// Path of DEL.
pub const DEL: &str = "/ContivCNI.DelPod";
/// Path of CHECK. Not in the original, like the following ones.
pub const CHECK: &str = "/ContivCNI.CheckPod";
/// Path of STATUS.
pub const STATUS: &str = "/ContivCNI.Status";
/// Path of GC.
pub const GC: &str = "/ContivCNI.CollectGarbage";
/// The only accepted content type.
pub const CONTENT_TYPE: &str = "application/json";

/// Labels that select a pod's tenant, network and group.
pub mod labels {
    /// Prefix of the labels.
    pub const PREFIX: &str = "io.contiv.";
    /// Tenant; [`DEFAULT_TENANT`] without it.
    pub const TENANT: &str = "io.contiv.tenant";
    /// Network; [`DEFAULT_NETWORK`] without it.
    pub const NETWORK: &str = "io.contiv.network";
    /// Endpoint group; none without it.
    pub const GROUP: &str = "io.contiv.net-group";
    /// Tenant of pods without the label.
    pub const DEFAULT_TENANT: &str = "default";
    /// Network of pods without the label.
    pub const DEFAULT_NETWORK: &str = "default-net";
}

/// Body of all requests. STATUS and GC concern no container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// Name of the pod, or empty.
    #[serde(rename = "K8S_POD_NAME")]
    pub pod_name: String,
    /// Namespace of the pod, or empty.
    #[serde(rename = "K8S_POD_NAMESPACE")]
    pub pod_namespace: String,
    /// Id of the container that holds the pod's namespaces, or empty.
    #[serde(rename = "K8S_POD_INFRA_CONTAINER_ID")]
    pub infra_container: String,
    /// Path of the network namespace; empty if it does not exist any more.
    #[serde(rename = "CNI_NETNS")]
    pub netns: PathBuf,
    /// Name of the interface in the container.
    #[serde(rename = "CNI_IFNAME")]
    pub ifname: String,
    /// Id of the container in the runtime. Not in the original.
    #[serde(rename = "CNI_CONTAINERID")]
    pub container: String,
    /// Version of the network configuration. Not in the original.
    #[serde(rename = "cniVersion")]
    pub cni_version: String,
    /// Labels of the network configuration and of CNI_ARGS. Not in the original.
    pub labels: BTreeMap<String, String>,
    /// Name of the network configuration, which owns the attachment. Not in the original.
    #[serde(rename = "networkName", skip_serializing_if = "String::is_empty")]
    pub network_name: String,
    /// For CHECK: whether the result of ADD has the default routes of IPv4 and IPv6, which other interfaces may have, and which later
    /// plugins may take away.
    #[serde(rename = "defaultRoutes", skip_serializing_if = "Option::is_none")]
    pub default_routes: Option<[bool; 2]>,
    /// For CHECK: the interface in the container as the result of ADD lists it. Later plugins may have changed it.
    #[serde(rename = "listedInterface", skip_serializing_if = "Option::is_none")]
    pub listed_interface: Option<ListedInterface>,
    /// For GC: the attachments of the network configuration that the runtime knows.
    #[serde(rename = "validAttachments", skip_serializing_if = "Vec::is_empty")]
    pub valid_attachments: Vec<ValidAttachment>,
}

/// What the result of ADD lists of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ListedInterface {
    /// Ethernet address; empty if the result does not list it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// MTU in bytes; 0 if the result does not list it.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
}

/// An attachment that a runtime knows, in the form of the specification.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValidAttachment {
    /// Id of the container in the runtime.
    #[serde(rename = "containerID")]
    pub container: String,
    /// Name of the interface in the container.
    pub ifname: String,
}

impl ValidAttachment {
    /// Id of the endpoint.
    pub fn endpoint(&self) -> String {
        endpoint_name(&self.container, &self.ifname)
    }
}

fn endpoint_name(container: &str, ifname: &str) -> String {
    match ifname {
        "" | "eth0" => container.to_owned(),
        ifname => format!("{container}-{ifname}"),
    }
}

impl Request {
    /// Id of the endpoint: the container, and the interface unless it is `eth0`.
    pub fn endpoint(&self) -> String {
        let container = if self.infra_container.is_empty() { &self.container } else { &self.infra_container };
        endpoint_name(container, &self.ifname)
    }

    /// Value of a label, or `default`.
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
    /// Id of the endpoint.
    #[serde(rename = "endpointid", skip_serializing_if = "String::is_empty")]
    pub endpoint: String,
    /// IPv4 address and prefix length.
    #[serde(rename = "ipaddress", skip_serializing_if = "Option::is_none")]
    pub ip: Option<Ipv4Net>,
    /// IPv6 address and prefix length.
    #[serde(rename = "ipv6address", skip_serializing_if = "Option::is_none")]
    pub ip6: Option<Ipv6Net>,
    /// What failed.
    #[serde(rename = "errmsg", skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Cause of the failure.
    #[serde(rename = "errinfo", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// IPv4 gateway of the network. Not in the original.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Ipv4Addr>,
    /// IPv6 gateway of the network. Not in the original.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway6: Option<Ipv6Addr>,
    /// Whether the container's IPv4 default route leads through another interface. Not in the original.
    #[serde(rename = "otherRoute", skip_serializing_if = "is_false")]
    pub other_route: bool,
    /// Whether the container's IPv6 default route leads through another interface. Not in the original.
    #[serde(rename = "otherRoute6", skip_serializing_if = "is_false")]
    pub other_route6: bool,
    /// Ethernet address of the container's end. Not in the original.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Name of the interface on the node. Not in the original.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub port: String,
    /// Ethernet address of the interface on the node. Not in the original.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub port_mac: String,
    /// MTU of both ends, in bytes. Not in the original.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// Error code of the CNI specification. Not in the original.
    #[serde(skip_serializing_if = "is_zero")]
    pub code: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
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
