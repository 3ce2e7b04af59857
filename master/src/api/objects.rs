//! Routes of objects: lists, watches, and single objects.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header, request};
use axum::response::Response;
use contiv_model::key::ObjectType;
use http_body_util::BodyExt as _;

use super::conditional::{Preconditions, entity_tag};
use super::in_flight::StreamMemory;
use super::object_watch::{ObjectWatch, gone_response};
use super::parameters::Parameters;
use super::response::{ErrorFormat, not_modified};
use crate::access::Scope;
use crate::aci::RepeatablePlan;
use crate::cache::{ClusterCache, StagedTxn};
use crate::commit::LargeValue;
use crate::leadership::{Leader, Reads};
use crate::objects::{Representation, Type};
use crate::problem::{Answer, Problem};

/// Response header of a list: a watch after this revision continues it.
pub(super) const REVISION: HeaderName = HeaderName::from_static("netmaster-revision");

/// Serves requests for objects of a type.
pub(super) struct ObjectRoutes<'l> {
    pub(super) leader: &'l Leader,
    /// Reads for the client.
    pub(super) reads: &'l Reads,
    pub(super) object_type: &'static Type,
    pub(super) scope: &'l Scope,
    pub(super) format: ErrorFormat,
}

impl ObjectRoutes<'_> {
    pub(super) async fn list(&self, head: &request::Parts) -> Response<Body> {
        self.respond(self.try_list(head).await)
    }

    pub(super) async fn get(&self, key: &str, head: &request::Parts) -> Response<Body> {
        self.respond(self.try_get(key, &head.headers).await)
    }

    pub(super) async fn put(&self, key: &str, head: &request::Parts, body: Body) -> Response<Body> {
        self.respond(self.try_put(key, head, body).await)
    }

    pub(super) async fn delete(&self, key: &str, head: &request::Parts) -> Response<Body> {
        let (operations, of, scope) = (&self.object_type.operations, key.to_owned(), self.scope.clone());
        let plan = move |staged: &mut StagedTxn<'_>| (operations.delete)(&of, &scope, staged);
        self.respond(self.change(key, head, plan).await)
    }

    fn respond(&self, answered: Result<Response<Body>, Problem>) -> Response<Body> {
        answered.unwrap_or_else(|problem| self.format.problem(&problem))
    }

    async fn try_list(&self, head: &request::Parts) -> Result<Response<Body>, Problem> {
        let parameters = Parameters::of(&head.uri);
        let operations = &self.object_type.operations;
        let selection = parameters.selection(operations.schema)?;
        if parameters.watch()? {
            let (after, leader) = (parameters.watch_after(&head.headers)?, self.leader);
            if after.as_ref().is_some_and(|after| !leader.history.has(after)) {
                return Ok(gone_response());
            }
            let memory = head.extensions.get::<StreamMemory>().cloned();
            let (after, history) = (after.map(|after| after.number), leader.history.clone());
            let (object_type, scope) = (self.object_type, self.scope.clone());
            let selector = selection.selector;
            let (cache, reads) = (leader.cache.clone(), self.reads.clone());
            let backlogs = leader.watch_backlogs.clone();
            let watch =
                ObjectWatch { object_type, scope, selector, after, history, cache, reads, backlogs, memory };
            return watch.start(leader).await;
        }
        let scope = self.scope.clone();
        let page = self.reads.read(move |cache| (operations.list)(cache, &scope, selection)).await?;
        let mut response = self.format.json(Ok(page.body));
        let revision = HeaderValue::try_from(self.leader.history.revision(page.revision))
            .map_err(|e| Problem::unavailable(format!("encode the revision: {e}")))?;
        response.headers_mut().insert(REVISION, revision);
        if let Some(after) = page.more_after {
            let link = format!("<{}>; rel=\"next\"", parameters.page_after(head.uri.path(), &after));
            let link = HeaderValue::try_from(link)
                .map_err(|e| Problem::unavailable(format!("encode the link to the next page: {e}")))?;
            response.headers_mut().insert(header::LINK, link);
        }
        Ok(response)
    }

    async fn try_get(&self, key: &str, headers: &HeaderMap) -> Result<Response<Body>, Problem> {
        let preconditions = Preconditions::of(headers, &self.leader.history)?;
        let (get, key, scope) = (self.object_type.operations.get, key.to_owned(), self.scope.clone());
        let take = move |cache: &ClusterCache| {
            get(cache, &key, &scope, Box::new(move |version| preconditions.is_known(version)))
        };
        let Representation { body, version } = self.reads.read(take).await?;
        let mut response = match body {
            Some(body) => self.format.json(Ok(body)),
            None => not_modified(),
        };
        response.headers_mut().insert(header::ETAG, entity_tag(&self.leader.history, version));
        Ok(response)
    }

    async fn try_put(&self, key: &str, head: &request::Parts, body: Body) -> Result<Response<Body>, Problem> {
        let operations = &self.object_type.operations;
        let request = (operations.check)(key, &read_body(body).await?)?;
        let (scope, cluster) = (self.scope.clone(), self.leader.cluster.clone());
        self.change(key, head, move |staged| (operations.put)(&request, &scope, &cluster, staged)).await
    }

    async fn change(
        &self,
        key: &str,
        head: &request::Parts,
        plan: impl Fn(&mut StagedTxn<'_>) -> Answer + Send + Sync + 'static,
    ) -> Result<Response<Body>, Problem> {
        let preconditions = Preconditions::of(&head.headers, &self.leader.history)?;
        let dry_run = Parameters::of(&head.uri).dry_run()?;
        let (object_type, of) = (self.object_type, key.to_owned());
        let plan: RepeatablePlan = Arc::new(move |staged: &mut StagedTxn<'_>| {
            let name = format!("{} {of}", object_type.kind.as_str());
            preconditions.check(&name, (object_type.operations.version)(&of, staged))?;
            plan(staged)
        });
        let answer = match dry_run {
            true => self.dry_run(plan).await,
            false => self.commit(key, plan).await,
        };
        Ok(self.format.json(Ok(answer?)))
    }

    /// Changes of application profiles need the consent of the ACI gateway.
    async fn commit(&self, key: &str, plan: RepeatablePlan) -> Answer {
        let leader = self.leader;
        match self.object_type.kind {
            ObjectType::AppProfile => leader.fabric.change(&leader.cache, &leader.queue, key, plan).await,
            _ => {
                let exclusive = self.object_type.operations.exclusive;
                leader.queue.submit(Box::new(move |staged| plan(staged)), exclusive).await
            }
        }
    }

    /// Plans on the committed state, and discards the plan. The store is asked whether it accepts the
    /// largest value.
    async fn dry_run(&self, plan: RepeatablePlan) -> Answer {
        self.leader.linearizable_read.confirm().await?;
        let planned = self.reads.read(move |cache| {
            let planned = plan_only(&plan, cache);
            Box::new(move || planned)
        });
        let (answer, large) = planned.await?;
        if let Some(value) = large {
            value.check(&self.leader.store).await?;
        }
        Ok(answer)
    }
}

/// Response of the plan, and its largest value, if the store may refuse it.
fn plan_only(plan: &RepeatablePlan, cache: &ClusterCache) -> Result<(Vec<u8>, Option<LargeValue>), Problem> {
    let mut staged = StagedTxn::new(cache);
    let answer = plan(&mut staged)?;
    let large = staged.finish().and_then(|(txn, _)| LargeValue::find(txn));
    Ok((answer, large.map_err(|error| Problem::unavailable(format!("encode a record: {error}")))?))
}

pub(super) async fn read_body(body: Body) -> Result<Bytes, Problem> {
    let body = body.collect().await;
    body.map(|body| body.to_bytes()).map_err(|error| Problem::invalid(crate::problem::one_line(&error)))
}
