//! Objects of the REST API, as clients send and read them and as `obj/modeldb` keeps them
//! (INVENTORY 1.4): the same members in the same order, without empty ones.

mod aci_gw;
mod app_profile;
mod bgp;
mod ext_contracts;
mod global;
mod group;
mod link;
mod netprofile;
mod network;
mod node;
mod oper;
mod policy;
mod rule;
mod service_lb;
mod tenant;
mod volume;

pub use aci_gw::{AciGw, AciGwOper};
pub use app_profile::{AppProfile, AppProfileLinkSets, AppProfileLinks};
pub use bgp::{Bgp, BgpOper};
pub use ext_contracts::{ExtContractsGroup, ExtContractsGroupLinkSets};
pub use global::Global;
pub use group::{EndpointGroup, EndpointGroupLinkSets, EndpointGroupLinks};
pub use link::{Link, LinkSet};
pub use netprofile::{Netprofile, NetprofileLinkSets, NetprofileLinks};
pub use network::{Network, NetworkLinkSets, NetworkLinks};
pub use node::{Node, NodeState};
pub use oper::{
    EndpointGroupOper, EndpointInspect, EndpointOper, GlobalOper, Inspect, NetworkOper, PolicyOper,
    TenantOper,
};
pub use policy::{Policy, PolicyLinkSets, PolicyLinks};
pub use rule::{Rule, RuleLinkSets, RuleLinks};
pub use service_lb::{ServiceLb, ServiceLbLinks, ServiceLbOper};
pub use tenant::{Tenant, TenantLinkSets};
pub use volume::{Volume, VolumeLinkSets, VolumeLinks, VolumeProfile, VolumeProfileLinkSets};

/// Go's `omitempty` of a number.
pub(crate) fn is_zero(n: &i64) -> bool {
    *n == 0
}

#[cfg(test)]
mod tests {
    use serde::{Serialize, de::DeserializeOwned};

    use super::*;

