//! Attacks as data.

use contiv_model::tag::Encap;
use netplugin::datapath::{Object, ObjectId, fake::Origin};

use crate::{
    node::topology::Net,
    rules::{Attacker, Rules, attackers},
    scene::Scene,
};

/// Where an attacker sends from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A pod on the node.
    Pod,
    /// The tunnel of another node of the cluster, without anti-spoofing there; the wire of a VLAN network.
    Outside,
    /// A VTEP that is not one of the cluster.
    Stranger,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Kind of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Vlan,
    Vxlan,
}

impl Kind {
    pub(crate) fn of(net: &Net) -> Kind {
        match net.encap {
            Encap::Vlan(_) => Kind::Vlan,
            Encap::Vxlan { .. } => Kind::Vxlan,
        }
    }
}

/// What a frame must or must not lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Part of the preparation.
    Anything,
    /// No frame arrives at the victim.
    NotAtVictim,
    /// No frame arrives at the victim but those of datagrams to this port, from a datapath that joins fragments: what it held of one
    /// arrives with the last fragment.
    OnlyTo(u16),
    /// No frame arrives at any pod or node but the sender, which may get an answer.
    Nowhere,
    /// No frame arrives at another node or on the wire.
    NotOnWire,
    /// The frame arrives at the victim, unmodified.
    AtVictim,
    /// A frame arrives at the victim.
    ReachesVictim,
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Send {
        from: Origin,
        frame: Vec<u8>,
        expect: Expect,
    },
    /// The victim answers if a frame of the attacker has arrived there.
    Answer(Vec<u8>),
    Set(Object),
    Delete(ObjectId),
}

impl Step {
    /// The step with another expectation.
    pub(crate) fn expecting(self, expect: Expect) -> Step {
        match self {
            Step::Send { from, frame, .. } => Step::Send { from, frame, expect },
            other => other,
        }
    }

    pub(crate) fn nowhere(self) -> Step {
        self.expecting(Expect::Nowhere)
    }

    pub(crate) fn not_at_victim(self) -> Step {
        self.expecting(Expect::NotAtVictim)
    }

    pub(crate) fn only_to(self, port: u16) -> Step {
        self.expecting(Expect::OnlyTo(port))
    }

    pub(crate) fn anything(self) -> Step {
        self.expecting(Expect::Anything)
    }

    pub(crate) fn reaches(self) -> Step {
        self.expecting(Expect::ReachesVictim)
    }

    pub(crate) fn arrives(self) -> Step {
        self.expecting(Expect::AtVictim)
    }
}

type Script = Box<dyn Fn(&Scene) -> Vec<Step>>;

pub(crate) struct Attack {
    /// Defect of `E1` to `E27` that lets it succeed, `new` for one that the list found, or `held` where none was known.
    pub(crate) defect: &'static str,
    pub(crate) name: String,
    places: &'static [Place],
    rules: &'static [Rules],
    families: &'static [Family],
    kinds: &'static [Kind],
    /// The one attacker who can try it.
    only: Option<Attacker>,
    /// Whether its frames are for a group.
    is_for_group: bool,
    hostile: Script,
    honest: Script,
    /// Rules of the receiver in the control.
    control: Rules,
    has_control: bool,
}

pub(crate) const POD: &[Place] = &[Place::Pod];
pub(crate) const OUTSIDE: &[Place] = &[Place::Outside];
pub(crate) const ANYWHERE: &[Place] = &[Place::Pod, Place::Outside];
pub(crate) const STRANGER: &[Place] = &[Place::Stranger];
pub(crate) const V4: &[Family] = &[Family::V4];
pub(crate) const V6: &[Family] = &[Family::V6];
pub(crate) const VLAN: &[Kind] = &[Kind::Vlan];
pub(crate) const VXLAN: &[Kind] = &[Kind::Vxlan];

impl Attack {
    /// An attack from pods and from outside, by IPv4 and IPv6, on endpoints that rules protect; the control is a datagram.
    pub(crate) fn new(
        defect: &'static str,
        name: impl Into<String>,
        hostile: impl Fn(&Scene) -> Vec<Step> + 'static,
    ) -> Attack {
        Attack {
            defect,
            name: name.into(),
            places: ANYWHERE,
            rules: Rules::DENIES,
            families: &[Family::V4, Family::V6],
            kinds: &[Kind::Vxlan, Kind::Vlan],
            only: None,
            is_for_group: false,
            hostile: Box::new(hostile),
            honest: Box::new(|s| vec![s.send(&s.datagram()).arrives()]),
            control: Rules::AllowAll,
            has_control: true,
        }
    }

