//! Tests of the connection against a running Open vSwitch.

use anyhow::Result;
use openflow_rs::connection::Error;
use openflow_rs::flow::FlowCommand;
use openflow_rs::multipart::UnknownGroup;
use openflow_rs::{
    Action, Body, Bucket, Change, Connection, Ct, Field, Flow, FlowFilter, FlowMod, Group, GroupKind,
    GroupMod, Match, PackedFlow, PackedMod, Port, Slice, Zone, ct_state,
};
use testkit::ovs::Switch;
use testkit::{Netns, needs};

/// Runs `test` with a switch that has a bridge `br0`, and a connection to the bridge.
pub(crate) fn with_bridge(
    label: &str,
    test: impl AsyncFnOnce(&Switch, Connection) -> Result<()> + Send,
) -> Result<()> {
    let ns = Netns::new(label)?;
    let switch = Switch::start(&ns)?;
    let bridge = ["set", "bridge", "br0", "datapath_type=netdev", "protocols=OpenFlow13", "fail_mode=secure"];
    switch.vsctl(&[&["--timeout=20", "add-br", "br0", "--"], &bridge[..]].concat())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let target = format!("unix:{}/br0.mgmt", switch.directory().display()).parse()?;
        let (connection, _notifications) = Connection::connect(&target).await?;
        test(&switch, connection).await
    })
}

fn samples() -> Vec<Flow> {
    let target = "fe80::2".parse().unwrap();
    vec![
        Flow::new(0, 100, Match::new().arp_op(1).arp_tpa([10, 0, 0, 2].into())).cookie(7).apply([
            Action::copy(Field::EthSrc, Field::EthDst),
            Action::set(Field::EthSrc, 0x0202_0a00_0002_u64),
            Action::set(Field::ArpOp, 2u8),
            Action::copy(Field::ArpSha, Field::ArpTha),
            Action::set(Field::ArpSha, 0x0202_0a00_0002_u64),
            Action::copy(Field::ArpSpa, Field::ArpTpa),
            Action::set(Field::ArpSpa, 0x0a00_0002_u32),
            Action::output(Port::IN_PORT),
        ]),
        Flow::new(0, 100, Match::new().neighbour_solicitation(target)).cookie(8).apply([
            Action::set(Field::Icmpv6Type, 136u8),
            Action::set(Field::NdOptionsType, 2u8),
            Action::set(Field::NdReserved, 0x6000_0000_u32),
            Action::resubmit(1),
        ]),
        Flow::new(1, 100, Match::new().icmpv6(136))
            .cookie(8)
            .apply([Action::set(Field::NdTll, 0x0202_0a00_0002_u64), Action::output(Port::IN_PORT)]),
        Flow::new(1, 10, Match::new().vlan(5).metadata(0, 1).eth_dst([2, 2, 10, 0, 0, 3])).apply([
            Action::set(Field::TunnelId, 5u8),
            Action::PopVlan,
            Action::output(3),
        ]),
        Flow::new(1, 9, Match::new().vlan(5).metadata(1, 1)).apply([Action::Group(1)]),
        Flow::new(2, 10, Match::new().ipv4().tcp().field(Field::TcpDst, 80u8).no_vlan())
            .apply([Action::Ct(Ct { commit: true, table: Some(3), ..Ct::default() })]),
        Flow::new(2, 1, Match::new().in_port(4.into()))
            .apply([Action::push_vlan(), Action::set_vlan(9)])
            .write_metadata(1 << 32, 0xff << 32)
            .goto(3),
        Flow::new(3, 1, Match::new()),
    ]
}

fn flood() -> Group {
    let bucket = |port: u32| Bucket::new([Action::PopVlan, Action::output(port)]);
    Group { id: 1, kind: GroupKind::All, buckets: vec![bucket(1), bucket(2)] }
}

fn changes() -> Vec<Change> {
    let flows = samples().into_iter().map(|flow| FlowMod::add(flow).into());
    std::iter::once(GroupMod::add(flood()).into()).chain(flows).collect()
}

#[test]
fn dumps_return_the_contents_of_a_bundle() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    with_bridge("ofbundle", async |switch, connection| {
        connection.apply_bundle(changes()).await?;
        let mut dumped: Vec<_> =
            connection.dump_flows(FlowFilter::default()).await?.into_iter().map(|stats| stats.flow).collect();
        let mut sent = samples();
        dumped.sort_by_key(ToString::to_string);
        sent.sort_by_key(ToString::to_string);
        assert_eq!(dumped, sent);
        assert_eq!(connection.dump_groups().await?, [flood()]);
        // ovs-ofctl agrees.
        let text = switch.ofctl("dump-flows", "br0", &["--no-stats"])?;
        assert!(text.contains("table=1, priority=9,metadata=0x1/0x1,dl_vlan=5 actions=group:1"), "{text}");
        Ok(())
    })
}

