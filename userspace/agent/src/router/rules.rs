use std::net::IpAddr;

use futures::TryStreamExt as _;
use ipnet::Ipv4Net;
use rtnetlink::{
    Handle, IpVersion,
    packet_route::{
        AddressFamily,
        route::RouteHeader,
        rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
    },
};

use super::{
    family::{FAMILIES, is_without},
    routes::{CLUSTER, ENDPOINTS, FABRIC},
};
use crate::datapath::{KERNEL_PORT, host_access::HOST_PORT};

/// Bit in the mark of the packets that the table of host access lets pass. Others have bits there, too: Kubernetes 0x4000 and
/// 0x8000.
pub(super) const MARK: u32 = 0x2000;
/// Interface that the node's own packets come from.
pub(super) const LOOPBACK: &str = "lo";
/// Interfaces that [`RULES`] and those of host access name.
const INTERFACES: [&str; 3] = [KERNEL_PORT, HOST_PORT, LOOPBACK];
/// Priority of the rule about the interface with the router IP, behind [`RULES`] with the routes of endpoints.
const CONFINED: u32 = 2984;
/// Priority of the rule by which addresses of the node are found before, if no rule of the node does that.
const DELIVERED: u32 = CONFINED - 1;
/// Table with the addresses of the node (`RT_TABLE_LOCAL`).
const LOCAL: u32 = 255;
/// Main table of the node.
const MAIN: u32 = RouteHeader::RT_TABLE_MAIN as u32;

/// A rule of the routing policy database (ip-rule(8)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rule {
    priority: u32,
    /// Interface that the packets come from; `None` for all.
    from: Option<&'static str>,
    /// Destination; `None` for all.
    to: Option<Ipv4Net>,
    /// Whether the rule is for packets without [`MARK`] only, whatever other bits their mark has.
    is_unmarked: bool,
    action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    /// Look up a table.
    Table(u32),
    /// Refuse the packets.
    Unreachable,
    /// Drop the packets.
    Blackhole,
}

/// In order: everyone reaches the endpoints of the node. What endpoints send is forwarded by the routes of the leaf switch, and by
/// no route of the node's own. The node's own packets use these routes only if its tables have none.
pub(super) const RULES: [Rule; 4] = [
    Rule::new(2981, Action::Table(ENDPOINTS.table)),
    Rule::new(2982, Action::Table(FABRIC.table)).coming_from(KERNEL_PORT),
    Rule::new(2983, Action::Unreachable).coming_from(KERNEL_PORT),
    Rule::new(32_981, Action::Table(FABRIC.table)).coming_from(LOOPBACK),
];

/// Drops what pods send and the table has not marked.
const CLOSED: Rule = Rule::new(2976, Action::Blackhole).coming_from(HOST_PORT).unmarked();

/// The rules of host access with this private subnet, for IPv4. What the table of nftables has not marked goes nowhere, also while
/// there is no such table. In order: what pods send; what the node itself sends to pods; what others send to them; what pods send to
/// pods of other networks, also by way of other nodes.
const fn host_access(subnet: Ipv4Net) -> [Rule; 4] {
    [
        CLOSED,
        Rule::new(2977, Action::Table(MAIN)).coming_from(LOOPBACK).going_to(subnet),
        Rule::new(2978, Action::Blackhole).going_to(subnet).unmarked(),
        Rule::new(2979, Action::Table(CLUSTER.table)).coming_from(HOST_PORT),
    ]
}

impl Rule {
    /// For all packets.
    const fn new(priority: u32, action: Action) -> Rule {
        Rule { priority, from: None, to: None, is_unmarked: false, action }
    }

    const fn coming_from(self, interface: &'static str) -> Rule {
        Rule { from: Some(interface), ..self }
    }

    const fn going_to(self, subnet: Ipv4Net) -> Rule {
        Rule { to: Some(subnet), ..self }
    }

