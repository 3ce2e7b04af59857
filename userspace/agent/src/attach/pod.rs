use std::path::PathBuf;

use contiv_model::name::{EndpointId, GroupName, NetworkId, NetworkName, TenantName};
use contivk8s::{
    spec::Code,
    wire::{Request, labels},
};

use super::failure::{Failure, Step};
use crate::{datapath::Owner, error::one_line, master};

/// A validated request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Tenant of the network.
    pub tenant: TenantName,
    /// Network to attach to.
    pub network: NetworkName,
    /// Group that the endpoint joins, if any.
    pub group: Option<GroupName>,
    /// Orchestrator's name of the endpoint.
    pub endpoint: String,
    /// Id of the container in the runtime; empty if unknown.
    pub container: String,
    /// Pod's display name.
    pub common_name: String,
    /// Name of the runtime's network configuration; empty if unknown.
    pub configuration: String,
    /// Path of the network namespace; empty if it was deleted.
    pub netns: PathBuf,
    /// Name of the interface in the pod.
    pub ifname: String,
    /// Pod, or the node itself, which keeps its own default routes.
    pub owner: Owner,
    /// Labels that the request lacks, so that their defaults apply.
    pub defaults: Vec<&'static str>,
}

/// Maximum size of an endpoint's id in bytes: the id is the alias of a Linux interface (`IFALIASZ` - 1). netmaster
/// accepts longer ids.
const MAX_ID: usize = 255;

impl Pod {
    /// Fails if the id of a new endpoint is too large. Existing endpoints can be deleted regardless of their ids.
    pub(super) fn check_name(&self) -> Result<(), Failure> {
        let len = self.endpoint_id().as_str().len();
        if len <= MAX_ID {
            return Ok(());
        }
        let why = format!(
            "CNI_CONTAINERID: with network, tenant and interface the endpoint's id has {len} bytes; the limit is {MAX_ID}"
        );
        Err(Failure::new(Step::Labels, why).code(Code::InvalidEnvironment))
    }

    /// Returns an endpoint of which only the name is known, for its deletion.
    pub(super) fn recorded(tenant: TenantName, network: NetworkName, endpoint: String) -> Pod {
        Pod {
            tenant,
            network,
            group: None,
            endpoint,
            container: String::new(),
            common_name: String::new(),
            configuration: String::new(),
            netns: PathBuf::new(),
            ifname: String::new(),
            owner: Owner::Pod,
            defaults: vec![],
        }
    }

    /// Id of the network.
    pub fn network_id(&self) -> NetworkId {
        NetworkId::new(&self.network, &self.tenant)
    }

    /// Returns the failure of a request whose tenant, network or group does not exist at netmaster.
    pub(super) fn unknown_names(&self, error: &master::Error) -> Failure {
        let Pod { tenant, network, group, .. } = self;
        let source = |label| match self.defaults.contains(&label) {
            true => "default".to_owned(),
            false => format!("label {label} of the pod or its network configuration"),
        };
        let mut why = format!(
            "{}; tenant {tenant} ({}), network {network} ({})",
            one_line(error),
            source(labels::TENANT),
            source(labels::NETWORK)
        );
        if let Some(group) = group {
            why += &format!(", group {group} ({})", source(labels::GROUP));
        }
        why += &format!(
            ": at least one of them does not exist; create a network with: netctl network create --tenant {tenant} --subnet \
             10.1.0.0/16 --gateway 10.1.255.254 {network}"
        );
        Failure::new(Step::Create, why)
    }

    /// Id of the endpoint at netmaster.
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
        // The name becomes part of a store key.
        if endpoint.is_empty() || endpoint.contains('/') {
            let name = match request.infra_container.as_str() {
                "" => "CNI_CONTAINERID",
                _ => "K8S_POD_INFRA_CONTAINER_ID in CNI_ARGS",
            };
            let why = format!("{name} {endpoint:?}: expected a container id, which has no '/'");
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
            container: request.container.clone(),
            common_name: request.pod_name.clone(),
            configuration: request.network_name.clone(),
            netns: request.netns.clone(),
            ifname: if request.ifname.is_empty() { "eth0".to_owned() } else { request.ifname.clone() },
            owner: Owner::Pod,
            defaults: [labels::TENANT, labels::NETWORK]
                .into_iter()
                .filter(|label| !request.labels.contains_key(*label))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_defaults_and_invalid_ones_are_reported() {
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

    #[test]
    fn long_names_make_no_endpoint() {
        let pod = |len: usize| {
            Pod::try_from(&Request { container: "c".repeat(len), ..Request::default() }).unwrap()
        };
        let prefix = "default-net.default-".len();
        assert_eq!(pod(255 - prefix).check_name(), Ok(()));
        let failure = pod(256 - prefix).check_name().unwrap_err();
        assert_eq!(failure.code, Code::InvalidEnvironment);
        assert!(failure.why.contains("256 bytes; the limit is 255"), "{failure}");
    }
}
