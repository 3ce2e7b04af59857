//! `ovs-ofctl` syntax of flows and groups.

mod action;
mod matching;

use std::fmt;

use crate::action::Instructions;
use crate::flow::{Flow, FlowCommand, FlowMod, FlowStats};
use crate::group::{Bucket, Group, GroupCommand, GroupKind, GroupMod};
use crate::meter::{DropBand, Meter, MeterCommand, MeterMod, MeterUnit};
use crate::port::Port;

/// Formats like `%#x` of C: zero has no prefix.
pub(crate) struct Hex(pub(crate) u128);

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.write_str("0") } else { write!(f, "{:#x}", self.0) }
    }
}

fn separated<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: impl IntoIterator<Item = T>) -> fmt::Result {
    for (n, item) in items.into_iter().enumerate() {
        if n > 0 {
            f.write_str(",")?;
        }
        write!(f, "{item}")?;
    }
    Ok(())
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = vec![];
        parts.extend(self.meter.map(|meter| format!("meter:{meter}")));
        parts.extend(self.apply.iter().map(ToString::to_string));
        if self.clear {
            parts.push("clear_actions".into());
        }
        if !self.write.is_empty() {
            let list: Vec<_> = self.write.iter().map(ToString::to_string).collect();
            parts.push(format!("write_actions({})", list.join(",")));
        }
        if let Some((value, mask)) = self.metadata {
            let mask = if mask == u64::MAX { String::new() } else { format!("/{}", Hex(mask.into())) };
            parts.push(format!("write_metadata:{}{mask}", Hex(value.into())));
        }
        parts.extend(self.other.iter().map(|(kind, _)| format!("instruction({kind:#06x})")));
        parts.extend(self.goto.map(|table| format!("goto_table:{table}")));
        if parts.is_empty() { f.write_str("drop") } else { separated(f, parts) }
    }
}

/// The alternate form `{:#}` includes the cookie.
impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            write!(f, "cookie={:#x}, ", self.cookie)?;
        }
        write!(f, "table={}, ", self.table)?;
        if self.idle_timeout != 0 {
            write!(f, "idle_timeout={}, ", self.idle_timeout)?;
        }
        if self.hard_timeout != 0 {
            write!(f, "hard_timeout={}, ", self.hard_timeout)?;
        }
        write!(f, "priority={}", self.priority)?;
        if !self.matching.is_empty() {
            write!(f, ",{}", self.matching)?;
        }
        write!(f, " actions={}", self.instructions)
    }
}

impl fmt::Display for FlowStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n_packets={}, n_bytes={}, {}", self.packets, self.bytes, self.flow)
    }
}

impl fmt::Display for FlowMod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.command {
            FlowCommand::Add => "add flow ",
            FlowCommand::Modify => "modify flows ",
            FlowCommand::ModifyStrict => "modify flow ",
            FlowCommand::Delete => "delete flows ",
            FlowCommand::DeleteStrict => "delete flow ",
        })?;
        self.flow.fmt(f)
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bucket=")?;
        if self.weight > 1 {
            write!(f, "weight:{},", self.weight)?;
        }
        if self.watch_port != Port::ANY {
            write!(f, "watch_port:{},", self.watch_port)?;
        }
        if self.watch_group != crate::flow::ANY_GROUP {
            write!(f, "watch_group:{},", self.watch_group)?;
        }
        f.write_str("actions=")?;
        if self.actions.is_empty() { f.write_str("drop") } else { separated(f, &self.actions) }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            GroupKind::All => "all",
            GroupKind::Select => "select",
            GroupKind::Indirect => "indirect",
            GroupKind::FastFailover => "ff",
        };
        write!(f, "group_id={},type={kind}", self.id)?;
        self.buckets.iter().try_for_each(|bucket| write!(f, ",{bucket}"))
    }
}

impl fmt::Display for GroupMod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command {
            GroupCommand::Add => write!(f, "add group {}", self.group),
            GroupCommand::Modify => write!(f, "modify group {}", self.group),
            GroupCommand::AddOrModify => write!(f, "add or modify group {}", self.group),
            GroupCommand::Delete => write!(f, "delete group {}", self.group.id),
        }
    }
}

impl fmt::Display for DropBand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "type=drop rate={}", self.rate)?;
        if self.burst == 0 { Ok(()) } else { write!(f, " burst_size={}", self.burst) }
    }
}

impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            MeterUnit::Kilobits => "kbps",
            MeterUnit::Packets => "pktps",
        };
        let burst = if self.bands.iter().any(|band| band.burst != 0) { " burst" } else { "" };
        write!(f, "meter={} {unit}{burst} bands=", self.id)?;
        self.bands.iter().try_for_each(|band| write!(f, "\n{band}"))
    }
}

impl fmt::Display for MeterMod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command {
            MeterCommand::Add => write!(f, "add {}", self.meter),
            MeterCommand::Modify => write!(f, "modify {}", self.meter),
            MeterCommand::Delete => write!(f, "delete meter={}", self.meter.id),
        }
    }
}
