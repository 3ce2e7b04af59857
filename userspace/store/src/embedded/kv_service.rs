//! `etcdserverpb.KV`.

use super::check;
use super::shared::Shared;
use super::writer::Command;
use etcd_client::proto::{
    PbCompactionRequest, PbCompactionResponse, PbDeleteRequest, PbDeleteResponse, PbKvService, PbPutRequest,
    PbPutResponse, PbRangeRequest, PbRangeResponse, PbRangeStreamResponse, PbTxnRequest, PbTxnResponse,
};
use futures::stream::Empty;
use tonic::{Request, Response, Status};

pub(super) struct KvService(pub(super) Shared);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl PbKvService for KvService {
    type RangeStreamStream = Empty<Result<PbRangeStreamResponse, Status>>;

    async fn range(&self, request: Request<PbRangeRequest>) -> Answer<PbRangeResponse> {
        let request = request.into_inner();
        check::range(&request)?;
        let (response, revision) = self.0.read(|state| (state.read(&request), state.durable));
        let mut response = response?;
        response.header = self.0.header(revision);
        Ok(Response::new(response))
    }

    async fn range_stream(&self, _: Request<PbRangeRequest>) -> Answer<Self::RangeStreamStream> {
        Err(Status::unimplemented("embedded store: no RangeStream, use Range with a limit"))
    }

    async fn put(&self, request: Request<PbPutRequest>) -> Answer<PbPutResponse> {
        let request = request.into_inner();
        check::put(&request)?;
        let mut response = self.0.ask(|reply| Command::Put(request, reply)).await?;
        response.header = self.0.complete(response.header.as_ref());
        Ok(Response::new(response))
    }

    async fn delete_range(&self, request: Request<PbDeleteRequest>) -> Answer<PbDeleteResponse> {
        let request = request.into_inner();
        check::delete(&request)?;
        let mut response = self.0.ask(|reply| Command::Delete(request, reply)).await?;
        response.header = self.0.complete(response.header.as_ref());
        Ok(Response::new(response))
    }

    async fn txn(&self, request: Request<PbTxnRequest>) -> Answer<PbTxnResponse> {
        let request = request.into_inner();
        check::txn(&request)?;
        let mut response = self.0.ask(|reply| Command::Txn(request, reply)).await?;
        response.header = self.0.complete(response.header.as_ref());
        Ok(Response::new(response))
    }

    async fn compact(&self, request: Request<PbCompactionRequest>) -> Answer<PbCompactionResponse> {
        let request = request.into_inner();
        let header = self.0.ask(|reply| Command::Compact(request, reply)).await?;
        Ok(Response::new(PbCompactionResponse { header: self.0.complete(Some(&header)) }))
    }
}
