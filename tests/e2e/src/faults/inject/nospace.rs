//! The alarm that stops writes when etcd's database has reached its quota.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result};
use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, ConnectOptions};
use testkit::wait_until;

use crate::faults::topology::Topology;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Other faults may stop etcd meanwhile.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Raises the alarm for the duration, as a member does that finds its database full.
pub(super) fn raise(topology: &Topology, duration: Duration) -> Result<()> {
    set(topology, AlarmAction::Activate)?;
    thread::sleep(duration);
    set(topology, AlarmAction::Deactivate)
}

fn set(topology: &Topology, action: AlarmAction) -> Result<()> {
    let endpoints = topology.endpoints();
    let request = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        wait_until(TIMEOUT, "etcd to set the alarm", || {
            let asked = endpoints.iter().any(|endpoint| runtime.block_on(ask(endpoint, action)).is_ok());
            Ok(asked.then_some(()))
        })
    };
    topology.hub.run(request).with_context(|| format!("{action:?} the alarm NOSPACE"))
}

async fn ask(endpoint: &str, action: AlarmAction) -> Result<()> {
    let options = ConnectOptions::new().with_connect_timeout(REQUEST_TIMEOUT).with_timeout(REQUEST_TIMEOUT);
    let mut client = Client::connect([endpoint], Some(options)).await?;
    let members: Vec<u64> = match action {
        // The id of any member.
        AlarmAction::Activate => {
            client.member_list().await?.members().iter().take(1).map(|m| m.id()).collect()
        }
        _ => client
            .alarm(AlarmAction::Get, AlarmType::None, None)
            .await?
            .alarms()
            .iter()
            .map(|alarm| alarm.member_id())
            .collect(),
    };
    for member in members {
        let mut options = AlarmOptions::new();
        options.with_member(member);
        client.alarm(action, AlarmType::Nospace, Some(options)).await?;
    }
    Ok(())
}
