use std::{collections::BTreeMap, net::IpAddr, process::Command, time::Duration};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;

use crate::{Netns, Process, skip::find_program};

/// What `ping` counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Ping {
    pub sent: u32,
    pub received: u32,
    /// Mean round trip; none when nothing came back.
    pub rtt: Option<Duration>,
}

impl Ping {
    pub fn lost(&self) -> u32 {
        self.sent - self.received
    }

    /// The first `count` requests, in the namespace of the calling thread. Losing packets is a result, not an error.
    ///
    /// Goes on to ask until it has so many answers, or [`PATIENCE`] is over: without that, `ping` waits for the last
    /// answer no longer than for twice the longest round trip until then, or its interval, and on a busy machine an
    /// answer takes a hundred times as long as the one before.
    pub fn run(target: IpAddr, count: u32, interval: Duration) -> Result<Ping> {
        let output = command(target, interval)?
            .args(["-w", &PATIENCE.as_secs().to_string(), "-c", &count.to_string()])
            .output()
            .context("run ping")?;
        let text = String::from_utf8_lossy(&output.stdout);
        of_first(&text, count).with_context(|| {
            format!("ping {target}: {}{}", text.trim(), String::from_utf8_lossy(&output.stderr).trim())
        })
    }
}

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// Pings until told to stop.
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

    /// Number of answers so far.
    pub fn answers(&self) -> usize {
        self.process.log().lines().filter(|line| line.contains("bytes from")).count()
    }

    /// Stops, and counts up to the last answer: a request on its way at that moment is neither lost nor received.
    pub fn finish(mut self, deadline: Duration) -> Result<Ping> {
        self.process.signal(Signal::SIGINT)?;
        self.process.wait(deadline)?;
        count(&self.process.log()).with_context(|| format!("ping said: {}", self.process.tail()))
    }
}

/// Of a `ping` that was stopped: up to the last answer.
fn count(text: &str) -> Option<Ping> {
    let answers = answers(text);
    let last = answers.keys().next_back()?;
    Some(sum(&answers, u32::try_from(*last).ok()?))
}

/// Of a `ping` that ended by itself: the answers to the first requests. `None` if it could not ask.
fn of_first(text: &str, requests: u32) -> Option<Ping> {
    text.lines().find(|line| line.contains("packets transmitted"))?;
    let mut answers = answers(text);
    answers.retain(|sequence, _| *sequence <= requests.into());
    Some(sum(&answers, requests))
}

/// By their numbers, in milliseconds: lines such as `... icmp_seq=7 ttl=64 time=0.05 ms`. One that comes twice counts once.
fn answers(text: &str) -> BTreeMap<u64, f64> {
    let field = |line: &str, name: &str| line.split_once(name)?.1.split(' ').next()?.parse::<f64>().ok();
    let answers = text.lines().filter(|line| line.contains("bytes from"));
    let numbered = answers.filter_map(|line| Some((field(line, "icmp_seq=")? as u64, field(line, "time=")?)));
    numbered.collect()
}

fn sum(answers: &BTreeMap<u64, f64>, sent: u32) -> Ping {
    let mean = answers.values().sum::<f64>() / answers.len() as f64;
    Ping {
        sent,
        received: u32::try_from(answers.len()).unwrap_or(u32::MAX),
        rtt: (!answers.is_empty()).then(|| Duration::from_secs_f64(mean / 1e3)),
    }
}

fn command(target: IpAddr, interval: Duration) -> Result<Command> {
    let ping = find_program("ping").context("the program ping is missing: run `cargo xtask setup`")?;
    let mut command = Command::new(ping);
    command.env("LC_ALL", "C").args(["-n", "-i", &interval.as_secs_f64().to_string(), &target.to_string()]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_requests_count_however_many_more_there_were() {
        let text = "64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.03 ms\n\
                    64 bytes from 10.0.0.2: icmp_seq=3 ttl=64 time=0.07 ms\n\
                    64 bytes from 10.0.0.2: icmp_seq=4 ttl=64 time=9.0 ms\n\
                    5 packets transmitted, 3 received, 40% packet loss, time 20ms\n";
        let ping = of_first(text, 3).unwrap();
        assert_eq!((ping.sent, ping.received, ping.lost()), (3, 2, 1));
        assert_eq!(ping.rtt, Some(Duration::from_micros(50)));
        let none = of_first("2 packets transmitted, 0 received, 100% packet loss, time 1001ms\n", 2).unwrap();
        assert_eq!((none.received, none.rtt), (0, None));
        assert_eq!(of_first("ping: unknown host", 1), None);
    }

    #[test]
    fn a_gap_is_a_loss_and_the_request_on_its_way_is_not() {
        let log = "64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=2.0 ms\n\
                   64 bytes from 10.0.0.2: icmp_seq=3 ttl=64 time=4.0 ms\n\
                   64 bytes from 10.0.0.2: icmp_seq=3 ttl=64 time=4.0 ms (DUP!)\n\
                   4 packets transmitted, 2 received, 50% packet loss, time 3ms\n";
        let ping = count(log).unwrap();
        assert_eq!((ping.sent, ping.received), (3, 2));
        assert_eq!(ping.rtt, Some(Duration::from_millis(3)));
        assert_eq!(count("4 packets transmitted, 0 received\n"), None);
    }
}
