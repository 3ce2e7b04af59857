//! Completion scripts, checked by their shells if those are installed.

use std::process::Command;

use super::netctl;

fn script(shell: &str) -> String {
    let output = netctl(&["completion", shell]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    String::from_utf8(output.stdout).unwrap()
}

/// Completions that bash offers for the last of `words`, sorted.
fn offered(words: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("netctl.bash");
    std::fs::write(&file, script("bash")).unwrap();
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let ask = format!(
        "source {}; COMP_WORDS=({}); COMP_CWORD={}; _netctl netctl '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        file.display(),
        quoted.join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut offered: Vec<String> =
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    offered.sort();
    offered
}

#[test]
fn bash_completes_commands_flags_and_values() {
    assert_eq!(offered(&["netctl", "a"]), ["aci-gw", "app-profile", "apply"]);
    assert_eq!(offered(&["netctl", "network", "c"]), ["create"]);
    assert_eq!(offered(&["netctl", "policy", "rule-"]), ["rule-add", "rule-ls", "rule-rm"]);
    assert_eq!(
        offered(&["netctl", "network", "ls", "-o", ""]),
        ["custom-columns=", "json", "jsonpath=", "name", "table", "wide", "yaml"]
    );
    assert_eq!(offered(&["netctl", "network", "create", "--sub"]), ["--subnet", "--subnetv6"]);
}

#[test]
fn every_script_has_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = script(shell);
        for command in ["network", "group", "policy", "rule-add", "node", "apply", "dry-run", "cacert"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
        // `-n` parses the script without running it. Not every machine has every shell.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script");
        std::fs::write(&file, &script).unwrap();
        if let Ok(checked) = Command::new(shell).arg("-n").arg(&file).output() {
            assert!(checked.status.success(), "{shell}: {}", String::from_utf8_lossy(&checked.stderr));
        }
    }
}