    const fn unmarked(self) -> Rule {
        Rule { is_unmarked: true, ..self }
    }

    fn is_of_host_access(&self) -> bool {
        host_access(self.to.unwrap_or_default()).contains(self)
    }

    fn message(self, family: AddressFamily) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = family;
        message.attributes.push(RuleAttribute::Priority(self.priority));
        message.header.action = match self.action {
            Action::Table(table) => {
                message.attributes.push(RuleAttribute::Table(table));
                RuleAction::ToTable
            }
            Action::Unreachable => RuleAction::Unreachable,
            Action::Blackhole => RuleAction::Blackhole,
        };
        message.attributes.extend(self.from.map(|name| RuleAttribute::Iifname(name.to_owned())));
        if let Some(to) = self.to {
            message.header.dst_len = to.prefix_len();
            message.attributes.push(RuleAttribute::Destination(IpAddr::V4(to.network())));
        }
        message.attributes.extend(self.is_unmarked.then_some(RuleAttribute::FwMask(MARK)));
        message
    }

    /// The rule of a message; `None` if it is not one of the agent's.
    fn of(message: &RuleMessage) -> Option<Rule> {
        let action = match message.header.action {
            // Its number is an attribute.
            RuleAction::ToTable => Action::Table(0),
            RuleAction::Unreachable => Action::Unreachable,
            RuleAction::Blackhole => Action::Blackhole,
            _ => return None,
        };
        let mut rule = Rule::new(0, action);
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(priority) => rule.priority = *priority,
                RuleAttribute::Table(table) if message.header.action == RuleAction::ToTable => {
                    rule.action = Action::Table(*table);
                }
                RuleAttribute::Iifname(name) => {
                    rule.from = Some(INTERFACES.into_iter().find(|own| own == name)?);
                }
                RuleAttribute::Destination(IpAddr::V4(to)) => {
                    rule.to = Some(Ipv4Net::new(*to, message.header.dst_len).ok()?);
                }
                // The mark to compare with is 0, which is no attribute.
                RuleAttribute::FwMask(MARK) => rule.is_unmarked = true,
                RuleAttribute::Destination(IpAddr::V6(_))
                | RuleAttribute::FwMark(_)
                | RuleAttribute::FwMask(_) => return None,
                _ => {}
            }
        }
        (RULES.contains(&rule) || rule.is_of_host_access()).then_some(rule)
    }
}

/// Rules of all programs.
async fn messages(handle: &Handle, family: AddressFamily) -> Result<Vec<RuleMessage>, rtnetlink::Error> {
    let version = if family == AddressFamily::Inet { IpVersion::V4 } else { IpVersion::V6 };
    let messages: Result<Vec<RuleMessage>, _> = handle.rule().get(version).execute().try_collect().await;
    match messages {
        Err(error) if is_without(&error) => Ok(vec![]),
        messages => messages,
    }
}

/// Whether all packets to addresses of the node are found before [`CONFINED`]. An administrator may have moved the rule about them
/// behind those of VRF devices.
pub(super) async fn has_local_first(
    handle: &Handle,
    family: AddressFamily,
) -> Result<bool, rtnetlink::Error> {
    let is_local_first = |message: &RuleMessage| {
        let found = Selected::of(message);
        found.is_some_and(|rule| rule.interface.is_none() && rule.table == LOCAL && rule.priority < CONFINED)
    };
    Ok(messages(handle, family).await?.iter().any(is_local_first))
}

/// A rule of any program that selects packets by the interface that they come from, or all packets.
struct Selected {
    priority: u32,
    interface: Option<String>,
    /// The table that the rule looks up; 0 if it does something else.
    table: u32,
    action: RuleAction,
}

