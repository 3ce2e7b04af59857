//! The entries in the kernel, the objects that own them, and orphans.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
};

use contiv_abi::{Domain, Port, Segment, SegmentEntry, Subnet, VipKey, policy::MeterKey};
use contiv_model::{name::EndpointId, vrf::Vrf};

use super::{
    encode,
    entry::{Entry, EntryKey},
    tables::Kernel,
};
use crate::datapath::{
    Error, Group, ObjectId,
    ebpf::{
        device::Netlink,
        failure::failed,
        forward::prefixes::DomainPrefix,
        programs::{
            kernel_port::KernelPort,
            tc::{Role, TcHooks},
        },
        rate::{
            limit::Limit,
            queues::{EXIT, Queues, Step, VethPair},
        },
    },
    host_end,
};

/// The state in the kernel and its owners.
pub(crate) struct Installed {
    kernel: Kernel,
    hooks: TcHooks,
    /// Names of the interfaces with the program for pods, by index.
    attached: BTreeMap<u32, String>,
    owners: HashMap<EntryKey, ObjectId>,
    objects: HashMap<ObjectId, Vec<EntryKey>>,
    /// Desired group of each port.
    desired_groups: HashMap<u32, u32>,
    queues: Queues,
    /// VLAN networks that the node routes, with their subnets.
    routed_vlans: BTreeMap<Segment, BTreeSet<DomainPrefix>>,
    /// Ports or rates have changed since the last update of the queues.
    rates_changed: bool,
}

/// A port whose queue could not be updated.
pub(crate) struct QueueError {
    /// Object that owns the port.
    pub(crate) owner: Option<ObjectId>,
    /// Group of the port.
    pub(crate) group: u32,
    pub(crate) error: Error,
}

