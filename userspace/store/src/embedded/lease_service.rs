//! `etcdserverpb.Lease`.

use super::shared::Shared;
use super::writer::Command;
use etcd_client::proto::{
    PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse,
    PbLeaseLeasesRequest, PbLeaseLeasesResponse, PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseService,
    PbLeaseStatus, PbLeaseTimeToLiveRequest, PbLeaseTimeToLiveResponse,
};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tokio::time::interval;
use tonic::{Request, Response, Status, Streaming};

/// Time between two signs that the process runs.
const TICK: Duration = Duration::from_millis(500);

pub(super) struct LeaseService(pub(super) Shared);

/// Shows the leases that the process runs, also while the writer waits for the disk. Renewals are carried out by the same threads.
pub(super) async fn show_life(shared: Shared) -> Infallible {
    let mut ticks = interval(TICK);
    loop {
        ticks.tick().await;
        shared.with_mut(|state| state.leases.runs(Instant::now()));
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl PbLeaseService for LeaseService {
    type LeaseKeepAliveStream = BoxStream<'static, Result<PbLeaseKeepAliveResponse, Status>>;

    async fn lease_grant(&self, request: Request<PbLeaseGrantRequest>) -> Answer<PbLeaseGrantResponse> {
        let request = request.into_inner();
        let (id, ttl) = self.0.ask(|reply| Command::Grant((request.id, request.ttl), reply)).await?;
        let header = self.0.header_now();
        Ok(Response::new(PbLeaseGrantResponse { header, id, ttl, error: String::new() }))
    }

    async fn lease_revoke(&self, request: Request<PbLeaseRevokeRequest>) -> Answer<PbLeaseRevokeResponse> {
        let id = request.into_inner().id;
        let header = self.0.ask(|reply| Command::Revoke(id, reply)).await?;
        Ok(Response::new(PbLeaseRevokeResponse { header: self.0.complete(Some(&header)) }))
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Answer<Self::LeaseKeepAliveStream> {
        let (shared, stop) = (self.0.clone(), self.0.stop.clone());
        let answers = request.into_inner().then(move |request| {
            let shared = shared.clone();
            async move {
                let id = request?.id;
                let ttl = shared.with_mut(|state| state.leases.renew(id, Instant::now()));
                if ttl.is_none() {
                    // Its end may not be on the disk yet.
                    shared.ask(Command::Barrier).await?;
                }
                // A lease that is gone has a TTL of 0.
                Ok(PbLeaseKeepAliveResponse { header: shared.header_now(), id, ttl: ttl.unwrap_or(0) })
            }
        });
        Ok(Response::new(answers.take_until(stop.cancelled_owned()).boxed()))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<PbLeaseTimeToLiveRequest>,
    ) -> Answer<PbLeaseTimeToLiveResponse> {
        let request = request.into_inner();
        let remaining = self.0.read(|state| state.leases.remaining(request.id, Instant::now()));
        self.0.ask(Command::Barrier).await?;
        let mut response = PbLeaseTimeToLiveResponse {
            header: self.0.header_now(),
            id: request.id,
            ttl: -1,
            ..Default::default()
        };
        if let Some(remaining) = remaining {
            (response.ttl, response.granted_ttl) = (remaining.seconds, remaining.granted);
            if request.keys {
                response.keys = remaining.keys.iter().map(|key| key.to_vec()).collect();
            }
        }
        Ok(Response::new(response))
    }

    async fn lease_leases(&self, _: Request<PbLeaseLeasesRequest>) -> Answer<PbLeaseLeasesResponse> {
        let leases = self.0.read(|state| state.leases.ids().map(|id| PbLeaseStatus { id }).collect());
        self.0.ask(Command::Barrier).await?;
        Ok(Response::new(PbLeaseLeasesResponse { header: self.0.header_now(), leases }))
    }
}
