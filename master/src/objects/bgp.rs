//! BGP speakers of nodes.

use contiv_model::{
    api::{Bgp, BgpOper},
    bgp::{Oper, State},
    key::ObjectType,
    registry,
};

use super::{Cluster, Object};
use crate::cache::{ClusterCache, StagedTxn};
use crate::domain::fabric;
use crate::problem::Problem;
use crate::reports::{self, Report};
use crate::schema::{Field, Format, Schema, Type, format};

static SCHEMA: Schema = Schema {
    go_type: "contivModel.Bgp",
    fields: &[
        Field::any("key", Type::Text),
        Field::text("as", 64, Format::Any),
        Field::text("hostname", 256, format::NAME),
        Field::text("neighbor", 15, format::IPV4_OR_EMPTY),
        Field::text("neighbor-as", 64, Format::Any),
        Field::text("routerip", usize::MAX, format::ROUTER_ADDRESS),
    ],
};

impl Object for Bgp {
    const KIND: ObjectType = ObjectType::Bgp;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["hostname"];
    type Oper = BgpOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        None
    }

    fn create(self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        if fabric::is_enabled(staged) {
            return Err(Problem::conflict("not supported in ACI fabric mode"));
        }
        let state = State {
            id: self.hostname.clone(),
            hostname: self.hostname.clone(),
            router_ip: self.routerip.clone(),
            asn: self.asn.clone(),
            neighbor_as: self.neighbor_as.clone(),
            neighbor: self.neighbor.clone(),
        };
        staged.put(&self.key, state);
        staged.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, _old: &Self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        self.create(staged).map(drop)
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        if staged.get::<State>(&self.key).is_some() {
            staged.delete::<State>(&self.key);
        }
        Ok(())
    }

    /// Only what a running agent reports is current. The second text is that of the original's agents.
    fn can_inspect(&self, cache: &ClusterCache) -> Result<(), Problem> {
        let host = &self.hostname;
        let known = |service: &registry::ServiceInfo| {
            service.service_name == registry::NETPLUGIN && service.hostname == *host
        };
        if !cache.all::<registry::ServiceInfo>().any(known) {
            return Err(Problem::not_found(format!("inspect BGP: node {host} is not registered")));
        }
        match cache.get::<Oper>(host) {
            Some(_) => Ok(()),
            None => Err(Problem::not_found("Error fetching bgp")),
        }
    }

    fn oper(&self, cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<BgpOper>> {
        cache.get::<Oper>(&self.hostname).map(reports::bgp)
    }
}
