//! The whole state in memory, and the effect of each request on it.

use super::history::{History, Version};
use super::leases::Leases;
use super::refusal::Refusal;
use super::span::Span;
use bytes::Bytes;
use etcd_client::proto::{
    PbCompare, PbDeleteRequest, PbDeleteResponse, PbKeyValue, PbPutRequest, PbPutResponse, PbRangeRequest,
    PbRangeResponse, PbResponseHeader, PbResponseOp, PbTargetUnion, PbTxnOpRequest, PbTxnOpResponse,
    PbTxnRequest, PbTxnRequestOp, PbTxnResponse,
};
use etcd_client::{CompareOp, SortOrder, SortTarget};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug)]
pub(super) struct State {
    pub(super) history: History,
    pub(super) leases: Leases,
    /// The last revision that is on disk. Later ones are visible to the writer only.
    pub(super) durable: i64,
}

/// Changes of a batch of requests, for the file.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) versions: Vec<Arc<Version>>,
    pub(super) dropped: Vec<(i64, u32)>,
    pub(super) granted: Vec<(i64, i64)>,
    pub(super) revoked: Vec<i64>,
    pub(super) compacted: bool,
}

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.versions.is_empty() && self.granted.is_empty() && self.revoked.is_empty() && !self.compacted
    }
}

/// Later than every revision.
const LATEST: i64 = i64::MAX;

impl State {
    /// Reads a range at the last durable revision, or at an older one.
    pub(super) fn read(&self, request: &PbRangeRequest) -> Result<PbRangeResponse, Refusal> {
        self.check_revision(request.revision, self.durable)?;
        let at = if request.revision > 0 { request.revision } else { self.durable };
        Ok(range(&self.history, request, at))
    }

    fn check_revision(&self, asked: i64, newest: i64) -> Result<(), Refusal> {
        if asked > newest {
            Err(Refusal::FutureRevision)
        } else if asked > 0 && asked < self.history.compacted() {
            Err(Refusal::Compacted)
        } else {
            Ok(())
        }
    }

    /// Begins the changes of one request, all at one new revision.
    pub(super) fn step<'a>(&'a mut self, changes: &'a mut Changes) -> Step<'a> {
        let revision = self.history.revision() + 1;
        Step { state: self, changes, revision, sub: 0 }
    }

    pub(super) fn grant(
        &mut self,
        changes: &mut Changes,
        (id, ttl): (i64, i64),
        now: Instant,
    ) -> Result<(i64, i64), Refusal> {
        let granted = self.leases.grant(id, ttl, now)?;
        changes.granted.push(granted);
        Ok(granted)
    }

    /// Revokes a lease and deletes its keys, in one revision.
    pub(super) fn revoke(&mut self, changes: &mut Changes, id: i64) -> Result<(), Refusal> {
        let keys = self.leases.remove(id).ok_or(Refusal::LeaseNotFound)?;
        changes.revoked.push(id);
        let mut step = self.step(changes);
        for key in keys {
            step.remove(key);
        }
        Ok(())
    }

    /// Compacts at a client's request. A revision that is not durable is a future one to clients.
    pub(super) fn compact(&mut self, changes: &mut Changes, to: i64) -> Result<(), Refusal> {
        if to <= self.history.compacted() {
            return Err(Refusal::Compacted);
        }
        if to > self.durable {
            return Err(Refusal::FutureRevision);
        }
        changes.dropped.extend(self.history.compact(to));
        changes.compacted = true;
        Ok(())
    }
}

pub(super) struct Step<'a> {
    state: &'a mut State,
    changes: &'a mut Changes,
    /// Revision of the changes, if there are any.
    revision: i64,
    sub: u32,
}

