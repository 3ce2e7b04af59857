//! Compares the output of every command with the original's, which `original.txt` holds.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod fake_master;

use std::process::Command;

use fake_master::FakeMaster;

struct Step {
    command: String,
    stdout: String,
    /// First line of the error message.
    error: Option<String>,
    exit: i32,
}

fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in include_str!("original.txt").split_inclusive('\n') {
        if let Some(command) = line.strip_prefix("$ netctl ") {
            let command = command.trim_end().to_owned();
            steps.push(Step { command, stdout: String::new(), error: None, exit: -1 });
            continue;
        }
        let step = steps.last_mut().unwrap();
        if let Some(message) = line.strip_prefix("stderr: ") {
            if let Some((_, text)) = message.split_once("msg=\"") {
                step.error = Some(text.trim_end().trim_end_matches('"').to_owned());
            }
        } else if let Some((text, exit)) = line.split_once("[exit ") {
            step.stdout.push_str(text);
            step.exit = exit.trim_end().trim_end_matches(']').parse().unwrap();
        } else {
            step.stdout.push_str(line);
        }
    }
    steps
}

/// Applies the intended differences to the original's output. docs/src/compatibility.md has the reasons.
fn apply_differences(step: &mut Step) {
    match step.command.as_str() {
        "version" => {
            let ours = format!("Version: {}\n", env!("CARGO_PKG_VERSION"));
            step.stdout = format!(
                "Client Version:\n{ours}\nServer Version:\nVersion: 1.2.3\nGitCommit: 96577306\nBuildTime: \nLeader: 127.0.0.1:9999\n"
            );
        }
        "net ls -a" => {
            let lines: Vec<&str> = step.stdout.lines().collect();
            step.stdout = [0, 1, 2, 4, 3].map(|at| format!("{}\n", lines[at])).concat();
        }
        "group ls" | "group ls -a" => {
            let lines: Vec<&str> = step.stdout.lines().collect();
            step.stdout = [0, 1, 3, 2].map(|at| format!("{}\n", lines[at])).concat();
        }
        "app-profile group-ls ap1" => step.stdout.push('\n'),
        "bgp ls -q" => "h1\n".clone_into(&mut step.stdout),
        "foo" => {
            step.exit = 1;
            step.stdout.clear();
        }
        // The help text has another format.
        "net" => "Usage: netctl network".clone_into(&mut step.stdout),
        _ if step.exit != 0 => step.stdout.clear(),
        _ => {}
    }
}

#[test]
fn output_equals_the_original_transcript() {
    let master = FakeMaster::start();
    let mut failures = String::new();
    let all = steps();
    assert_eq!(all.len(), 91, "number of commands in the transcript");
    for mut step in all {
        apply_differences(&mut step);
        let words = step.command.replace("10 mbps", "10_mbps");
        let words = words.split_whitespace().map(|word| word.replace("10_mbps", "10 mbps"));
        let ran = Command::new(env!("CARGO_BIN_EXE_netctl"))
            .args(words)
            .env("NETMASTER", master.url())
            .env_remove("INSECURE")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("NETCTL_CONTEXT")
            .env("HOME", "/nonexistent")
            .output()
            .unwrap();
        let (stdout, stderr) =
            (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
        let same = if step.command == "net" { stdout.contains(&step.stdout) } else { stdout == step.stdout };
        let same_error = match &step.error {
            // Exit code 3 is a message of netmaster, in one line; usage errors have the texts of clap.
            Some(error) if step.exit == 3 => stderr == format!("netctl: {error}\n"),
            _ => stderr.is_empty() == (step.exit == 0),
        };
        if !same || !same_error || ran.status.code() != Some(step.exit) {
            failures += &format!(
                "$ netctl {}\n{stdout}stderr: {stderr}[{}]\nexpected [exit {}] {:?}\n{}\n",
                step.command, ran.status, step.exit, step.error, step.stdout
            );
        }
    }
    assert!(failures.is_empty(), "{failures}");
}
