//! BIRD 2 as a BGP neighbor.

use std::{fs, process::Command, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::{
    process::Process,
    resource::{netns::Netns, scratch::scratch_dir},
    wait::wait_until,
};

const TIMEOUT: Duration = Duration::from_secs(120);

/// A BIRD in a network namespace. It is stopped when this is dropped.
#[derive(Debug)]
pub struct Bird {
    /// The daemon.
    pub process: Process,
    folder: Arc<TempDir>,
    namespace: Netns,
}

impl Bird {
    /// Starts BIRD with this configuration file, and waits until it answers.
    pub fn start(namespace: &Netns, configuration: &str) -> Result<Bird> {
        Bird::start_in(namespace, configuration, Arc::new(scratch_dir("bird")?), &[])
    }

    /// As [`Bird::start`], in the folder of an earlier one ([`Bird::folder`]) and with more arguments.
    pub fn start_in(
        namespace: &Netns,
        configuration: &str,
        folder: Arc<TempDir>,
        arguments: &[&str],
    ) -> Result<Bird> {
        let file = folder.path().join("bird.conf");
        fs::write(&file, configuration)?;
        let mut command = Command::new("/usr/sbin/bird");
        command.arg("-f").arg("-c").arg(&file).arg("-s").arg(folder.path().join("bird.ctl"));
        command.arg("-P").arg(folder.path().join("bird.pid")).args(arguments);
        let process = Process::spawn_in(namespace, "bird", command)?;
        let mut bird = Bird { process, folder, namespace: namespace.clone() };
        wait_until(TIMEOUT, "BIRD to answer", || bird.command(&["show", "status"]).map(Some))
            .with_context(|| bird.process.tail())?;
        bird.process.ended()?;
        Ok(bird)
    }

    /// Folder of the configuration and of the control socket.
    pub fn folder(&self) -> Arc<TempDir> {
        Arc::clone(&self.folder)
    }

    /// Runs a command of `birdc`.
    pub fn command(&self, words: &[&str]) -> Result<String> {
        let socket = self.folder.path().join("bird.ctl");
        let socket = socket.to_str().context("the path is UTF-8")?;
        self.namespace.output("birdc", &[&["-s", socket], words].concat())
    }

    /// Waits until BIRD has exactly these routes of a protocol, with a part of their descriptions.
    pub fn expect_routes(&self, protocol: &str, expected: &[(&str, &str)]) -> Result<()> {
        let what = format!("BIRD to have the routes {expected:?}");
        wait_until(TIMEOUT, &what, || {
            let routes = self.routes(protocol)?;
            let all = expected.iter().all(|(prefix, part)| {
                routes.iter().any(|(found, text)| found == prefix && text.contains(part))
            });
            if all && routes.len() == expected.len() { Ok(Some(())) } else { bail!("{routes:?}") }
        })
    }

    /// Routes of a protocol: prefixes and descriptions.
    pub fn routes(&self, protocol: &str) -> Result<Vec<(String, String)>> {
        let text = self.command(&["show", "route", "protocol", protocol])?;
        let mut routes: Vec<(String, String)> = vec![];
        for line in text.lines() {
            let first = line.split_whitespace().next().unwrap_or_default();
            if line.starts_with(|c: char| c.is_ascii_hexdigit()) && first.contains('/') {
                routes.push((first.to_owned(), line.to_owned()));
            } else if let Some((_, detail)) = routes.last_mut() {
                detail.push_str(line);
            }
        }
        Ok(routes)
    }

    /// Whether the session of a protocol is established.
    pub fn is_established(&self, protocol: &str) -> Result<bool> {
        Ok(self.command(&["show", "protocols", protocol])?.contains("Established"))
    }
}