impl Step<'_> {
    pub(super) fn put(&mut self, request: PbPutRequest) -> Result<PbPutResponse, Refusal> {
        self.check_put(&request)?;
        Ok(self.do_put(request))
    }

    pub(super) fn delete(&mut self, request: &PbDeleteRequest) -> PbDeleteResponse {
        let span = Span::new(&request.key, &request.range_end);
        let keys: Vec<Arc<Version>> = self.state.history.range(&span, LATEST).cloned().collect();
        for version in &keys {
            self.remove(version.key.clone());
        }
        PbDeleteResponse {
            header: Some(self.header()),
            deleted: i64::try_from(keys.len()).unwrap_or(i64::MAX),
            prev_kvs: if request.prev_kv { keys.iter().map(|v| wire(v)).collect() } else { Vec::new() },
        }
    }

    /// Applies a transaction: all of it, or nothing if a part is invalid.
    pub(super) fn txn(&mut self, request: PbTxnRequest) -> Result<PbTxnResponse, Refusal> {
        let taken = self.resolve(request);
        self.check(&taken)?;
        Ok(self.perform(taken))
    }

    fn header(&self) -> PbResponseHeader {
        let revision = if self.sub > 0 { self.revision } else { self.revision - 1 };
        PbResponseHeader { revision, ..PbResponseHeader::default() }
    }

    fn check_put(&self, request: &PbPutRequest) -> Result<(), Refusal> {
        let state = &self.state;
        let exists = || state.history.at(&request.key, LATEST).is_some();
        if (request.ignore_value || request.ignore_lease) && !exists() {
            return Err(Refusal::KeyNotFound);
        }
        if request.lease != 0 && !state.leases.exists(request.lease) {
            return Err(Refusal::LeaseNotFound);
        }
        Ok(())
    }

    fn do_put(&mut self, request: PbPutRequest) -> PbPutResponse {
        let before = self.state.history.at(&request.key, LATEST).cloned();
        let old = before.as_deref();
        let version = Version {
            key: old.map_or_else(|| Bytes::from(request.key), |v| v.key.clone()),
            value: match old {
                Some(v) if request.ignore_value => v.value.clone(),
                _ => Bytes::from(request.value),
            },
            create_revision: old.map_or(self.revision, |v| v.create_revision),
            mod_revision: self.revision,
            sub: self.sub,
            version: old.map_or(1, |v| v.version + 1),
            lease: if request.ignore_lease { old.map_or(0, |v| v.lease) } else { request.lease },
        };
        self.append(version);
        let prev_kv = before.filter(|_| request.prev_kv).map(|v| wire(&v));
        PbPutResponse { header: Some(self.header()), prev_kv }
    }

    /// A key that does not exist is left so.
    fn remove(&mut self, key: Bytes) {
        if self.state.history.at(&key, LATEST).is_some() {
            self.append(Version::deletion(key, self.revision, self.sub));
        }
    }

    fn append(&mut self, version: Version) {
        let version = Arc::new(version);
        let before = self.state.history.append(version.clone());
        self.state.leases.moved(&version.key, before.map_or(0, |v| v.lease), version.lease);
        self.changes.versions.push(version);
        self.sub += 1;
    }

    /// All compares see the state before the transaction, those of inner transactions too.
    fn resolve(&self, request: PbTxnRequest) -> Taken {
        let succeeded = request.compare.iter().all(|compare| holds(&self.state.history, compare));
        let ops = if succeeded { request.success } else { request.failure };
        Taken { succeeded, ops: ops.into_iter().map(|op| self.resolve_op(op)).collect() }
    }

    fn resolve_op(&self, op: PbTxnRequestOp) -> TakenOp {
        match op.request {
            Some(PbTxnOpRequest::RequestRange(r)) => TakenOp::Range(r),
            Some(PbTxnOpRequest::RequestPut(r)) => TakenOp::Put(r),
            Some(PbTxnOpRequest::RequestDeleteRange(r)) => TakenOp::Delete(r),
            Some(PbTxnOpRequest::RequestTxn(r)) => TakenOp::Txn(self.resolve(r)),
            // Refused before it came here.
            None => TakenOp::Txn(Taken { succeeded: false, ops: Vec::new() }),
        }
    }

    fn check(&self, taken: &Taken) -> Result<(), Refusal> {
        taken.ops.iter().try_for_each(|op| match op {
            TakenOp::Range(r) => self.state.check_revision(r.revision, self.state.history.revision()),
            TakenOp::Put(r) => self.check_put(r),
            TakenOp::Delete(_) => Ok(()),
            TakenOp::Txn(inner) => self.check(inner),
        })
    }

    fn perform(&mut self, taken: Taken) -> PbTxnResponse {
        let responses = taken.ops.into_iter().map(|op| {
            let response = match op {
                TakenOp::Range(r) => {
                    let at = if r.revision > 0 { r.revision } else { LATEST };
                    let mut response = range(&self.state.history, &r, at);
                    response.header = Some(self.header());
                    PbTxnOpResponse::ResponseRange(response)
                }
                TakenOp::Put(r) => PbTxnOpResponse::ResponsePut(self.do_put(r)),
                TakenOp::Delete(r) => PbTxnOpResponse::ResponseDeleteRange(self.delete(&r)),
                TakenOp::Txn(inner) => PbTxnOpResponse::ResponseTxn(self.perform(inner)),
            };
            PbResponseOp { response: Some(response) }
        });
        let responses = responses.collect();
        PbTxnResponse { header: Some(self.header()), succeeded: taken.succeeded, responses }
    }
}

/// A transaction with its compares decided: the operations of the branches that are taken.
struct Taken {
    succeeded: bool,
    ops: Vec<TakenOp>,
}

enum TakenOp {
    Range(PbRangeRequest),
    Put(PbPutRequest),
    Delete(PbDeleteRequest),
    Txn(Taken),
}

