//! Who sends a request, and which objects the sender's role covers.

use std::collections::BTreeSet;
use std::fmt;

use contiv_model::name;

use crate::problem::Problem;

/// The authenticated sender of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Name of the token, or common name of the client certificate.
    pub name: String,
    pub role: Role,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// Objects of these tenants.
    TenantOperator(BTreeSet<String>),
    /// All reads.
    ReadOnly,
    /// The calls that the agents of these nodes make, for endpoints on these nodes.
    Agent(Nodes),
    /// Forwards requests of clients with certificates. The clients' roles apply.
    Netmaster,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    All,
    One(String),
}

/// Objects that a request may read or change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    All,
    /// Objects of these tenants.
    Tenants(BTreeSet<String>),
    /// Endpoints on this node, and the node itself.
    Node(String),
}

/// The text of a role is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    #[error("unknown role; accepted: admin, read-only, tenant-operator:TENANT[,TENANT], agent:HOST, agent:*")]
    Unknown,
    #[error("tenant-operator needs tenants: tenant-operator:TENANT[,TENANT]")]
    Tenants,
    #[error("agent needs the name of its node: agent:HOST, or agent:* for all nodes")]
    Node,
}

impl Role {
    /// Text of the role that changes nothing.
    pub const READ_ONLY: &str = "read-only";

    /// Parses the role of a token. The role of a netmaster is for certificates only.
    ///
    /// # Errors
    ///
    /// Fails if the role is unknown, or if its tenants or its node are missing or malformed.
    pub fn parse(text: &str) -> Result<Role, RoleError> {
        match text.split_once(':') {
            // `read` and `write` are the names of earlier releases.
            None => match text {
                "admin" | "write" => Ok(Role::Admin),
                Role::READ_ONLY | "read" => Ok(Role::ReadOnly),
                "tenant-operator" => Err(RoleError::Tenants),
                "agent" => Err(RoleError::Node),
                _ => Err(RoleError::Unknown),
            },
            Some(("tenant-operator", tenants)) => {
                let tenants: BTreeSet<String> = tenants.split(',').map(str::to_owned).collect();
                // Without a colon in a tenant's name, the first part of a key is the tenant.
                let valid = tenants.iter().all(|tenant| name::is_name(tenant));
                if valid { Ok(Role::TenantOperator(tenants)) } else { Err(RoleError::Tenants) }
            }
            Some(("agent", "*")) => Ok(Role::Agent(Nodes::All)),
            Some(("agent", host)) if !host.is_empty() => Ok(Role::Agent(Nodes::One(host.to_owned()))),
            Some(("agent", _)) => Err(RoleError::Node),
            Some(_) => Err(RoleError::Unknown),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Admin => "admin",
            Role::TenantOperator(_) => "tenant-operator",
            Role::ReadOnly => Role::READ_ONLY,
            Role::Agent(_) => "agent",
            Role::Netmaster => "netmaster",
        })
    }
}

impl Scope {
    /// Whether an object of `tenant` is in the scope. Objects of the whole cluster have no tenant.
    pub fn has_tenant(&self, tenant: Option<&str>) -> bool {
        match self {
            Scope::All => true,
            Scope::Tenants(tenants) => tenant.is_some_and(|tenant| tenants.contains(tenant)),
            Scope::Node(_) => false,
        }
    }

    /// Whether an endpoint is in the scope. `tenant` is asked only if it matters. The tenant is unknown
    /// if the endpoint's network does not exist.
    pub fn has_endpoint<'t>(&self, tenant: impl FnOnce() -> Option<&'t str>, node: &str) -> bool {
        match self {
            Scope::All => true,
            Scope::Tenants(_) => self.has_tenant(tenant()),
            Scope::Node(own) => own == node,
        }
    }

    /// Fails unless an object of `tenant` is in the scope.
    pub fn require_tenant(&self, tenant: Option<&str>) -> Result<(), Problem> {
        if self.has_tenant(tenant) {
            return Ok(());
        }
        let of = tenant.map_or("the cluster".to_owned(), |tenant| format!("tenant {tenant:?}"));
        Err(Problem::forbidden(format!(
            "not allowed on objects of {of}: requires admin or its tenant-operator"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_parsed_strictly() {
        let tenants = |names: &[&str]| Role::TenantOperator(names.iter().map(|&n| n.to_owned()).collect());
        for (text, role) in [
            ("admin", Ok(Role::Admin)),
            ("write", Ok(Role::Admin)),
            ("read-only", Ok(Role::ReadOnly)),
            ("read", Ok(Role::ReadOnly)),
            ("tenant-operator:blue", Ok(tenants(&["blue"]))),
            ("tenant-operator:blue,green.eu", Ok(tenants(&["blue", "green.eu"]))),
            ("agent:h1", Ok(Role::Agent(Nodes::One("h1".into())))),
            ("agent:*", Ok(Role::Agent(Nodes::All))),
            ("agent", Err(RoleError::Node)),
            ("agent:", Err(RoleError::Node)),
            ("tenant-operator", Err(RoleError::Tenants)),
            ("tenant-operator:", Err(RoleError::Tenants)),
            ("tenant-operator:blue,", Err(RoleError::Tenants)),
            ("tenant-operator:blue:green", Err(RoleError::Tenants)),
            ("tenant-operator:*", Err(RoleError::Tenants)),
            ("admin:x", Err(RoleError::Unknown)),
            ("Admin", Err(RoleError::Unknown)),
            ("netmaster", Err(RoleError::Unknown)),
            ("", Err(RoleError::Unknown)),
        ] {
            assert_eq!(Role::parse(text), role, "{text}");
        }
    }

    #[test]
    fn scopes_admit_their_objects_only() {
        let blue = Scope::Tenants(["blue".to_owned()].into());
        let node = Scope::Node("h1".into());
        for (scope, tenant, host, object, endpoint) in [
            (&Scope::All, Some("red"), "h1", true, true),
            (&Scope::All, None, "h1", true, true),
            (&blue, Some("blue"), "h1", true, true),
            (&blue, Some("red"), "h1", false, false),
            (&blue, Some(""), "h1", false, false),
            (&blue, None, "h1", false, false),
            (&node, Some("blue"), "h1", false, true),
            (&node, None, "h2", false, false),
        ] {
            assert_eq!(scope.has_tenant(tenant), object, "{scope:?} {tenant:?}");
            assert_eq!(scope.require_tenant(tenant).is_ok(), object, "{scope:?} {tenant:?}");
            assert_eq!(scope.has_endpoint(|| tenant, host), endpoint, "{scope:?} {tenant:?} {host}");
        }
        // The tenant of an endpoint is looked up only if it matters.
        let tenant = || -> Option<&str> { panic!("the tenant does not matter") };
        assert!(Scope::All.has_endpoint(tenant, "h1") && !node.has_endpoint(tenant, "h2"));
    }
}
