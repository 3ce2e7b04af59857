//! Round trips of the codec, and decoding of invalid input.

use openflow_rs::{
    Action, Body, Bucket, Ct, EncodeError, Field, Flow, FlowFilter, FlowMod, FlowStats, Group, GroupKind,
    GroupMod, Match, Message, PackedFlow, PackedMod, Port, Slice, Zone,
    multipart::{MultipartReply, MultipartRequest, Parts, UnknownGroup},
    nicira::{Learn, LearnSpec},
    packet::{PacketIn, PacketInReason, PacketOut},
};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

use crate::arbitrary;

/// Any bits of any field, with more and fewer than there are.
fn any_slice() -> impl Strategy<Value = Slice> {
    let number = || prop_oneof![4 => 0u16..70, 1 => 1000u16..1030, 1 => any::<u16>()];
    (select(Field::ALL), number(), number())
        .prop_map(|(field, offset, width)| Slice::bits(field, offset, width))
}

fn any_spec() -> impl Strategy<Value = LearnSpec> {
    let value = || vec(any::<u8>(), 0..12);
    let same = any_slice().prop_map(|from| LearnSpec::LoadField { from, to: Slice { offset: 3, ..from } });
    let fitting = (1u16..130, any::<bool>()).prop_map(|(width, is_match)| {
        let (value, to) =
            (vec![1; 2 * usize::from(width).div_ceil(16)], Slice::bits(Field::XXReg0, 0, width));
        if is_match { LearnSpec::MatchValue { value, to } } else { LearnSpec::LoadValue { value, to } }
    });
    prop_oneof![
        same,
        fitting,
        any_slice().prop_map(|from| LearnSpec::Output { from }),
        (any_slice(), any_slice()).prop_map(|(from, to)| LearnSpec::MatchField { from, to }),
        (value(), any_slice()).prop_map(|(value, to)| LearnSpec::MatchValue { value, to }),
        (value(), any_slice()).prop_map(|(value, to)| LearnSpec::LoadValue { value, to }),
    ]
}