fn range(history: &History, request: &PbRangeRequest, at: i64) -> PbRangeResponse {
    let span = Span::new(&request.key, &request.range_end);
    let mut response = PbRangeResponse::default();
    if request.count_only {
        response.count = i64::try_from(history.range(&span, at).count()).unwrap_or(i64::MAX);
        return response;
    }
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let mut found: Vec<&Arc<Version>> = history.range(&span, at).collect();
    response.count = i64::try_from(found.len()).unwrap_or(i64::MAX);
    found.retain(|v| {
        within(v.mod_revision, request.min_mod_revision, request.max_mod_revision)
            && within(v.create_revision, request.min_create_revision, request.max_create_revision)
    });
    sort(&mut found, request);
    response.more = found.len() > limit;
    found.truncate(limit);
    response.kvs = found.into_iter().map(|v| wire(v)).collect();
    if request.keys_only {
        response.kvs.iter_mut().for_each(|kv| kv.value.clear());
    }
    response
}

/// 0 means no bound.
fn within(revision: i64, min: i64, max: i64) -> bool {
    (min <= 0 || revision >= min) && (max <= 0 || revision <= max)
}

fn sort(found: &mut [&Arc<Version>], request: &PbRangeRequest) {
    let target = SortTarget::try_from(request.sort_target).unwrap_or(SortTarget::Key);
    let order = SortOrder::try_from(request.sort_order).unwrap_or(SortOrder::None);
    let by = |a: &Version, b: &Version| match target {
        SortTarget::Key => a.key.cmp(&b.key),
        SortTarget::Version => a.version.cmp(&b.version),
        SortTarget::Create => a.create_revision.cmp(&b.create_revision),
        SortTarget::Mod => a.mod_revision.cmp(&b.mod_revision),
        SortTarget::Value => a.value.cmp(&b.value),
    };
    match order {
        SortOrder::None if target == SortTarget::Key => {}
        SortOrder::None | SortOrder::Ascend => found.sort_by(|a, b| by(a, b)),
        SortOrder::Descend => found.sort_by(|a, b| by(b, a)),
    }
}

/// Decides a compare. For a range: whether it holds for every existing key.
fn holds(history: &History, compare: &PbCompare) -> bool {
    let span = Span::new(&compare.key, &compare.range_end);
    let mut found = history.range(&span, LATEST).peekable();
    if found.peek().is_none() {
        // An absent key has no value, not an empty one; its revisions are 0.
        return !is_value(compare) && holds_for(compare, &Version::deletion(Bytes::new(), 0, 0));
    }
    found.all(|version| holds_for(compare, version))
}

fn is_value(compare: &PbCompare) -> bool {
    compare.target == etcd_client::proto::PbCompareTarget::Value as i32
}

fn holds_for(compare: &PbCompare, version: &Version) -> bool {
    use etcd_client::proto::PbCompareTarget as Target;
    let number = |mine: i64, theirs: Option<i64>| mine.cmp(&theirs.unwrap_or(0));
    let wanted = compare.target_union.as_ref();
    let order = match Target::try_from(compare.target) {
        Ok(Target::Version) => number(version.version, wanted.and_then(|w| pick(w, Target::Version))),
        Ok(Target::Create) => number(version.create_revision, wanted.and_then(|w| pick(w, Target::Create))),
        Ok(Target::Mod) => number(version.mod_revision, wanted.and_then(|w| pick(w, Target::Mod))),
        Ok(Target::Lease) => number(version.lease, wanted.and_then(|w| pick(w, Target::Lease))),
        Ok(Target::Value) => {
            let value: &[u8] = if let Some(PbTargetUnion::Value(value)) = wanted { value } else { &[] };
            version.value[..].cmp(value)
        }
        Err(_) => return false,
    };
    match CompareOp::try_from(compare.result) {
        Ok(CompareOp::Equal) => order == Ordering::Equal,
        Ok(CompareOp::NotEqual) => order != Ordering::Equal,
        Ok(CompareOp::Greater) => order == Ordering::Greater,
        Ok(CompareOp::Less) => order == Ordering::Less,
        Err(_) => false,
    }
}

/// The number of the target; one of another target does not count.
fn pick(wanted: &PbTargetUnion, target: etcd_client::proto::PbCompareTarget) -> Option<i64> {
    use etcd_client::proto::PbCompareTarget as Target;
    match (wanted, target) {
        (PbTargetUnion::Version(n), Target::Version)
        | (PbTargetUnion::CreateRevision(n), Target::Create)
        | (PbTargetUnion::ModRevision(n), Target::Mod)
        | (PbTargetUnion::Lease(n), Target::Lease) => Some(*n),
        _ => None,
    }
}

pub(super) fn wire(version: &Version) -> PbKeyValue {
    PbKeyValue {
        key: version.key.to_vec(),
        value: version.value.to_vec(),
        create_revision: version.create_revision,
        mod_revision: version.mod_revision,
        version: version.version,
        lease: version.lease,
    }
}
