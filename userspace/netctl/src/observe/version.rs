//! `netctl version`.

use std::io::Write;

use crate::{
    client::Client,
    error::Error,
    output::{printable, text},
};

/// Shows the versions of netctl and netmaster, and the leader.
pub fn show(client: &Client, out: &mut dyn Write) -> Result<(), Error> {
    writeln!(out, "Client Version:\nVersion: {}\n", env!("CARGO_PKG_VERSION"))?;
    let server = client.get("/version")?;
    writeln!(out, "Server Version:")?;
    for field in ["Version", "GitCommit", "BuildTime"] {
        writeln!(out, "{field}: {}", printable(&text(&server, field)))?;
    }
    let leader = match client.get("/info") {
        Ok(info) => text(&info, "leader-ip"),
        // The versions are useful without a leader.
        Err(Error::Refused(why) | Error::Forbidden(why) | Error::Unavailable(why)) => why,
        Err(error) => return Err(error),
    };
    Ok(writeln!(out, "Leader: {}", printable(&leader))?)
}
