//! Strategies for random valid flows, groups and messages.

use std::net::{Ipv4Addr, Ipv6Addr};

use openflow_rs::bundle::{BundleControl, BundleStep};
use openflow_rs::flow::{FlowCommand, FlowRemoved, RemovalReason};
use openflow_rs::group::GroupCommand;
use openflow_rs::meter::MeterCommand;
use openflow_rs::multipart::{MultipartReply, MultipartRequest, Parts};
use openflow_rs::nicira::{HashFields, Learn, LearnSpec, LinkAlgorithm, Multipath};
use openflow_rs::packet::{PacketIn, PacketInReason, PacketOut};
use openflow_rs::port::{PortChange, PortDesc, PortStatus};
use openflow_rs::switch::{AsyncConfig, Features, Hello, Role, RoleMessage, SwitchConfig};
use openflow_rs::*;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

/// Fields without prerequisites that accept any mask.
const FREE: &[Field] = &[
    Field::PktMark,
    Field::CtMark,
    Field::CtLabel,
    Field::Reg0,
    Field::Reg7,
    Field::Reg15,
    Field::TunnelId,
    Field::TunnelIpv4Src,
    Field::TunnelIpv4Dst,
    Field::TunnelIpv6Dst,
    Field::Metadata,
    Field::EthSrc,
    Field::EthDst,
];

fn masked(fields: &'static [Field]) -> impl Strategy<Value = Vec<(Field, u128, u128)>> {
    let mask = prop_oneof![Just(u128::MAX), any::<u128>(), (0u32..128).prop_map(|n| u128::MAX << n)];
    vec((select(fields), any::<u128>(), mask), 0..4)
}

fn with(base: Match, fields: Vec<(Field, u128, u128)>) -> Match {
    fields.into_iter().fold(base, |m, (field, value, mask)| m.masked(field, value, mask))
}

fn protocol() -> impl Strategy<Value = Match> {
    let exact = |m: Match, field: Field, value: Option<u8>| match value {
        Some(value) => m.field(field, value),
        None => m,
    };
    prop_oneof![
        Just(Match::new()),
        any::<u16>()
            .prop_filter("a length", |t| *t >= 0x600 && ![0x8100, 0x88a8, 0x8847, 0x8848, 0x894f].contains(t))
            .prop_map(|t| Match::new().eth_type(t)),
        (of(1u16..3), masked(&[Field::ArpSpa, Field::ArpTpa, Field::ArpSha, Field::ArpTha]))
            .prop_map(|(op, f)| with(op.map_or(Match::new().arp(), |op| Match::new().arp_op(op)), f)),
        (
            of(0u8..64),
            of(0u8..4),
            of(any::<u8>()),
            masked(&[Field::Ipv4Src, Field::Ipv4Dst, Field::IpFragment])
        )
            .prop_map(move |(dscp, ecn, ttl, f)| {
                let m = exact(exact(Match::new().ipv4(), Field::IpDscp, dscp), Field::IpEcn, ecn);
                // Other combinations of fragment bits do not exist.
                with(
                    exact(m, Field::IpTtl, ttl),
                    f.into_iter().filter(|x| x.0 != Field::IpFragment || x.1 & 3 != 2).collect(),
                )
            }),
        masked(&[Field::Ipv6Src, Field::Ipv6Dst, Field::Ipv6Label])
            .prop_map(|f| with(Match::new().ipv6(), f)),
        (any::<bool>(), masked(&[Field::TcpSrc, Field::TcpDst, Field::TcpFlags])).prop_map(|(six, f)| {
            with(if six { Match::new().ipv6() } else { Match::new().ipv4() }.tcp(), f)
        }),
        masked(&[Field::UdpSrc, Field::UdpDst]).prop_map(|f| with(Match::new().ipv4().udp(), f)),
        (any::<u8>(), any::<u8>()).prop_map(|(kind, code)| {
            Match::new().ipv4().ip_proto(1).field(Field::Icmpv4Type, kind).field(Field::Icmpv4Code, code)
        }),
        any::<u8>().prop_map(|kind| Match::new().icmpv6(kind)),
        (masked(&[Field::NdTarget, Field::NdSll]), any::<u128>())
            .prop_map(|(f, ip)| with(Match::new().neighbour_solicitation(Ipv6Addr::from(ip)), f)),
        (any::<u8>().prop_filter("shorthand", |p| ![1, 2, 6, 17, 58, 132].contains(p)))
            .prop_map(|p| Match::new().ipv4().ip_proto(p)),
    ]
}