impl Selected {
    /// `None` if the rule selects packets by something else.
    fn of(message: &RuleMessage) -> Option<Selected> {
        let action = message.header.action;
        if message.header.tos != 0 || message.header.flags.contains(RuleFlags::Invert) {
            return None;
        }
        let mut rule = Selected { priority: 0, interface: None, table: message.header.table.into(), action };
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(number) => rule.priority = *number,
                RuleAttribute::Iifname(name) => rule.interface = Some(name.clone()),
                RuleAttribute::Table(number) => rule.table = *number,
                RuleAttribute::Oifname(_)
                | RuleAttribute::Source(_)
                | RuleAttribute::Destination(_)
                | RuleAttribute::FwMark(_)
                | RuleAttribute::FwMask(_)
                | RuleAttribute::IpProtocol(_)
                | RuleAttribute::SourcePortRange(_)
                | RuleAttribute::DestinationPortRange(_)
                | RuleAttribute::UidRange(_)
                | RuleAttribute::TunId(_)
                // DSCP, flow label, and what later kernels have.
                | RuleAttribute::Other(_) => return None,
                _ => {}
            }
        }
        if action != RuleAction::ToTable {
            rule.table = 0;
        }
        Some(rule)
    }
}

/// Whether there are rules of host access with this private subnet.
pub(super) async fn give_host_access(handle: &Handle, subnet: Ipv4Net) -> Result<bool, rtnetlink::Error> {
    Ok(installed(handle, AddressFamily::Inet).await?.iter().any(|rule| rule.to == Some(subnet)))
}

async fn installed(handle: &Handle, family: AddressFamily) -> Result<Vec<Rule>, rtnetlink::Error> {
    Ok(messages(handle, family).await?.iter().filter_map(Rule::of).collect())
}

/// Adds a rule. Returns the number of changes: none if the kernel has no rules of this address family.
async fn add_one(handle: &Handle, rule: Rule, family: AddressFamily) -> Result<usize, rtnetlink::Error> {
    add_message(handle, rule.message(family)).await
}

async fn add_message(handle: &Handle, message: RuleMessage) -> Result<usize, rtnetlink::Error> {
    let mut request = handle.rule().add();
    *request.message_mut() = message;
    match request.execute().await {
        Err(error) if is_without(&error) => Ok(0),
        result => result.map(|()| 1),
    }
}

async fn remove(handle: &Handle, message: RuleMessage) -> Result<(), rtnetlink::Error> {
    match handle.rule().del(message).execute().await {
        // Another program was faster.
        Err(rtnetlink::Error::NetlinkError(error))
            if [libc::ENOENT, libc::ESRCH].contains(&-error.raw_code()) =>
        {
            Ok(())
        }
        result => result,
    }
}

/// Adds the missing rules of [`RULES`]. Returns their number.
pub(super) async fn add(handle: &Handle) -> Result<usize, rtnetlink::Error> {
    let mut added = 0;
    for family in FAMILIES {
        let present = installed(handle, family).await?;
        for rule in RULES.into_iter().filter(|rule| !present.contains(rule)) {
            added += add_one(handle, rule, family).await?;
        }
    }
    Ok(added)
}

/// Deletes the rules of [`RULES`]. Returns their number.
pub(super) async fn delete(handle: &Handle) -> Result<usize, rtnetlink::Error> {
    let mut deleted = 0;
    for family in FAMILIES {
        for rule in installed(handle, family).await?.into_iter().filter(|rule| RULES.contains(rule)) {
            remove(handle, rule.message(family)).await?;
            deleted += 1;
        }
    }
    Ok(deleted)
}

/// A rule about what arrives at one interface, which leads to endpoints of the node only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Confinement {
    /// Delivers what is for the node. Needed if no rule of the node does that before [`Confinement::Dropped`].
    Delivered,
    /// Drops what is neither for the node nor for an endpoint.
    Dropped,
}

