//! `ovs-ofctl` syntax of actions.

use std::fmt;

use super::matching::value;
use super::{Hex, separated};
use crate::action::Action;
use crate::nicira::{
    Ct, HashFields, Learn, LearnSpec, LinkAlgorithm, Multipath, Nat, NatKind, NatRange, Slice, Zone,
};
use crate::port::Port;

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.field.spec().long;
        let (offset, width) = (u32::from(self.offset), u32::from(self.width));
        if offset == 0 && self.width == self.field.bits() {
            write!(f, "{name}[]")
        } else if width == 1 {
            write!(f, "{name}[{offset}]")
        } else {
            write!(f, "{name}[{offset}..{}]", (offset + width).saturating_sub(1))
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Output { port: Port::CONTROLLER, max_len } => write!(f, "CONTROLLER:{max_len}"),
            Action::Output { port, .. } if port.0 < 0xffff_ff00 => write!(f, "output:{port}"),
            Action::Output { port, .. } => write!(f, "{port}"),
            Action::OutputField { port, .. } => write!(f, "output:{port}"),
            Action::Group(id) => write!(f, "group:{id}"),
            Action::SetQueue(id) => write!(f, "set_queue:{id}"),
            Action::PushVlan(eth_type) => write!(f, "push_vlan:0x{eth_type:04x}"),
            Action::PopVlan => f.write_str("pop_vlan"),
            Action::DecrementTtl => f.write_str("dec_ttl"),
            Action::SetTtl(ttl) => write!(f, "mod_nw_ttl:{ttl}"),
            Action::SetField { field, value: bits } => {
                write!(f, "set_field:{}->{}", value(*field, *bits), field.spec().target)
            }
            Action::SetMasked { field, value: bits, mask } => {
                write!(
                    f,
                    "set_field:{}/{}->{}",
                    value(*field, *bits),
                    value(*field, *mask),
                    field.spec().target
                )
            }
            Action::Load { value, to } => write!(f, "load:{}->{to}", Hex(u128::from(*value))),
            Action::Move { from, to } => write!(f, "move:{from}->{to}"),
            Action::Resubmit { port: None, table } => write!(f, "resubmit(,{table})"),
            Action::Resubmit { port: Some(port), table } => write!(f, "resubmit({port},{table})"),
            Action::Conjunction { id, clause, clauses } => {
                write!(f, "conjunction({id},{}/{clauses})", u16::from(*clause) + 1)
            }
            Action::Clone(actions) => {
                f.write_str("clone(")?;
                separated(f, actions)?;
                f.write_str(")")
            }
            Action::Multipath(multipath) => write!(f, "{multipath}"),
            Action::Ct(ct) => write!(f, "{ct}"),
            Action::Nat(nat) => write!(f, "{nat}"),
            Action::Learn(learn) => write!(f, "{learn}"),
            Action::Other { kind, body } => {
                write!(f, "action({kind:#06x}")?;
                body.iter().try_for_each(|byte| write!(f, " {byte:02x}"))?;
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for Multipath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = match self.fields {
            HashFields::EthSrc => "eth_src",
            HashFields::SymmetricL4 => "symmetric_l4",
            HashFields::SymmetricL3L4 => "symmetric_l3l4",
            HashFields::SymmetricL3L4Udp => "symmetric_l3l4+udp",
            HashFields::IpSrc => "nw_src",
            HashFields::IpDst => "nw_dst",
            HashFields::SymmetricL3 => "symmetric_l3",
        };
        let algorithm = match self.algorithm {
            LinkAlgorithm::Modulo => "modulo_n",
            LinkAlgorithm::Threshold => "hash_threshold",
            LinkAlgorithm::Rendezvous => "hrw",
            LinkAlgorithm::Iterative => "iter_hash",
        };
        let Multipath { basis, max_link, arg, to, .. } = self;
        write!(f, "multipath({fields},{basis},{algorithm},{},{arg},{to})", u32::from(*max_link) + 1)
    }
}

