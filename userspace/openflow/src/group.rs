//! Group entries: sets of action buckets (OpenFlow 1.3.5 sections 5.6 and 7.3.4.2).

use bytes::BufMut;

use crate::action::{Action, check_list, decode_list, encode_list, group_ids};
use crate::flow::ANY_GROUP;
use crate::port::Port;
use crate::wire::{DecodeError, EncodeError, Reader};

/// Length of `ofp_group_desc` without buckets, in bytes.
pub(crate) const DESC_FIXED: usize = 8;

/// Type of a group (`ofp_group_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// Executes every bucket on a copy of the packet.
    All,
    /// Executes one bucket, chosen by the switch in proportion to the weights.
    Select,
    /// Executes the only bucket.
    Indirect,
    /// Executes the first live bucket.
    FastFailover,
}

/// Bucket of a group (`ofp_bucket`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Relative weight in a select group; 0 in groups of other types.
    pub weight: u16,
    /// Port whose state decides whether the bucket is live, or [`Port::ANY`]. Fast failover groups only.
    pub watch_port: Port,
    /// Group whose state decides whether the bucket is live, or [`ANY_GROUP`]. Fast failover groups only.
    pub watch_group: u32,
    /// Actions of the bucket's action set.
    pub actions: Vec<Action>,
}

impl Bucket {
    /// Returns a bucket of weight 0 that watches neither port nor group.
    pub fn new(actions: impl IntoIterator<Item = Action>) -> Bucket {
        Bucket {
            weight: 0,
            watch_port: Port::ANY,
            watch_group: ANY_GROUP,
            actions: actions.into_iter().collect(),
        }
    }

    /// Sets the weight.
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

/// Group entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// Group id, 0 to 0xffff_ff00.
    pub id: u32,
    /// Group type.
    pub kind: GroupKind,
    /// Buckets, in order.
    pub buckets: Vec<Bucket>,
}

impl Group {
    /// Checks the actions as [`Action::check`] does.
    ///
    /// # Errors
    ///
    /// As [`Action::check`].
    pub fn check(&self) -> Result<(), EncodeError> {
        self.buckets.iter().try_for_each(|bucket| check_list(&bucket.actions))
    }

    /// Ids of the groups that the buckets may send packets to: those of their group actions, and perhaps others, because a value
    /// can look like such an action.
    pub fn used_groups(&self) -> Vec<u32> {
        let mut bytes = vec![];
        self.buckets.iter().for_each(|bucket| bucket.encode(&mut bytes));
        group_ids(&bytes)
    }

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

    /// Encodes the form of group descriptions (`ofp_group_desc`), which begins with a length.
    pub(crate) fn encode_desc(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u16(0);
        self.encode_kind(out);
        crate::wire::patch_length(out, start, 0);
    }

    /// Decodes the whole structure, as [`Reader::sized`] returns it.
    pub(crate) fn decode_desc(mut r: Reader<'_>) -> Result<Group, DecodeError> {
        r.skip(2)?;
        Group::decode_kind(&mut r)
    }
}

/// Command of a group modification (`ofp_group_mod_command`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupCommand {
    /// Adds a group. The switch rejects it if the id is in use.
    Add,
    /// Replaces the type and buckets of an existing group.
    Modify,
    /// Deletes the group and every flow that uses it.
    Delete,
    /// Adds or replaces a group (Open vSwitch extension `OFPGC11_ADD_OR_MOD`, 0x8000).
    AddOrModify,
}

/// Group modification message (`ofp_group_mod`, OpenFlow 1.3.5 section 7.3.4.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMod {
    /// Operation.
    pub command: GroupCommand,
    /// Group to write; for a delete only its id is used.
    pub group: Group,
}

impl GroupMod {
    /// Returns a message that adds `group`.
    pub fn add(group: Group) -> GroupMod {
        GroupMod { command: GroupCommand::Add, group }
    }

    /// Returns a message that adds `group` or replaces the one with the same id.
    pub fn add_or_modify(group: Group) -> GroupMod {
        GroupMod { command: GroupCommand::AddOrModify, group }
    }

    /// Returns a message that deletes the group `id` and every flow that uses it.
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
