//! What the kernel holds, entry by entry, and on whose behalf.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use contiv_abi::{FloodKey, NeighEntry, NeighKey, Port, Segment, SegmentEntry, Vip, Vtep, policy::MeterKey};

use crate::datapath::{
    Error, Group, ObjectId,
    ebpf::{
        device::Netlink,
        failure::failed,
        forward::dense_list::{Roster, Step},
        kernel::{
            encode::{self, Entry, EntryKey},
            tables::Kernel,
        },
        programs::tc::{Hooks, Role},
        rate::{
            qdisc::Limit,
            queue::{EXIT, Pair, Queues, Step as QueueStep},
        },
    },
};

/// The kernel's tables, the lists inside them, and the owners of entries.
pub(crate) struct State {
    kernel: Kernel,
    hooks: Hooks,
    peers: Roster<Vtep>,
    ports: HashMap<Segment, Roster<u32>>,
    /// Interfaces that our program for pods runs on, with their names.
    attached: BTreeMap<u32, String>,
    owners: HashMap<EntryKey, ObjectId>,
    objects: HashMap<ObjectId, Vec<EntryKey>>,
    queues: Queues,
    /// The services on VLANs, by the address of their first backend.
    services_of: HashMap<NeighKey, BTreeSet<NeighKey>>,
    /// Those for which another node may answer now than before.
    doubtful: BTreeSet<NeighKey>,
    /// Ports or rates have changed since the queues were made to be like them.
    rates_changed: bool,
}

/// A port that has not the queue that its group's rate wants.
pub(crate) struct Unqueued {
    /// Whose port it is.
    pub(crate) owner: Option<ObjectId>,
    /// Its group.
    pub(crate) group: u32,
    pub(crate) error: Error,
}

impl State {
    pub(crate) fn new(kernel: Kernel, hooks: Hooks) -> Self {
        State {
            kernel,
            hooks,
            peers: Roster::default(),
            ports: HashMap::new(),
            attached: BTreeMap::new(),
            owners: HashMap::new(),
            objects: HashMap::new(),
            queues: Queues::default(),
            services_of: HashMap::new(),
            doubtful: BTreeSet::new(),
            rates_changed: false,
        }
    }

    pub(crate) fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    pub(crate) fn kernel_mut(&mut self) -> &mut Kernel {
        &mut self.kernel
    }

