//! The BGP speakers of nodes.

use contiv_model::{api::Bgp, bgp::State, key::ObjectType, registry};

use super::{Cluster, Object};
use crate::cache::{Draft, World};
use crate::domain::fabric;
use crate::problem::Problem;
use crate::schema::{Form, Member, Shape, Type, format};

static SHAPE: Shape = Shape {
    go_type: "contivModel.Bgp",
    members: &[
        Member::any("key", Type::Text),
        Member::text("as", 64, Form::Any),
        Member::text("hostname", 256, format::NAME),
        Member::text("neighbor", 15, format::IPV4_OR_EMPTY),
        Member::text("neighbor-as", 64, Form::Any),
        Member::text("routerip", usize::MAX, format::ROUTER_ADDRESS),
    ],
};

impl Object for Bgp {
    const KIND: ObjectType = ObjectType::Bgp;
    const SHAPE: &'static Shape = &SHAPE;
    const KEY: &'static [&'static str] = &["hostname"];
    type Oper = ();

    fn key(&self) -> &str {
        &self.key
    }

    fn create(self, draft: &mut Draft<'_>) -> Result<Self, Problem> {
        if fabric::is_on(draft) {
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
        draft.put(&self.key, state);
        draft.put(&self.key, self.clone());
        Ok(self)
    }

    fn update(self, _old: &Self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        self.create(draft).map(drop)
    }

    fn delete(&self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        if draft.get::<State>(&self.key).is_some() {
            draft.delete::<State>(&self.key);
        }
        Ok(())
    }

    /// The node would have to be asked, and has nothing to tell.
    fn can_inspect(&self, world: &World) -> Result<(), Problem> {
        let host = &self.hostname;
        let known = |service: &registry::ServiceInfo| {
            service.service_name == registry::NETPLUGIN && service.hostname == *host
        };
        match world.all::<registry::ServiceInfo>().any(known) {
            true => Err(Problem::not_built(format!("BGP on node {host}"))),
            false => Err(Problem::not_found(format!("no node {host} is registered, and so it has no BGP"))),
        }
    }

    fn oper(&self, _world: &World, _cluster: &Cluster) -> Option<()> {
        None
    }
}
