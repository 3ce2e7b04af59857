//! Output to terminals and pipes.

use std::{
    fs::File,
    io::Read as _,
    process::{Child, Stdio},
};

use nix::pty::openpty;

use super::{Bench, example};

/// Runs netctl on a pseudo-terminal and returns its output.
fn on_terminal(bench: &Bench, args: &[&str], environment: &[(&str, &str)]) -> String {
    let pty = openpty(None, None).unwrap();
    let mut command = bench.command(args);
    command.env("TERM", "xterm-256color").envs(environment.iter().copied());
    // anstream enables colours if CI is set.
    command.env_remove("CI");
    command.stdout(Stdio::from(pty.slave.try_clone().unwrap())).stderr(Stdio::from(pty.slave));
    let mut child: Child = command.spawn().unwrap();
    // The command holds the other end of the terminal.
    drop(command);
    let mut output = vec![];
    let mut terminal = File::from(pty.master);
    let mut buffer = [0; 4096];
    // Linux returns EIO when the last process has closed the terminal.
    while let Ok(read @ 1..) = terminal.read(&mut buffer) {
        output.extend_from_slice(&buffer[..read]);
    }
    assert!(child.wait().unwrap().code().is_some());
    String::from_utf8(output).unwrap()
}

#[test]
fn colours_are_written_to_terminals_only() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    let file = bench.file("a.yaml", example());
    let dry = ["apply", "-f", &file, "--dry-run"];
    let wrong = ["get", "group", "absent"];
    let green = "\u{1b}[32m+tenantName: blue\u{1b}[0m";
    assert!(on_terminal(&bench, &dry, &[]).contains(green));
    assert!(on_terminal(&bench, &wrong, &[]).contains("\u{1b}[31mnetctl:\u{1b}[0m endpointGroup not found"));
    for (args, environment) in
        [(&dry[..], ("NO_COLOR", "1")), (&dry, ("TERM", "dumb")), (&wrong, ("NO_COLOR", "1"))]
    {
        let output = on_terminal(&bench, args, &[environment]);
        assert!(!output.is_empty() && !output.contains('\u{1b}'), "{environment:?}: {output}");
    }
    let piped = bench.run(&dry);
    assert!(!piped.stdout.contains(&0x1b) && piped.stdout.contains(&b'+'));
    let piped = bench.run(&wrong);
    assert_eq!(String::from_utf8(piped.stderr).unwrap(), "netctl: endpointGroup not found\n");
}

#[test]
fn closed_pipe_does_not_stop_changes() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    let file = bench.file("a.yaml", example());
    for (args, tenants) in
        [(["apply", "-f", &file], "blue\ndefault\n"), (["delete", "-f", &file], "default\n")]
    {
        let mut child = bench.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stderr.is_empty()), (Some(4), true), "{args:?}");
        assert_eq!(bench.ok(&["tenant", "ls", "-q"]), tenants, "{args:?}");
    }
}
