//! `netctl netprofile`.

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    commands::object::CreateArgs,
    flags::{ObjectName, integer},
    output::{number, text},
    schema::{Field, Kind, Mutability, format::Format},
};

/// Network profiles.
pub static KIND: Kind = Kind {
    object_type: ObjectType::Netprofile,
    aliases: &[],
    key_fields: &["tenantName", "profileName"],
    fields: &[
        Field::tenant(),
        Field::new("profileName", Format::Text).required(),
        Field::new("bandwidth", Format::BANDWIDTH),
        Field::new("DSCP", Format::at_most(63)),
        Field::new("burst", Format::at_most(10_486)),
    ],
    mutability: Mutability::Except(&[]),
    columns: &[
        ("Name", "------"),
        ("Tenant", "------"),
        ("Bandwidth", "---------"),
        ("DSCP", "--------"),
        ("burst size", "----------"),
    ],
    row,
    created: "Creating netprofile {key}",
    deleted: "",
    check: None,
};

fn row(profile: &Value) -> Vec<String> {
    let mut row = vec![
        text(profile, "profileName"),
        text(profile, "tenantName"),
        rate(&text(profile, "bandwidth")),
        number(profile, "DSCP").to_string(),
    ];
    // The original omits the cell if there is neither a burst nor a bandwidth.
    if number(profile, "burst") != 0 || !text(profile, "bandwidth").is_empty() {
        row.push(number(profile, "burst").to_string());
    }
    row
}

/// Normalizes a rate: `10 mbps`, `10mb` and `10 M` become `10Mbps`.
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

/// Arguments of `netctl netprofile create`.
#[derive(Args, Debug)]
pub struct Create {
    #[command(flatten)]
    object: ObjectName,
    /// Maximum rate that an endpoint sends, such as "10 mbps".
    #[arg(long, short)]
    bandwidth: Option<String>,
    /// DSCP of packets from the endpoint, 0 to 63; 0 leaves it unchanged.
    #[arg(long, short, default_value_t = 0, value_parser = integer)]
    dscp: i64,
    /// Burst size in kilobytes, 0 to 10486.
    #[arg(long, short = 's', default_value_t = 0, value_parser = integer)]
    burst: i64,
}

impl CreateArgs for Create {
    fn name(&self) -> (&str, &str) {
        self.object.parts()
    }

    fn fields(&self) -> Value {
        json!({
            "bandwidth": self.bandwidth.as_deref().unwrap_or_default(),
            "DSCP": self.dscp,
            "burst": self.burst,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_normalized() {
        for (given, shown) in
            [("10 mbps", "10Mbps"), ("2Gb", "2Gbps"), ("100 k", "100Kbps"), ("", ""), ("7", "7")]
        {
            assert_eq!(rate(given), shown);
        }
    }
}
