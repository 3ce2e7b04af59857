use std::path::PathBuf;

use contiv_model::name::{EndpointId, GroupName, NetworkId, NetworkName, TenantName};
use contivk8s::{
    spec::Code,
    wire::{Request, labels},
};

use super::{Failure, Step};
use crate::datapath::Owner;

/// A request that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Whose it is.
    pub tenant: TenantName,
    /// Where it is to be attached.
    pub network: NetworkName,
    /// The group that it belongs to.
    pub group: Option<GroupName>,
    /// What the orchestrator calls the endpoint.
    pub endpoint: String,
    /// The pod's name, for people.
    pub common_name: String,
    /// Where its namespace is; empty when it is gone.
    pub netns: PathBuf,
    /// The interface's name in the pod.
    pub ifname: String,
    /// Whether it is a pod, or the node itself, which has default routes of its own.
    pub owner: Owner,
}

impl Pod {
    /// Of its network.
    pub fn network_id(&self) -> NetworkId {
        NetworkId::new(&self.network, &self.tenant)
    }

    /// Under which the master keeps it.
    pub fn endpoint_id(&self) -> EndpointId {
        EndpointId::new(&self.network_id(), &self.endpoint)
    }
}

impl TryFrom<&Request> for Pod {
    type Error = Failure;

    fn try_from(request: &Request) -> Result<Self, Failure> {
        let bad = |label: &str, why: &dyn std::fmt::Display| {
            Failure::new(Step::Labels, format!("label {label}: {why}")).code(Code::InvalidConfig)
        };
        let tenant = request.label(labels::TENANT, labels::DEFAULT_TENANT);
        let network = request.label(labels::NETWORK, labels::DEFAULT_NETWORK);
        let group = request.label(labels::GROUP, "");
        let endpoint = request.endpoint();
        // It becomes part of a key of the store.
        if endpoint.is_empty() || endpoint.contains('/') {
            let why = format!("CNI_CONTAINERID {endpoint:?}: expected a container id");
            return Err(Failure::new(Step::Labels, why).code(Code::InvalidEnvironment));
        }
        Ok(Pod {
            tenant: tenant.parse().map_err(|e| bad(labels::TENANT, &e))?,
            network: network.parse().map_err(|e| bad(labels::NETWORK, &e))?,
            group: (!group.is_empty())
                .then(|| group.parse())
                .transpose()
                .map_err(|e| bad(labels::GROUP, &e))?,
            endpoint,
            common_name: request.pod_name.clone(),
            netns: request.netns.clone(),
            ifname: if request.ifname.is_empty() { "eth0".to_owned() } else { request.ifname.clone() },
            owner: Owner::Pod,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_defaults_and_bad_ones_are_named() {
        let mut request = Request { container: "c1".into(), ifname: "net1".into(), ..Request::default() };
        let pod = Pod::try_from(&request).unwrap();
        assert_eq!(pod.endpoint_id().as_str(), "default-net.default-c1-net1");
        assert_eq!(pod.group, None);
        request.labels.insert(labels::NETWORK.into(), "a_b".into());
        let failure = Pod::try_from(&request).unwrap_err();
        assert_eq!(failure.code, Code::InvalidConfig);
        assert!(failure.why.starts_with("label io.contiv.network: network name \"a_b\""), "{failure}");
        assert!(Pod::try_from(&Request::default()).is_err());
    }
}
