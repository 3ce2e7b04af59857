//! One value of each action and of each message.

use openflow_rs::{
    Action, Body, Bucket, Ct, DropBand, ErrorMessage, Field, Flow, FlowFilter, FlowMod, FlowStats, Group,
    GroupKind, GroupMod, Match, Message, Meter, MeterMod, MeterUnit, Nat, NatKind, NatRange, Port, Slice,
    Zone,
    bundle::{ATOMIC, BundleControl, BundleStep, ORDERED},
    flow::{FlowCommand, FlowRemoved, RemovalReason},
    multipart::{Aggregate, Desc, MultipartReply, MultipartRequest, Parts, PortStats, TableStats},
    nicira::{HashFields, Learn, LearnSpec, LinkAlgorithm, Multipath},
    packet::{PacketIn, PacketInReason, PacketOut},
    port::{PortChange, PortDesc, PortStatus},
    switch::{AsyncConfig, Features, Hello, Role, RoleMessage, SwitchConfig},
};

/// Every action that the crate has a name for.
pub(crate) fn actions() -> Vec<Action> {
    let nat = Nat {
        kind: Some(NatKind::Destination),
        addresses: Some(NatRange::V4([10, 0, 0, 1].into(), Some([10, 0, 0, 9].into()))),
        ports: Some((80, Some(90))),
        ..Nat::default()
    };
    let exec = vec![Action::Nat(nat), Action::set(Field::CtMark, 7u8)];
    let zone = Zone::From(Slice::bits(Field::Reg4, 0, 16));
    let specs = vec![
        LearnSpec::MatchValue { value: vec![0x08, 0x00], to: Slice::whole(Field::EthType) },
        LearnSpec::MatchField { from: Slice::whole(Field::EthSrc), to: Slice::whole(Field::EthDst) },
        LearnSpec::LoadValue { value: vec![0, 9], to: Slice::bits(Field::Reg3, 4, 16) },
        LearnSpec::LoadField { from: Slice::bits(Field::Reg1, 0, 8), to: Slice::bits(Field::Reg2, 8, 8) },
        LearnSpec::Output { from: Slice::bits(Field::Reg0, 0, 16) },
    ];
    vec![
        Action::output(1),
        Action::controller(),
        Action::OutputField { port: Slice::bits(Field::Reg0, 0, 16), max_len: 0xffff },
        Action::Group(7),
        Action::SetQueue(3),
        Action::push_vlan(),
        Action::PopVlan,
        Action::set(Field::EthDst, 0x0202_0a00_0001_u64),
        Action::SetMasked { field: Field::Reg3, value: 0x10, mask: 0xf0 },
        Action::load(5, Slice::bits(Field::Reg3, 4, 8)),
        Action::copy(Field::EthSrc, Field::EthDst),
        Action::resubmit(4),
        Action::Resubmit { port: Some(Port(9)), table: 4 },
        Action::Conjunction { id: 77, clause: 1, clauses: 2 },
        Action::Clone(vec![Action::set(Field::Reg4, 9u8), Action::output(2)]),
        Action::Multipath(Multipath {
            fields: HashFields::SymmetricL3L4Udp,
            basis: 5,
            algorithm: LinkAlgorithm::Rendezvous,
            max_link: 2,
            arg: 0,
            to: Slice::bits(Field::Reg9, 0, 16),
        }),
        Action::Ct(Ct { commit: true, force: true, zone, table: Some(5), exec, ..Ct::default() }),
        Action::Ct(Ct { zone: Zone::Number(3), exec: vec![Action::Nat(Nat::default())], ..Ct::default() }),
        Action::Learn(Learn {
            idle_timeout: 60,
            priority: 9,
            cookie: 1,
            table: 6,
            specs: specs.clone(),
            ..Learn::default()
        }),
        Action::Learn(Learn { table: 6, limit: 1000, specs, ..Learn::default() }),
    ]
}

fn flow() -> Flow {
    let matching =
        Match::new().in_port(1.into()).ipv4_dst([10, 0, 0, 0].into(), 8).tcp().field(Field::TcpDst, 443u16);
    let flow = Flow::new(2, 100, matching).cookie(0x1234).apply([
        Action::push_vlan(),
        Action::set_vlan(5),
        Action::output(2),
    ]);
    flow.write_metadata(1, 0xff).goto(3)
}

fn group() -> Group {
    let bucket = |port: u32| Bucket::new([Action::output(port)]).weight(10);
    Group { id: 1, kind: GroupKind::Select, buckets: vec![bucket(1), bucket(2)] }
}

fn port() -> PortDesc {
    PortDesc {
        port: Port(1),
        mac: [2, 0, 0, 0, 0, 1],
        name: "vvport1".to_owned(),
        config: 0,
        state: 4,
        current: 0,
        advertised: 0,
        supported: 0,
        peer: 0,
        current_kbps: 10_000_000,
        max_kbps: 0,
    }
}

fn frame() -> Vec<u8> {
    [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[0; 46]].concat()
}

fn replies() -> Vec<Parts> {
    let desc = Desc {
        manufacturer: "m".to_owned(),
        hardware: "h".to_owned(),
        software: "s".to_owned(),
        serial: "1".to_owned(),
        datapath: "d".to_owned(),
    };
    let stats = PortStats {
        port: Port(1),
        rx_packets: 1,
        tx_packets: 2,
        rx_bytes: 3,
        tx_bytes: 4,
        rx_dropped: 5,
        tx_dropped: 6,
        rx_errors: 7,
        tx_errors: 8,
        rx_frame_errors: 9,
        rx_overruns: 10,
        rx_crc_errors: 11,
        collisions: 12,
        seconds: 13,
        nanoseconds: 14,
    };
    let flow_stats = FlowStats { flow: flow(), seconds: 1, nanoseconds: 2, packets: 3, bytes: 4 };
    vec![
        Parts::Desc(desc),
        Parts::Flows(vec![flow_stats].into()),
        Parts::Aggregate(Aggregate { packets: 1, bytes: 2, flows: 3 }),
        Parts::Tables(vec![TableStats { table: 1, active: 2, lookups: 3, matched: 4 }]),
        Parts::PortStats(vec![stats]),
        Parts::Groups(vec![group()].into()),
        Parts::Ports(vec![port()]),
    ]
}

