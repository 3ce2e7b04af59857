//! The original's netctl and ours, command by command: `original.txt` is what the original printed.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod double;

use std::process::Command;

use double::Double;

struct Step {
    command: String,
    stdout: String,
    /// The first line of the message.
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

/// What we print or answer otherwise, wanted so: the reasons are in docs/src/compatibility.md.
fn differs(step: &mut Step) {
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
        // Its help has another form.
        "net" => "Usage: netctl network".clone_into(&mut step.stdout),
        _ if step.exit != 0 => step.stdout.clear(),
        _ => {}
    }
}

#[test]
fn every_command_of_the_transcript_prints_the_same() {
    let double = Double::start();
    let mut failures = String::new();
    let all = steps();
    assert_eq!(all.len(), 91, "the transcript was read wrongly");
    for mut step in all {
        differs(&mut step);
        let words = step.command.replace("10 mbps", "10_mbps");
        let words = words.split_whitespace().map(|word| word.replace("10_mbps", "10 mbps"));
        let ran = Command::new(env!("CARGO_BIN_EXE_netctl"))
            .args(words)
            .env("NETMASTER", double.url())
            .env_remove("INSECURE")
            .env("HOME", "/nonexistent")
            .output()
            .unwrap();
        let (stdout, stderr) =
            (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
        let same = if step.command == "net" { stdout.contains(&step.stdout) } else { stdout == step.stdout };
        let said = match &step.error {
            // A message of netmaster, in one line; mistakes in what was typed are in clap's words.
            Some(error) if step.exit == 3 => stderr == format!("netctl: {error}\n"),
            _ => stderr.is_empty() == (step.exit == 0),
        };
        if !same || !said || ran.status.code() != Some(step.exit) {
            failures += &format!(
                "$ netctl {}\n{stdout}stderr: {stderr}[{}]\nexpected [exit {}] {:?}\n{}\n",
                step.command, ran.status, step.exit, step.error, step.stdout
            );
        }
    }
    assert!(failures.is_empty(), "{failures}");
}
