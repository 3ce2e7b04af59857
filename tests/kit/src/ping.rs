use std::{collections::BTreeSet, net::IpAddr, process::Command, time::Duration};

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

    /// In the namespace of the calling thread. Losing packets is a result, not an error.
    pub fn run(target: IpAddr, count: u32, interval: Duration) -> Result<Ping> {
        let output = command(target, interval)?
            .args(["-q", "-W", "1", "-c", &count.to_string()])
            .output()
            .context("run ping")?;
        let text = String::from_utf8_lossy(&output.stdout);
        parse(&text).with_context(|| {
            format!("ping {target}: {}{}", text.trim(), String::from_utf8_lossy(&output.stderr).trim())
        })
    }
}

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

/// From the lines of single answers, `... icmp_seq=7 ttl=64 time=0.05 ms`.
fn count(text: &str) -> Option<Ping> {
    let field = |line: &str, name: &str| line.split_once(name)?.1.split(' ').next()?.parse::<f64>().ok();
    let answers: Vec<_> = text.lines().filter(|line| line.contains("bytes from")).collect();
    let sequence: BTreeSet<u64> =
        answers.iter().filter_map(|line| Some(field(line, "icmp_seq=")? as u64)).collect();
    let times: Vec<f64> = answers.iter().filter_map(|line| field(line, "time=")).collect();
    Some(Ping {
        sent: u32::try_from(*sequence.last()?).ok()?,
        received: u32::try_from(sequence.len()).ok()?,
        rtt: (!times.is_empty())
            .then(|| Duration::from_secs_f64(times.iter().sum::<f64>() / times.len() as f64 / 1e3)),
    })
}

fn command(target: IpAddr, interval: Duration) -> Result<Command> {
    let ping = find_program("ping").context("the program ping is missing: run `cargo xtask setup`")?;
    let mut command = Command::new(ping);
    command.env("LC_ALL", "C").args(["-n", "-i", &interval.as_secs_f64().to_string(), &target.to_string()]);
    Ok(command)
}

fn parse(text: &str) -> Option<Ping> {
    let summary = text.lines().find(|line| line.contains("packets transmitted"))?;
    let number =
        |word: &str| summary.split(", ").find(|part| part.contains(word))?.split(' ').next()?.parse().ok();
    let rtt = text
        .lines()
        .find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "))
        .and_then(|times| times.split('/').nth(1))
        .and_then(|mean| mean.parse::<f64>().ok())
        .map(|milliseconds| Duration::from_secs_f64(milliseconds / 1e3));
    Some(Ping { sent: number("transmitted")?, received: number("received")?, rtt })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries_are_read() {
        let good = "3 packets transmitted, 2 received, +1 errors, 33% packet loss, time 20ms\n\
                    rtt min/avg/max/mdev = 0.031/0.050/0.066/0.014 ms\n";
        let ping = parse(good).unwrap();
        assert_eq!((ping.sent, ping.received, ping.lost()), (3, 2, 1));
        assert_eq!(ping.rtt, Some(Duration::from_micros(50)));
        let none = parse("2 packets transmitted, 0 received, 100% packet loss, time 1001ms\n").unwrap();
        assert_eq!((none.received, none.rtt), (0, None));
        assert_eq!(parse("ping: unknown host"), None);
    }

    #[test]
    fn a_gap_is_a_loss_and_the_request_on_its_way_is_not() {
        let log = "64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=2.0 ms\n\
                   64 bytes from 10.0.0.2: icmp_seq=3 ttl=64 time=4.0 ms\n\
                   64 bytes from 10.0.0.2: icmp_seq=3 ttl=64 time=3.0 ms (DUP!)\n\
                   4 packets transmitted, 2 received, 50% packet loss, time 3ms\n";
        let ping = count(log).unwrap();
        assert_eq!((ping.sent, ping.received), (3, 2));
        assert_eq!(ping.rtt, Some(Duration::from_millis(3)));
        assert_eq!(count("4 packets transmitted, 0 received\n"), None);
    }
}
