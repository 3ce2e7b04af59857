use std::{collections::BTreeMap, net::IpAddr, panic, thread, time::Duration};

use anyhow::{Result, bail};
use testkit::{Ping, wait_until};

use crate::{cluster::Pod, demo::report};

/// How long pods may take to see each other after their ADD.
const CONVERGENCE: Duration = Duration::from_secs(15);
const COUNT: u32 = 3;
const INTERVAL: Duration = Duration::from_millis(20);
/// Pings at a time.
const AT_ONCE: usize = 32;
/// More do not fit on a screen.
const LARGEST_TABLE: usize = 12;

/// From, to (places in the list of pods), IPv6.
type Path = (usize, usize, bool);

/// Each pod pinged from each other, both ways.
#[derive(Debug)]
pub(super) struct Matrix {
    expected: usize,
    forbidden: usize,
    pings: BTreeMap<Path, (Ping, bool)>,
}

impl Matrix {
    pub(super) fn measure(pods: &[Pod]) -> Result<Matrix> {
        let paths = paths(pods)?;
        let wanted: Vec<_> = paths.iter().copied().filter(|path| may(pods, path)).collect();
        // What is not there yet is given time to come; then it counts.
        in_parallel(&wanted, |path| {
            wait_until(CONVERGENCE, "the first answer", || {
                let answered = ping(pods, path, 1)?.received == 1;
                Ok(answered.then_some(()))
            })
            .or_else(|_| Ok(())) // told below, path by path
        })?;
        let pings = in_parallel(&paths, |path| ping(pods, path, COUNT))?;
        let expected = wanted.len();
        Ok(Matrix {
            forbidden: paths.len() - expected,
            pings: paths
                .iter()
                .map(|path| (*path, may(pods, path)))
                .zip(pings)
                .map(|((path, may), ping)| (path, (ping, may)))
                .collect(),
            expected,
        })
    }

    /// One line for each path that is not as it should be.
    pub(super) fn wrong(&self, pods: &[Pod]) -> Vec<String> {
        self.pings
            .iter()
            .filter(|(_, (ping, may))| !as_it_should(ping, *may))
            .map(|((from, to, v6), (ping, may))| {
                let (from, to) = (&pods[*from], &pods[*to]);
                let what = if *may { "must be reached" } else { "must not be reached" };
                let address = address(to, *v6).map(|address| address.to_string()).unwrap_or_default();
                format!(
                    "{} -> {} ({address}): {}/{} answers, {what}",
                    from.name, to.name, ping.received, ping.sent
                )
            })
            .collect()
    }

    pub(super) fn summary(&self) -> String {
        format!(
            "{} paths that must work do, {} that must not do not (IPv4 and IPv6, each direction)",
            self.expected, self.forbidden
        )
    }

    /// Round trips in ms (IPv4/IPv6), `.` where nothing may come and nothing came.
    pub(super) fn table(&self, pods: &[Pod]) -> String {
        if pods.len() > LARGEST_TABLE {
            return format!("({} pods: no table of pings)", pods.len());
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
            Some((ping, may)) if !as_it_should(ping, *may) => if *may { "LOST" } else { "LEAK" }.to_owned(),
            Some((Ping { rtt: Some(rtt), .. }, _)) => format!("{:.2}", rtt.as_secs_f64() * 1e3),
            Some(_) => ".".to_owned(),
        };
        let (v4, v6) = (one(false), one(true));
        if v6.is_empty() { v4 } else { format!("{v4}/{v6}") }
    }
}

fn as_it_should(ping: &Ping, may: bool) -> bool {
    if may { ping.lost() == 0 } else { ping.received == 0 }
}

/// Pods of one tenant reach each other, and nobody else.
fn may(pods: &[Pod], (from, to, _): &Path) -> bool {
    pods[*from].tenant == pods[*to].tenant
}

fn paths(pods: &[Pod]) -> Result<Vec<Path>> {
    let mut paths = vec![];
    for v6 in [false, true] {
        let mut owners = BTreeMap::new();
        for pod in pods {
            let Some(address) = address(pod, v6) else { bail!("{} has no IPv6 address", pod.name) };
            if let Some(other) = owners.insert(address, &pod.name) {
                bail!(
                    "{other} and {} both have {address}: isolation could not be told from delivery",
                    pod.name
                );
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
        None => bail!("{} has no such address", pods[*to].name),
    }
}

/// In the order of `paths`.
fn in_parallel<T: Send>(paths: &[Path], work: impl Fn(&Path) -> Result<T> + Sync) -> Result<Vec<T>> {
    let mut results = vec![];
    for some in paths.chunks(AT_ONCE) {
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