    /// Reads everything but the attachments, and forgets all owners.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.kernel.read()?;
        self.peers = Roster::from_slots(self.kernel.peer_list()?);
        self.ports.clear();
        for (segment, entry) in self.kernel.segments.iter() {
            // A slot without an entry, which only a crash can leave, holds the port that never is.
            let slot = |slot| {
                let key = FloodKey { segment: *segment, slot };
                self.kernel.flood.get(&key).copied().unwrap_or(0)
            };
            self.ports.insert(*segment, Roster::from_slots((0..entry.ports).map(slot).collect()));
        }
        self.services_of.clear();
        self.doubtful.clear();
        for (service, vip) in self.kernel.vips.iter() {
            self.services_of.entry(first_of(service, vip)).or_default().insert(*service);
        }
        self.attached.clear();
        self.owners.clear();
        self.objects.clear();
        Ok(())
    }

    /// The services that this node answers for on the wire, as the programs see it.
    pub(crate) fn answers(&self) -> HashSet<NeighKey> {
        self.kernel
            .vips
            .iter()
            .map(|(service, _)| *service)
            .filter(|service| self.answers_for(service))
            .collect()
    }

    /// The services about which something has changed since the last time, and whether this node answers for them.
    pub(crate) fn changed_answers(&mut self) -> Vec<(NeighKey, bool)> {
        let doubtful = std::mem::take(&mut self.doubtful);
        doubtful.into_iter().map(|service| (service, self.answers_for(&service))).collect()
    }

    fn answers_for(&self, service: &NeighKey) -> bool {
        let first =
            self.kernel.vips.get(service).and_then(|vip| self.kernel.neigh.get(&first_of(service, vip)));
        first.is_some_and(|owner| owner.ifindex != 0)
    }

    fn set_vip(&mut self, service: NeighKey, vip: Option<Vip>) -> Result<(), Error> {
        let before = self.kernel.vips.get(&service).map(|vip| first_of(&service, vip));
        if let Some(before) = before
            && let Some(services) = self.services_of.get_mut(&before)
        {
            services.remove(&service);
            if services.is_empty() {
                self.services_of.remove(&before);
            }
        }
        self.doubtful.insert(service);
        match vip {
            Some(vip) => {
                self.services_of.entry(first_of(&service, &vip)).or_default().insert(service);
                self.kernel.vips.set(service, vip)
            }
            None => self.kernel.vips.remove(&service),
        }
    }

    fn set_owner(&mut self, key: NeighKey, owner: Option<NeighEntry>) -> Result<(), Error> {
        self.doubtful.extend(self.services_of.get(&key).into_iter().flatten());
        match owner {
            Some(owner) => self.kernel.neigh.set(key, owner),
            None => self.kernel.neigh.remove(&key),
        }
    }

    /// Reads the queues; where they end, if there are any.
    pub(crate) async fn read_queues(&mut self, netlink: &Netlink) -> Result<Option<Pair>, Error> {
        self.queues.read(netlink).await?;
        Ok(self.queues.pair())
    }

    pub(crate) fn queues(&self) -> &Queues {
        &self.queues
    }

    /// Notes that our program runs on a pod's port.
    pub(crate) fn note_attached(&mut self, ifindex: u32, interface: &str) {
        self.attached.insert(ifindex, interface.to_owned());
    }

    /// Notes that an object stands for these entries; true if all of them are in place.
    pub(crate) fn claim(&mut self, id: &ObjectId, entries: &[Entry]) -> bool {
        let mut complete = true;
        for entry in entries {
            self.own(entry, id);
            complete &= self.holds(entry);
        }
        self.objects.insert(id.clone(), entries.iter().map(Entry::key).collect());
        complete
    }

    fn own(&mut self, entry: &Entry, id: &ObjectId) {
        self.owners.insert(entry.key(), id.clone());
        if let (Entry::Service(key, _), ObjectId::Service(service)) = (entry, id) {
            self.kernel.services.name(key, service);
        }
    }

    /// Notes that an object stands for the group; true if it is as it should be.
    pub(crate) fn claim_group(&mut self, group: &Group) -> bool {
        // What cannot be encoded now fails, and says why, when it is set.
        encode::wanted(group).is_ok_and(|wanted| self.kernel.policies.claim(&wanted))
    }

    /// Makes the group be as it should be.
    pub(crate) fn set_group(&mut self, group: &Group) -> Result<(), Error> {
        let wanted = encode::wanted(group)
            .map_err(|refused| failed(format!("set group {}", group.number), refused))?;
        self.rates_changed = true;
        self.kernel.policies.set(&wanted)
    }

    /// Removes what changes have left behind, and makes the queues be as the groups' rates want them; ports for which that
    /// fails are told.
    pub(crate) async fn settle(&mut self) -> Result<Vec<Unqueued>, Error> {
        self.kernel.policies.settle()?;
        if !self.rates_changed {
            return Ok(vec![]);
        }
        let unqueued = self.queue().await?;
        self.rates_changed = false;
        Ok(unqueued)
    }

    async fn queue(&mut self) -> Result<Vec<Unqueued>, Error> {
        let ports = |kernel: &Kernel| -> Vec<_> {
            kernel.ports.iter().map(|(ifindex, port)| (*ifindex, *port, limit(kernel, port))).collect()
        };
        let ports = ports(&self.kernel);
        let wanted = ports.iter().any(|(.., limit)| limit.is_some());
        if !wanted && self.queues.plan(&ports).is_empty() {
            return Ok(vec![]);
        }
        let netlink = Netlink::open()?;
        let writes = self.kernel.writes().clone();
        if wanted && let Some(pair) = self.queues.ensure(&netlink, &writes).await? {
            let program = self.kernel.program(Role::Queue);
            if !self.hooks.is_attached(program, Role::Queue, EXIT, pair.exit, &netlink).await? {
                self.hooks.attach(program, Role::Queue, EXIT, pair.exit).await?;
            }
        }
        let mut unqueued: BTreeMap<u32, Unqueued> = BTreeMap::new();
        for (ifindex, step) in self.queues.plan(&ports) {
            if ifindex.is_some_and(|ifindex| unqueued.contains_key(&ifindex)) {
                continue;
            }
            let taken = match step {
                QueueStep::Port(ifindex, port) => self.kernel.ports.set(ifindex, port),
                step => self.queues.take(&step, &netlink, &writes).await,
            };
            if let Err(error) = taken {
                let Some(ifindex) = ifindex else { return Err(error) };
                let owner = self.owners.get(&EntryKey::Port(ifindex)).cloned();
                let group = self.kernel.ports.get(&ifindex).map_or(0, |port| port.group);
                unqueued.insert(ifindex, Unqueued { owner, group, error });
            }
        }
        Ok(unqueued.into_values().collect())
    }

    fn holds(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Peer(vtep) => self.peer_slot(vtep).is_some(),
            Entry::Segment { segment, out, flags } => {
                self.kernel.segments.get(segment).is_some_and(|e| e.out == *out && e.flags == *flags)
            }
            Entry::Port { ifindex, port } => {
                let seated = self.seat(*ifindex) == Some(port.segment);
                let is_so = |is: &Port| {
                    Port { slot: 0, class: 0, queue: 0, ..*is } == *port
                        && self.queues.suits(*ifindex, is, limit(&self.kernel, is))
                };
                seated && self.kernel.ports.get(ifindex).is_some_and(is_so)
            }
            Entry::Fdb(key, value) => self.kernel.fdb.get(key) == Some(value),
            Entry::Neigh(key, value) => self.kernel.neigh.get(key) == Some(value),
            Entry::Service(key, target) => self.kernel.services.holds(key, target),
            Entry::Vip(key, value) => self.kernel.vips.get(key) == Some(value),
            Entry::Hook { ifindex, .. } => self.attached.contains_key(ifindex),
        }
    }

    /// The slot of a peer that is properly in the list.
    fn peer_slot(&self, vtep: &Vtep) -> Option<u32> {
        let slot = *self.kernel.peers.get(vtep)?;
        (self.peers.at(slot) == Some(*vtep)).then_some(slot)
    }

    /// The network whose flood list a port is properly in.
    fn seat(&self, ifindex: u32) -> Option<Segment> {
        let port = self.kernel.ports.get(&ifindex)?;
        let seated = self.ports.get(&port.segment).and_then(|roster| roster.at(port.slot)) == Some(ifindex);
        seated.then_some(port.segment)
    }

    /// Makes the object's entries be there, and those that it had besides be gone.
    pub(crate) async fn set(&mut self, id: &ObjectId, entries: &[Entry]) -> Result<(), Error> {
        for entry in entries {
            self.put(entry).await?;
            self.own(entry, id);
        }
        let keys: Vec<EntryKey> = entries.iter().map(Entry::key).collect();
        let before = self.objects.insert(id.clone(), keys.clone()).unwrap_or_default();
        let stale: Vec<EntryKey> = before.into_iter().filter(|key| !keys.contains(key)).collect();
        self.release(id, &stale)
    }

    /// Makes the object's entries be gone, the last written first.
    pub(crate) fn delete(&mut self, id: &ObjectId) -> Result<(), Error> {
        if let ObjectId::Group(number) = id {
            // What has no number in the programs was never set.
            if let Some(number) = encode::number_of(*number) {
                self.kernel.policies.delete(number);
                self.rates_changed = true;
            }
            return Ok(());
        }
        let keys = self.objects.get(id).cloned().unwrap_or_default();
        self.release(id, &keys)?;
        self.objects.remove(id);
        Ok(())
    }

    fn release(&mut self, id: &ObjectId, keys: &[EntryKey]) -> Result<(), Error> {
        for key in keys.iter().rev() {
            // An endpoint that has moved here from another node shares its addresses with what stood
            // for it there.
            if self.owners.get(key) == Some(id) {
                self.take(*key)?;
                self.owners.remove(key);
            }
        }
        Ok(())
    }

    async fn put(&mut self, entry: &Entry) -> Result<(), Error> {
        match entry {
            Entry::Peer(vtep) => self.put_peer(*vtep),
            Entry::Segment { segment, out, flags } => {
                let ports = self.ports.entry(*segment).or_default().len();
                self.kernel.segments.set(*segment, SegmentEntry { out: *out, ports, flags: *flags })
            }
            Entry::Port { ifindex, port } => self.put_port(*ifindex, *port),
            Entry::Fdb(key, value) => self.kernel.fdb.set(*key, *value),
            Entry::Neigh(key, value) => self.set_owner(*key, Some(*value)),
            Entry::Service(key, target) => self.kernel.services.set(*key, target),
            Entry::Vip(key, value) => self.set_vip(*key, Some(*value)),
            Entry::Hook { ifindex, interface } => {
                if !self.attached.contains_key(ifindex) {
                    let program = self.kernel.program(Role::Pod);
                    self.hooks.attach(program, Role::Pod, interface, *ifindex).await?;
                    self.attached.insert(*ifindex, interface.clone());
                }
                Ok(())
            }
        }
    }

    fn take(&mut self, key: EntryKey) -> Result<(), Error> {
        match key {
            EntryKey::Peer(vtep) => {
                if let Some(slot) = self.peer_slot(&vtep) {
                    self.leave_peers(slot)?;
                }
                self.kernel.peers.remove(&vtep)
            }
            EntryKey::Segment(segment) => self.kernel.segments.remove(&segment),
            EntryKey::Port(ifindex) => {
                if let (Some(segment), Some(port)) = (self.seat(ifindex), self.kernel.ports.get(&ifindex)) {
                    self.leave_ports(segment, port.slot)?;
                }
                let meter = |direction| MeterKey { ifindex, direction };
                self.kernel.meters.remove(&[meter(MeterKey::SENDS), meter(MeterKey::RECEIVES)])?;
                self.rates_changed = true;
                self.kernel.ports.remove(&ifindex)
            }
            EntryKey::Fdb(key) => self.kernel.fdb.remove(&key),
            EntryKey::Neigh(key) => self.set_owner(key, None),
            EntryKey::Service(key) => self.kernel.services.remove(&key),
            EntryKey::Vip(key) => self.set_vip(key, None),
            EntryKey::Hook(ifindex) => {
                let interface = self.attached.get(&ifindex).map(String::as_str);
                self.hooks.detach(Role::Pod, interface, ifindex)?;
                self.attached.remove(&ifindex);
                Ok(())
            }
        }
    }

    fn put_peer(&mut self, vtep: Vtep) -> Result<(), Error> {
        if self.peer_slot(&vtep).is_some() {
            return Ok(());
        }
        for step in self.peers.plan_join(vtep) {
            self.step_peers(step)?;
        }
        self.peers.joined(vtep);
        Ok(())
    }

    fn leave_peers(&mut self, slot: u32) -> Result<(), Error> {
        for step in self.peers.plan_leave(slot) {
            self.step_peers(step)?;
        }
        self.peers.left(slot);
        Ok(())
    }

    fn step_peers(&mut self, step: Step<Vtep>) -> Result<(), Error> {
        match step {
            Step::Put { slot, member } => self.kernel.set_peer_slot(slot, member),
            Step::Seat { member, slot } => self.kernel.peers.set(member, slot),
            Step::Len(peers) => self.kernel.set_peer_count(peers),
            // An array has no empty slots; beyond the length nobody looks.
            Step::Clear { .. } => Ok(()),
        }
    }

    fn put_port(&mut self, ifindex: u32, wanted: Port) -> Result<(), Error> {
        let segment = wanted.segment;
        self.rates_changed = true;
        if self.kernel.segments.get(&segment).is_none() {
            let why = "the network has to be there before its endpoints";
            return Err(failed(format!("put a port into the network {segment}"), why));
        }
        match (self.seat(ifindex), self.kernel.ports.get(&ifindex).copied()) {
            (Some(here), Some(port)) if here == segment => {
                return self
                    .kernel
                    .ports
                    .set(ifindex, Port { slot: port.slot, class: port.class, queue: port.queue, ..wanted });
            }
            (Some(elsewhere), Some(port)) => self.leave_ports(elsewhere, port.slot)?,
            _ => {}
        }
        for step in self.ports.entry(segment).or_default().plan_join(ifindex) {
            self.step_ports(segment, Some(wanted), step)?;
        }
        self.ports.entry(segment).or_default().joined(ifindex);
        Ok(())
    }

    fn leave_ports(&mut self, segment: Segment, slot: u32) -> Result<(), Error> {
        for step in self.ports.entry(segment).or_default().plan_leave(slot) {
            self.step_ports(segment, None, step)?;
        }
        self.ports.entry(segment).or_default().left(slot);
        Ok(())
    }

    /// `joining` is the port which has no entry yet.
    fn step_ports(&mut self, segment: Segment, joining: Option<Port>, step: Step<u32>) -> Result<(), Error> {
        match step {
            Step::Put { slot, member } => self.kernel.flood.set(FloodKey { segment, slot }, member),
            Step::Seat { member, slot } => {
                let known = self.kernel.ports.get(&member).copied();
                match joining.or(known) {
                    Some(port) => self.kernel.ports.set(member, Port { segment, slot, ..port }),
                    // A stray of the flood list without a port of its own; it is swept next.
                    None => Ok(()),
                }
            }
            Step::Len(ports) => match self.kernel.segments.get(&segment).copied() {
                Some(entry) => self.kernel.segments.set(segment, SegmentEntry { ports, ..entry }),
                None => Ok(()),
            },
            Step::Clear { slot } => self.kernel.flood.remove(&FloodKey { segment, slot }),
        }
    }

    /// What no object accounts for.
    pub(crate) fn strays(&self) -> Result<usize, Error> {
        let strays = self.stray_entries();
        Ok(strays.len()
            + self.stray_slots().len()
            + self.stray_peer_slots().len()
            + self.stray_flood(&strays).len()
            + self.stray_hooks()?.len()
            + self.queues.strays(self.kernel.ports.iter())
            + self.kernel.policies.strays())
    }

    /// Removes what no object accounts for.
    pub(crate) fn sweep(&mut self) -> Result<(), Error> {
        // Those of queues, too, when all is settled.
        self.rates_changed = true;
        for (role, ifindex) in self.stray_hooks()? {
            let interface = self.attached.get(&ifindex).map(String::as_str);
            self.hooks.detach(role, interface, ifindex)?;
            self.attached.remove(&ifindex);
        }
        for key in self.stray_entries().into_iter().rev() {
            self.take(key)?;
        }
        // From the end, so that the slots that are still to come keep their numbers.
        for (segment, slot) in self.stray_slots().into_iter().rev() {
            self.leave_ports(segment, slot)?;
        }
        for slot in self.stray_peer_slots().into_iter().rev() {
            self.leave_peers(slot)?;
        }
        for key in self.stray_flood(&[]) {
            self.kernel.flood.remove(&key)?;
        }
        self.kernel.policies.sweep()
    }

    /// Entries without an owner, in the order of making.
    fn stray_entries(&self) -> Vec<EntryKey> {
        let kernel = &self.kernel;
        let mut keys: Vec<EntryKey> = (kernel.peers.iter().map(|(key, _)| EntryKey::Peer(*key)))
            .chain(kernel.segments.iter().map(|(key, _)| EntryKey::Segment(*key)))
            .chain(kernel.ports.iter().map(|(key, _)| EntryKey::Port(*key)))
            .chain(kernel.fdb.iter().map(|(key, _)| EntryKey::Fdb(*key)))
            .chain(kernel.neigh.iter().map(|(key, _)| EntryKey::Neigh(*key)))
            .chain(kernel.services.keys().map(|key| EntryKey::Service(*key)))
            .chain(kernel.vips.iter().map(|(key, _)| EntryKey::Vip(*key)))
            .filter(|key| !self.owners.contains_key(key))
            .collect();
        keys.sort_unstable();
        keys
    }

    /// Slots inside the flood lists whose port does not know them as its own. Those of stray ports are
    /// not counted: they go with the port.
    fn stray_slots(&self) -> Vec<(Segment, u32)> {
        let mut slots: Vec<_> = self
            .ports
            .iter()
            .flat_map(|(segment, roster)| roster.iter().map(move |(slot, ifindex)| (*segment, slot, ifindex)))
            .filter(|(segment, slot, ifindex)| {
                let port = self.kernel.ports.get(ifindex);
                !port.is_some_and(|port| port.segment == *segment && port.slot == *slot)
            })
            .map(|(segment, slot, _)| (segment, slot))
            .collect();
        slots.sort_unstable();
        slots
    }

    fn stray_peer_slots(&self) -> Vec<u32> {
        let seated = |slot, vtep: &Vtep| self.kernel.peers.get(vtep) == Some(&slot);
        self.peers.iter().filter(|(slot, vtep)| !seated(*slot, vtep)).map(|(slot, _)| slot).collect()
    }

    /// Flood entries beyond the end of their list, or of no list; but not those whose port goes anyway.
    fn stray_flood(&self, going: &[EntryKey]) -> Vec<FloodKey> {
        let in_list = |key: &FloodKey| self.ports.get(&key.segment).is_some_and(|r| key.slot < r.len());
        let goes = |ifindex: &u32| going.contains(&EntryKey::Port(*ifindex));
        let entries = self.kernel.flood.iter().filter(|(key, ifindex)| !in_list(key) && !goes(ifindex));
        entries.map(|(key, _)| *key).collect()
    }

    /// Programs for pods on interfaces that are no port of ours.
    fn stray_hooks(&self) -> Result<Vec<(Role, u32)>, Error> {
        let pinned = self.hooks.pinned()?.into_iter().filter(|(role, _)| *role == Role::Pod);
        let found: BTreeSet<u32> =
            pinned.map(|(_, ifindex)| ifindex).chain(self.attached.keys().copied()).collect();
        let strays = found.into_iter().filter(|ifindex| !self.owners.contains_key(&EntryKey::Hook(*ifindex)));
        Ok(strays.map(|ifindex| (Role::Pod, ifindex)).collect())
    }
}

/// Where the first backend of a service is looked up.
fn first_of(service: &NeighKey, vip: &Vip) -> NeighKey {
    NeighKey { segment: service.segment, ip: vip.first }
}

/// What holds for a port by the rate of its group.
fn limit(kernel: &Kernel, port: &Port) -> Option<Limit> {
    let (rate, burst) = kernel.policies.rate(port.group);
    Limit::new(rate, burst)
}