pub(crate) fn matching() -> impl Strategy<Value = Match> {
    let vlan = prop_oneof![
        3 => Just(None),
        2 => (0u16..4096).prop_map(|v| Some((v | 0x1000, 0x1fff))),
        1 => Just(Some((0x1000, 0x1000))),
        1 => Just(Some((0, 0x1fff))),
    ];
    (protocol(), masked(FREE), of(1u32..0xff00), vlan, of(any::<u8>()), of(1u32..1000), of(any::<u16>()))
        .prop_map(|(m, free, in_port, vlan, ct, conj, zone)| {
            let m = with(m, free);
            let m = in_port.map_or(m.clone(), |p| m.in_port(p.into()));
            let m = vlan.map_or(m.clone(), |(v, mask): (u16, u16)| m.masked(Field::VlanVid, v, mask));
            let m = ct.map_or(m.clone(), |bits| m.ct_state(0x20 | u32::from(bits), 0x20 | u32::from(bits)));
            let m = conj.map_or(m.clone(), |id| m.field(Field::ConjId, id));
            zone.map_or(m.clone(), |zone| m.field(Field::CtZone, zone))
        })
}

fn slice() -> impl Strategy<Value = Slice> {
    (select(&[Field::Reg0, Field::Reg1, Field::Reg14][..]), 0u16..32).prop_flat_map(|(field, offset)| {
        (1..=32 - offset).prop_map(move |width| Slice::bits(field, offset, width))
    })
}

fn port() -> impl Strategy<Value = Port> {
    prop_oneof![
        (1u32..0xff00).prop_map(Port),
        select(&[Port::IN_PORT, Port::NORMAL, Port::LOCAL, Port::FLOOD, Port::ALL][..])
    ]
}

fn nat() -> impl Strategy<Value = Action> {
    let v4 = || any::<u32>().prop_map(Ipv4Addr::from_bits);
    let v6 = || (any::<u128>()).prop_map(|ip| Ipv6Addr::from_bits(ip | 1 << 127));
    let range = prop_oneof![
        v4().prop_map(|a| NatRange::V4(a, None)),
        (v4(), v4()).prop_filter("order", |(a, b)| a < b).prop_map(|(a, b)| NatRange::V4(a, Some(b))),
        v6().prop_map(|a| NatRange::V6(a, None)),
    ];
    let ports = prop_oneof![
        Just(None),
        (1u16..).prop_map(|p| Some((p, None))),
        (1u16..30000, 30000u16..).prop_map(|(a, b)| Some((a, Some(b))))
    ];
    prop_oneof![
        Just(Action::Nat(Nat::default())),
        (any::<bool>(), any::<bool>(), range, ports).prop_map(|(source, persistent, range, ports)| {
            let kind = Some(if source { NatKind::Source } else { NatKind::Destination });
            Action::Nat(Nat { kind, persistent, addresses: Some(range), ports, ..Nat::default() })
        }),
    ]
}

fn ct() -> impl Strategy<Value = Action> {
    let zone =
        prop_oneof![any::<u16>().prop_map(Zone::Number), Just(Zone::From(Slice::bits(Field::Reg0, 0, 16)))];
    (any::<bool>(), zone, of(1u8..254), of(nat()), of(any::<u32>())).prop_map(
        |(commit, zone, table, nat, mark)| {
            // A translation is valid only for a committed connection.
            let nat = nat.filter(|nat| commit || *nat == Action::Nat(Nat::default()));
            let exec = nat
                .into_iter()
                .chain(mark.filter(|_| commit).map(|m| Action::set(Field::CtMark, m)))
                .collect();
            Action::Ct(Ct { commit, zone, table, exec, ..Ct::default() })
        },
    )
}

