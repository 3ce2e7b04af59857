//! Parts of a cluster, which a smaller case lacks.

use std::collections::BTreeSet;

use contiv_model::policy::Rule;

use crate::{
    cluster::{Balanced, Changing, Cluster, Far, Pod, Presence, Profile, Routing},
    lifecycle::Lifecycle,
    packet::Probe,
};

/// Something that a cluster can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Probe(usize),
    /// That a probe begins late.
    Late(usize),
    Service(usize),
    /// That a service comes or goes.
    Lifecycle(usize),
    /// A change of the ports of a service.
    Ports(usize),
    /// A change of the backends of a service.
    Backends(usize),
    Affinity(usize),
    Remote(usize),
    /// The group of a remote endpoint.
    RemoteGroup(usize),
    RemoteChange(usize),
    /// That a remote endpoint comes or goes.
    Presence(usize),
    /// The group of a pod.
    PodGroup(usize),
    PodChange(usize),
    /// A change of a group.
    Group(usize),
    Dscp(usize),
    /// A rule of a group, before or after the change.
    Rule {
        group: usize,
        after: bool,
        at: usize,
    },
    Subnet(usize),
    Routes,
    /// Host access.
    Hosts,
}

/// All parts of a cluster.
pub(crate) fn of(cluster: &Cluster) -> Vec<Part> {
    let count = |items: usize, part: fn(usize) -> Part| (0..items).map(part);
    let (services, remotes, pods, groups) =
        (cluster.services.len(), cluster.remotes.len(), cluster.pods.len(), cluster.groups.len());
    let rules = cluster.groups.iter().enumerate().flat_map(|(group, profile)| {
        let after = profile.after.as_ref().map_or(0, |profile| profile.rules.len());
        let rule = move |after| move |at| Part::Rule { group, after, at };
        (0..profile.before.rules.len()).map(rule(false)).chain((0..after).map(rule(true)))
    });
    count(cluster.probes.len(), Part::Probe)
        .chain(count(services, Part::Service))
        .chain(count(groups, Part::Group))
        .chain(rules)
        .chain(count(pods, Part::PodChange))
        .chain(count(remotes, Part::Remote))
        .chain(count(remotes, Part::RemoteChange))
        .chain(count(remotes, Part::Presence))
        .chain(count(services, Part::Lifecycle))
        .chain(count(services, Part::Ports))
        .chain(count(services, Part::Backends))
        .chain(count(services, Part::Affinity))
        .chain(count(pods, Part::PodGroup))
        .chain(count(remotes, Part::RemoteGroup))
        .chain(count(groups, Part::Dscp))
        .chain(count(cluster.probes.len(), Part::Late))
        .chain(count(cluster.subnets.len(), Part::Subnet))
        .chain([Part::Routes, Part::Hosts])
        .collect()
}

/// The cluster without these parts.
pub(crate) fn without(cluster: &Cluster, parts: &BTreeSet<Part>) -> Cluster {
    let lacks = |part: Part| parts.contains(&part);
    let pods = cluster.pods.iter().enumerate().map(|(at, pod)| {
        let mut group = pod.group;
        simplify(&mut group, [lacks(Part::PodGroup(at)), lacks(Part::PodChange(at))]);
        Pod { group, ..*pod }
    });
    let remotes = cluster.remotes.iter().enumerate().map(|(at, remote)| {
        let Far { mut group, presence } = remote.filter(|_| !lacks(Part::Remote(at)))?;
        simplify(&mut group, [lacks(Part::RemoteGroup(at)), lacks(Part::RemoteChange(at))]);
        let presence = if lacks(Part::Presence(at)) { Presence::Always } else { presence };
        Some(Far { group, presence })
    });
    let profile = |group: usize, after: bool, profile: &Profile| {
        let left =
            profile.rules.iter().enumerate().filter(|(at, _)| !lacks(Part::Rule { group, after, at: *at }));
        let rules: Vec<Rule> = left.map(|(_, rule)| rule.clone()).collect();
        Profile { dscp: profile.dscp.filter(|_| !lacks(Part::Dscp(group))), rules: rules.into() }
    };
    let groups = cluster.groups.iter().enumerate().map(|(at, group)| {
        let after = group.after.as_ref().filter(|_| !lacks(Part::Group(at)));
        Changing {
            before: profile(at, false, &group.before),
            after: after.map(|after| profile(at, true, after)),
        }
    });
    let services = cluster.services.iter().enumerate().filter(|(at, _)| !lacks(Part::Service(*at)));
    let services = services.map(|(at, service)| {
        let Balanced { mut backends, mut ports, .. } = service.clone();
        backends.after = backends.after.filter(|_| !lacks(Part::Backends(at)));
        ports.after = ports.after.filter(|_| !lacks(Part::Ports(at)));
        let lifecycle = if lacks(Part::Lifecycle(at)) { Lifecycle::Always } else { service.lifecycle };
        let affinity = service.affinity && !lacks(Part::Affinity(at));
        Balanced { backends, ports, affinity, lifecycle, ..service.clone() }
    });
    let probes = cluster.probes.iter().enumerate().filter(|(at, _)| !lacks(Part::Probe(*at)));
    let is_late = |at: usize, probe: &Probe| probe.is_late && !lacks(Part::Late(at));
    let probes = probes.map(|(at, probe)| Probe { is_late: is_late(at, probe), ..probe.clone() });
    Cluster {
        routing: if lacks(Part::Routes) { Routing::Off } else { cluster.routing },
        hosts: cluster.hosts && !lacks(Part::Hosts),
        pods: pods.collect(),
        remotes: remotes.collect(),
        subnets: (0..).zip(&cluster.subnets).map(|(at, known)| *known && !lacks(Part::Subnet(at))).collect(),
        groups: groups.collect(),
        services: services.collect(),
        probes: probes.collect(),
    }
}

fn simplify(group: &mut Changing<Option<u32>>, [is_group_removed, is_change_removed]: [bool; 2]) {
    if is_group_removed {
        group.before = None;
    }
    if is_change_removed {
        group.after = None;
    }
}
