//! What the two bridges hold and why: objects turned into tables. No I/O.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
};

use contiv_model::name::NetworkId;
use openflow_rs::{Change, Flow};

use super::{
    pipeline::{self, BUCKETS, PEERS, Side, Solicitations},
    tables::{
        cookie::Cookie,
        edit::{Edit, Tables},
        index::{Books, Held, Port},
    },
};
use crate::datapath::{Desired, Object, ObjectId};

/// Something for each of the two bridges.
#[derive(Debug, Default)]
pub(crate) struct Sides<T> {
    pub(crate) vlan: T,
    pub(crate) vxlan: T,
}

impl<T> Sides<T> {
    pub(crate) fn get(&self, side: Side) -> &T {
        match side {
            Side::Vlan => &self.vlan,
            Side::Vxlan => &self.vxlan,
        }
    }

    pub(crate) fn get_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Vlan => &mut self.vlan,
            Side::Vxlan => &mut self.vxlan,
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) books: Books,
    pub(crate) tables: Sides<Tables>,
    pub(crate) setting: Setting,
}

/// What the flows that are there whatever is desired depend on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setting {
    /// The numbers of the uplinks' ports.
    pub(crate) uplinks: Vec<u32>,
    pub(crate) solicitations: Solicitations,
}

/// A remote endpoint whose node has no tunnel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tunnel to {0} is not there")]
pub(crate) struct NoTunnel(pub(crate) IpAddr);

/// Ports by the object that they are for.
pub(crate) type Ports = HashMap<ObjectId, Port>;

impl State {
    /// What the bridges should hold. Objects that lack a port are left out.
    pub(crate) fn expected(desired: &Desired, ports: &Ports, setting: Setting) -> State {
        let mut state = State { setting, ..State::default() };
        let mut batch = Batch::on(&mut state);
        batch.scaffold();
        for (id, object) in desired.iter() {
            let port = ports.get(id).cloned();
            if matches!(object, Object::Group(_) | Object::Service(_)) {
                continue;
            }
            if port.is_some() || !needs_port(object) {
                // A remote endpoint without its tunnel is left out too: it will not be found the same.
                let _left_out = batch.set(object.clone(), port);
            }
        }
        batch.finish();
        state
    }
}

fn needs_port(object: &Object) -> bool {
    matches!(object, Object::Local(_) | Object::Peer(_))
}

/// Several changes of the state that reach the switch together.
pub(crate) struct Batch<'a> {
    books: &'a mut Books,
    setting: &'a Setting,
    edits: Sides<Edit<'a>>,
    /// What the books had, in the order of the changes.
    before: Vec<(ObjectId, Option<Held>)>,
    networks: BTreeSet<NetworkId>,
    peers: bool,
    /// VXLAN networks that went, whose groups go too.
    gone: BTreeSet<u32>,
}