impl Installed {
    pub(crate) fn new(kernel: Kernel, hooks: TcHooks) -> Self {
        Installed {
            kernel,
            hooks,
            attached: BTreeMap::new(),
            owners: HashMap::new(),
            objects: HashMap::new(),
            desired_groups: HashMap::new(),
            queues: Queues::default(),
            routed_vlans: BTreeMap::new(),
            rates_changed: false,
        }
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    pub(crate) fn kernel_mut(&mut self) -> &mut Kernel {
        &mut self.kernel
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Reads the maps, and clears all owners and attachments.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.kernel.read()?;
        self.attached.clear();
        self.owners.clear();
        self.objects.clear();
        self.desired_groups.clear();
        self.routed_vlans.clear();
        for (prefix, subnet) in self.kernel.subnets.iter().filter(|(prefix, _)| prefix.domain == Domain::NONE)
        {
            self.routed_vlans.entry(subnet.routed).or_default().insert(*prefix);
        }
        Ok(())
    }

    /// Reads the queues. Returns their veth pair if it exists.
    pub(crate) async fn read_queues(&mut self, netlink: &Netlink) -> Result<Option<VethPair>, Error> {
        self.queues.read(netlink).await?;
        Ok(self.queues.pair())
    }

    /// Records that the program for pods is attached to an interface.
    pub(crate) fn record_attached(&mut self, ifindex: u32, interface: &str) {
        self.attached.insert(ifindex, interface.to_owned());
    }

    /// Endpoints of the node and the names of their interfaces, by the index of the interface.
    pub(crate) fn endpoints(&self) -> HashMap<u32, (EndpointId, String)> {
        let ports = self.owners.iter().filter_map(|(key, owner)| match (key, owner) {
            (EntryKey::Port(ifindex), ObjectId::Local(id)) => {
                Some((*ifindex, (id.clone(), self.attached.get(ifindex)?.clone())))
            }
            _ => None,
        });
        ports.collect()
    }

    /// Services for which this node answers ARP and ND on the VLAN uplink.
    pub(crate) fn answered_services(&self) -> HashSet<VipKey> {
        let answered = self.kernel.vips.answered().into_iter();
        answered.filter(|service| !self.is_on_node(service.segment)).collect()
    }

    /// Services whose answering node may have changed since the last call, and whether this node answers for them.
    pub(crate) fn changed_services(&mut self) -> Vec<(VipKey, bool)> {
        let changed = self.kernel.vips.take_changed().into_iter();
        let is_on_wire = |service: &VipKey| !self.routed_vlans.contains_key(&service.segment);
        changed.map(|(service, is_answered)| (service, is_answered && is_on_wire(&service))).collect()
    }

    /// The domain of a network in a VRF, or, without a network, that of the whole VRF; `None` if it has no number, or no network on
    /// this node.
    pub(crate) fn domain(&self, vrf: &Vrf, network: Option<Segment>) -> Option<Domain> {
        match (vrf, network) {
            (Vrf::Network(id), None) => {
                let keys = self.objects.get(&ObjectId::Network(id.clone()))?;
                keys.iter().find_map(|key| match key {
                    EntryKey::Segment(segment) => Some(Domain::of_segment(*segment)),
                    _ => None,
                })
            }
            _ => self.kernel.domain(vrf, network),
        }
    }

    /// Whether an object needs the interface to the node's kernel.
    pub(crate) fn needs(&self, port: KernelPort) -> bool {
        match port {
            KernelPort::HostAccess => self.kernel.routes.iter().next().is_some(),
            KernelPort::Vlans => !self.routed_vlans.is_empty(),
        }
    }

    /// Whether the frames of a network stay on the node.
    pub(crate) fn is_on_node(&self, segment: Segment) -> bool {
        self.routed_vlans.contains_key(&segment)
    }

    /// Flags of a network: those of its object, and whether its frames stay on the node.
    fn flags(&self, segment: Segment, flags: u32) -> u32 {
        if self.is_on_node(segment) { flags | SegmentEntry::ON_NODE } else { flags }
    }

    /// Writes or removes a subnet. The frames of a VLAN network stay on the node while it has a routed subnet.
    fn set_subnet(&mut self, prefix: DomainPrefix, subnet: Option<Subnet>) -> Result<(), Error> {
        let before = self.kernel.subnets.get(&prefix).map(|subnet| subnet.routed);
        if let Some(subnet) = subnet.filter(|_| prefix.domain == Domain::NONE) {
            // This comes first: until then, frames would be bridged.
            self.routed_vlans.entry(subnet.routed).or_default().insert(prefix);
            self.kernel.ports.set_on_node(subnet.routed, true)?;
        }
        match subnet {
            Some(subnet) => self.kernel.subnets.set(prefix, subnet)?,
            None => self.kernel.subnets.remove(&prefix)?,
        }
        if prefix.domain != Domain::NONE {
            return Ok(());
        }
        let after = subnet.map(|subnet| subnet.routed);
        if let Some(segment) = before.filter(|before| Some(*before) != after)
            && let Some(subnets) = self.routed_vlans.get_mut(&segment)
        {
            subnets.remove(&prefix);
            if subnets.is_empty() {
                self.routed_vlans.remove(&segment);
                self.kernel.ports.set_on_node(segment, false)?;
            }
        }
        Ok(())
    }

    /// Allocates a number for the domain of a network's VRF.
    pub(crate) fn allocate_domain(&mut self, vrf: &Vrf) -> Result<(), Error> {
        let Kernel { domains, ports, subnets, .. } = &mut self.kernel;
        let with_subnets = || subnets.iter().map(|(prefix, _)| prefix.domain);
        domains.allocate(vrf, || ports.domains().chain(with_subnets()).collect())
    }

    /// Records the object as the owner of the entries. True if all of them are current.
    pub(crate) fn adopt(&mut self, id: &ObjectId, entries: &[Entry]) -> bool {
        let mut current = true;
        for entry in entries {
            self.set_owner(entry, id);
            current &= self.is_current(entry);
        }
        self.objects.insert(id.clone(), entries.iter().map(Entry::key).collect());
        current
    }

    /// Records that an object owns the group. True if the group is current.
    pub(crate) fn adopt_group(&mut self, group: &Group) -> bool {
        match encode::group(group) {
            Ok(desired) => self.kernel.policies.adopt(&desired),
            // The group's `Set` reports the error. The kernel keeps the group's entries: otherwise endpoints would have
            // no rules.
            Err(_) => {
                if let Some(number) = encode::identity_number(group.identity) {
                    self.kernel.policies.keep(number);
                }
                false
            }
        }
    }

    fn set_owner(&mut self, entry: &Entry, id: &ObjectId) {
        self.owners.insert(entry.key(), id.clone());
        if let Entry::Port { ifindex, port } = entry {
            self.desired_groups.insert(*ifindex, port.group);
        }
        if let (Entry::Service(key, _), ObjectId::Service(service)) = (entry, id) {
            self.kernel.services.set_name(key, service);
        }
    }

    fn is_current(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Peer(vtep) => self.kernel.peers.contains(vtep),
            Entry::Member(segment, vtep) => self.kernel.members.contains(*segment, *vtep),
            Entry::Segment { segment, out, flags, domain } => {
                let flags = self.flags(*segment, *flags);
                let desired = |e: &SegmentEntry| SegmentEntry { out: *out, flags, domain: *domain, ..*e };
                self.kernel.ports.segment(segment).is_some_and(|entry| *entry == desired(entry))
            }
            Entry::Port { ifindex, port } => {
                let flooded = self.kernel.ports.flooded_in(*ifindex) == Some(port.segment);
                let is_equal = |current: &Port| {
                    Port { slot: 0, class: 0, queue: 0, ..*current } == *port
                        && self.queues.is_current(*ifindex, current, limit(&self.kernel, current))
                };
                flooded && self.kernel.ports.get(*ifindex).is_some_and(is_equal)
            }
            Entry::Fdb(key, value) => self.kernel.fdb.get(key) == Some(value),
            Entry::Neigh(key, value) => self.kernel.vips.neighbours().get(key) == Some(value),
            Entry::Subnet(key, value) => self.kernel.subnets.get(key) == Some(value),
            Entry::Route(key, value) => self.kernel.routes.get(key) == Some(value),
            Entry::Number { number, ifindex } => self.kernel.numbers.get(number) == Some(ifindex),
            Entry::Service(key, target) => self.kernel.services.is_current(key, target),
            Entry::Vip(key, value) => self.kernel.vips.vips().get(key) == Some(value),
            Entry::Hook { ifindex, interface } => {
                self.attached.contains_key(ifindex) && !host_end::is_down(interface)
            }
        }
    }

