//! Authorization: which role may use which route, for which objects.

use super::route::Route;
use crate::access::{Nodes, Role, Scope};
use crate::plugin::CallKind;

/// Decision on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Allowed for the objects in the scope. The handler leaves out or refuses the others.
    Allow(Scope),
    /// Refused. Names the accepted roles.
    Deny(&'static str),
}

/// What a route gives access to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access<'r> {
    /// Probes, which need no credentials.
    Probe,
    /// The description of the API.
    Description,
    ReadCluster,
    ChangeCluster,
    /// Reads objects of all tenants in the scope.
    ReadTenants,
    ReadTenant(&'r str),
    ChangeTenant(&'r str),
    /// Reads an endpoint in the scope.
    ReadEndpoint,
    ReadNode(&'r str),
    /// Creates, updates or deletes an endpoint on the agent's node.
    ChangeEndpoint,
    Unknown,
}

/// Whether the route needs no credentials.
pub(super) fn is_open(route: &Route) -> bool {
    access(route) == Access::Probe
}

/// Decides on a request of a client with `role`.
pub(super) fn decide(role: &Role, route: &Route) -> Decision {
    let access = access(route);
    let allowed = match role {
        Role::Admin => Some(Scope::All),
        Role::ReadOnly => read_only(access),
        Role::TenantOperator(tenants) => tenant_operator(access, |tenant| tenants.contains(tenant))
            .then(|| Scope::Tenants(tenants.clone())),
        Role::Agent(Nodes::All) => agent(access, |_| true).then_some(Scope::All),
        Role::Agent(Nodes::One(own)) => agent(access, |node| node == own).then(|| Scope::Node(own.clone())),
        Role::Netmaster => (access == Access::Probe).then_some(Scope::All),
    };
    allowed.map_or(Decision::Deny(accepted(access)), Decision::Allow)
}

fn read_only(access: Access<'_>) -> Option<Scope> {
    match access {
        Access::Probe
        | Access::Description
        | Access::ReadCluster
        | Access::ReadTenants
        | Access::ReadTenant(_)
        | Access::ReadEndpoint
        | Access::ReadNode(_) => Some(Scope::All),
        Access::ChangeCluster | Access::ChangeTenant(_) | Access::ChangeEndpoint | Access::Unknown => None,
    }
}

fn tenant_operator(access: Access<'_>, owns: impl Fn(&str) -> bool) -> bool {
    match access {
        Access::Probe | Access::Description | Access::ReadTenants | Access::ReadEndpoint => true,
        Access::ReadTenant(tenant) | Access::ChangeTenant(tenant) => owns(tenant),
        Access::ReadCluster
        | Access::ChangeCluster
        | Access::ReadNode(_)
        | Access::ChangeEndpoint
        | Access::Unknown => false,
    }
}

fn agent(access: Access<'_>, owns: impl Fn(&str) -> bool) -> bool {
    match access {
        Access::Probe | Access::Description | Access::ReadEndpoint | Access::ChangeEndpoint => true,
        Access::ReadNode(node) => owns(node),
        Access::ReadCluster
        | Access::ChangeCluster
        | Access::ReadTenants
        | Access::ReadTenant(_)
        | Access::ChangeTenant(_)
        | Access::Unknown => false,
    }
}

fn accepted(access: Access<'_>) -> &'static str {
    match access {
        Access::Probe | Access::Description => "any role",
        Access::ReadCluster => "admin or read-only",
        Access::ChangeCluster | Access::Unknown => "admin",
        Access::ReadTenants => "admin, read-only or tenant-operator",
        Access::ReadTenant(_) => "admin, read-only, or tenant-operator of this tenant",
        Access::ChangeTenant(_) => "admin, or tenant-operator of this tenant",
        Access::ReadEndpoint => "admin, read-only, tenant-operator or agent",
        Access::ReadNode(_) => "admin, read-only, or agent of this node",
        Access::ChangeEndpoint => "admin or agent",
    }
}

/// Classifies every route.
fn access(route: &Route) -> Access<'_> {
    match route {
        Route::Health | Route::Readiness | Route::Version => Access::Probe,
        Route::OpenApi => Access::Description,
        Route::Metrics | Route::Info | Route::ListNodes | Route::Ofnet => Access::ReadCluster,
        Route::List(t) if t.has_tenant() => Access::ReadTenants,
        Route::List(_) => Access::ReadCluster,
        Route::Get(t, key) | Route::Inspect(t, key) => {
            t.tenant_of(key).map_or(Access::ReadCluster, Access::ReadTenant)
        }
        // A tenant's operator changes what the tenant has, not the tenant.
        Route::Put(t, _) | Route::Delete(t, _) if t.is_tenant() => Access::ChangeCluster,
        Route::Put(t, key) | Route::Delete(t, key) => {
            t.tenant_of(key).map_or(Access::ChangeCluster, Access::ChangeTenant)
        }
        Route::InspectEndpoint(_) => Access::ReadEndpoint,
        Route::InspectNode(host) => Access::ReadNode(host),
        Route::ListServiceStates | Route::GetServiceState(_) => Access::ReadTenants,
        Route::Call(CallKind::CreateEndpoint | CallKind::DeleteEndpoint | CallKind::UpdateEndpoint) => {
            Access::ChangeEndpoint
        }
        // Addresses without endpoints belong to no node.
        Route::Call(CallKind::AllocAddress | CallKind::ReleaseAddress) => Access::ChangeCluster,
        // Finds endpoints by names that tenants may share.
        Route::CleanUp { .. } => Access::ChangeCluster,
        Route::AcceptStore(_) | Route::DeleteNode(_) | Route::SetDatapath { .. } => Access::ChangeCluster,
        Route::Unknown => Access::Unknown,
    }
}

#[cfg(test)]
mod tests;