fn multipath() -> impl Strategy<Value = Action> {
    let fields = select(&[
        HashFields::EthSrc,
        HashFields::SymmetricL4,
        HashFields::SymmetricL3L4,
        HashFields::SymmetricL3L4Udp,
        HashFields::IpSrc,
        HashFields::IpDst,
        HashFields::SymmetricL3,
    ]);
    let algorithm = select(&[
        LinkAlgorithm::Modulo,
        LinkAlgorithm::Threshold,
        LinkAlgorithm::Rendezvous,
        LinkAlgorithm::Iterative,
    ]);
    (fields, any::<u16>(), algorithm, any::<u8>()).prop_map(|(fields, basis, algorithm, max_link)| {
        let (max_link, to) = (max_link.into(), Slice::bits(Field::Reg9, 3, 16));
        Action::Multipath(Multipath { fields, basis, algorithm, max_link, arg: 0, to })
    })
}

fn learn() -> impl Strategy<Value = Action> {
    let limit = prop_oneof![Just(0), any::<u32>()];
    (any::<u16>(), 1u16..100, any::<u64>(), 1u8..250, any::<u16>(), limit).prop_map(
        |(idle, priority, cookie, table, bits, limit)| {
            let specs = vec![
                LearnSpec::MatchValue { value: vec![0x08, 0x00], to: Slice::whole(Field::EthType) },
                LearnSpec::MatchField { from: Slice::whole(Field::EthSrc), to: Slice::whole(Field::EthDst) },
                LearnSpec::LoadValue {
                    value: bits.to_be_bytes().to_vec(),
                    to: Slice::bits(Field::Reg3, 4, 16),
                },
                LearnSpec::LoadField {
                    from: Slice::bits(Field::Reg1, 0, 8),
                    to: Slice::bits(Field::Reg2, 8, 8),
                },
                LearnSpec::Output { from: Slice::bits(Field::Reg0, 0, 16) },
            ];
            Action::Learn(Learn {
                idle_timeout: idle,
                priority,
                cookie,
                table,
                limit,
                specs,
                ..Learn::default()
            })
        },
    )
}

pub(crate) fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        port().prop_map(Action::output),
        Just(Action::controller()),
        slice().prop_map(|port| Action::OutputField { port, max_len: 0xffff }),
        any::<u16>().prop_map(|id| Action::Group(id.into())),
        Just(Action::push_vlan()),
        Just(Action::PopVlan),
        (select(FREE), any::<u128>())
            .prop_filter("read only", |(field, _)| !matches!(
                field,
                Field::CtMark | Field::CtLabel | Field::Metadata
            ))
            .prop_map(|(field, value)| Action::set(field, value)),
        (any::<u128>(), any::<u32>())
            .prop_filter("whole or empty", |(_, mask)| ![0, u32::MAX].contains(mask))
            .prop_map(|(value, mask)| Action::SetMasked {
                field: Field::Reg3,
                value: value & u128::from(mask),
                mask: mask.into()
            }),
        (any::<u64>(), slice())
            .prop_map(|(value, to)| Action::load(value & (u64::MAX >> (64 - to.width)), to)),
        (slice(), 0u16..32).prop_map(|(from, to)| {
            let to = Slice::bits(Field::Reg9, to.min(32 - from.width), from.width);
            Action::Move { from, to }
        }),
        any::<u8>().prop_filter("all", |t| *t < 0xff).prop_map(Action::resubmit),
        (1u32..0xff00, 0u8..254).prop_map(|(port, table)| Action::Resubmit { port: Some(Port(port)), table }),
        (any::<u32>(), 0u8..254).prop_map(|(value, table)| Action::Clone(vec![
            Action::set(Field::Reg4, value),
            Action::resubmit(table)
        ])),
        multipath(),
        ct(),
        learn(),
    ]
}

