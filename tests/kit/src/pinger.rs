use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use crate::{
    ping::{Ping, command, count},
    process::Process,
    resource::netns::Netns,
};

/// A `ping` that runs until [`Pinger::finish`].
#[derive(Debug)]
pub struct Pinger {
    process: Process,
    target: IpAddr,
}

impl Pinger {
    pub fn start(namespace: &Netns, target: IpAddr, interval: Duration) -> Result<Pinger> {
        let process = Process::spawn_in(namespace, "ping", command(target, interval)?)?;
        Ok(Pinger { process, target })
    }

    pub fn target(&self) -> IpAddr {
        self.target
    }

    /// Number of replies so far.
    pub fn answers(&self) -> usize {
        self.process.log().lines().filter(|line| line.contains("bytes from")).count()
    }

    /// Stops, and counts the requests up to the last reply: a request in flight is neither lost nor received.
    pub fn finish(mut self, deadline: Duration) -> Result<Ping> {
        self.process.signal(Signal::SIGINT)?;
        self.process.wait(deadline)?;
        count(&self.process.log()).with_context(|| format!("output of ping: {}", self.process.tail()))
    }
}