/// Actions with values of which many cannot be encoded.
fn any_action() -> impl Strategy<Value = Action> {
    let number = || prop_oneof![Just(0), any::<u8>().prop_map(u128::from), any::<u128>()];
    let port = prop_oneof![any::<u16>().prop_map(u32::from), 0xffff_fff0u32.., any::<u32>()];
    let simple =
        prop_oneof![
            (any::<u64>(), any_slice()).prop_map(|(value, to)| Action::load(value, to)),
            any_slice().prop_map(|port| Action::OutputField { port, max_len: 7 }),
            (any_slice(), any_slice()).prop_map(|(from, to)| Action::Move { from, to }),
            any_slice().prop_map(|from| Action::Move { from, to: Slice { offset: 3, ..from } }),
            (select(Field::ALL), number()).prop_map(|(field, value)| Action::SetField { field, value }),
            (select(Field::ALL), number(), number()).prop_map(|(field, value, mask)| Action::SetMasked {
                field,
                value,
                mask
            }),
            // Without a port, the ingress port is that of the packet.
            port.prop_filter("none", |port| Port(*port) != Port::IN_PORT)
                .prop_map(|port| Action::Resubmit { port: Some(Port(port)), table: 1 }),
            (any_slice(), of(any::<u8>())).prop_map(|(zone, table)| Action::Ct(Ct {
                zone: Zone::From(zone),
                table,
                ..Ct::default()
            })),
            (vec(any_spec(), 0..3), 0u16..8, 0u32..2).prop_map(|(specs, flags, limit)| Action::Learn(
                Learn { specs, flags, limit, ..Learn::default() }
            )),
        ];
    simple.prop_recursive(3, 6, 2, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Action::Clone),
            vec(inner, 0..3).prop_map(|exec| Action::Ct(Ct { exec, ..Ct::default() })),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_round_trip(message in arbitrary::message()) {
        let bytes = message.to_bytes().unwrap();
        prop_assert_eq!(Message::decode(&bytes), Ok(message));
    }

    /// What is sent is what was meant.
    #[test]
    fn actions_are_refused_or_round_trip(actions in vec(any_action(), 1..3)) {
        let message = Message::new(1, Body::FlowMod(FlowMod::add(Flow::new(0, 1, Match::new()).apply(actions))));
        match message.to_bytes() {
            Ok(bytes) => prop_assert_eq!(Message::decode(&bytes), Ok(message)),
            Err(error) => prop_assert!(matches!(error, EncodeError::Action { .. }), "{}", error),
        }
    }

    /// A packed flow is the same flow, and its messages are the same bytes.
    #[test]
    fn packed_flows_round_trip(flow in arbitrary::flow(), other in arbitrary::flow()) {
        let packed = PackedFlow::new(&flow);
        prop_assert_eq!(&packed.unpack().unwrap(), &flow);
        prop_assert_eq!((packed.table(), packed.cookie()), (flow.table, flow.cookie));
        prop_assert_eq!(packed.has_meter(), flow.instructions.meter.is_some());
        let bytes = |body| Message::new(7, body).to_bytes().unwrap();
        let add = (PackedMod::add(packed.clone()), FlowMod::add(flow.clone()));
        let delete = (PackedMod::delete(packed.clone()), FlowMod::delete_strict(&flow));
        for (packed, plain) in [add, delete] {
            prop_assert_eq!(packed.to_string(), plain.to_string());
            prop_assert_eq!(bytes(Body::PackedMod(packed)), bytes(Body::FlowMod(plain)));
        }
        // The identity says the same as table, priority and match.
        let identity = |flow: &Flow| (flow.table, flow.priority, flow.matching.clone());
        for other in [other.clone(), Flow { instructions: other.instructions, cookie: 9, ..flow.clone() }] {
            let packed_other = PackedFlow::new(&other);
            prop_assert_eq!(packed.identity() == packed_other.identity(), identity(&flow) == identity(&other));
            prop_assert_eq!(packed == packed_other, flow == other);
        }
    }

    #[test]
    fn decoding_random_bytes_does_not_panic(kind in 0u8..32, body in vec(any::<u8>(), 0..300)) {
        let mut bytes = vec![4, kind];
        bytes.extend((body.len() as u16 + 8).to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        if let Ok(message) = Message::decode(&bytes) {
            let _text = format!("{message:?}");
        }
    }

    /// Corrupted valid messages reach deeper into the decoders than random bytes.
    #[test]
    fn decoding_corrupted_messages_does_not_panic(
        message in arbitrary::message(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = message.to_bytes().unwrap();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len().min(cut.index(bytes.len()) + 8));
        if let Ok(message) = Message::decode(&bytes) {
            // Decoded messages can be formatted and encoded.
            let _text = format!("{message:?}");
            let _bytes = message.to_bytes();
        }
    }
}

/// A flow of another program, with a field that the library does not know, hides no other flow, and is not lost.
#[test]
fn unknown_flows_round_trip() {
    let stats = |table, cookie| {
        let flow = Flow::new(table, 5, Match::new().in_port(1.into())).cookie(cookie);
        FlowStats { flow, seconds: 0, nanoseconds: 0, packets: 0, bytes: 0 }
    };
    let parts = Parts::Flows(vec![stats(7, 8), stats(3, 4)].into());
    let reply = Body::MultipartReply(MultipartReply { more: false, parts });
    let (in_port, mpls_label) = ([0x80, 0, 0, 4], [0x80, 0, 0x44, 4]);
    let bytes = with_unknown_field(&Message::new(1, reply), in_port, mpls_label);
    let message = Message::decode(&bytes).unwrap();
    let Body::MultipartReply(MultipartReply { parts: Parts::Flows(flows), .. }) = &message.body else {
        panic!("{message:?}");
    };
    assert_eq!(flows.known, [stats(3, 4)]);
    let unknown: Vec<_> = flows.unknown.iter().map(|flow| (flow.table(), flow.cookie())).collect();
    assert_eq!(unknown, [(7, 8)]);
    assert_eq!(Message::decode(&message.to_bytes().unwrap()), Ok(message));
}

/// A group of another program, with an action on a field that the library does not know, hides no other group, and is not lost.
#[test]
fn unknown_groups_round_trip() {
    let group = |id| {
        let bucket = Bucket::new([Action::set(Field::IpDscp, 5u8), Action::output(1)]);
        Group { id, kind: GroupKind::All, buckets: vec![bucket] }
    };
    let parts = Parts::Groups(vec![group(7), group(3)].into());
    let reply = Body::MultipartReply(MultipartReply { more: false, parts });
    let (ip_dscp, mpls_tc) = ([0x80, 0, 0x10, 1], [0x80, 0, 0x46, 1]);
    let bytes = with_unknown_field(&Message::new(1, reply), ip_dscp, mpls_tc);
    let message = Message::decode(&bytes).unwrap();
    let Body::MultipartReply(MultipartReply { parts: Parts::Groups(groups), .. }) = &message.body else {
        panic!("{message:?}");
    };
    assert_eq!(groups.known, [group(3)]);
    assert_eq!(groups.unknown.iter().map(UnknownGroup::id).collect::<Vec<_>>(), [7]);
    assert_eq!(Message::decode(&message.to_bytes().unwrap()), Ok(message));
}

/// Replaces a field in the bytes of a message: in the first place, the field `from` becomes one that the library does not know.
fn with_unknown_field(message: &Message, from: [u8; 4], unknown: [u8; 4]) -> Vec<u8> {
    let mut bytes = message.to_bytes().unwrap();
    let at = bytes.windows(4).position(|bytes| bytes == from).unwrap();
    bytes[at..at + 4].copy_from_slice(&unknown);
    bytes
}

/// Open vSwitch adds the options of a Geneve tunnel (`NXM_NX_TUN_METADATA0`) to the fields of a packet-in.
#[test]
fn an_unknown_field_does_not_lose_a_packet() {
    let packet = |matching| PacketIn {
        total_len: 3,
        reason: PacketInReason::Action,
        table: 1,
        cookie: 2,
        matching,
        data: vec![1, 2, 3],
    };
    let port = Match::new().in_port(4.into());
    let sent = Message::new(0, Body::PacketIn(packet(port.clone().field(Field::Reg0, 9u8))));
    let bytes = with_unknown_field(&sent, [0, 1, 0, 4], [0, 1, 0x50, 4]);
    assert_eq!(Message::decode(&bytes), Ok(Message::new(0, Body::PacketIn(packet(port)))));
}

/// `levels` of actions inside actions.
fn nested(levels: usize) -> Action {
    (0..levels).fold(Action::Group(9), |action, _| Action::Clone(vec![action]))
}

fn decoded(parts: Parts) -> Parts {
    let reply = Body::MultipartReply(MultipartReply { more: false, parts });
    let message = Message::decode(&Message::new(1, reply).to_bytes().unwrap()).unwrap();
    assert_eq!(Message::decode(&message.to_bytes().unwrap()), Ok(message.clone()));
    let Body::MultipartReply(MultipartReply { parts, .. }) = message.body else { panic!("{message:?}") };
    parts
}

/// A flow that nests actions more deeply than the library follows, or whose actions are malformed, hides no other flow.
#[test]
fn flows_that_do_not_decode_hide_no_others() {
    let stats = |cookie, action| {
        let flow = Flow::new(7, 5, Match::new()).cookie(cookie).apply([action]);
        FlowStats { flow, seconds: 0, nanoseconds: 0, packets: 0, bytes: 0 }
    };
    // A clone whose inner action ends after the clone.
    let body = [0, 0, 0x23, 0x20, 0, 42, 0, 0, 0, 0, 0, 0, 0, 22, 0, 16, 0, 0, 0, 9].to_vec();
    let malformed = Action::Other { kind: 0xffff, body };
    let all = vec![stats(1, nested(17)), stats(2, nested(5)), stats(3, malformed), stats(4, nested(16))];
    let Parts::Flows(flows) = decoded(Parts::Flows(all.clone().into())) else { panic!("other parts") };
    assert_eq!(flows.known, [all[1].clone(), all[3].clone()]);
    let unknown: Vec<_> = flows.unknown.iter().map(|flow| (flow.cookie(), flow.used_groups())).collect();
    assert_eq!(unknown, [(1, vec![9]), (3, vec![])]);
}

/// The same for groups.
#[test]
fn groups_that_do_not_decode_hide_no_others() {
    let group = |id, action| Group { id, kind: GroupKind::All, buckets: vec![Bucket::new([action])] };
    let all = vec![group(1, nested(17)), group(2, nested(16))];
    let Parts::Groups(groups) = decoded(Parts::Groups(all.clone().into())) else { panic!("other parts") };
    assert_eq!(groups.known, all[1..]);
    assert_eq!(groups.unknown.iter().map(UnknownGroup::id).collect::<Vec<_>>(), [1]);
}

#[test]
fn actions_that_are_nested_too_deeply_are_an_error_of_their_own() {
    let change = FlowMod::add(Flow::new(0, 1, Match::new()).apply([nested(17)]));
    let bytes = Message::new(1, Body::FlowMod(change)).to_bytes().unwrap();
    let error = Message::decode(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "decode clone actions: nested more than 16 levels deep");
}

/// Values that the encoding has no room for are not sent as others, wherever the action is.
#[test]
fn actions_that_cannot_be_encoded_are_not_sent() {
    let action = Action::load(5, Field::CtLabel);
    let flow = Flow::new(7, 5, Match::new()).apply([action.clone()]);
    let group = Group { id: 1, kind: GroupKind::All, buckets: vec![Bucket::new([action.clone()])] };
    let packet = PacketOut { in_port: 1.into(), actions: vec![action], data: vec![] };
    let change = Body::FlowMod(FlowMod::add(flow.clone()));
    let added = Body::BundleAdd { bundle: 1, flags: 0, message: Box::new(Message::new(1, change.clone())) };
    let bodies = [change, added, Body::GroupMod(GroupMod::add(group)), Body::PacketOut(packet)];
    for body in bodies {
        let mut out = vec![7];
        let error = Message::new(1, body).encode(&mut out).unwrap_err();
        assert!(
            matches!(&error, EncodeError::Action { action, .. } if action.starts_with("load:")),
            "{error}"
        );
        assert_eq!(out, [7]);
    }
    let packed = PackedFlow::new(&flow);
    assert!(packed.unpack().is_err());
    for change in [PackedMod::add(packed.clone()), PackedMod::delete(packed)] {
        assert_eq!(Message::new(1, Body::PackedMod(change)).to_bytes(), Err(EncodeError::Packed));
    }
}

/// The id 5000 is not cut to 904.
#[test]
fn vlan_ids_of_more_than_12_bits_are_not_sent() {
    let adding = |flow: Flow| Message::new(1, Body::FlowMod(FlowMod::add(flow))).to_bytes();
    let matching = |vid| adding(Flow::new(0, 1, Match::new().vlan(vid)));
    let setting = |vid| adding(Flow::new(0, 1, Match::new()).apply([Action::set_vlan(vid)]));
    assert!(matching(4095).is_ok() && setting(4095).is_ok());
    for vid in [4096, 5000, u16::MAX] {
        assert_eq!(matching(vid), Err(EncodeError::Match { field: "dl_vlan" }));
        assert!(matches!(setting(vid), Err(EncodeError::Action { .. })));
        let filter = FlowFilter { matching: Match::new().vlan(vid), ..FlowFilter::default() };
        let request = Body::MultipartRequest(MultipartRequest::Flows(filter));
        assert_eq!(Message::new(1, request).to_bytes(), Err(EncodeError::Match { field: "dl_vlan" }));
        let packed = PackedFlow::new(&Flow::new(0, 1, Match::new().vlan(vid)));
        let added = Message::new(1, Body::PackedMod(PackedMod::add(packed))).to_bytes();
        assert_eq!(added, Err(EncodeError::Packed));
    }
}

/// In places with room for 4 bytes, the TCP flags have the header of `NXM_NX_TCP_FLAGS`.
#[test]
fn tcp_flags_round_trip_in_actions() {
    let flags = Slice::whole(Field::TcpFlags);
    let specs = vec![LearnSpec::MatchField { from: flags, to: flags }];
    let actions = [
        Action::OutputField { port: flags, max_len: 0 },
        Action::load(5, flags),
        Action::Move { from: flags, to: Slice::bits(Field::Reg0, 0, 12) },
        Action::Ct(Ct { zone: Zone::From(flags), ..Ct::default() }),
        Action::Learn(Learn { specs, ..Learn::default() }),
    ];
    for action in actions {
        let change = FlowMod::add(Flow::new(0, 1, Match::new()).apply([action]));
        let message = Message::new(1, Body::FlowMod(change));
        assert_eq!(Message::decode(&message.to_bytes().unwrap()), Ok(message));
    }
}

#[test]
fn used_groups_are_found_wherever_they_are() {
    let mut flow =
        Flow::new(7, 5, Match::new().in_port(1.into())).apply([Action::output(1), Action::Group(7)]);
    flow.instructions.write = vec![Action::Group(0x8000_0001)];
    assert_eq!(PackedFlow::new(&flow).used_groups(), [7, 0x8000_0001]);
    // clone(group:9) of ovs-actions(7), which the library does not decode.
    let clone = [0, 0, 0x23, 0x20, 0, 42, 0, 0, 0, 0, 0, 0, 0, 22, 0, 8, 0, 0, 0, 9];
    let bucket = Bucket::new([Action::Other { kind: 0xffff, body: clone.to_vec() }]);
    assert_eq!(Group { id: 1, kind: GroupKind::All, buckets: vec![bucket] }.used_groups(), [9]);
}