/// Another program has added a flow with a field that the library does not know.
#[test]
fn unknown_flows_are_returned_beside_the_others() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    with_bridge("ofother", async |switch, connection| {
        connection.apply_bundle(changes()).await?;
        let other = "cookie=0x2a,table=7,priority=3,mpls,mpls_label=5,actions=drop";
        switch.ofctl("add-flow", "br0", &[other])?;
        let mut known = 0;
        let unknown = connection.visit_flows(FlowFilter::default(), |_| known += 1).await?;
        assert_eq!(known, samples().len());
        let unknown: Vec<_> = unknown.iter().map(|flow| (flow.table(), flow.cookie())).collect();
        assert_eq!(unknown, [(7, 0x2a)]);
        Ok(())
    })
}

/// Another program has added a group with an action on a field that the library does not know.
#[test]
fn unknown_groups_are_returned_beside_the_others() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    with_bridge("ofgroup", async |switch, connection| {
        connection.apply_bundle(changes()).await?;
        let other = "group_id=7,type=all,bucket=actions=set_field:5->tun_gbp_id,output:1";
        switch.ofctl("add-group", "br0", &[other])?;
        let groups = connection.all_groups().await?;
        assert_eq!(groups.known, [flood()]);
        assert_eq!(groups.unknown.iter().map(UnknownGroup::id).collect::<Vec<_>>(), [7]);
        Ok(())
    })
}

/// Flows of stateful policies: connection tracking with a zone from a register, conjunctions of clauses, masked ports and
/// registers, copies between addresses and registers.
fn stateful_samples() -> Vec<Flow> {
    let tracked = ct_state::TRACKED;
    let v4 = || Match::new().ipv4().ct_state(tracked, tracked | ct_state::INVALID);
    let v6 = || Match::new().ipv6().ct_state(tracked | ct_state::NEW, tracked | ct_state::NEW);
    let zone = Zone::From(Slice::bits(Field::Reg15, 0, 16));
    let clause = |id, clause| Action::Conjunction { id, clause, clauses: 2 };
    vec![
        Flow::new(4, 10, Match::new().ipv4().tcp().masked(Field::EthDst, 0u8, 1u64 << 40))
            .apply([Action::Ct(Ct { zone, table: Some(17), ..Ct::default() })]),
        Flow::new(17, 20, v4()).apply([
            Action::copy(Field::CtIpv4Src, Field::Reg4),
            Action::copy(Field::CtIpv4Dst, Field::Reg8),
            Action::SetMasked { field: Field::Reg2, value: 1, mask: 3 },
        ]),
        Flow::new(17, 20, v6()).apply([
            Action::copy(Field::CtIpv6Src, Field::XXReg1),
            Action::copy(Field::CtIpv6Dst, Field::XXReg2),
        ]),
        Flow::new(
            18,
            30,
            v4().tcp().masked(Field::CtPortDst, 0x1000u16, 0xf000u16).field(Field::CtIpProto, 6u8),
        )
        .apply([clause(7, 0), clause(8, 1)]),
        Flow::new(18, 30, Match::new().field(Field::Reg12, 3u8)).apply([clause(7, 1)]),
        Flow::new(18, 30, Match::new().field(Field::ConjId, 7u8)).apply([Action::resubmit(19)]),
        // The switch reports a match on a wider register as matches on its parts.
        Flow::new(19, 30, Match::new().ipv6().masked(Field::Reg4, 0x2001_0000_u32, 0xffff_0000_u32)),
        Flow::new(20, 30, v6()).apply([Action::Ct(Ct {
            commit: true,
            zone,
            exec: vec![Action::set(Field::CtMark, 5u8), Action::set(Field::CtLabel, 1u128 << 96)],
            ..Ct::default()
        })]),
    ]
}

#[test]
fn stateful_flows_come_back_as_they_were_sent() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    with_bridge("ofct", async |_, connection| {
        let changes = stateful_samples().into_iter().map(|flow| FlowMod::add(flow).into()).collect();
        connection.apply_bundle(changes).await?;
        let dump = connection.dump_flows(FlowFilter::default()).await?;
        let mut dumped: Vec<_> = dump.into_iter().map(|stats| stats.flow).collect();
        let mut sent = stateful_samples();
        dumped.sort_by_key(ToString::to_string);
        sent.sort_by_key(ToString::to_string);
        assert_eq!(dumped, sent);
        Ok(())
    })
}