impl fmt::Display for Ct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = vec![];
        if self.commit {
            parts.push("commit".to_owned());
        }
        if self.force {
            parts.push("force".to_owned());
        }
        parts.extend(self.table.map(|table| format!("table={table}")));
        match self.zone {
            Zone::Number(0) => {}
            Zone::Number(zone) => parts.push(format!("zone={zone}")),
            Zone::From(slice) => parts.push(format!("zone={slice}")),
        }
        let (nat, rest) = match self.exec.split_first() {
            Some((nat @ Action::Nat(_), rest)) => (Some(nat), rest),
            _ => (None, self.exec.as_slice()),
        };
        parts.extend(nat.map(ToString::to_string));
        if !rest.is_empty() {
            let list: Vec<_> = rest.iter().map(ToString::to_string).collect();
            parts.push(format!("exec({})", list.join(",")));
        }
        match self.alg {
            0 => {}
            21 => parts.push("alg=ftp".into()),
            69 => parts.push("alg=tftp".into()),
            port => parts.push(format!("alg={port}")),
        }
        if parts.is_empty() {
            return f.write_str("ct");
        }
        f.write_str("ct(")?;
        separated(f, parts)?;
        f.write_str(")")
    }
}

impl fmt::Display for Nat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(kind) = self.kind else { return f.write_str("nat") };
        let mut target = match kind {
            NatKind::Source => "src".to_owned(),
            NatKind::Destination => "dst".to_owned(),
        };
        let v6_with_ports = self.ports.is_some();
        let bracket = |text: String| if v6_with_ports { format!("[{text}]") } else { text };
        if let Some(addresses) = self.addresses {
            target += "=";
            target += &match addresses {
                NatRange::V4(first, None) => first.to_string(),
                NatRange::V4(first, Some(last)) => format!("{first}-{last}"),
                NatRange::V6(first, None) => bracket(first.to_string()),
                NatRange::V6(first, Some(last)) => {
                    format!("{}-{}", bracket(first.to_string()), bracket(last.to_string()))
                }
            };
            target += &match self.ports {
                None => String::new(),
                Some((first, None)) => format!(":{first}"),
                Some((first, Some(last))) => format!(":{first}-{last}"),
            };
        }
        let flags = [(self.persistent, "persistent"), (self.hash, "hash"), (self.random, "random")];
        let flags = flags.into_iter().filter(|(set, _)| *set).map(|(_, name)| name.to_owned());
        f.write_str("nat(")?;
        separated(f, std::iter::once(target).chain(flags))?;
        f.write_str(")")
    }
}

fn constant(bytes: &[u8]) -> Hex {
    Hex(bytes.iter().fold(0, |acc: u128, byte| acc << 8 | u128::from(*byte)))
}

impl fmt::Display for LearnSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LearnSpec::MatchField { from, to } if from == to => write!(f, "{to}"),
            LearnSpec::MatchField { from, to } => write!(f, "{to}={from}"),
            LearnSpec::MatchValue { value, to } if *to == Slice::whole(to.field) => {
                write!(f, "{}={}", to.field.spec().target, constant(value))
            }
            LearnSpec::MatchValue { value, to } => write!(f, "{to}={}", constant(value)),
            LearnSpec::LoadField { from, to } => write!(f, "load:{from}->{to}"),
            LearnSpec::LoadValue { value, to } => write!(f, "load:{}->{to}", constant(value)),
            LearnSpec::Output { from } => write!(f, "output:{from}"),
        }
    }
}

impl fmt::Display for Learn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "learn(table={}", self.table)?;
        let timeouts = [
            ("idle_timeout", self.idle_timeout),
            ("hard_timeout", self.hard_timeout),
            ("fin_idle_timeout", self.fin_idle_timeout),
            ("fin_hard_timeout", self.fin_hard_timeout),
        ];
        for (name, seconds) in timeouts.into_iter().filter(|(_, seconds)| *seconds != 0) {
            write!(f, ",{name}={seconds}")?;
        }
        write!(f, ",priority={}", self.priority)?;
        if self.cookie != 0 {
            write!(f, ",cookie={:#x}", self.cookie)?;
        }
        if self.limit != 0 {
            write!(f, ",limit={}", self.limit)?;
        }
        self.specs.iter().try_for_each(|spec| write!(f, ",{spec}"))?;
        f.write_str(")")
    }
}