pub(crate) fn flow() -> impl Strategy<Value = Flow> {
    let actions = prop_oneof![
        4 => vec(action(), 0..5),
        1 => (any::<u32>(), 0u8..3).prop_map(|(id, clause)| vec![Action::Conjunction { id, clause, clauses: 3 }]),
    ];
    let head = (0u8..200, 1u16..32768, matching(), any::<u64>(), 0u16..100);
    (head, actions, of(any::<(u64, u64)>()), of(201u8..254)).prop_map(
        |((table, priority, matching, cookie, idle), actions, metadata, goto)| {
            let alone = matches!(actions.first(), Some(Action::Conjunction { .. }));
            let mut flow = Flow::new(table, priority, matching).cookie(cookie).apply(actions);
            flow.idle_timeout = idle;
            if !alone {
                flow.instructions.metadata =
                    metadata.filter(|(_, mask)| *mask != 0).map(|(v, mask)| (v & mask, mask));
                flow.instructions.goto = goto;
            }
            flow
        },
    )
}

pub(crate) fn group() -> impl Strategy<Value = Group> {
    let kinds = prop_oneof![Just(GroupKind::All), Just(GroupKind::Select)];
    (kinds, any::<u16>(), vec((vec(action(), 0..4), 1u16..100), 0..5)).prop_map(|(kind, id, buckets)| {
        let weight = |weight| if kind == GroupKind::Select { weight } else { 0 };
        let buckets =
            buckets.into_iter().map(|(actions, w)| Bucket::new(actions).weight(weight(w))).collect();
        Group { id: id.into(), kind, buckets }
    })
}

fn port_desc() -> impl Strategy<Value = PortDesc> {
    (1u32..0xff00, any::<[u8; 6]>(), "[a-z0-9]{0,15}", any::<[u32; 8]>()).prop_map(|(port, mac, name, n)| {
        PortDesc {
            port: Port(port),
            mac,
            name,
            config: n[0],
            state: n[1],
            current: n[2],
            advertised: n[3],
            supported: n[4],
            peer: n[5],
            current_kbps: n[6],
            max_kbps: n[7],
        }
    })
}

pub(crate) fn flow_stats() -> impl Strategy<Value = FlowStats> {
    (flow(), any::<(u32, u32, u64, u64)>()).prop_map(|(flow, (seconds, nanoseconds, packets, bytes))| {
        FlowStats { flow, seconds, nanoseconds, packets, bytes }
    })
}

fn flow_mod() -> impl Strategy<Value = FlowMod> {
    let command = select(
        &[
            FlowCommand::Add,
            FlowCommand::Modify,
            FlowCommand::ModifyStrict,
            FlowCommand::Delete,
            FlowCommand::DeleteStrict,
        ][..],
    );
    (command, flow(), any::<u64>(), 1u32..0xff00, any::<u32>()).prop_map(
        |(command, flow, cookie_mask, out_port, out_group)| FlowMod {
            command,
            flow,
            cookie_mask,
            out_port: Port(out_port),
            out_group,
        },
    )
}

fn group_mod() -> impl Strategy<Value = GroupMod> {
    let command = select(
        &[GroupCommand::Add, GroupCommand::Modify, GroupCommand::Delete, GroupCommand::AddOrModify][..],
    );
    (command, group()).prop_map(|(command, group)| GroupMod { command, group })
}

fn meter_mod() -> impl Strategy<Value = MeterMod> {
    let command = select(&[MeterCommand::Add, MeterCommand::Modify, MeterCommand::Delete][..]);
    let unit = select(&[MeterUnit::Kilobits, MeterUnit::Packets][..]);
    let band = (1u32.., 0u32..1000).prop_map(|(rate, burst)| DropBand { rate, burst });
    (command, 1u32..0xffff_0000, unit, vec(band, 0..3))
        .prop_map(|(command, id, unit, bands)| MeterMod { command, meter: Meter { id, unit, bands } })
}

fn filter() -> impl Strategy<Value = FlowFilter> {
    (any::<u8>(), 1u32..0xff00, any::<u32>(), any::<(u64, u64)>(), matching()).prop_map(
        |(table, out_port, out_group, (cookie, cookie_mask), matching)| FlowFilter {
            table,
            out_port: Port(out_port),
            out_group,
            cookie,
            cookie_mask,
            matching,
        },
    )
}

