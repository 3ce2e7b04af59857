//! The agent starts while its store is away, or without its data: the leaf keeps the routes, for longer than a graceful restart.
//!
//! No test waits for the end of that. The leaf marks routes as stale when a session ends. When the next one has delivered its
//! routes, the leaf removes those that are still stale, and nothing depends on the time any more.

use std::fs;

use anyhow::{Context as _, Result};
use contiv_store::embedded;
use testkit::{Netns, Process, needs, wait_until};

use super::{Fabric, POD, SECOND, TIMEOUT};

/// Condition of a session that does not follow the state.
const REMEMBERED: &str = "announcing what this node announced last";

impl Fabric {
    /// Runs `test` with an agent of two pods to which the leaf has routes.
    fn with_two_pods(
        pods: &[Netns; 2],
        test: impl AsyncFnOnce(Fabric, Process) -> Result<()> + Send,
    ) -> Result<()> {
        Fabric::run(async |fabric| {
            let agent = fabric.start_agent()?;
            fabric.set_neighbor("50.1.1.2", "65001").await;
            for (container, pod) in ["c1", "c2"].into_iter().zip(pods) {
                fabric.call("ADD", container, pod).await?;
            }
            fabric.leaf.expect_routes("node", &[POD, SECOND].concat())?;
            test(fabric, agent).await
        })
    }

    async fn stop_store(&mut self) -> Result<()> {
        let server = self.server.take().context("the store runs")?;
        server.shutdown().await.map_err(Into::into)
    }

    /// Starts the store with the data in its folder, which may not exist.
    async fn start_store(&mut self) -> Result<()> {
        self.server = Some(embedded::Server::open(&self.file("store"), self.listen).await?);
        Ok(())
    }

    fn wait_leaf(&self, is_established: bool) -> Result<()> {
        wait_until(TIMEOUT, &format!("a session at BIRD: {is_established}"), || {
            Ok((self.leaf.is_established("node")? == is_established).then_some(()))
        })
    }

    fn stop_agent(&self, mut agent: Process) -> Result<()> {
        assert!(agent.terminate(TIMEOUT)?.success(), "{}", agent.tail());
        self.wait_leaf(false)
    }

    /// Waits until the agent follows the state, in the session that it has begun before.
    fn wait_followed(&self, agent: &Process) -> Result<()> {
        self.wait_ready(agent)?;
        wait_until(TIMEOUT, "no degraded condition of BGP", || {
            Ok((!self.json("/readyz")?["degraded"].to_string().contains("BGP")).then_some(()))
        })?;
        self.leaf.expect_routes("node", &POD)?;
        assert_eq!(agent.log().matches("starting the BGP speaker").count(), 1, "{}", agent.log());
        Ok(())
    }
}

#[test]
fn an_agent_without_its_store_announces_what_it_announced() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"), binary("ip"));
    let pods = [Netns::new("pod")?, Netns::new("pod")?];
    Fabric::with_two_pods(&pods, async |mut fabric, agent| {
        fabric.stop_agent(agent)?;
        fabric.stop_store().await?;
        // A pod that goes meanwhile.
        fabric.node.ip("link del vvport2")?;
        let agent = fabric.spawn_agent()?;
        fabric.leaf.expect_routes("node", &POD).with_context(|| agent.tail())?;
        fabric.wait_leaf(true)?;
        // It can be stopped while it waits.
        fabric.stop_agent(agent)?;

        let agent = fabric.spawn_agent()?;
        fabric.wait_leaf(true).with_context(|| agent.tail())?;
        fabric.leaf.expect_routes("node", &POD)?;
        fabric.start_store().await?;
        fabric.wait_followed(&agent)?;
        fabric.stop_agent(agent)
    })
}

#[test]
fn an_agent_whose_store_lost_its_data_announces_what_it_announced() -> Result<()> {
    needs!(root(), binary("bird"), binary("birdc"));
    let pods = [Netns::new("pod")?, Netns::new("pod")?];
    Fabric::with_two_pods(&pods, async |mut fabric, agent| {
        fabric.stop_agent(agent)?;
        fabric.stop_store().await?;
        fs::rename(fabric.file("store"), fabric.file("aside"))?;
        fabric.start_store().await?;
        let agent = fabric.spawn_agent()?;
        fabric.wait_leaf(true).with_context(|| agent.tail())?;
        fabric.wait_degraded(REMEMBERED)?;
        fabric.wait_degraded("store-regressed")?;
        fabric.leaf.expect_routes("node", &[POD, SECOND].concat())?;

        // The pod is detached, although its addresses wait for their store.
        let refused = fabric.call("DEL", "c2", &pods[1]).await;
        // At once: nothing changes the datapath now.
        assert!(refused.is_err_and(|error| {
            let error = error.to_string();
            error.contains("store-regressed") && !error.contains("the datapath did not")
        }));
        fabric.leaf.expect_routes("node", &POD)?;

        fabric.stop_store().await?;
        fs::remove_dir_all(fabric.file("store"))?;
        fs::rename(fabric.file("aside"), fabric.file("store"))?;
        fabric.start_store().await?;
        fabric.wait_followed(&agent)?;
        fabric.stop_agent(agent)
    })
}
