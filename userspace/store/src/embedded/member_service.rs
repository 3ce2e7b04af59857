//! The requests of `etcdserverpb.Cluster` and `Maintenance` that a cluster of one member can
//! answer.

use super::disk::Disk;
use super::shared::Shared;
use etcd_client::proto::{
    PbAlarmRequest, PbAlarmResponse, PbClusterService, PbDefragmentRequest, PbDefragmentResponse,
    PbDowngradeRequest, PbDowngradeResponse, PbHashKvRequest, PbHashKvResponse, PbHashRequest,
    PbHashResponse, PbMaintenanceService, PbMember, PbMemberAddRequest, PbMemberAddResponse,
    PbMemberListRequest, PbMemberListResponse, PbMemberPromoteRequest, PbMemberPromoteResponse,
    PbMemberRemoveRequest, PbMemberRemoveResponse, PbMemberUpdateRequest, PbMemberUpdateResponse,
    PbMoveLeaderRequest, PbMoveLeaderResponse, PbSnapshotRequest, PbSnapshotResponse, PbStatusRequest,
    PbStatusResponse,
};
use futures::stream::Empty;
use tonic::{Request, Response, Status};

/// Release of etcd whose API this server implements.
const VERSION: &str = "3.4.0";

pub(super) struct MemberService(pub(super) Shared);

type Answer<T> = Result<Response<T>, Status>;

fn not_here<T>(what: &str) -> Answer<T> {
    Err(Status::unimplemented(format!("embedded store: no {what}; for that, run etcd")))
}

#[tonic::async_trait]
impl PbClusterService for MemberService {
    async fn member_list(&self, _: Request<PbMemberListRequest>) -> Answer<PbMemberListResponse> {
        let member = PbMember {
            id: self.0.identity.member,
            name: "embedded".into(),
            client_ur_ls: vec![self.0.listening.endpoint()],
            ..Default::default()
        };
        Ok(Response::new(PbMemberListResponse { header: self.0.header_now(), members: vec![member] }))
    }

    async fn member_add(&self, _: Request<PbMemberAddRequest>) -> Answer<PbMemberAddResponse> {
        not_here("second member")
    }

    async fn member_remove(&self, _: Request<PbMemberRemoveRequest>) -> Answer<PbMemberRemoveResponse> {
        not_here("second member")
    }

    async fn member_update(&self, _: Request<PbMemberUpdateRequest>) -> Answer<PbMemberUpdateResponse> {
        not_here("second member")
    }

    async fn member_promote(&self, _: Request<PbMemberPromoteRequest>) -> Answer<PbMemberPromoteResponse> {
        not_here("second member")
    }
}

#[tonic::async_trait]
impl PbMaintenanceService for MemberService {
    type SnapshotStream = Empty<Result<PbSnapshotResponse, Status>>;

    async fn status(&self, _: Request<PbStatusRequest>) -> Answer<PbStatusResponse> {
        let revision = self.0.read(|state| state.durable);
        let index = revision.unsigned_abs();
        let size = i64::try_from(Disk::size(&*self.0.directory)).unwrap_or(i64::MAX);
        Ok(Response::new(PbStatusResponse {
            header: self.0.header(revision),
            version: VERSION.into(),
            db_size: size,
            db_size_in_use: size,
            leader: self.0.identity.member,
            raft_index: index,
            raft_applied_index: index,
            raft_term: 1,
            ..Default::default()
        }))
    }

    async fn alarm(&self, _: Request<PbAlarmRequest>) -> Answer<PbAlarmResponse> {
        // The server raises no alarms.
        Ok(Response::new(PbAlarmResponse { header: self.0.header_now(), alarms: Vec::new() }))
    }

    async fn defragment(&self, _: Request<PbDefragmentRequest>) -> Answer<PbDefragmentResponse> {
        not_here("defragmentation")
    }

    async fn hash(&self, _: Request<PbHashRequest>) -> Answer<PbHashResponse> {
        not_here("hash")
    }

    async fn hash_kv(&self, _: Request<PbHashKvRequest>) -> Answer<PbHashKvResponse> {
        not_here("hash")
    }

    async fn snapshot(&self, _: Request<PbSnapshotRequest>) -> Answer<Self::SnapshotStream> {
        not_here("snapshot stream (stop the server and copy its file)")
    }

    async fn move_leader(&self, _: Request<PbMoveLeaderRequest>) -> Answer<PbMoveLeaderResponse> {
        not_here("second member")
    }

    async fn downgrade(&self, _: Request<PbDowngradeRequest>) -> Answer<PbDowngradeResponse> {
        not_here("downgrade")
    }
}
