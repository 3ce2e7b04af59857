//! Writes a group and two flows to a bridge in one atomic change, and lists its tables:
//! `cargo run --example program unix:/run/openvswitch/br0.mgmt`.

use std::{env, error::Error};

use openflow_rs::{Action, Bucket, Connection, Flow, FlowFilter, FlowMod, Group, GroupKind, GroupMod, Match};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let target = env::args().nth(1).unwrap_or_else(|| "unix:/run/openvswitch/br0.mgmt".into());
    for line in program(&target).await? {
        println!("{line}");
    }
    Ok(())
}

pub(crate) async fn program(target: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let (switch, _notifications) = Connection::connect(&target.parse()?).await?;
    let buckets = [2, 3].map(|port| Bucket::new([Action::output(port)]).weight(50));
    let spread = Group { id: 1, kind: GroupKind::Select, buckets: buckets.into() };
    let web = Match::new().ipv4_dst([10, 0, 0, 1].into(), 32).in_port(1.into());
    switch
        .apply_bundle(vec![
            GroupMod::add(spread).into(),
            FlowMod::add(Flow::new(0, 100, web).apply([Action::Group(1)])).into(),
            FlowMod::add(Flow::new(0, 0, Match::new())).into(),
        ])
        .await?;
    let flows = switch.dump_flows(FlowFilter::default()).await?;
    let groups = switch.dump_groups().await?;
    let flows = flows.iter().map(|stats| stats.flow.to_string());
    Ok(flows.chain(groups.iter().map(ToString::to_string)).collect())
}
