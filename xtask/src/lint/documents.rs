//! The documents: Markdown files of the root folder and the pages of the book in `docs/src`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::workspace::Workspace;

pub(super) const BOOK: &str = "docs/src";

#[derive(Debug)]
pub(super) struct Document {
    /// Relative to the root folder.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// One line of a document.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) number: usize,
    pub(super) text: &'a str,
    pub(super) kind: Kind<'a>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    Text,
    /// Inside a fenced code block with this info string.
    Fenced(&'a str),
    /// Indented by four columns after an empty line.
    Indented,
}

pub(super) fn read(workspace: &Workspace) -> Result<Vec<Document>> {
    let mut files = vec![];
    for entry in fs::read_dir(workspace.root())? {
        let path = entry?.path();
        if is_markdown(&path) {
            files.push(path);
        }
    }
    let book = workspace.path(BOOK);
    if book.is_dir() {
        collect(&book, &mut files)?;
    }
    files.sort();
    files
        .into_iter()
        .map(|file| {
            let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
            let path = file.strip_prefix(workspace.root()).unwrap_or(&file).to_owned();
            Ok(Document { path, text })
        })
        .collect()
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if is_markdown(&path) {
            files.push(path);
        }
    }
    Ok(())
}

/// The lines with the kind of block that they are in. Fences themselves are left out.
pub(super) fn lines(text: &str) -> Vec<Line<'_>> {
    let mut lines = vec![];
    let mut fence: Option<(&str, &str)> = None;
    let mut indented = false;
    let mut after_empty = true;
    for (number, line) in (1..).zip(text.lines()) {
        let trimmed = line.trim_start();
        if let Some((marker, info)) = fence {
            if trimmed.starts_with(marker) && trimmed.trim_matches(['`', '~', ' ']).is_empty() {
                fence = None;
            } else {
                lines.push(Line { number, text: line, kind: Kind::Fenced(info) });
            }
            continue;
        }
        if let Some(marker) = ["```", "~~~"].into_iter().find(|marker| trimmed.starts_with(marker)) {
            fence = Some((marker, trimmed.trim_start_matches(['`', '~']).trim()));
            continue;
        }
        let empty = trimmed.is_empty();
        indented = line.starts_with("    ") && (indented || after_empty) || empty && indented;
        after_empty = empty;
        lines.push(Line { number, text: line, kind: if indented { Kind::Indented } else { Kind::Text } });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_told_from_text() {
        let text = "a\n\n    b\n\n    c\nd\n```sh\ne\n```\nf\n    g\n";
        let kinds: Vec<_> = lines(text)
            .into_iter()
            .filter(|line| !line.text.is_empty())
            .map(|line| (line.number, line.kind))
            .collect();
        let expected = [
            (1, Kind::Text),
            (3, Kind::Indented),
            (5, Kind::Indented),
            (6, Kind::Text),
            (8, Kind::Fenced("sh")),
            (10, Kind::Text),
            (11, Kind::Text),
        ];
        assert_eq!(kinds, expected);
    }
}