    /// The attack behind what `change` makes of each of its packets, in a network where as little as possible denies it. It has no
    /// control: what is sound may be dropped with the packet before it.
    pub(crate) fn behind(self, what: &str, change: impl Fn(&[u8]) -> Option<Vec<u8>> + 'static) -> Attack {
        let least = [Rules::Unprotected, Rules::DenyPort].into_iter().find(|one| self.rules.contains(one));
        let at = least.and_then(|one| self.rules.iter().position(|rules| *rules == one)).unwrap_or(0);
        let hostile = self.hostile;
        let steps = move |scene: &Scene| {
            let before = |step: &Step| match step {
                Step::Send { from, frame, .. } => {
                    let frame = change(frame)?;
                    Some(Step::Send { from: from.clone(), frame, expect: Expect::Anything })
                }
                _ => None,
            };
            hostile(scene).into_iter().flat_map(|step| [before(&step), Some(step)]).flatten().collect()
        };
        Attack {
            defect: "new",
            name: format!("{}, behind {what}", self.name),
            rules: &self.rules[at..=at],
            hostile: Box::new(steps),
            has_control: false,
            ..self
        }
    }

    pub(crate) fn from(self, places: &'static [Place]) -> Attack {
        Attack { places, ..self }
    }

    pub(crate) fn against(self, rules: &'static [Rules]) -> Attack {
        Attack { rules, ..self }
    }

    pub(crate) fn by(self, families: &'static [Family]) -> Attack {
        Attack { families, ..self }
    }

    pub(crate) fn on(self, kinds: &'static [Kind]) -> Attack {
        Attack { kinds, ..self }
    }

    pub(crate) fn only(self, attacker: Attacker) -> Attack {
        Attack { only: Some(attacker), ..self }
    }

    /// Excludes victims on other nodes: the sender's node cannot judge the receivers of a group there.
    pub(crate) fn for_groups(self) -> Attack {
        Attack { is_for_group: true, ..self }
    }

    /// Sets the control: an honest script that must succeed against an endpoint whose rules allow everything.
    pub(crate) fn honest(self, honest: impl Fn(&Scene) -> Vec<Step> + 'static) -> Attack {
        Attack { honest: Box::new(honest), ..self }
    }

    /// Sets the rules of the receiver in the control.
    pub(crate) fn control(self, control: Rules) -> Attack {
        Attack { control, ..self }
    }

    /// Returns who tries the attack on whom in this network.
    pub(crate) fn tries(&self, net: &Net) -> Vec<Try> {
        let is_one = |attacker: &Attacker| self.only.is_none_or(|only| only == *attacker);
        let rules: Vec<Rules> = self
            .rules
            .iter()
            .copied()
            .filter(|rules| !(self.is_for_group && *rules == Rules::DenyOutFar))
            .collect();
        self.each(net, &rules, |place, rules| {
            attackers(place, rules).iter().copied().filter(is_one).collect()
        })
    }

    /// Returns the tries of the control: by all endpoints that are tried as attackers, if nothing is wrong with them.
    pub(crate) fn controls(&self, net: &Net) -> Vec<Try> {
        if !self.has_control {
            return vec![];
        }
        let attacks = self.tries(net);
        let honest = |place| {
            let mut found: Vec<Attacker> = vec![];
            for attack in attacks.iter().filter(|attack| attack.place == place) {
                let is_free = self.control != Rules::Unprotected || attack.attacker != Attacker::Bound;
                let attacker =
                    if attack.attacker == Attacker::Unknown { Attacker::Plain } else { attack.attacker };
                if is_free && !found.contains(&attacker) {
                    found.push(attacker);
                }
            }
            found
        };
        let mut tries = self.each(net, &[self.control], |place, _| honest(place));
        for one in &mut tries {
            if one.place == Place::Stranger {
                one.place = Place::Outside;
            }
        }
        tries
    }

    pub(crate) fn hostile(&self, scene: &Scene) -> Vec<Step> {
        (self.hostile)(scene)
    }

    pub(crate) fn honest_steps(&self, scene: &Scene) -> Vec<Step> {
        (self.honest)(scene)
    }

    fn each(&self, net: &Net, rules: &[Rules], by_whom: impl Fn(Place, Rules) -> Vec<Attacker>) -> Vec<Try> {
        let kind = Kind::of(net);
        let mut tries = vec![];
        if !self.kinds.contains(&kind) {
            return tries;
        }
        for place in self.places.iter().copied() {
            if place == Place::Stranger && kind == Kind::Vlan {
                continue;
            }
            for rules in rules.iter().copied() {
                for attacker in by_whom(place, rules) {
                    let with = |family: &Family| Try { place, rules, attacker, family: *family };
                    tries.extend(self.families.iter().map(with));
                }
            }
        }
        tries
    }
}

/// One try of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Try {
    pub(crate) place: Place,
    pub(crate) rules: Rules,
    pub(crate) attacker: Attacker,
    pub(crate) family: Family,
}