impl<'a> Batch<'a> {
    pub(crate) fn on(state: &'a mut State) -> Batch<'a> {
        let edits =
            Sides { vlan: Edit::of(&mut state.tables.vlan), vxlan: Edit::of(&mut state.tables.vxlan) };
        Batch {
            books: &mut state.books,
            setting: &state.setting,
            edits,
            before: vec![],
            networks: BTreeSet::new(),
            peers: false,
            gone: BTreeSet::new(),
        }
    }

    /// The flows and the group that are there whatever is desired.
    pub(crate) fn scaffold(&mut self) {
        let Setting { uplinks, solicitations } = self.setting;
        let uplinks = uplinks.iter().map(|port| pipeline::uplink(*port));
        self.edits
            .vlan
            .set(Cookie::SCAFFOLD, pipeline::scaffold(Side::Vlan, *solicitations).into_iter().chain(uplinks));
        self.edits.vxlan.set(Cookie::SCAFFOLD, pipeline::scaffold(Side::Vxlan, *solicitations));
        if !self.edits.vxlan.group_ids().any(|id| id == PEERS) {
            self.edits.vxlan.set_group(pipeline::to_all(PEERS, []));
        }
    }

    pub(crate) fn set(&mut self, object: Object, port: Option<Port>) -> Result<(), NoTunnel> {
        if let Object::Remote(remote) = &object
            && let Some(vtep) = remote.vtep
            && !self.books.peers().contains_key(&vtep)
        {
            return Err(NoTunnel(vtep));
        }
        let id = object.id();
        self.touch(&id);
        let old = self.books.put(Held { object: object.clone(), port });
        self.leave_groups(old.as_ref(), Some(&object));
        self.before.push((id.clone(), old));
        self.encode(&id);
        if let Object::Peer(peer) = &object {
            for remote in self.books.behind(peer.vtep) {
                self.encode(&ObjectId::Remote(remote));
            }
        }
        Ok(())
    }

    pub(crate) fn delete(&mut self, id: &ObjectId) {
        self.touch(id);
        let old = self.books.take(id);
        self.leave_groups(old.as_ref(), None);
        self.before.push((id.clone(), old));
        for side in Side::BOTH {
            self.edits.get_mut(side).set(Cookie::of(id), []);
        }
        // The number of its port may be another's soon.
        if let ObjectId::Peer(vtep) = id {
            for remote in self.books.behind(*vtep) {
                self.encode(&ObjectId::Remote(remote));
            }
        }
    }

    /// Removes every flow and group that no object in place accounts for.
    pub(crate) fn sweep(&mut self) {
        self.scaffold();
        let known: HashSet<_> = self.books.ids().map(Cookie::of).chain([Cookie::SCAFFOLD]).collect();
        for side in Side::BOTH {
            self.edits.get_mut(side).sweep(|owner| known.contains(&owner));
        }
        self.networks.extend(self.books.networks().map(|network| network.id.clone()));
        self.peers = true;
        self.refresh();
        let groups = self.expected_groups();
        for side in Side::BOTH {
            let strays: Vec<_> = self
                .edits
                .get(side)
                .group_ids()
                .filter(|id| side == Side::Vlan || !groups.contains(id))
                .collect();
            strays.into_iter().for_each(|id| self.edits.get_mut(side).remove_group(id));
        }
    }

    /// What each bridge must be told.
    pub(crate) fn changes(&mut self) -> Sides<Vec<Change>> {
        self.refresh();
        Sides { vlan: self.edits.vlan.changes(), vxlan: self.edits.vxlan.changes() }
    }

    /// The switch has taken over all changes.
    pub(crate) fn finish(mut self) {
        self.refresh();
    }

    /// The switch has refused: the state is what it was. A bridge that has taken over its part keeps it.
    pub(crate) fn undo(self, taken: &[Side]) {
        let Sides { vlan, vxlan } = self.edits;
        for (side, edit) in [(Side::Vlan, vlan), (Side::Vxlan, vxlan)] {
            if !taken.contains(&side) {
                edit.undo();
            }
        }
        for (id, old) in self.before.into_iter().rev() {
            match old {
                Some(held) => drop(self.books.put(held)),
                None => drop(self.books.take(&id)),
            }
        }
    }

    /// Whose port and what network it concerns.
    fn touch(&mut self, id: &ObjectId) {
        match id {
            ObjectId::Peer(_) => self.peers = true,
            ObjectId::Network(network) => {
                self.networks.insert(network.clone());
            }
            ObjectId::Group(_) | ObjectId::Remote(_) | ObjectId::Service(_) | ObjectId::Local(_) => {}
        }
    }

    fn leave_groups(&mut self, old: Option<&Held>, new: Option<&Object>) {
        for object in old.map(|held| &held.object).into_iter().chain(new) {
            if let Object::Local(local) = object {
                self.networks.insert(local.network.clone());
            }
        }
        if let Some(Held { object: Object::Network(old), .. }) = old {
            let still = matches!(new, Some(Object::Network(new)) if new.encap == old.encap);
            if let (Side::Vxlan, vni) = pipeline::place(old.encap)
                && !still
            {
                self.gone.insert(vni);
            }
        }
    }

    /// The object's flows on the bridge of its network, and none on the other.
    fn encode(&mut self, id: &ObjectId) {
        let Some(held) = self.books.get(id) else { return };
        let number = held.port.as_ref().map(|port| port.number);
        let (side, flows) = match (&held.object, number) {
            (Object::Peer(_), Some(port)) => (Side::Vxlan, vec![pipeline::peer(port)]),
            (Object::Local(local), Some(port)) => {
                (pipeline::place(local.encap).0, pipeline::local(local, port))
            }
            (Object::Remote(remote), _) => {
                let port = remote.vtep.and_then(|vtep| self.books.peers().get(&vtep).copied());
                (pipeline::place(remote.encap).0, pipeline::remote(remote, port))
            }
            // Networks are encoded when it is clear how many groups they have.
            // Groups and services are not taken in.
            (Object::Network(_) | Object::Peer(_) | Object::Local(_), _)
            | (Object::Group(_) | Object::Service(_), _) => return,
        };
        self.put(id, side, flows);
    }

    fn put(&mut self, id: &ObjectId, side: Side, flows: Vec<Flow>) {
        let other = if side == Side::Vlan { Side::Vxlan } else { Side::Vlan };
        self.edits.get_mut(side).set(Cookie::of(id), flows);
        self.edits.get_mut(other).set(Cookie::of(id), []);
    }

    /// Groups, and the networks that send to them.
    fn refresh(&mut self) {
        for vni in std::mem::take(&mut self.gone) {
            self.drop_parts(vni, 0);
        }
        for network in std::mem::take(&mut self.networks) {
            self.refresh_network(&network);
        }
        if std::mem::take(&mut self.peers) {
            self.edits.vxlan.set_group(pipeline::to_all(PEERS, self.books.peers().values().copied()));
        }
    }

    fn refresh_network(&mut self, id: &NetworkId) {
        let id = ObjectId::Network(id.clone());
        let Some(Held { object: Object::Network(network), .. }) = self.books.get(&id) else { return };
        let (side, tag) = pipeline::place(network.encap);
        let pods: Vec<_> = self.books.pods(&network.id).collect();
        let parts = parts(pods.len());
        let flows = pipeline::network(network, parts);
        if side == Side::Vxlan {
            for part in 0..parts {
                let some = pods.iter().copied().skip(part * BUCKETS).take(BUCKETS);
                self.edits.vxlan.set_group(pipeline::to_all(pipeline::pods_group(tag, part), some));
            }
            self.drop_parts(tag, parts);
        }
        self.put(&id, side, flows);
    }

    /// Removes the groups of a network from the `from`th on.
    fn drop_parts(&mut self, vni: u32, from: usize) {
        let ids: BTreeSet<_> = self.edits.vxlan.group_ids().collect();
        let excess = (from..).map(|part| pipeline::pods_group(vni, part)).take_while(|id| ids.contains(id));
        excess.for_each(|id| self.edits.vxlan.remove_group(id));
    }

    fn expected_groups(&self) -> BTreeSet<u32> {
        let networks = self.books.networks().filter_map(|network| match pipeline::place(network.encap) {
            (Side::Vxlan, vni) => Some((vni, parts(self.books.pods(&network.id).len()))),
            (Side::Vlan, _) => None,
        });
        let pods =
            networks.flat_map(|(vni, parts)| (0..parts).map(move |part| pipeline::pods_group(vni, part)));
        pods.chain([PEERS]).collect()
    }
}

fn parts(pods: usize) -> usize {
    pods.div_ceil(BUCKETS).max(1)
}

/// How the tables differ from what they should be.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) wrong: BTreeSet<ObjectId>,
    pub(crate) strays: usize,
    /// The scaffolding is not whole.
    pub(crate) scaffold: bool,
}