    fn round_trips<T: DeserializeOwned + Serialize>(body: &str) {
        let value: T = serde_json::from_str(body).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), body);
    }

    #[test]
    fn objects_match_the_original_byte_for_byte() {
        round_trips::<Global>(
            r#"{"key":"global","arpMode":"proxy","fwdMode":"bridge","name":"global","networkInfraType":"default","pvtSubnet":"172.19.0.0/16","vlans":"1-4094","vxlans":"1-10000"}"#,
        );
        round_trips::<Tenant>(r#"{"key":"default","tenantName":"default","link-sets":{}}"#);
        round_trips::<Tenant>(
            r#"{"key":"t2","defaultNetwork":"net1","tenantName":"t2","link-sets":{"EndpointGroups":{"default:g1":{"type":"endpointGroup","key":"default:g1"}},"Networks":{"default:gn":{"type":"network","key":"default:gn"},"default:n1":{"type":"network","key":"default:n1"}}}}"#,
        );
        round_trips::<Network>(
            r#"{"key":"default:nt","cfgdTag":"my-tag","encap":"vlan","networkName":"nt","nwType":"data","pktTag":500,"subnet":"10.4.0.0/24","tenantName":"default","link-sets":{},"links":{"Tenant":{"type":"tenant","key":"default"}}}"#,
        );
        round_trips::<EndpointGroup>(
            r#"{"key":"default:gp","cfgdTag":"tag1","groupName":"gp","ipPool":"30.1.0.10-30.1.0.19","networkName":"gn","tenantName":"default","link-sets":{},"links":{"AppProfile":{},"NetProfile":{},"Network":{"type":"network","key":"default:gn"},"Tenant":{"type":"tenant","key":"default"}}}"#,
        );
        round_trips::<Bgp>(
            r#"{"key":"h1","as":"65000","hostname":"h1","neighbor":"50.1.1.2","neighbor-as":"500","routerip":"50.1.1.1/24"}"#,
        );
        round_trips::<Netprofile>(
            r#"{"key":"default:a","DSCP":10,"bandwidth":"10 mbps","burst":100,"profileName":"a","tenantName":"default","link-sets":{},"links":{"Tenant":{"type":"tenant","key":"default"}}}"#,
        );
        round_trips::<Policy>(
            r#"{"key":"default:p1","policyName":"p1","tenantName":"default","link-sets":{"EndpointGroups":{"default:web":{"type":"endpointGroup","key":"default:web"}},"Rules":{"default:p1:1":{"type":"rule","key":"default:p1:1"}}},"links":{"Tenant":{"type":"tenant","key":"default"}}}"#,
        );
        round_trips::<Rule>(
            r#"{"key":"default:p1:3","action":"allow","direction":"in","fromEndpointGroup":"db","policyName":"p1","port":53,"priority":10,"protocol":"udp","ruleId":"3","tenantName":"default","link-sets":{"Policies":{"default:p1":{"type":"policy","key":"default:p1"}}},"links":{"MatchEndpointGroup":{"type":"endpointGroup","key":"default:db"}}}"#,
        );
        round_trips::<ServiceLb>(
            r#"{"key":"default:svc1","networkName":"n1","ports":["80:8080:TCP"],"selectors":["app=web"],"serviceName":"svc1","tenantName":"default","links":{"Network":{"type":"network","key":"default:n1"},"Tenant":{"type":"tenant","key":"default"}}}"#,
        );
        round_trips::<AppProfile>(
            r#"{"key":"default:ap1","appProfileName":"ap1","endpointGroups":["web"],"tenantName":"default","link-sets":{"EndpointGroups":{"default:web":{"type":"endpointGroup","key":"default:web"}}},"links":{"Tenant":{"type":"tenant","key":"default"}}}"#,
        );
        round_trips::<ExtContractsGroup>(
            r#"{"key":"default:ec1","contracts":["c1"],"contractsGroupName":"ec1","contractsType":"provided","tenantName":"default","link-sets":{}}"#,
        );
        round_trips::<VolumeProfile>(
            r#"{"key":"t:v","datastoreType":"d","mountPoint":"/m","poolName":"p","size":"1","tenantName":"t","volumeProfileName":"v","link-sets":{},"links":{"Tenant":{}}}"#,
        );
        round_trips::<AciGw>(
            r#"{"key":"aciGw","enforcePolicies":"yes","includeCommonTenant":"no","name":"aciGw","physicalDomain":"pd"}"#,
        );
        round_trips::<Rule>(
            r#"{"key":"default:p1:5","action":"deny","direction":"out","policyName":"p1","port":8080,"priority":1,"protocol":"tcp","ruleId":"5","tenantName":"default","toIpAddress":"30.1.0.0/24","toNetwork":"gn","link-sets":{},"links":{"MatchEndpointGroup":{}}}"#,
        );
    }

    #[test]
    fn inspected_objects_match_the_original_byte_for_byte() {
        round_trips::<Inspect<Tenant, TenantOper>>(
            r#"{"Config":{"key":"default","tenantName":"default","link-sets":{}},"Oper":{}}"#,
        );
        round_trips::<GlobalOper>(
            r#"{"clusterMode":"test","freeVXLANsStart":2999,"numNetworks":3,"vlansInUse":"1","vxlansInUse":"3000, 3500"}"#,
        );
        round_trips::<EndpointInspect>(
            r#"{"Oper":{"key":"cn-c2","containerName":"cn-c2","endpointGroupId":3,"endpointGroupKey":"eg:default","endpointID":"c2","homingHost":"h1","ipAddress":["41.1.0.2",""],"labels":"map[]","macAddress":"02:02:29:01:00:02","network":"en.default","serviceName":"eg"}}"#,
        );
        round_trips::<NetworkOper>(
            r#"{"allocatedAddressesCount":4,"allocatedIPAddresses":"41.1.0.1","availableIPAddresses":"41.1.0.3","externalPktTag":1,"networkTag":"en.default","numEndpoints":4,"pktTag":3}"#,
        );
    }
}