#[test]
fn a_rejected_bundle_changes_nothing_and_names_the_message() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    with_bridge("ofbad", async |_, connection| {
        // Rejected by the add: a prerequisite of the match is missing.
        let early = Flow::new(7, 1, Match::new().field(Field::TcpDst, 80u8));
        // Rejected by the commit: the group does not exist.
        let late = Flow::new(8, 1, Match::new()).apply([Action::Group(99)]);
        for (bad, says) in [(early, "OFPBMC_BAD_PREREQ"), (late, "OFPBAC_BAD_OUT_GROUP")] {
            let name = bad.to_string();
            let mut changes = changes();
            changes.insert(3, FlowMod::add(bad).into());
            let Err(Error::Refused { request, source, .. }) = connection.apply_bundle(changes).await else {
                panic!("{name} was taken");
            };
            assert_eq!(request, format!("add flow {name}"));
            assert!(source.to_string().contains(says), "{source}");
            assert_eq!(connection.dump_flows(FlowFilter::default()).await?, []);
            assert_eq!(connection.dump_groups().await?, []);
        }
        connection.apply_bundle(changes()).await?;
        Ok(())
    })
}

#[test]
fn twenty_thousand_flows_in_one_bundle_and_one_dump() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    with_bridge("ofmany", async |_, connection| {
        let flow = |n: u32| {
            let matching = Match::new().ipv4_dst(n.into(), 32);
            Flow::new((n % 8) as u8, 5, matching).cookie((n % 2).into()).apply([Action::output(1)])
        };
        connection.apply_bundle((0..20_000).map(|n| FlowMod::add(flow(n)).into()).collect()).await?;
        assert_eq!(connection.dump_flows(FlowFilter::default()).await?.len(), 20_000);
        assert_eq!(connection.aggregate(FlowFilter::default()).await?.flows, 20_000);
        let odd = FlowMod::delete_by_cookie(openflow_rs::flow::ALL_TABLES, 1, u64::MAX);
        assert_eq!(odd.command, FlowCommand::Delete);
        connection.apply_bundle(vec![odd.into()]).await?;
        let left = connection.dump_flows(FlowFilter::default()).await?;
        assert!(left.len() == 10_000 && left.iter().all(|stats| stats.flow.cookie == 0));
        Ok(())
    })
}

/// The first messages are on their way when the last one turns out to be too long.
#[test]
fn a_bundle_that_cannot_be_finished_changes_nothing() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    with_bridge("oflong", async |_, connection| {
        let flow = |n: u32| Flow::new(1, 5, Match::new().ipv4_dst(n.into(), 32)).apply([Action::output(1)]);
        let long = Flow::new(2, 5, Match::new()).apply((0..5_000).map(|_| Action::output(1)));
        let add = |flow: Flow| Change::from(PackedMod::add(PackedFlow::new(&flow)));
        let flows = || (0..8_000).map(flow);
        let changes = flows().chain([long]).map(add).collect();
        let Err(Error::Encode { .. }) = connection.apply_bundle(changes).await else {
            panic!("the flow was sent");
        };
        assert_eq!(connection.aggregate(FlowFilter::default()).await?.flows, 0);
        connection.apply_bundle(flows().map(add).collect()).await?;
        let mut left = vec![];
        connection
            .visit_flows(FlowFilter::default(), |stats| left.push(PackedFlow::new(&stats.flow)))
            .await?;
        left.sort_by(|a, b| a.identity().cmp(b.identity()));
        assert!(left == flows().map(|flow| PackedFlow::new(&flow)).collect::<Vec<_>>());
        let delete = left.split_off(1).into_iter().map(|flow| Change::from(PackedMod::delete(flow)));
        connection.apply_bundle(delete.collect()).await?;
        assert_eq!(connection.dump_flows(FlowFilter::default()).await?.len(), 1);
        Ok(())
    })
}

#[test]
fn the_switch_is_described_and_errors_are_named() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    with_bridge("ofdesc", async |_, connection| {
        assert_eq!(connection.describe().await?.hardware, "Open vSwitch");
        assert!(connection.features().await?.tables > 100);
        let ports = connection.ports().await?;
        assert_eq!(
            ports.iter().map(|port| (port.port, port.name.as_str())).collect::<Vec<_>>(),
            [(Port::LOCAL, "br0")]
        );
        connection.barrier().await?;
        let bad = Body::FlowMod(FlowMod::add(Flow::new(0, 1, Match::new().field(Field::ArpOp, 1u8))));
        let error = connection.send_all(vec![Body::BarrierRequest, bad], |n| format!("message {n}")).await;
        let Err(Error::Refused { request, source, .. }) = error else { panic!("{error:?}") };
        assert_eq!(request, "message 1");
        assert_eq!(source.to_string(), "a prerequisite of a match field is missing (OFPBMC_BAD_PREREQ)");
        Ok(())
    })
}

#[test]
fn a_lost_connection_is_reported() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let ns = Netns::new("oflost")?;
    let mut switch = Switch::start(&ns)?;
    switch.vsctl(&["--timeout=20", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let target = format!("unix:{}/br0.mgmt", switch.directory().display()).parse()?;
        let (connection, mut notifications) = Connection::connect(&target).await?;
        switch.kill_vswitchd()?;
        connection.closed().await;
        assert!(notifications.recv().await.is_none());
        let error = connection.barrier().await;
        assert!(matches!(error, Err(Error::Closed { .. })), "{error:?}");
        Ok(())
    })
}
