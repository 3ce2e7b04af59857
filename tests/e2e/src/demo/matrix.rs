use std::{collections::BTreeMap, net::IpAddr, panic, thread, time::Duration};

use anyhow::{Result, bail};
use testkit::{Ping, wait_until};

use crate::{cluster::Pod, demo::report};

/// Limit of the time from ADD until pods reach each other.
const CONVERGENCE: Duration = Duration::from_secs(15);
const COUNT: u32 = 3;
const INTERVAL: Duration = Duration::from_millis(20);
/// Concurrent pings.
const CONCURRENCY: usize = 32;
/// Largest number of pods for which a table is printed.
const LARGEST_TABLE: usize = 12;

/// Source and destination as indices of the list of pods, and whether the address is IPv6.
type Path = (usize, usize, bool);

/// Pings between all pods, in both directions.
#[derive(Debug)]
pub(super) struct Matrix {
    allowed: usize,
    forbidden: usize,
    pings: BTreeMap<Path, (Ping, bool)>,
}

impl Matrix {
    pub(super) fn measure(pods: &[Pod]) -> Result<Matrix> {
        let paths = paths(pods)?;
        let allowed: Vec<_> = paths.iter().copied().filter(|path| is_allowed(pods, path)).collect();
        // Wait until the allowed paths work; only the pings below count.
        in_parallel(&allowed, |path| {
            wait_until(CONVERGENCE, "the first reply", || {
                let answered = ping(pods, path, 1)?.received == 1;
                Ok(answered.then_some(()))
            })
            .or_else(|_| Ok(())) // reported below for each path
        })?;
        let pings = in_parallel(&paths, |path| ping(pods, path, COUNT))?;
        let allowed = allowed.len();
        Ok(Matrix {
            forbidden: paths.len() - allowed,
            pings: paths
                .iter()
                .map(|path| (*path, is_allowed(pods, path)))
                .zip(pings)
                .map(|((path, allowed), ping)| (path, (ping, allowed)))
                .collect(),
            allowed,
        })
    }

    /// One line per allowed path that lost pings and forbidden path that got replies.
    pub(super) fn errors(&self, pods: &[Pod]) -> Vec<String> {
        self.pings
            .iter()
            .filter(|(_, (ping, allowed))| !is_correct(ping, *allowed))
            .map(|((from, to, v6), (ping, allowed))| {
                let (from, to) = (&pods[*from], &pods[*to]);
                let what = if *allowed { "must be reachable" } else { "must not be reachable" };
                let address = address(to, *v6).map(|address| address.to_string()).unwrap_or_default();
                format!(
                    "{} -> {} ({address}): {}/{} replies, {what}",
                    from.name, to.name, ping.received, ping.sent
                )
            })
            .collect()
    }

    pub(super) fn summary(&self) -> String {
        format!(
            "{} allowed paths work, {} forbidden paths are blocked (IPv4 and IPv6, each direction)",
            self.allowed, self.forbidden
        )
    }

    /// Round-trip times in ms (IPv4/IPv6), `.` for blocked paths.
    pub(super) fn table(&self, pods: &[Pod]) -> String {
        if pods.len() > LARGEST_TABLE {
            return format!("({} pods: ping table omitted)", pods.len());
        }
        let mut table = report::table();
        table.set_header(
            ["ms, from \\ to"].into_iter().map(str::to_owned).chain(pods.iter().map(|pod| pod.name.clone())),
        );
        for (from, pod) in pods.iter().enumerate() {
            let cells = (0..pods.len()).map(|to| self.cell(from, to));
            table.add_row([pod.name.clone()].into_iter().chain(cells));
        }
        table.to_string()
    }

    fn cell(&self, from: usize, to: usize) -> String {
        let one = |v6| match self.pings.get(&(from, to, v6)) {
            None => String::new(),
            Some((ping, allowed)) if !is_correct(ping, *allowed) => {
                if *allowed { "LOST" } else { "LEAK" }.to_owned()
            }
            Some((Ping { rtt: Some(rtt), .. }, _)) => format!("{:.2}", rtt.as_secs_f64() * 1e3),
            Some(_) => ".".to_owned(),
        };
        let (v4, v6) = (one(false), one(true));
        if v6.is_empty() { v4 } else { format!("{v4}/{v6}") }
    }
}

fn is_correct(ping: &Ping, allowed: bool) -> bool {
    if allowed { ping.lost() == 0 } else { ping.received == 0 }
}

/// Pods reach the pods of their tenant only.
fn is_allowed(pods: &[Pod], (from, to, _): &Path) -> bool {
    pods[*from].tenant == pods[*to].tenant
}

fn paths(pods: &[Pod]) -> Result<Vec<Path>> {
    let mut paths = vec![];
    for v6 in [false, true] {
        let mut owners = BTreeMap::new();
        for pod in pods {
            let Some(address) = address(pod, v6) else { bail!("{} has no IPv6 address", pod.name) };
            if let Some(other) = owners.insert(address, &pod.name) {
                bail!("{other} and {} both have {address}: isolation cannot be checked", pod.name);
            }
        }
        for from in 0..pods.len() {
            paths.extend((0..pods.len()).filter(|to| *to != from).map(|to| (from, to, v6)));
        }
    }
    Ok(paths)
}

fn address(pod: &Pod, v6: bool) -> Option<IpAddr> {
    if v6 { pod.ipv6.map(IpAddr::from) } else { Some(pod.ip.into()) }
}

fn ping(pods: &[Pod], (from, to, v6): &Path, count: u32) -> Result<Ping> {
    match address(&pods[*to], *v6) {
        Some(address) => pods[*from].netns().ping(address, count, INTERVAL),
        None => bail!("{} has no IPv6 address", pods[*to].name),
    }
}

/// Runs `work` for each path; results are in the order of `paths`.
fn in_parallel<T: Send>(paths: &[Path], work: impl Fn(&Path) -> Result<T> + Sync) -> Result<Vec<T>> {
    let mut results = vec![];
    for some in paths.chunks(CONCURRENCY) {
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|path| scope.spawn(move || work(path))).collect();
            for thread in threads {
                results.push(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic))?);
            }
            anyhow::Ok(())
        })?;
    }
    Ok(results)
}
