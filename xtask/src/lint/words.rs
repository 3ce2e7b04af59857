//! Words that have a standard term.

use std::fs;

use anyhow::{Context as _, Result};

use super::Findings;
use crate::workspace::{Workspace, output};

/// Written in two parts, so that a search of the repository does not find this list.
const WORDS: &[&str] = &[
    concat!("tal", "lies"),
    concat!("ros", "ter"),
    concat!("he", "irs"),
    concat!("her", "ald"),
    concat!("short", "fall"),
    concat!("pa", "pers"),
    concat!("trou", "bles"),
    concat!("me", "nd"),
    concat!("me", "nds"),
    concat!("me", "nded"),
    concat!("who", "ever"),
    concat!("no", "body"),
];

/// Recorded texts of other programs.
const EXEMPT: &[&str] = &["tests/e2e/recordings/", "LICENSE"];

pub(super) fn check(workspace: &Workspace) -> Result<Findings> {
    let files = output(workspace.command("git").args(["ls-files", "-z"])).context("list the files")?;
    let mut findings = vec![];
    for file in files.split('\0').filter(|file| !file.is_empty()) {
        if EXEMPT.iter().any(|exempt| file.starts_with(exempt)) {
            continue;
        }
        // Deleted files and links to folders have no content.
        let Ok(bytes) = fs::read(workspace.path(file)) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        findings.extend(find(&text).map(|(line, word)| format!("{file}:{line}: {word}")));
    }
    Ok(findings)
}

fn find(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    (1..).zip(text.lines()).flat_map(|(number, line)| {
        line.split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter_map(|word| WORDS.iter().find(|forbidden| word.eq_ignore_ascii_case(forbidden)))
            .map(move |word| (number, *word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_words_are_found_in_any_case() {
        let text = format!("fine\n{0}, {1}ing {0}_x\n({2})", WORDS[7], WORDS[7], WORDS[11].to_uppercase());
        assert_eq!(find(&text).collect::<Vec<_>>(), [(2, WORDS[7]), (3, WORDS[11])]);
    }
}