/// Measures `actual` against what is expected of `desired`.
pub(crate) fn compare(expected: &State, actual: &Sides<Tables>, desired: &Desired) -> Verdict {
    let owners: HashMap<Cookie, &ObjectId> = desired.iter().map(|(id, _)| (Cookie::of(id), id)).collect();
    let mut verdict = Verdict::default();
    let blame = |owner: u64, verdict: &mut Verdict| match owners.get(&Cookie(owner)) {
        Some(id) => {
            verdict.wrong.insert((*id).clone());
        }
        None if Cookie(owner) == Cookie::SCAFFOLD => verdict.scaffold = true,
        None => verdict.strays += 1,
    };
    for side in Side::BOTH {
        let (expected, actual) = (expected.tables.get(side), actual.get(side));
        for flow in expected.beyond(actual).chain(actual.beyond(expected)) {
            blame(flow.cookie, &mut verdict);
        }
    }
    compare_groups(expected, actual, &mut verdict);
    verdict
}

fn compare_groups(expected: &State, actual: &Sides<Tables>, verdict: &mut Verdict) {
    let groups = actual.vxlan.groups();
    let should = expected.tables.vxlan.groups();
    let members =
        |id: u32| groups.get(&id).into_iter().flat_map(|group| &group.buckets).collect::<HashSet<_>>();
    let mut known = BTreeMap::new();
    for network in expected.books.networks() {
        if let (Side::Vxlan, vni) = pipeline::place(network.encap) {
            let parts = parts(expected.books.pods(&network.id).len());
            known.extend((0..parts).map(|part| (pipeline::pods_group(vni, part), network)));
        }
    }
    for (id, group) in should.iter().filter(|(id, group)| groups.get(id) != Some(group)) {
        match known.get(id) {
            Some(network) => {
                verdict.wrong.insert(ObjectId::Network(network.id.clone()));
            }
            None if !groups.contains_key(id) => verdict.scaffold = true,
            None => {}
        }
        if *id == PEERS {
            let there = members(PEERS);
            for (vtep, port) in expected.books.peers() {
                if !pipeline::to_all(PEERS, [*port]).buckets.iter().all(|bucket| there.contains(bucket)) {
                    verdict.wrong.insert(ObjectId::Peer(*vtep));
                }
            }
            let wanted: HashSet<_> = group.buckets.iter().collect();
            verdict.strays += there.difference(&wanted).count();
        }
    }
    let foreign = groups.keys().filter(|id| !should.contains_key(id)).count();
    verdict.strays += foreign + actual.vlan.groups().len();
}

#[cfg(test)]
mod tests;
