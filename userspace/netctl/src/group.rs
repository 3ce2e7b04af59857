//! `netctl group`.

use std::io::Write;

use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    Error,
    cli::{Group, GroupCreate},
    client::Client,
    listing::{Listing, inspect, text},
};

const LISTING: Listing = Listing {
    kind: ObjectType::EndpointGroup,
    name: "groupName",
    columns: &[
        ("Tenant", "------"),
        ("Group", "-----"),
        ("Network", "-------"),
        ("IP Pool", "-------"),
        ("CfgdTag", "-------"),
        ("Policies", "--------"),
        ("Network profile", "---------------"),
    ],
    row,
};

fn row(group: &Value) -> Vec<String> {
    ["tenantName", "groupName", "networkName", "ipPool", "cfgdTag", "policies", "netProfile"]
        .map(|field| text(group, field))
        .into()
}

/// Runs one of the commands.
pub fn run(client: &Client, command: &Group, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Group::Ls(how) => LISTING.of_tenant(client, how, out),
        Group::Create(group) => {
            let key = format!("{}:{}", group.of.tenant, group.group);
            client.put(ObjectType::EndpointGroup, &key, &body(group))?;
            Ok(writeln!(out, "Creating EndpointGroup {key}")?)
        }
        Group::Rm(named) => client.delete(ObjectType::EndpointGroup, &named.key()),
        Group::Inspect(it) => inspect(client, "endpointGroup", &it.named.key(), &it.form, out),
    }
}

fn body(group: &GroupCreate) -> Value {
    let optional = |text: &Option<String>| text.clone().unwrap_or_default();
    json!({
        "tenantName": group.of.tenant,
        "groupName": group.group,
        "networkName": group.network,
        "policies": group.policy,
        "netProfile": optional(&group.networkprofile),
        "extContractsGrps": group.external_contract,
        "ipPool": optional(&group.ip_pool),
        "cfgdTag": optional(&group.epg_tag),
    })
}