    /// Writes the entries of an object, and removes its other entries. After an error the object owns the entries that
    /// were written and those that were not removed, so that its deletion and the next attempt handle them.
    pub(crate) async fn set(&mut self, id: &ObjectId, entries: &[Entry]) -> Result<(), Error> {
        let mut outcome = Ok(());
        let mut keys = Vec::with_capacity(entries.len());
        for entry in entries {
            outcome = self.write(entry).await;
            if outcome.is_err() {
                break;
            }
            self.set_owner(entry, id);
            keys.push(entry.key());
        }
        let previous = self.objects.remove(id).unwrap_or_default();
        let mut stale: Vec<EntryKey> = previous.into_iter().filter(|key| !keys.contains(key)).collect();
        if outcome.is_ok() {
            outcome = self.remove_owned(id, &stale);
        }
        if outcome.is_err() {
            // In the order in which they were written.
            stale.append(&mut keys);
            keys = stale;
        }
        self.objects.insert(id.clone(), keys);
        outcome
    }

    /// Writes a group.
    pub(crate) fn set_group(&mut self, group: &Group) -> Result<(), Error> {
        let desired =
            encode::group(group).map_err(|error| failed(format!("set group {}", group.identity), error))?;
        self.rates_changed = true;
        self.kernel.policies.set(&desired)
    }

