//! Comparison of the wire and text forms with `ovs-ofctl`.

use std::process::Command;

use openflow_rs::multipart::{MultipartReply, Parts};
use openflow_rs::{Body, Flow, FlowStats, Group, Message};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::arbitrary;

/// Random values from a fixed seed.
pub(crate) fn sample<S: Strategy>(strategy: S, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// Text form of these messages by `ovs-ofctl ofp-parse`.
fn ofp_parse(messages: impl IntoIterator<Item = Body>) -> Option<String> {
    let mut bytes = vec![];
    for body in messages {
        Message::new(1, body).encode(&mut bytes).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let output = Command::new("ovs-ofctl").arg("ofp-parse").arg(file.path()).output().ok()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

fn reply(parts: Parts) -> Body {
    Body::MultipartReply(MultipartReply { more: false, parts })
}

/// Line of `ovs-ofctl` without counters and cookie, in the order of this crate.
fn without_counters(line: &str) -> String {
    let (head, rest) = line.split_once(", n_packets=0, n_bytes=0, ").unwrap();
    let table = head.split("table=").nth(1).unwrap();
    let (idle, rest) = match rest.strip_prefix("idle_timeout=").and_then(|rest| rest.split_once(", ")) {
        Some((idle, rest)) => (format!("idle_timeout={idle}, "), rest),
        None => (String::new(), rest),
    };
    format!("table={table}, {idle}{rest}")
}

#[test]
fn flows_match_the_text_of_ovs_ofctl() {
    let flows = sample(arbitrary::flow(), 3000);
    let stats =
        |flow: &Flow| FlowStats { flow: flow.clone(), seconds: 0, nanoseconds: 0, packets: 0, bytes: 0 };
    let Some(text) = ofp_parse(flows.iter().map(|flow| reply(Parts::Flows(vec![stats(flow)].into())))) else {
        testkit::skip!("no ovs-ofctl (install openvswitch-switch)");
    };
    let replies: Vec<_> = text.split("OFPST_FLOW reply").skip(1).collect();
    assert_eq!(replies.len(), flows.len(), "{text}");
    for (flow, reply) in flows.iter().zip(replies) {
        let line = reply.lines().nth(1).unwrap();
        assert!(line.contains("actions="), "{flow}: {line}");
        assert_eq!(flow.to_string(), without_counters(line), "{flow:#?}");
    }
}

#[test]
fn groups_match_the_text_of_ovs_ofctl() {
    let groups: Vec<Group> = sample(arbitrary::group(), 1000);
    let Some(text) = ofp_parse(groups.iter().map(|group| reply(Parts::Groups(vec![group.clone()].into()))))
    else {
        testkit::skip!("no ovs-ofctl (install openvswitch-switch)");
    };
    let replies: Vec<_> = text.split("OFPST_GROUP_DESC reply").skip(1).collect();
    assert_eq!(replies.len(), groups.len(), "{text}");
    for (group, reply) in groups.iter().zip(replies) {
        let line = reply.lines().nth(1).unwrap();
        assert!(line.contains("group_id="), "{group}: {reply}");
        assert_eq!(group.to_string(), line.trim(), "{group:#?}");
    }
}

#[test]
fn ovs_ofctl_decodes_other_messages() {
    let messages = sample(arbitrary::message(), 1000);
    let Some(text) = ofp_parse(messages.into_iter().map(|message| message.body).filter(|body| {
        // `ovs-ofctl` rejects some random contents of these messages although they are encoded correctly.
        !matches!(
            body,
            Body::FlowMod(_)
                | Body::GroupMod(_)
                | Body::BundleAdd { .. }
                | Body::Error(_)
                | Body::Hello(_)
                | Body::PacketOut(_)
                | Body::PacketIn(_)
        )
    })) else {
        testkit::skip!("no ovs-ofctl (install openvswitch-switch)");
    };
    let bad: Vec<_> =
        text.lines().filter(|line| line.contains("***") || line.contains("decode error")).collect();
    assert!(bad.is_empty(), "{bad:#?}");
}