fn controller_side() -> impl Strategy<Value = Body> {
    let role = (select(&[Role::NoChange, Role::Equal, Role::Primary, Role::Secondary][..]), any::<u64>())
        .prop_map(|(role, generation)| RoleMessage { role, generation });
    prop_oneof![
        vec(any::<u8>(), 0..40).prop_map(Body::EchoRequest),
        Just(Body::FeaturesRequest),
        Just(Body::BarrierRequest),
        (0u16..2, any::<u16>())
            .prop_map(|(flags, miss_send_len)| Body::SetConfig(SwitchConfig { flags, miss_send_len })),
        (any::<u32>(), vec(action(), 0..4), vec(any::<u8>(), 0..100)).prop_map(|(port, actions, data)| {
            Body::PacketOut(PacketOut { in_port: Port(port), actions, data })
        }),
        flow_mod().prop_map(Body::FlowMod),
        group_mod().prop_map(Body::GroupMod),
        meter_mod().prop_map(Body::MeterMod),
        filter().prop_map(|f| Body::MultipartRequest(MultipartRequest::Flows(f))),
        filter().prop_map(|f| Body::MultipartRequest(MultipartRequest::Aggregate(f))),
        Just(Body::MultipartRequest(MultipartRequest::Groups)),
        role.prop_map(Body::RoleRequest),
        any::<[u32; 6]>().prop_map(|n| Body::SetAsync(AsyncConfig {
            packet_in: [n[0], n[1]],
            port_status: [n[2], n[3]],
            flow_removed: [n[4], n[5]]
        })),
        (any::<u32>(), any::<u16>()).prop_map(|(bundle, flags)| Body::BundleControl(BundleControl {
            bundle,
            step: BundleStep::CommitRequest,
            flags
        })),
        (any::<u32>(), any::<u16>(), flow_mod()).prop_map(|(bundle, flags, change)| {
            Body::BundleAdd { bundle, flags, message: Box::new(Message::new(1, Body::FlowMod(change))) }
        }),
        any::<u16>().prop_map(Body::FlushZone),
    ]
}

fn switch_side() -> impl Strategy<Value = Body> {
    let reply = |parts| Body::MultipartReply(MultipartReply { more: true, parts });
    prop_oneof![
        any::<u32>().prop_map(|v| Body::Hello(Hello { version: 6, versions: Some(v) })),
        (any::<u16>(), any::<u16>(), vec(any::<u8>(), 0..64)).prop_map(|(kind, code, data)| {
            let experimenter = (kind == 0xffff).then_some(7);
            Body::Error(ErrorMessage { kind, code, experimenter, data })
        }),
        any::<(u64, u32, u8, u8, u32)>().prop_map(
            |(datapath_id, buffers, tables, auxiliary_id, capabilities)| {
                Body::FeaturesReply(Features { datapath_id, buffers, tables, auxiliary_id, capabilities })
            }
        ),
        (any::<(u16, u8, u64)>(), matching(), vec(any::<u8>(), 0..100)).prop_map(
            |((total_len, table, cookie), matching, data)| Body::PacketIn(PacketIn {
                total_len,
                reason: PacketInReason::Action,
                table,
                cookie,
                matching,
                data
            })
        ),
        (flow(), any::<(u32, u32, u64, u64)>()).prop_map(|(flow, (seconds, nanoseconds, packets, bytes))| {
            let flow = Flow { instructions: Instructions::default(), flags: 0, ..flow };
            Body::FlowRemoved(FlowRemoved {
                reason: RemovalReason::IdleTimeout,
                flow,
                seconds,
                nanoseconds,
                packets,
                bytes,
            })
        }),
        port_desc().prop_map(|port| Body::PortStatus(PortStatus { change: PortChange::Modified, port })),
        vec(flow_stats(), 0..4).prop_map(move |flows| reply(Parts::Flows(flows.into()))),
        vec(group(), 0..4).prop_map(move |groups| reply(Parts::Groups(groups.into()))),
        vec(port_desc(), 0..4).prop_map(move |ports| reply(Parts::Ports(ports))),
    ]
}

pub(crate) fn message() -> impl Strategy<Value = Message> {
    (any::<u32>(), prop_oneof![controller_side(), switch_side()])
        .prop_map(|(xid, body)| Message { xid, body })
}