    /// Removes the entries of an object in reverse order.
    pub(crate) fn delete(&mut self, id: &ObjectId) -> Result<(), Error> {
        if let ObjectId::Group(identity) = id {
            // A group whose number exceeds the table was never set.
            if let Some(number) = encode::identity_number(*identity) {
                self.kernel.policies.delete(number);
                self.rates_changed = true;
            }
            return Ok(());
        }
        let keys = self.objects.get(id).cloned().unwrap_or_default();
        self.remove_owned(id, &keys)?;
        self.objects.remove(id);
        Ok(())
    }

    fn remove_owned(&mut self, id: &ObjectId, keys: &[EntryKey]) -> Result<(), Error> {
        for key in keys.iter().rev() {
            // Another object may own the entry by now: an endpoint that moves between nodes keeps its addresses, and is
            // both a remote and a local object for a moment.
            if self.owners.get(key) == Some(id) {
                self.remove(*key)?;
                self.owners.remove(key);
            }
        }
        Ok(())
    }

    async fn write(&mut self, entry: &Entry) -> Result<(), Error> {
        match entry {
            Entry::Peer(vtep) => self.kernel.peers.insert(*vtep),
            Entry::Member(segment, vtep) => {
                let Kernel { members, ports, .. } = &mut self.kernel;
                members.insert(*segment, *vtep, ports)
            }
            Entry::Segment { segment, out, flags, domain } => {
                let members = self.kernel.members.len(segment);
                // The length of the flood list is kept.
                let flags = self.flags(*segment, *flags);
                let entry = SegmentEntry { out: *out, ports: 0, members, flags, domain: *domain };
                self.kernel.ports.set_segment(*segment, entry)
            }
            Entry::Port { ifindex, port } => {
                self.rates_changed = true;
                self.kernel.ports.set(*ifindex, *port)
            }
            Entry::Fdb(key, value) => self.kernel.fdb.set(*key, Some(*value)),
            Entry::Neigh(key, value) => self.kernel.set_neighbour(*key, Some(*value)),
            Entry::Subnet(key, value) => self.set_subnet(*key, Some(*value)),
            Entry::Route(key, value) => self.kernel.routes.set(*key, *value),
            Entry::Number { number, ifindex } => self.kernel.numbers.set(*number, *ifindex),
            Entry::Service(key, target) => self.kernel.services.set(*key, target),
            Entry::Vip(key, value) => self.kernel.vips.set_vip(*key, Some(*value)),
            Entry::Hook { ifindex, interface } => {
                if !self.attached.contains_key(ifindex) {
                    let program = self.kernel.programs.tc(Role::Pod);
                    self.hooks.attach(program, Role::Pod, interface, *ifindex).await?;
                    self.attached.insert(*ifindex, interface.clone());
                }
                let changed = host_end::set_up(interface).await;
                self.count_change(changed).map_err(|error| failed(format!("set {interface} up"), error))
            }
        }
    }

    fn remove(&mut self, key: EntryKey) -> Result<(), Error> {
        match key {
            EntryKey::Peer(vtep) => self.kernel.peers.remove(&vtep),
            EntryKey::Member(segment, vtep) => {
                let Kernel { members, ports, .. } = &mut self.kernel;
                members.remove(segment, vtep, ports)
            }
            EntryKey::Segment(segment) => self.kernel.ports.remove_segment(&segment),
            EntryKey::Port(ifindex) => {
                self.kernel.ports.stop_flooding(ifindex)?;
                let meter = |direction| MeterKey { ifindex, direction };
                let meters = [MeterKey::SENDS, MeterKey::RECEIVES, MeterKey::BUM].map(meter);
                self.kernel.meters.remove(&meters)?;
                self.rates_changed = true;
                self.kernel.ports.remove(ifindex)
            }
            EntryKey::Fdb(key) => self.kernel.fdb.set(key, None),
            EntryKey::Neigh(key) => self.kernel.set_neighbour(key, None),
            EntryKey::Subnet(key) => self.set_subnet(key, None),
            EntryKey::Route(key) => self.kernel.routes.remove(&key),
            EntryKey::Number(number) => self.kernel.numbers.remove(&number),
            EntryKey::Service(key) => self.kernel.services.remove(&key),
            EntryKey::Vip(key) => self.kernel.vips.set_vip(key, None),
            EntryKey::Hook(ifindex) => self.detach(ifindex),
        }
    }

