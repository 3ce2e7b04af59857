//! `netctl config`, and the connections that contexts select.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use serde_json::{Value, json};

use crate::{
    netctl, read,
    server::{Reply, Server},
};

/// netctl without `NETMASTER`, with its configuration below `home`.
fn bare(home: &Path, words: &[&str]) -> Command {
    let mut command = netctl("", words);
    command.env_remove("NETMASTER").env("HOME", home);
    command
}

#[track_caller]
fn done(mut command: Command) -> String {
    let (stdout, stderr, code) = read(&command.output().unwrap());
    assert_eq!((stderr.as_str(), code), ("", 0));
    stdout
}

#[track_caller]
fn refused(mut command: Command, code: i32, text: &str) {
    let (_, stderr, got) = read(&command.output().unwrap());
    assert_eq!(got, code, "{stderr}");
    assert!(stderr.contains(text), "{stderr}");
}

#[test]
fn contexts_are_kept_in_a_file_of_the_user() {
    let home = tempfile::tempdir().unwrap();
    let run = |words: &[&str]| done(bare(home.path(), words));
    refused(bare(home.path(), &["config", "current-context"]), 1, "no current context");
    refused(bare(home.path(), &["config", "set-context", "a"]), 1, "requires --netmaster");
    refused(bare(home.path(), &["config", "set-context", "a", "--netmaster", "a:1"]), 1, "expected http://");
    refused(bare(home.path(), &["config", "set-context", "", "--netmaster", "http://a:1"]), 1, "is empty");
    let half = ["config", "set-context", "a", "--netmaster", "https://a:1", "--cert", "c"];
    refused(bare(home.path(), &half), 1, "--cert requires --key");
    assert!(!home.path().join(".config").exists());

    let mut command =
        bare(home.path(), &["config", "set-context", "lab", "--netmaster", "http://a:1,http://b:2"]);
    command.env("NETMASTER", "http://not-stored:1").env("NETCTL_CACERT", "/not/stored").env("INSECURE", "1");
    assert_eq!(done(command), "context lab created\n");
    let file = home.path().join(".config/netctl/contexts.json");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let mode = fs::metadata(file.parent().unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let stored: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(stored, json!({"contexts": {"lab": {"netmaster": ["http://a:1", "http://b:2"]}}}));

    let mut command = bare(home.path(), &["-cacert", "ca.pem", "config", "set-context", "lab"]);
    assert_eq!(
        done({
            command.current_dir("/");
            command
        }),
        "context lab changed\n"
    );
    run(&["config", "set-context", "prod", "--netmaster", "https://p:1", "--insecure"]);
    assert_eq!(run(&["config", "use-context", "prod"]), "current context: prod\n");
    assert_eq!(run(&["config", "current-context"]), "prod\n");
    assert_eq!(
        run(&["config", "get-contexts"]),
        "Current  Name  Netmaster\n-------  ----  ---------\n         lab   http://a:1,http://b:2\n*        prod  https://p:1\n"
    );
    let listed: Value = serde_json::from_str(&run(&["config", "get-contexts", "-o", "json"])).unwrap();
    assert_eq!(listed[0]["cacert"], "/ca.pem");
    assert_eq!((&listed[1]["current"], &listed[1]["insecure"]), (&json!(true), &json!(true)));
    run(&["config", "set-context", "prod", "--insecure=false"]);
    let listed: Value = serde_json::from_str(&run(&["config", "get-contexts", "-o", "json"])).unwrap();
    assert_eq!(listed[1]["insecure"], Value::Null);
    refused(bare(home.path(), &["config", "use-context", "x"]), 1, "no context x; known contexts: lab, prod");
    run(&["config", "delete-context", "prod"]);
    assert_eq!(run(&["config", "get-contexts", "-q"]), "lab\n");
    refused(bare(home.path(), &["config", "current-context"]), 1, "no current context");

    let other = tempfile::tempdir().unwrap();
    let mut command = bare(home.path(), &["config", "set-context", "x", "--netmaster", "http://a:1"]);
    command.env("XDG_CONFIG_HOME", other.path());
    done(command);
    assert!(other.path().join("netctl/contexts.json").exists());
}

#[test]
fn flags_and_environment_go_before_the_context() {
    let home = tempfile::tempdir().unwrap();
    let [lab, prod, other] = [(); 3].map(|()| Server::start(|_| Reply::json(&json!([]))));
    let run = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = bare(home.path(), words);
        command.envs(variables.iter().copied());
        command
    };
    let list = ["tenant", "ls"];
    for (name, server) in [("lab", &lab), ("prod", &prod)] {
        done(run(&["config", "set-context", name, "--netmaster", &server.url()], &[]));
    }
    done(run(&["config", "use-context", "prod"], &[]));
    let (lab_url, other_url) = (lab.url(), other.url());
    let asked = |server: &Server| server.take().len();
    for (words, variables, expected) in [
        (&list[..], &[][..], [0, 1, 0]),
        (&list, &[("NETMASTER", "")], [0, 1, 0]),
        (
            &list,
            &[("NETCTL_CONTEXT", ""), ("NETCTL_CACERT", ""), ("NETCTL_CERT", ""), ("NETCTL_TOKEN_FILE", "")],
            [0, 1, 0],
        ),
        (&list, &[("NETCTL_CONTEXT", "lab")], [1, 0, 0]),
        (&["--context", "lab", "tenant", "ls"], &[("NETCTL_CONTEXT", "prod")], [1, 0, 0]),
        (&list, &[("NETMASTER", &other_url)], [0, 0, 1]),
        // The environment may be about another cluster than the context that is typed.
        (&["--context", "lab", "tenant", "ls"], &[("NETMASTER", &other_url)], [1, 0, 0]),
        (&["tenant", "ls", "--context", "lab"], &[("NETMASTER", &other_url)], [1, 0, 0]),
        (
            &["--context", "lab", "tenant", "ls"],
            &[("NETCTL_CACERT", "/nonexistent/ca"), ("NETCTL_TOKEN_FILE", "/nonexistent/token")],
            [1, 0, 0],
        ),
        (&["--context", "", "tenant", "ls"], &[("NETMASTER", &other_url)], [0, 0, 1]),
        (&list, &[("NETCTL_CONTEXT", "lab"), ("NETMASTER", &other_url)], [0, 0, 1]),
        (&["--context", "lab", "--netmaster", &other_url, "tenant", "ls"], &[], [0, 0, 1]),
        (&["--netmaster", &lab_url, "tenant", "ls"], &[("NETMASTER", &other_url)], [1, 0, 0]),
    ] {
        done(run(words, variables));
        assert_eq!([asked(&lab), asked(&prod), asked(&other)], expected, "{words:?} {variables:?}");
    }
    refused(run(&["--context", "x", "tenant", "ls"], &[]), 1, "no context x");

    // Credentials of the current context are not used for another netmaster.
    done(run(&["config", "set-context", "prod", "--cacert", "/nonexistent/ca"], &[]));
    refused(run(&list, &[]), 4, "read /nonexistent/ca");
    done(run(&["--netmaster", &lab_url, "tenant", "ls"], &[]));
    refused(
        run(&["--netmaster", &lab_url, "--context", "prod", "tenant", "ls"], &[]),
        4,
        "read /nonexistent/ca",
    );

    // Nor are those of a named one.
    let secure =
        ["config", "set-context", "secure", "--netmaster", "https://127.0.0.1:1", "--token-file", "/t"];
    done(run(&secure, &[]));
    refused(run(&["--context", "secure", "tenant", "ls"], &[]), 4, "read /t");
    done(run(&list, &[("NETCTL_CONTEXT", "secure"), ("NETMASTER", &lab_url)]));
    done(run(&["--context", "secure", "--netmaster", &lab_url, "tenant", "ls"], &[]));

    fs::write(home.path().join(".config/netctl/contexts.json"), "{").unwrap();
    refused(run(&list, &[]), 4, "contexts.json");
    done(run(&list, &[("NETMASTER", &lab_url)]));
}
