//! The requests that netctl sends, and what it makes of the answers.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod conditions;
mod contexts;
mod escapes;
mod explaining;
mod finding;
mod formats;
mod keys;
mod manifests;
mod netmasters;
mod nodes;
mod pages;
mod proxies;
mod pruning;
mod server;
mod store;
mod tracing;
mod trials;
mod waiting;
mod watching;

use std::process::{Command, Output, Stdio};

use server::Server;

/// Command without the configuration of the environment.
fn netctl(master: &str, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netctl"));
    command.env_clear().env("NETMASTER", master).env("HOME", "/nonexistent").stdin(Stdio::null()).args(words);
    command
}

/// Standard output, standard error, exit code.
fn run(server: &Server, words: &[&str]) -> (String, String, i32) {
    read(&netctl(&server.url(), words).output().unwrap())
}

fn read(output: &Output) -> (String, String, i32) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr), output.status.code().unwrap())
}
