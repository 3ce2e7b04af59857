//! Validation of requests that needs no state. The order of the checks is etcd's.

use super::refusal::Refusal;
use super::span::Span;
use crate::MAX_TXN_OPS;
use bytes::Bytes;
use etcd_client::proto::{
    PbDeleteRequest, PbPutRequest, PbRangeRequest, PbTxnOpRequest, PbTxnRequest, PbTxnRequestOp,
};
use etcd_client::{SortOrder, SortTarget};
use std::collections::HashSet;

/// etcd's default `--max-request-bytes`.
pub(super) const MAX_REQUEST: usize = 3 << 19;

pub(super) fn range(request: &PbRangeRequest) -> Result<(), Refusal> {
    if request.key.is_empty() {
        return Err(Refusal::EmptyKey);
    }
    if SortOrder::try_from(request.sort_order).is_err() || SortTarget::try_from(request.sort_target).is_err()
    {
        return Err(Refusal::InvalidSort);
    }
    Ok(())
}

pub(super) fn put(request: &PbPutRequest) -> Result<(), Refusal> {
    if request.key.is_empty() {
        return Err(Refusal::EmptyKey);
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Refusal::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Refusal::LeaseProvided);
    }
    fits(request.key.len() + request.value.len())
}

pub(super) fn delete(request: &PbDeleteRequest) -> Result<(), Refusal> {
    if request.key.is_empty() { Err(Refusal::EmptyKey) } else { Ok(()) }
}

pub(super) fn txn(request: &PbTxnRequest) -> Result<(), Refusal> {
    ops(request, MAX_TXN_OPS)?;
    writes(&request.success)?;
    writes(&request.failure)?;
    fits(size(request))
}

fn fits(bytes: usize) -> Result<(), Refusal> {
    if bytes > MAX_REQUEST { Err(Refusal::TooLarge) } else { Ok(()) }
}

/// Bytes of keys and values; the overhead of the encoding is small beside them.
fn size(request: &PbTxnRequest) -> usize {
    let ops = request.success.iter().chain(&request.failure).filter_map(|op| op.request.as_ref());
    let ops = ops.map(|op| match op {
        PbTxnOpRequest::RequestRange(r) => r.key.len() + r.range_end.len(),
        PbTxnOpRequest::RequestPut(r) => r.key.len() + r.value.len(),
        PbTxnOpRequest::RequestDeleteRange(r) => r.key.len() + r.range_end.len(),
        PbTxnOpRequest::RequestTxn(r) => size(r),
    });
    ops.sum::<usize>() + request.compare.iter().map(|c| c.key.len()).sum::<usize>()
}

/// A nested transaction may use what the outer one leaves of `limit`.
fn ops(request: &PbTxnRequest, limit: usize) -> Result<(), Refusal> {
    let most = request.compare.len().max(request.success.len()).max(request.failure.len());
    let left = limit.checked_sub(most).ok_or(Refusal::TooManyOps)?;
    if request.compare.iter().any(|c| c.key.is_empty()) {
        return Err(Refusal::EmptyKey);
    }
    request.success.iter().chain(&request.failure).try_for_each(|op| match &op.request {
        Some(PbTxnOpRequest::RequestRange(r)) => range(r),
        Some(PbTxnOpRequest::RequestPut(r)) => put(r),
        Some(PbTxnOpRequest::RequestDeleteRange(r)) => delete(r),
        Some(PbTxnOpRequest::RequestTxn(r)) => ops(r, left),
        None => Err(Refusal::KeyNotFound),
    })
}

#[derive(Default)]
struct Writes {
    puts: HashSet<Bytes>,
    deletes: Vec<Span>,
}

impl Writes {
    fn put(&mut self, key: &Bytes) -> Result<(), Refusal> {
        let deleted = self.deletes.iter().any(|span| span.contains(key));
        if deleted || !self.puts.insert(key.clone()) { Err(Refusal::DuplicateKey) } else { Ok(()) }
    }
}

