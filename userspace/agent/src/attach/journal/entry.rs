use std::path::PathBuf;

use contiv_model::name::{NetworkName, TenantName};
use contivk8s::wire::ValidAttachment;
use serde::{Deserialize, Serialize};

use crate::attach::pod::Pod;

/// One attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::attach) struct Entry {
    tenant: TenantName,
    network: NetworkName,
    /// Orchestrator's name of the endpoint.
    pub(in crate::attach) endpoint: String,
    /// Id of the container in the runtime; empty if unknown.
    #[serde(default)]
    pub(in crate::attach) container: String,
    pub(in crate::attach) ifname: String,
    /// Name of the runtime's network configuration; empty if unknown.
    pub(in crate::attach) configuration: String,
    /// Path of the pod's network namespace; empty if unknown.
    #[serde(default)]
    pub(in crate::attach) netns: PathBuf,
    pub(in crate::attach) progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::attach) enum Progress {
    /// An ADD has begun, or netmaster or the store has not answered its request.
    Adding,
    /// An ADD has succeeded.
    Attached,
    /// A DEL has begun, or the rollback of an ADD has begun to delete the endpoint.
    Deleting,
}

impl Entry {
    pub(super) fn new(pod: &Pod, progress: Progress) -> Entry {
        Entry {
            tenant: pod.tenant.clone(),
            network: pod.network.clone(),
            endpoint: pod.endpoint.clone(),
            container: pod.container.clone(),
            ifname: pod.ifname.clone(),
            configuration: pod.configuration.clone(),
            netns: pod.netns.clone(),
            progress,
        }
    }

    /// Reports whether this is the attachment that the request refers to, and not another one whose endpoint has the same
    /// id.
    pub(in crate::attach) fn is_of(&self, pod: &Pod) -> bool {
        (&self.tenant, &self.network) == (&pod.tenant, &pod.network) && self.is_interface_of(pod)
    }

    /// Reports whether this is the container's interface that the request refers to, on any network.
    pub(in crate::attach) fn is_interface_of(&self, pod: &Pod) -> bool {
        // The interface name of an attachment from an earlier boot is unknown.
        self.endpoint == pod.endpoint && (self.ifname.is_empty() || self.ifname == pod.ifname)
    }

    /// Reports whether a DEL of the pod deletes the attachment, identified by the endpoint's name or by the runtime's
    /// container id. A DEL may lack the CNI_ARGS from which the ADD took the endpoint's name
    /// (`K8S_POD_INFRA_CONTAINER_ID`).
    pub(in crate::attach) fn is_deleted_with(&self, pod: &Pod) -> bool {
        let is_container = !pod.container.is_empty() && self.container == pod.container;
        self.is_interface_of(pod) || (is_container && self.ifname == pod.ifname)
    }

    /// Reports whether the runtime lists the attachment, identified by its container id or by the endpoint's name, which
    /// may be derived from another id (`K8S_POD_INFRA_CONTAINER_ID`).
    pub(in crate::attach) fn is_listed(&self, valid: &ValidAttachment) -> bool {
        let ifname = if valid.ifname.is_empty() { "eth0" } else { &valid.ifname };
        self.ifname == ifname && (self.container == valid.container || self.endpoint == valid.endpoint())
    }

    /// Returns the data that a DEL of the attachment needs.
    pub(in crate::attach) fn pod(&self) -> Pod {
        let Entry { tenant, network, endpoint, .. } = self.clone();
        Pod {
            container: self.container.clone(),
            configuration: self.configuration.clone(),
            ifname: self.ifname.clone(),
            ..Pod::recorded(tenant, network, endpoint)
        }
    }
}
