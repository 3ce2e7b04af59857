//! Groups: one action that stands for several lists of actions.

use bytes::BufMut;

use crate::action::{Action, decode_list, encode_list};
use crate::flow::ANY_GROUP;
use crate::port::Port;
use crate::wire::{DecodeError, Reader};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// Every bucket gets a copy.
    All,
    /// One bucket, chosen by hash and weight.
    Select,
    /// The only bucket.
    Indirect,
    /// The first bucket whose watched port is up.
    FastFailover,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// For select groups.
    pub weight: u16,
    pub watch_port: Port,
    pub watch_group: u32,
    pub actions: Vec<Action>,
}

impl Bucket {
    pub fn new(actions: impl IntoIterator<Item = Action>) -> Bucket {
        Bucket {
            weight: 0,
            watch_port: Port::ANY,
            watch_group: ANY_GROUP,
            actions: actions.into_iter().collect(),
        }
    }

    #[must_use]
    pub fn weight(mut self, weight: u16) -> Bucket {
        self.weight = weight;
        self
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u16(0);
        out.put_u16(self.weight);
        out.put_u32(self.watch_port.0);
        out.put_u32(self.watch_group);
        out.put_bytes(0, 4);
        encode_list(&self.actions, out);
        crate::wire::patch_length(out, start, 0);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Bucket, DecodeError> {
        let length = usize::from(r.u16()?);
        let body = length.checked_sub(2).ok_or(DecodeError::Length { what: "bucket", length })?;
        let mut r = r.take(body, "bucket")?;
        let (weight, watch_port, watch_group) = (r.u16()?, Port(r.u32()?), r.u32()?);
        r.skip(4)?;
        Ok(Bucket { weight, watch_port, watch_group, actions: decode_list(r)? })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    pub id: u32,
    pub kind: GroupKind,
    pub buckets: Vec<Bucket>,
}

impl Group {
    fn encode_kind(&self, out: &mut Vec<u8>) {
        out.put_u8(match self.kind {
            GroupKind::All => 0,
            GroupKind::Select => 1,
            GroupKind::Indirect => 2,
            GroupKind::FastFailover => 3,
        });
        out.put_u8(0);
        out.put_u32(self.id);
        for bucket in &self.buckets {
            bucket.encode(out);
        }
    }

    fn decode_kind(r: &mut Reader<'_>) -> Result<Group, DecodeError> {
        let kind = match r.u8()? {
            0 => GroupKind::All,
            1 => GroupKind::Select,
            2 => GroupKind::Indirect,
            3 => GroupKind::FastFailover,
            other => return Err(DecodeError::Value { what: "group type", value: other.into() }),
        };
        r.skip(1)?;
        let id = r.u32()?;
        let mut buckets = vec![];
        while !r.is_empty() {
            buckets.push(Bucket::decode(r)?);
        }
        Ok(Group { id, kind, buckets })
    }

    /// As group descriptions have it.
    pub(crate) fn encode_desc(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u16(0);
        self.encode_kind(out);
        crate::wire::patch_length(out, start, 0);
    }

    pub(crate) fn decode_desc(r: &mut Reader<'_>) -> Result<Group, DecodeError> {
        let length = usize::from(r.u16()?);
        let body = length.checked_sub(2).ok_or(DecodeError::Length { what: "group", length })?;
        Group::decode_kind(&mut r.take(body, "group")?)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupCommand {
    Add,
    Modify,
    /// Deletes the group and every flow that sends to it.
    Delete,
    /// Open vSwitch's: modifies, or adds if there is none.
    AddOrModify,
}

/// A change of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMod {
    pub command: GroupCommand,
    pub group: Group,
}

impl GroupMod {
    pub fn add(group: Group) -> GroupMod {
        GroupMod { command: GroupCommand::Add, group }
    }

    /// Makes the group be this, whether it was there or not.
    pub fn put(group: Group) -> GroupMod {
        GroupMod { command: GroupCommand::AddOrModify, group }
    }

    pub fn delete(id: u32) -> GroupMod {
        GroupMod { command: GroupCommand::Delete, group: Group { id, kind: GroupKind::All, buckets: vec![] } }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(match self.command {
            GroupCommand::Add => 0,
            GroupCommand::Modify => 1,
            GroupCommand::Delete => 2,
            GroupCommand::AddOrModify => 0x8000,
        });
        self.group.encode_kind(out);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<GroupMod, DecodeError> {
        let command = match r.u16()? {
            0 => GroupCommand::Add,
            1 => GroupCommand::Modify,
            2 => GroupCommand::Delete,
            0x8000 => GroupCommand::AddOrModify,
            other => return Err(DecodeError::Value { what: "group-mod command", value: other.into() }),
        };
        Ok(GroupMod { command, group: Group::decode_kind(r)? })
    }
}
