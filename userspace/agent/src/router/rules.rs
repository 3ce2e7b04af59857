use std::net::IpAddr;

use futures::TryStreamExt as _;
use rtnetlink::{
    Handle, IpVersion,
    packet_route::{
        AddressFamily,
        rule::{RuleAction, RuleAttribute, RuleMessage},
    },
};

use super::{
    family::{FAMILIES, is_without},
    routes::{ENDPOINTS, FABRIC},
};
use crate::datapath::KERNEL_PORT;

/// A rule of the routing policy database (ip-rule(8)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rule {
    priority: u32,
    /// Whether the rule is for packets from the switch only.
    from_switch: bool,
    /// Table to look up; `None` for "unreachable".
    table: Option<u32>,
}

/// In order: everyone reaches the endpoints of the node. What endpoints send is forwarded by the routes of the leaf switch, and by
/// no route of the node's own. The node's own packets use these routes only if its tables have none.
pub(super) const RULES: [Rule; 4] = [
    Rule { priority: 2981, from_switch: false, table: Some(ENDPOINTS.table) },
    Rule { priority: 2982, from_switch: true, table: Some(FABRIC.table) },
    Rule { priority: 2983, from_switch: true, table: None },
    Rule { priority: 32_981, from_switch: false, table: Some(FABRIC.table) },
];

impl Rule {
    fn message(self, family: AddressFamily) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = family;
        message.header.action = match self.table {
            Some(_) => RuleAction::ToTable,
            None => RuleAction::Unreachable,
        };
        message.attributes.push(RuleAttribute::Priority(self.priority));
        message.attributes.extend(self.table.map(RuleAttribute::Table));
        if self.from_switch {
            message.attributes.push(RuleAttribute::Iifname(KERNEL_PORT.to_owned()));
        }
        message
    }

    /// The rule of a message; `None` if it is not one of [`RULES`].
    fn of(message: &RuleMessage) -> Option<Rule> {
        let mut rule = Rule { priority: 0, from_switch: false, table: None };
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(priority) => rule.priority = *priority,
                RuleAttribute::Table(table) if message.header.action == RuleAction::ToTable => {
                    rule.table = Some(*table);
                }
                RuleAttribute::Iifname(name) => rule.from_switch = name == KERNEL_PORT,
                RuleAttribute::Destination(IpAddr::V4(_) | IpAddr::V6(_)) | RuleAttribute::FwMark(_) => {
                    return None;
                }
                _ => {}
            }
        }
        RULES.contains(&rule).then_some(rule)
    }
}

async fn installed(handle: &Handle, family: AddressFamily) -> Result<Vec<Rule>, rtnetlink::Error> {
    let version = if family == AddressFamily::Inet { IpVersion::V4 } else { IpVersion::V6 };
    let messages: Result<Vec<RuleMessage>, _> = handle.rule().get(version).execute().try_collect().await;
    match messages {
        Err(error) if is_without(&error) => Ok(vec![]),
        messages => Ok(messages?.iter().filter_map(Rule::of).collect()),
    }
}

/// Adds the missing rules. Returns their number.
pub(super) async fn add(handle: &Handle) -> Result<usize, rtnetlink::Error> {
    let mut added = 0;
    for family in FAMILIES {
        let present = installed(handle, family).await?;
        for rule in RULES.into_iter().filter(|rule| !present.contains(rule)) {
            let mut request = handle.rule().add();
            *request.message_mut() = rule.message(family);
            match request.execute().await {
                Err(error) if is_without(&error) => {}
                result => {
                    result?;
                    added += 1;
                }
            }
        }
    }
    Ok(added)
}

/// Deletes the rules. Returns their number.
pub(super) async fn delete(handle: &Handle) -> Result<usize, rtnetlink::Error> {
    let mut deleted = 0;
    for family in FAMILIES {
        for rule in installed(handle, family).await? {
            handle.rule().del(rule.message(family)).execute().await?;
            deleted += 1;
        }
    }
    Ok(deleted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_rules_are_recognised() {
        for (rule, family) in RULES.into_iter().flat_map(|rule| FAMILIES.map(|family| (rule, family))) {
            let mut message = rule.message(family);
            assert_eq!(Rule::of(&message), Some(rule));
            message.attributes.push(RuleAttribute::FwMark(1));
            assert_eq!(Rule::of(&message), None);
        }
        let foreign = Rule { priority: 2981, from_switch: false, table: Some(254) };
        assert_eq!(Rule::of(&foreign.message(AddressFamily::Inet)), None);
    }
}