/// One revision changes a key once: a key is not put twice, nor put and deleted.
fn writes(ops: &[PbTxnRequestOp]) -> Result<Writes, Refusal> {
    let mut all = Writes::default();
    for op in ops {
        if let Some(PbTxnOpRequest::RequestDeleteRange(r)) = &op.request {
            all.deletes.push(Span::new(&r.key, &r.range_end));
        }
    }
    for op in ops {
        if let Some(PbTxnOpRequest::RequestTxn(r)) = &op.request {
            let (then, otherwise) = (writes(&r.success)?, writes(&r.failure)?);
            for key in &then.puts {
                all.put(key)?;
            }
            // Both branches may put the same key, since only one of them is taken.
            for key in otherwise.puts.difference(&then.puts) {
                all.put(key)?;
            }
            all.deletes.extend(then.deletes.into_iter().chain(otherwise.deletes));
        }
    }
    for op in ops {
        if let Some(PbTxnOpRequest::RequestPut(r)) = &op.request {
            all.put(&Bytes::copy_from_slice(&r.key))?;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op_put(key: &str) -> PbTxnRequestOp {
        let put = PbPutRequest { key: key.into(), ..PbPutRequest::default() };
        PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestPut(put)) }
    }

    fn op_delete(key: &str, end: &str) -> PbTxnRequestOp {
        let delete = PbDeleteRequest { key: key.into(), range_end: end.into(), prev_kv: false };
        PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestDeleteRange(delete)) }
    }

    fn branches(success: Vec<PbTxnRequestOp>, failure: Vec<PbTxnRequestOp>) -> PbTxnRequest {
        PbTxnRequest { compare: vec![], success, failure }
    }

    fn op_txn(success: Vec<PbTxnRequestOp>, failure: Vec<PbTxnRequestOp>) -> PbTxnRequestOp {
        PbTxnRequestOp { request: Some(PbTxnOpRequest::RequestTxn(branches(success, failure))) }
    }

    #[test]
    fn a_key_is_written_once() {
        let dup = Err(Refusal::DuplicateKey);
        assert_eq!(txn(&branches(vec![op_put("a"), op_put("b")], vec![op_put("a")])), Ok(()));
        assert_eq!(txn(&branches(vec![op_put("a"), op_put("a")], vec![])), dup);
        assert_eq!(txn(&branches(vec![op_put("b"), op_delete("a", "c")], vec![])), dup);
        assert_eq!(txn(&branches(vec![op_delete("a", "c"), op_delete("b", "d")], vec![])), Ok(()));
        let either = op_txn(vec![op_put("a")], vec![op_put("a")]);
        assert_eq!(txn(&branches(vec![either.clone()], vec![])), Ok(()));
        assert_eq!(txn(&branches(vec![either.clone(), op_put("a")], vec![])), dup);
        assert_eq!(txn(&branches(vec![either.clone(), either], vec![])), dup);
    }

    #[test]
    fn sizes_are_bounded() {
        let many = |n: usize| (0..n).map(|i| op_put(&i.to_string())).collect::<Vec<_>>();
        assert_eq!(txn(&branches(many(MAX_TXN_OPS), vec![])), Ok(()));
        assert_eq!(txn(&branches(many(MAX_TXN_OPS + 1), vec![])), Err(Refusal::TooManyOps));
        assert_eq!(txn(&branches(vec![op_txn(many(127), vec![])], vec![])), Ok(()));
        assert_eq!(txn(&branches(vec![op_txn(many(128), vec![])], vec![])), Err(Refusal::TooManyOps));
        let large = PbPutRequest { key: "a".into(), value: vec![0; MAX_REQUEST], ..PbPutRequest::default() };
        assert_eq!(put(&large), Err(Refusal::TooLarge));
        assert_eq!(txn(&branches(vec![PbTxnRequestOp { request: None }], vec![])), Err(Refusal::KeyNotFound));
    }
}
