//! Commands in the documents: every `cargo xtask`, and in code blocks those of our binaries.

use std::{path::Path, process::Stdio};

use anyhow::Result;
use clap::{CommandFactory as _, Parser as _, error::ErrorKind};

use super::{
    Findings,
    documents::{self, Kind},
};
use crate::{
    Cli, Command, lab,
    suite::programs::{self, Selection},
    workspace::Workspace,
};

const START: &str = "cargo xtask";
const BINARIES: [&str; 3] = ["netctl", "netmaster", "netplugin"];
/// Languages of code blocks that hold commands; others hold output.
const SHELLS: [&str; 5] = ["", "sh", "bash", "shell", "console"];
/// Characters of a placeholder: such a command is checked up to it.
const PLACEHOLDER: [char; 6] = ['<', '>', '[', ']', '$', '…'];

pub(super) fn check(workspace: &Workspace) -> Result<Findings> {
    programs::build(workspace, &Selection::All)?;
    let folder = workspace.metadata()?.target_directory.into_std_path_buf().join("debug");
    let mut findings = vec![];
    for document in documents::read(workspace)? {
        let name = document.path.display().to_string();
        for (line, words) in xtask_commands(&document.text) {
            if let Err(problem) = check_xtask(workspace, &words) {
                findings.push(format!("{name}:{line}: `{}`: {problem}", words.join(" ")));
            }
        }
        for (line, words) in binary_commands(&document.text) {
            if let Err(problem) = check_binary(workspace, &folder.join(&words[0]), &words[1..]) {
                findings.push(format!("{name}:{line}: `{}`: {problem}", words.join(" ")));
            }
        }
    }
    Ok(findings)
}

/// Each `cargo xtask ...` with its line: in a code block up to a comment, in running text up to the closing backtick.
fn xtask_commands(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut commands = vec![];
    for line in documents::lines(text) {
        for (at, _) in line.text.match_indices(START) {
            let quoted = line.kind == Kind::Text && line.text[..at].matches('`').count() % 2 == 1;
            let rest = &line.text[at..];
            let end = if quoted { rest.find('`') } else { rest.find(" #") };
            // `cargo xtask` alone is the name of the program.
            let words: Vec<_> =
                rest[..end.unwrap_or(rest.len())].split_whitespace().map(str::to_owned).collect();
            if (quoted || line.kind != Kind::Text) && words.len() > 2 {
                commands.push((line.number, words));
            }
        }
    }
    commands
}

fn check_xtask(workspace: &Workspace, words: &[String]) -> Result<(), String> {
    // `[--flag]`, `DIR`, `...`: a synopsis, of which the subcommand must exist.
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

/// Commands of our binaries in code blocks, with the lines that they start on. Each starts with the binary's name.
fn binary_commands(text: &str) -> Vec<(usize, Vec<String>)> {
    let mut commands = vec![];
    let mut joined: Option<(usize, String)> = None;
    for line in documents::lines(text) {
        let shell = match line.kind {
            Kind::Text => false,
            Kind::Indented => true,
            Kind::Fenced(info) => SHELLS.contains(&info.split([',', ' ', '{']).next().unwrap_or_default()),
        };
        if !shell {
            joined = None;
            continue;
        }
        let (number, mut command) = joined.take().unwrap_or((line.number, String::new()));
        command.push_str(line.text.trim());
        if let Some(first) = command.strip_suffix('\\') {
            joined = Some((number, format!("{} ", first.trim_end())));
            continue;
        }
        for words in shell_commands(&command) {
            let program = words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default();
            if BINARIES.contains(&program) {
                let mut words = words.clone();
                words[0] = program.to_owned();
                commands.push((number, words));
            }
        }
    }
    commands
}

/// The simple commands of a line without prompts, variables, `sudo` and redirections.
fn shell_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![vec![]];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut skip_next = false;
    let line = line.trim_start_matches(['$', '#']).trim_start();
    let mut end_word = |word: &mut Option<String>, commands: &mut Vec<Vec<String>>, redirection: bool| {
        if let Some(word) = word.take() {
            let command = commands.last_mut();
            if std::mem::take(&mut skip_next) {
                // The file of a redirection.
            } else if let Some(command) = command {
                let is_prefix = command.is_empty() && (word == "sudo" || is_assignment(&word));
                if !is_prefix {
                    command.push(word);
                }
            }
        }
        skip_next |= redirection;
    };
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            // `<NAME>` is a placeholder, anything else a redirection.
            (None, '<') if characters.peek().is_some_and(|next| next.is_ascii_alphabetic()) => {
                let word = word.get_or_insert_default();
                word.push(c);
                for c in characters.by_ref() {
                    word.push(c);
                    if c == '>' {
                        break;
                    }
                }
            }
            (None, '<' | '>') => {
                // A file descriptor before it belongs to the redirection.
                if word.as_ref().is_some_and(|word| word.chars().all(|c| c.is_ascii_digit())) {
                    word = None;
                }
                end_word(&mut word, &mut commands, true);
            }
            (None, '|' | ';' | '&' | '(' | ')') => {
                end_word(&mut word, &mut commands, false);
                commands.push(vec![]);
            }
            (None, c) if c.is_whitespace() => end_word(&mut word, &mut commands, false),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    end_word(&mut word, &mut commands, false);
    commands.retain(|command| !command.is_empty());
    commands
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit())
    })
}

/// Lets the binary parse the words: with `--help` behind them it does nothing else.
fn check_binary(workspace: &Workspace, binary: &Path, words: &[String]) -> Result<(), String> {
    let is_placeholder = |word: &String| word.contains(PLACEHOLDER) || word.contains("...");
    let mut words = words;
    if let Some(placeholder) = words.iter().position(is_placeholder) {
        words = &words[..placeholder];
        // The value of this flag is the placeholder.
        if words.last().is_some_and(|word| word.starts_with('-')) {
            words = &words[..placeholder - 1];
        }
    }
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let mut command = workspace.command(binary);
    command.args(&words[..end]).arg("--help").stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("run {}: {error}", binary.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_blocks_and_in_text() {
        let text = "Run `cargo xtask test store` or `cargo xtask`.\n\n    cargo xtask demo --keep   # runs on\n\n\
                    cargo xtask is a program in this sentence.\n```sh\ncargo xtask ci\n```\n";
        let found: Vec<_> =
            xtask_commands(text).into_iter().map(|(line, words)| (line, words[2..].join(" "))).collect();
        assert_eq!(
            found,
            [(1, "test store".to_owned()), (3, "demo --keep".to_owned()), (7, "ci".to_owned())]
        );
    }

    #[test]
    fn commands_of_binaries_are_found_in_shell_blocks() {
        let text = "`netctl ls`\n```sh,machine=node1\nsudo NETMASTER=a:1 /usr/bin/netctl net ls | grep 'a b' && netctl tenant \\\n  \
                    create \"b c\" >/dev/null 2>&1 # ok\n```\n```text\nnetctl prints this\n```\n\n    $ netplugin --flag <VALUE>\n";
        let found: Vec<_> =
            binary_commands(text).into_iter().map(|(line, words)| (line, words.join("|"))).collect();
        let expected =
            [(3, "netctl|net|ls"), (3, "netctl|tenant|create|b c"), (10, "netplugin|--flag|<VALUE>")];
        assert_eq!(found, expected.map(|(line, words)| (line, words.to_owned())));
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