    /// Detaches the program from an interface and leaves the interface down: without the program, frames of its pod would
    /// enter the network stack of the node.
    fn detach(&mut self, ifindex: u32) -> Result<(), Error> {
        self.set_down(ifindex)?;
        let interface = self.attached.get(&ifindex).map(String::as_str);
        self.hooks.detach(Role::Pod, interface, ifindex)?;
        self.attached.remove(&ifindex);
        Ok(())
    }

    /// Sets host interfaces down to which only programs of other ABI versions are attached, because these programs will
    /// be removed. The endpoints of these interfaces were deleted or have failed.
    pub(crate) async fn close_abandoned(&self) -> Result<(), Error> {
        let pods = self.hooks.pods(&Netlink::open()?).await?;
        pods.into_iter()
            .filter(|ifindex| !self.attached.contains_key(ifindex))
            .try_for_each(|ifindex| self.set_down(ifindex))
    }

    fn set_down(&self, ifindex: u32) -> Result<(), Error> {
        let Some(interface) = host_end::by_index(ifindex) else { return Ok(()) };
        let changed = host_end::set_down(&interface);
        self.count_change(changed).map_err(|error| failed(format!("set {interface} down"), error))
    }

    fn count_change(&self, changed: io::Result<bool>) -> io::Result<()> {
        if changed? {
            self.kernel.writes().count();
        }
        Ok(())
    }

    /// Completes a batch of changes: frees replaced rule sets, and updates the queues. Returns the ports whose queue could
    /// not be updated.
    pub(crate) async fn flush(&mut self) -> Result<Vec<QueueError>, Error> {
        self.kernel.policies.flush()?;
        if !self.rates_changed {
            return Ok(vec![]);
        }
        let errors = self.update_queues().await?;
        self.rates_changed = false;
        Ok(errors)
    }

    async fn update_queues(&mut self) -> Result<Vec<QueueError>, Error> {
        let kernel = &self.kernel;
        let ports = kernel.ports.iter().map(|(ifindex, port)| (*ifindex, *port, limit(kernel, port)));
        let ports: Vec<_> = ports.collect();
        let needed = ports.iter().any(|(.., limit)| limit.is_some());
        if !needed && self.queues.plan(&ports).is_empty() {
            return Ok(vec![]);
        }
        let netlink = Netlink::open()?;
        let writes = self.kernel.writes().clone();
        if needed && let Some(pair) = self.queues.ensure(&netlink, &writes).await? {
            let program = self.kernel.programs.tc(Role::Queue);
            self.hooks.ensure(program, Role::Queue, EXIT, pair.exit, &netlink).await?;
        }
        let mut errors: BTreeMap<u32, QueueError> = BTreeMap::new();
        for (ifindex, step) in self.queues.plan(&ports) {
            if ifindex.is_some_and(|ifindex| errors.contains_key(&ifindex)) {
                continue;
            }
            let result = match step {
                Step::SetPort(ifindex, port) => self.kernel.ports.update(ifindex, port),
                step => self.queues.execute(&step, &netlink, &writes).await,
            };
            if let Err(error) = result {
                let Some(ifindex) = ifindex else { return Err(error) };
                let owner = self.owners.get(&EntryKey::Port(ifindex)).cloned();
                let group = self.kernel.ports.get(ifindex).map_or(0, |port| port.group);
                errors.insert(ifindex, QueueError { owner, group, error });
            }
        }
        Ok(errors.into_values().collect())
    }