fn changes() -> Vec<Body> {
    let commands = [
        FlowCommand::Add,
        FlowCommand::Modify,
        FlowCommand::ModifyStrict,
        FlowCommand::Delete,
        FlowCommand::DeleteStrict,
    ];
    let flows = commands.map(|command| FlowMod { command, ..FlowMod::add(flow()) });
    let groups = [GroupMod::add(group()), GroupMod::add_or_modify(group()), GroupMod::delete(1)];
    let with_action = actions().into_iter().map(|action| {
        // Connection tracking needs IP, and a tag that is removed has to be there.
        let matching = Match::new().ipv4();
        let matching = if action == Action::PopVlan { matching.vlan(5) } else { matching };
        FlowMod::add(Flow::new(0, 1, matching).apply([action]))
    });
    let flows = flows.into_iter().chain(with_action).map(Body::FlowMod);
    let meter = |unit, burst| Meter { id: 9, unit, bands: vec![DropBand { rate: 1000, burst }] };
    let meters = [
        MeterMod::add(meter(MeterUnit::Packets, 100)),
        MeterMod::modify(meter(MeterUnit::Kilobits, 0)),
        MeterMod::delete(9),
    ];
    let groups = groups.into_iter().map(Body::GroupMod);
    flows.chain(groups).chain(meters.into_iter().map(Body::MeterMod)).collect()
}

fn requests() -> Vec<MultipartRequest> {
    let filter = FlowFilter { table: 2, cookie: 1, cookie_mask: u64::MAX, ..FlowFilter::default() };
    vec![
        MultipartRequest::Desc,
        MultipartRequest::Flows(filter.clone()),
        MultipartRequest::Aggregate(filter),
        MultipartRequest::Tables,
        MultipartRequest::PortStats(Port::ANY),
        MultipartRequest::Groups,
        MultipartRequest::Ports,
    ]
}

fn bodies() -> Vec<Body> {
    let config = SwitchConfig { flags: 0, miss_send_len: 128 };
    let role = RoleMessage { role: Role::Primary, generation: 3 };
    let filter = AsyncConfig { packet_in: [3, 0], port_status: [7, 7], flow_removed: [15, 0] };
    let features = Features {
        datapath_id: 0x0200_0000_0001,
        buffers: 0,
        tables: 254,
        auxiliary_id: 0,
        capabilities: 0x4f,
    };
    let packet = PacketIn {
        total_len: 60,
        reason: PacketInReason::Action,
        table: 1,
        cookie: 2,
        matching: Match::new().in_port(3.into()),
        data: frame(),
    };
    let removed = FlowRemoved {
        reason: RemovalReason::IdleTimeout,
        flow: Flow { instructions: Default::default(), ..flow() },
        seconds: 5,
        nanoseconds: 6,
        packets: 7,
        bytes: 8,
    };
    let control = |step| Body::BundleControl(BundleControl { bundle: 1, step, flags: ATOMIC | ORDERED });
    let added = Message::new(1, Body::FlowMod(FlowMod::add(flow())));
    let mut all = vec![
        Body::Hello(Hello::openflow13()),
        Body::Error(ErrorMessage {
            kind: 1,
            code: 1,
            experimenter: None,
            data: vec![4, 20, 0, 8, 0, 0, 0, 1],
        }),
        Body::EchoRequest(vec![1, 2, 3]),
        Body::EchoReply(vec![1, 2, 3]),
        Body::FeaturesRequest,
        Body::FeaturesReply(features),
        Body::GetConfigRequest,
        Body::GetConfigReply(config),
        Body::SetConfig(config),
        Body::PacketIn(packet),
        Body::FlowRemoved(removed),
        Body::PortStatus(PortStatus { change: PortChange::Added, port: port() }),
        Body::PacketOut(PacketOut {
            in_port: Port::CONTROLLER,
            actions: vec![Action::output(1)],
            data: frame(),
        }),
        Body::BarrierRequest,
        Body::BarrierReply,
        Body::RoleRequest(role),
        Body::RoleReply(role),
        Body::GetAsyncRequest,
        Body::GetAsyncReply(filter),
        Body::SetAsync(filter),
        control(BundleStep::OpenRequest),
        control(BundleStep::OpenReply),
        control(BundleStep::CloseRequest),
        control(BundleStep::CloseReply),
        control(BundleStep::CommitRequest),
        control(BundleStep::CommitReply),
        control(BundleStep::DiscardRequest),
        control(BundleStep::DiscardReply),
        Body::BundleAdd { bundle: 1, flags: ATOMIC | ORDERED, message: Box::new(added) },
        Body::FlushZone(100),
    ];
    all.extend(requests().into_iter().map(Body::MultipartRequest));
    let reply = |parts| Body::MultipartReply(MultipartReply { more: false, parts });
    all.extend(replies().into_iter().map(reply));
    all.extend(changes());
    all
}

/// At least one message of each type, command and multipart type.
pub(crate) fn messages() -> Vec<Message> {
    let with_xid = |(xid, mut body)| {
        if let Body::BundleAdd { message, .. } = &mut body {
            message.xid = xid;
        }
        Message::new(xid, body)
    };
    (1..).zip(bodies()).map(with_xid).collect()
}
