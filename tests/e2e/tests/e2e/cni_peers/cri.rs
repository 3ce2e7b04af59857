//! The part of the Container Runtime Interface (`runtime.v1` of k8s.io/cri-api) that the tests use. Fields that are not used are
//! left out; numbers are those of `api.proto`.

use std::{collections::BTreeMap, path::Path};

use tokio::runtime::Runtime;
use tonic::{
    Request, Status,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Metadata {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) uid: String,
    #[prost(string, tag = "3")]
    pub(super) namespace: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Linux {
    #[prost(string, tag = "1")]
    cgroup_parent: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SandboxConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(message, optional, tag = "8")]
    linux: Option<Linux>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RunRequest {
    #[prost(message, optional, tag = "1")]
    config: Option<SandboxConfig>,
}

/// Request or response that has only the id of a sandbox.
#[derive(Clone, PartialEq, prost::Message)]
struct Id {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AdditionalIp {
    #[prost(string, tag = "1")]
    pub(super) ip: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SandboxNetwork {
    #[prost(string, tag = "1")]
    pub(super) ip: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) additional: Vec<AdditionalIp>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Sandbox {
    /// 0 is ready, 1 is not ready.
    #[prost(int32, tag = "3")]
    pub(super) state: i32,
    #[prost(message, optional, tag = "5")]
    pub(super) network: Option<SandboxNetwork>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SandboxRequest {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(bool, tag = "2")]
    verbose: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SandboxResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<Sandbox>,
    /// `info` has a JSON document.
    #[prost(btree_map = "string, string", tag = "2")]
    pub(super) info: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Condition {
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    #[prost(bool, tag = "2")]
    pub(super) status: bool,
    #[prost(string, tag = "3")]
    pub(super) reason: String,
    #[prost(string, tag = "4")]
    pub(super) message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Conditions {
    #[prost(message, repeated, tag = "1")]
    conditions: Vec<Condition>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<Conditions>,
}

/// Client of a runtime, as kubelet is one.
pub(super) struct Client {
    runtime: Runtime,
    channel: Channel,
}

impl Client {
    pub(super) fn connect(socket: &Path) -> Client {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let endpoint = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap();
        let channel = {
            let _inside = runtime.enter();
            endpoint.connect_lazy()
        };
        Client { runtime, channel }
    }

    fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        self.runtime.block_on(async {
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(Request::new(request), PathAndQuery::from_static(method), codec).await?;
            Ok(answer.into_inner())
        })
    }

    /// Starts a sandbox and returns its id.
    pub(super) fn run(&self, metadata: Metadata, cgroup: &str) -> Result<String, Status> {
        let linux = Some(Linux { cgroup_parent: cgroup.to_owned() });
        let config = Some(SandboxConfig { metadata: Some(metadata), linux });
        let id: Id = self.call("/runtime.v1.RuntimeService/RunPodSandbox", RunRequest { config })?;
        Ok(id.id)
    }

    pub(super) fn sandbox(&self, id: &str) -> Result<SandboxResponse, Status> {
        let request = SandboxRequest { id: id.to_owned(), verbose: true };
        self.call("/runtime.v1.RuntimeService/PodSandboxStatus", request)
    }

    /// Stops a sandbox, which detaches it, and removes it.
    pub(super) fn remove(&self, id: &str) -> Result<(), Status> {
        let request = || Id { id: id.to_owned() };
        let _: Empty = self.call("/runtime.v1.RuntimeService/StopPodSandbox", request())?;
        let _: Empty = self.call("/runtime.v1.RuntimeService/RemovePodSandbox", request())?;
        Ok(())
    }

    /// Whether the network is ready, and why not.
    pub(super) fn network(&self) -> Result<Condition, Status> {
        let answer: StatusResponse = self.call("/runtime.v1.RuntimeService/Status", Empty {})?;
        let mut conditions = answer.status.unwrap_or_default().conditions.into_iter();
        conditions
            .find(|condition| condition.kind == "NetworkReady")
            .ok_or_else(|| Status::internal("no condition NetworkReady"))
    }
}