impl Confinement {
    fn message(self, interface: &str, family: AddressFamily) -> RuleMessage {
        let rule = match self {
            Confinement::Delivered => Rule::new(DELIVERED, Action::Table(LOCAL)),
            Confinement::Dropped => Rule::new(CONFINED, Action::Blackhole),
        };
        let mut message = rule.message(family);
        message.attributes.push(RuleAttribute::Iifname(interface.to_owned()));
        message
    }

    /// The interface of a rule of this kind; `None` if the rule is another one.
    fn interface(self, message: &RuleMessage) -> Option<String> {
        let rule = Selected::of(message)?;
        let is_of_kind = match self {
            Confinement::Delivered => (rule.priority, rule.table) == (DELIVERED, LOCAL),
            Confinement::Dropped => rule.priority == CONFINED && rule.action == RuleAction::Blackhole,
        };
        rule.interface.filter(|_| is_of_kind)
    }
}

/// Interfaces that have a rule of this kind.
pub(super) async fn confined(
    handle: &Handle,
    kind: Confinement,
    family: AddressFamily,
) -> Result<Vec<String>, rtnetlink::Error> {
    Ok(messages(handle, family).await?.iter().filter_map(|message| kind.interface(message)).collect())
}

/// Adds a rule about an interface. Returns the number of changes.
pub(super) async fn confine(
    handle: &Handle,
    kind: Confinement,
    interface: &str,
    family: AddressFamily,
) -> Result<usize, rtnetlink::Error> {
    add_message(handle, kind.message(interface, family)).await
}

/// Takes back [`confine`].
pub(super) async fn release(
    handle: &Handle,
    kind: Confinement,
    interface: &str,
    family: AddressFamily,
) -> Result<(), rtnetlink::Error> {
    remove(handle, kind.message(interface, family)).await
}

/// Makes the kernel have the rules of host access with this private subnet, or none. Returns the number of changes.
pub(super) async fn sync_host_access(
    handle: &Handle,
    subnet: Option<Ipv4Net>,
) -> Result<usize, rtnetlink::Error> {
    let wanted: Vec<Rule> = subnet.into_iter().flat_map(host_access).collect();
    sync_rules(handle, &wanted).await
}

/// Makes the kernel drop what pods send by host access, and has no rules about the private subnet. Returns the number of changes.
pub(super) async fn close_host_access(handle: &Handle) -> Result<usize, rtnetlink::Error> {
    sync_rules(handle, &[CLOSED]).await
}

