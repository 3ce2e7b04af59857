use std::{collections::BTreeMap, net::IpAddr, process::Command, time::Duration};

use anyhow::{Context as _, Result};

use crate::skip::find_program;

/// Result of `ping`.
#[derive(Debug, Clone, PartialEq)]
pub struct Ping {
    pub sent: u32,
    pub received: u32,
    /// Mean round-trip time; none without a reply.
    pub rtt: Option<Duration>,
}

impl Ping {
    pub fn lost(&self) -> u32 {
        self.sent - self.received
    }

    /// Sends `count` requests in the namespace of the calling thread. Packet loss is a result, not an error.
    ///
    /// `ping` sends further requests until it has `count` replies or 3 s have passed. Otherwise it would wait
    /// for the last reply only twice the longest round-trip time so far, which is too short on a busy machine.
    pub fn run(target: IpAddr, count: u32, interval: Duration) -> Result<Ping> {
        let output = command(target, interval)?
            .args(["-w", &REPLY_TIMEOUT.as_secs().to_string(), "-c", &count.to_string()])
            .output()
            .context("run ping")?;
        let text = String::from_utf8_lossy(&output.stdout);
        count_first(&text, count).with_context(|| {
            format!("ping {target}: {}{}", text.trim(), String::from_utf8_lossy(&output.stderr).trim())
        })
    }
}

/// Maximum time to wait for replies.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// Counts the requests of an interrupted `ping` up to the last reply.
pub(crate) fn count(text: &str) -> Option<Ping> {
    let answers = answers(text);
    let last = answers.keys().next_back()?;
    Some(sum(&answers, u32::try_from(*last).ok()?))
}

/// Counts the replies to the first requests of a `ping` that ended by itself. `None` if it sent none.
fn count_first(text: &str, requests: u32) -> Option<Ping> {
    text.lines().find(|line| line.contains("packets transmitted"))?;
    let mut answers = answers(text);
    answers.retain(|sequence, _| *sequence <= requests.into());
    Some(sum(&answers, requests))
}

/// Parses lines such as `... icmp_seq=7 ttl=64 time=0.05 ms` to milliseconds by sequence number. Duplicates count once.
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

pub(crate) fn command(target: IpAddr, interval: Duration) -> Result<Command> {
    let ping = find_program("ping").context("the program ping is missing: run `cargo xtask setup`")?;
    let mut command = Command::new(ping);
    command.env("LC_ALL", "C").args(["-n", "-i", &interval.as_secs_f64().to_string(), &target.to_string()]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_requests_count() {
        let text = "64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=0.03 ms\n\
                    64 bytes from 10.0.0.2: icmp_seq=3 ttl=64 time=0.07 ms\n\
                    64 bytes from 10.0.0.2: icmp_seq=4 ttl=64 time=9.0 ms\n\
                    5 packets transmitted, 3 received, 40% packet loss, time 20ms\n";
        let ping = count_first(text, 3).unwrap();
        assert_eq!((ping.sent, ping.received, ping.lost()), (3, 2, 1));
        assert_eq!(ping.rtt, Some(Duration::from_micros(50)));
        let none =
            count_first("2 packets transmitted, 0 received, 100% packet loss, time 1001ms\n", 2).unwrap();
        assert_eq!((none.received, none.rtt), (0, None));
        assert_eq!(count_first("ping: unknown host", 1), None);
    }

    #[test]
    fn gap_is_a_loss_but_the_request_in_flight_is_not() {
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
