//! `netctl netprofile`.

use std::io::Write;

use clap::{Args, Subcommand};
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    Error,
    cli::{Inspected, Listed, Named},
    client::Client,
    listing::{Listing, inspect, text},
};

/// What can be done with network profiles.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the profiles of a tenant.
    #[command(visible_alias = "list")]
    Ls(Listed),
    /// Makes a profile, or changes one.
    Create(Create),
    /// Removes a profile that no group has.
    #[command(visible_alias = "delete")]
    Rm(Named),
    /// Shows a profile.
    Inspect(Inspected),
}

/// A profile to make.
#[derive(Args, Debug)]
pub struct Create {
    #[command(flatten)]
    named: Named,
    /// The most that an endpoint may send, e.g. "10 mbps".
    #[arg(long, short)]
    bandwidth: Option<String>,
    /// What packets are marked with, 0 to 63.
    #[arg(long, short, default_value_t = 0, allow_negative_numbers = true)]
    dscp: i64,
    /// In kilobytes.
    #[arg(long, short = 's', default_value_t = 0, allow_negative_numbers = true)]
    burst: i64,
}

/// As lists show profiles.
pub const LISTING: Listing = Listing {
    kind: ObjectType::Netprofile,
    name: "profileName",
    columns: &[
        ("Name", "------"),
        ("Tenant", "------"),
        ("Bandwidth", "---------"),
        ("DSCP", "--------"),
        ("burst size", "----------"),
    ],
    row,
};

fn row(profile: &Value) -> Vec<String> {
    let number = |field: &str| profile.get(field).and_then(Value::as_i64).unwrap_or(0);
    let mut row = vec![
        text(profile, "profileName"),
        text(profile, "tenantName"),
        rate(&text(profile, "bandwidth")),
        number("DSCP").to_string(),
    ];
    // Without a burst the original ends the line here.
    if number("burst") != 0 {
        row.push(number("burst").to_string());
    }
    row
}

/// `10 mbps`, `10mb`, `10 M` as `10Mbps`.
fn rate(bandwidth: &str) -> String {
    let digits = bandwidth.find(|c: char| !c.is_ascii_digit()).unwrap_or(bandwidth.len());
    let (number, unit) = bandwidth.split_at(digits);
    let unit = match unit.trim_start().chars().next().map(|c| c.to_ascii_lowercase()) {
        Some('k') => "Kbps",
        Some('m') => "Mbps",
        Some('g') => "Gbps",
        _ => return bandwidth.to_owned(),
    };
    format!("{number}{unit}")
}

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Ls(how) => LISTING.of_tenant(client, how, out),
        Command::Create(it) => {
            let key = it.named.key();
            let body = json!({
                "tenantName": it.named.of.tenant,
                "profileName": it.named.name,
                "bandwidth": it.bandwidth.as_deref().unwrap_or_default(),
                "DSCP": it.dscp,
                "burst": it.burst,
            });
            client.put(ObjectType::Netprofile, &key, &body)?;
            Ok(writeln!(out, "Creating netprofile {key}")?)
        }
        Command::Rm(it) => client.delete(ObjectType::Netprofile, &it.key()),
        Command::Inspect(it) => inspect(client, "netprofile", &it.named.key(), &it.form, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_are_shown_in_one_way() {
        for (given, shown) in
            [("10 mbps", "10Mbps"), ("2Gb", "2Gbps"), ("100 k", "100Kbps"), ("", ""), ("7", "7")]
        {
            assert_eq!(rate(given), shown);
        }
    }
}