    /// Number of items that no object owns.
    pub(crate) fn orphans(&self) -> Result<usize, Error> {
        let entries = self.orphan_entries();
        let removed = |ifindex| entries.contains(&EntryKey::Port(ifindex));
        Ok(entries.len()
            + self.kernel.ports.orphans(removed)
            + self.kernel.members.orphans()
            + self.orphan_hooks()?.len()
            + self.queues.orphans(self.kernel.ports.iter())
            + self.kernel.policies.orphans())
    }

    /// Removes all orphans. The next [`flush`](Self::flush) removes orphaned queues.
    pub(crate) fn collect_garbage(&mut self) -> Result<(), Error> {
        self.rates_changed = true;
        for ifindex in self.orphan_hooks()? {
            self.detach(ifindex)?;
        }
        for key in self.orphan_entries().into_iter().rev() {
            self.remove(key)?;
        }
        self.kernel.ports.collect_slots()?;
        let Kernel { members, ports, .. } = &mut self.kernel;
        members.collect_garbage(ports)?;
        self.kernel.ports.collect_flood()?;
        // An endpoint that could not be set, or is pending, has the rules of its previous group.
        let Kernel { policies, ports, .. } = &mut self.kernel;
        let is_leaving = |(ifindex, port): &(&u32, &Port)| {
            let group = port.group;
            self.desired_groups.get(*ifindex) != Some(&group)
        };
        policies.collect_garbage(&ports.iter().filter(is_leaving).map(|(_, port)| port.group).collect())
    }

    /// Entries without an owner, in the order of creation.
    fn orphan_entries(&self) -> Vec<EntryKey> {
        let kernel = &self.kernel;
        let mut keys: Vec<EntryKey> = (kernel.peers.iter().map(|vtep| EntryKey::Peer(*vtep)))
            .chain(kernel.members.iter().map(|(segment, vtep)| EntryKey::Member(segment, vtep)))
            .chain(kernel.ports.segments().map(|(segment, _)| EntryKey::Segment(*segment)))
            .chain(kernel.ports.iter().map(|(ifindex, _)| EntryKey::Port(*ifindex)))
            .chain(kernel.fdb.keys().map(|key| EntryKey::Fdb(*key)))
            .chain(kernel.vips.neighbours().iter().map(|(key, _)| EntryKey::Neigh(*key)))
            .chain(kernel.subnets.iter().map(|(key, _)| EntryKey::Subnet(*key)))
            .chain(kernel.routes.iter().map(|(key, _)| EntryKey::Route(*key)))
            .chain(kernel.numbers.iter().map(|(number, _)| EntryKey::Number(*number)))
            .chain(kernel.services.keys().map(|key| EntryKey::Service(*key)))
            .chain(kernel.vips.vips().iter().map(|(key, _)| EntryKey::Vip(*key)))
            .filter(|key| !self.owners.contains_key(key))
            .collect();
        keys.sort_unstable();
        keys
    }

    /// Interfaces that are not ports, but have the program for pods.
    fn orphan_hooks(&self) -> Result<Vec<u32>, Error> {
        let pinned = self.hooks.pinned()?.into_iter().filter(|(role, _)| *role == Role::Pod);
        let found: BTreeSet<u32> =
            pinned.map(|(_, ifindex)| ifindex).chain(self.attached.keys().copied()).collect();
        let is_orphan = |ifindex: &u32| !self.owners.contains_key(&EntryKey::Hook(*ifindex));
        Ok(found.into_iter().filter(is_orphan).collect())
    }
}

/// Limit of a port by the rate of its group.
fn limit(kernel: &Kernel, port: &Port) -> Option<Limit> {
    let (rate, burst) = kernel.policies.rate(port.group);
    Limit::new(rate, burst)
}