/// Makes the kernel have these rules of host access.
async fn sync_rules(handle: &Handle, wanted: &[Rule]) -> Result<usize, rtnetlink::Error> {
    let family = AddressFamily::Inet;
    let mut present = installed(handle, family).await?;
    present.retain(Rule::is_of_host_access);
    let mut changes = 0;
    for rule in wanted.iter().filter(|rule| !present.contains(rule)) {
        changes += add_one(handle, *rule, family).await?;
    }
    for rule in present.iter().filter(|rule| !wanted.contains(rule)) {
        remove(handle, rule.message(family)).await?;
        changes += 1;
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use testkit::{Netns, needs};

    use super::*;
    use crate::router::kernel;

    const SUBNET: Ipv4Net = Ipv4Net::new_assert(std::net::Ipv4Addr::new(172, 19, 0, 0), 16);

    #[test]
    fn own_rules_are_recognised() {
        let of_vlans = RULES.into_iter().flat_map(|rule| FAMILIES.map(|family| (rule, family)));
        let of_host_access = host_access(SUBNET).map(|rule| (rule, AddressFamily::Inet));
        for (rule, family) in of_vlans.chain(of_host_access) {
            let mut message = rule.message(family);
            assert_eq!(Rule::of(&message), Some(rule));
            message.attributes.push(RuleAttribute::FwMark(1));
            assert_eq!(Rule::of(&message), None);
        }
        let foreign = Rule::new(2981, Action::Table(254));
        assert_eq!(Rule::of(&foreign.message(AddressFamily::Inet)), None);
        let mut foreign = RULES[1].message(AddressFamily::Inet);
        foreign.attributes.retain(|attribute| !matches!(attribute, RuleAttribute::Iifname(_)));
        foreign.attributes.push(RuleAttribute::Iifname("eth0".to_owned()));
        assert_eq!(Rule::of(&foreign), None);
    }

    #[test]
    fn the_rules_about_an_interface_are_recognised() {
        let [delivered, dropped] = [Confinement::Delivered, Confinement::Dropped];
        for family in FAMILIES {
            for (kind, other) in [(delivered, dropped), (dropped, delivered)] {
                let mut message = kind.message("eth1", family);
                assert_eq!(Rule::of(&message), None);
                assert_eq!(kind.interface(&message).as_deref(), Some("eth1"));
                assert_eq!(other.interface(&message), None);
                message.attributes.push(RuleAttribute::FwMask(MARK));
                assert_eq!(kind.interface(&message), None);
                assert_eq!(kind.interface(&RULES[2].message(family)), None);
            }
        }
    }

    #[test]
    fn a_rule_that_another_program_has_deleted_is_no_error() {
        needs!(root());
        let node = Netns::new("gone").unwrap();
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let handle = kernel::connect()?;
                for family in FAMILIES {
                    release(&handle, Confinement::Dropped, "eth1", family).await?;
                }
                anyhow::Ok(())
            })
        };
        node.run(work).unwrap();
    }

    /// Without a table of nftables, which would mark packets.
    #[test]
    fn host_access_is_closed_without_marks() {
        needs!(root(), binary("ip"));
        let node = Netns::new("closed").unwrap();
        for words in [
            "link add contivh0 type veth peer name pods",
            "link add eth1 type veth peer name wire",
            "addr add 172.19.255.254/16 dev contivh0",
            "addr add 10.0.0.1/24 dev eth1",
            "link set contivh0 up",
            "link set pods up",
            "link set eth1 up",
            "link set wire up",
        ] {
            node.ip(words).unwrap();
        }
        node.run(|| Ok(std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?)).unwrap();
        let sync = |subnet: Option<Ipv4Net>| {
            let work = || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(async { anyhow::Ok(sync_host_access(&kernel::connect()?, subnet).await?) })
            };
            node.run(work).unwrap()
        };
        let leads_to = |words: &str, link: &str| {
            node.ip(&format!("route get {words}")).is_ok_and(|route| route.contains(&format!("dev {link}")))
        };
        let to_pod = "172.19.0.7 from 10.0.0.2 iif eth1";
        let from_pod = "10.0.0.2 from 172.19.0.7 iif contivh0";
        let is_open = || leads_to(to_pod, "contivh0") || leads_to(from_pod, "eth1");
        assert!(is_open());
        assert_eq!((sync(Some(SUBNET)), sync(Some(SUBNET))), (4, 0));
        assert!(!is_open());
        // Whatever others have marked.
        for others in [0, 0x4000, !MARK] {
            let (marked, unmarked) = (others | MARK, others);
            assert!(leads_to(&format!("{to_pod} mark {marked:#x}"), "contivh0"), "{marked:#x}");
            assert!(leads_to(&format!("{from_pod} mark {marked:#x}"), "eth1"), "{marked:#x}");
            assert!(!leads_to(&format!("{to_pod} mark {unmarked:#x}"), "contivh0"), "{unmarked:#x}");
            assert!(!leads_to(&format!("{from_pod} mark {unmarked:#x}"), "eth1"), "{unmarked:#x}");
        }
        assert!(leads_to("172.19.0.7", "contivh0"), "the node itself reaches its pods");
        // Another subnet, and none.
        let other = Ipv4Net::new_assert(std::net::Ipv4Addr::new(172, 20, 0, 0), 16);
        assert_eq!((sync(Some(other)), sync(None), sync(None)), (4, 4, 0));
        assert!(is_open());
    }
}
