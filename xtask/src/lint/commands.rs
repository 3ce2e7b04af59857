//! A command in a document that does not exist is worse than none.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, Parser as _, error::ErrorKind};

use super::Findings;
use crate::{Cli, Command, lab, workspace::Workspace};

const START: &str = "cargo xtask";

pub(super) fn check(workspace: &Workspace) -> Result<Findings> {
    let mut findings = vec![];
    for document in documents(workspace)? {
        let text = fs::read_to_string(&document).with_context(|| format!("read {}", document.display()))?;
        let name = document.strip_prefix(workspace.root()).unwrap_or(&document).display().to_string();
        for (line, words) in commands(&text) {
            if let Err(problem) = check_command(workspace, &words) {
                findings.push(format!("{name}:{line}: `{}`: {problem}", words.join(" ")));
            }
        }
    }
    Ok(findings)
}

fn documents(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut documents = vec![];
    for folder in ["", "docs"] {
        for entry in fs::read_dir(workspace.path(folder))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                documents.push(path);
            }
        }
    }
    documents.sort();
    Ok(documents)
}

/// Each `cargo xtask ...` with its line: in a code block up to a comment, in running text up to the closing backtick.
fn commands(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut commands = vec![];
    for (number, line) in (1..).zip(text.lines()) {
        for (at, _) in line.match_indices(START) {
            let quoted = line[..at].matches('`').count() % 2 == 1;
            let rest = &line[at..];
            let end = if quoted { rest.find('`') } else { rest.find(" #") };
            // In a table of the words alone, `cargo xtask` means the program.
            let words: Vec<_> =
                rest[..end.unwrap_or(rest.len())].split_whitespace().map(str::to_owned).collect();
            let code =
                quoted || line.starts_with("    ") || line.starts_with("cargo") || line.starts_with("$ ");
            if code && words.len() > 2 {
                commands.push((number, words));
            }
        }
    }
    commands
}

fn check_command(workspace: &Workspace, words: &[String]) -> Result<(), String> {
    // `[--flag]`, `DIR`, `...`: the shape of a command, whose name at least must exist.
    if words.iter().any(|word| word.contains(['[', '<', '|']) || word.contains("...")) {
        let exists = Cli::command().find_subcommand(&words[2]).is_some();
        return if exists { Ok(()) } else { Err(format!("no command {}", words[2])) };
    }
    match Cli::try_parse_from(&words[1..]) {
        Ok(Cli { command: Command::Demo(arguments) }) => {
            lab::parses(workspace, lab::Program::Demo, &arguments)
        }
        Ok(Cli { command: Command::Bench(arguments) }) => {
            lab::parses(workspace, lab::Program::Bench, &arguments)
        }
        Ok(Cli { command: Command::Replay(arguments) }) => {
            lab::parses(workspace, lab::Program::Replay, &arguments)
        }
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => Ok(()),
        Err(error) => Err(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_blocks_and_in_text() {
        let text = "Run `cargo xtask test store` or `cargo xtask`.\n\n    cargo xtask demo --keep   # stays\n\
                    cargo xtask is a program in this sentence.\n";
        let found: Vec<_> =
            commands(text).into_iter().map(|(line, words)| (line, words[2..].join(" "))).collect();
        assert_eq!(found[..2], [(1, "test store".to_owned()), (3, "demo --keep".to_owned())]);
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
