//! `netctl netprofile`.

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    cli::Named,
    kind::{Change, Field, Form, Kind},
    listing::{number, text},
    verb::Make,
};

/// Network profiles.
pub static KIND: Kind = Kind {
    of: ObjectType::Netprofile,
    words: &[],
    key: &["tenantName", "profileName"],
    fields: &[
        Field::tenant(),
        Field::new("profileName", Form::Text).required(),
        Field::new("bandwidth", Form::BANDWIDTH),
        Field::new("DSCP", Form::Number(0, 63)),
        Field::new("burst", Form::Number(0, 10486)),
    ],
    change: Change::AllBut(&[]),
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
};

fn row(profile: &Value) -> Vec<String> {
    let mut row = vec![
        text(profile, "profileName"),
        text(profile, "tenantName"),
        rate(&text(profile, "bandwidth")),
        number(profile, "DSCP").to_string(),
    ];
    // Without a burst the original ends the line here.
    if number(profile, "burst") != 0 {
        row.push(number(profile, "burst").to_string());
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

impl Make for Create {
    fn named(&self) -> (&str, &str) {
        self.named.parts()
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
    fn bandwidths_are_shown_in_one_way() {
        for (given, shown) in
            [("10 mbps", "10Mbps"), ("2Gb", "2Gbps"), ("100 k", "100Kbps"), ("", ""), ("7", "7")]
        {
            assert_eq!(rate(given), shown);
        }
    }
}
