//! Links and size of the pages.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use anyhow::Result;

use super::{
    Findings,
    documents::{self, BOOK, Document, Kind},
};
use crate::workspace::Workspace;

const MAX_LINES: usize = 400;
/// Generated from the code, as long as the code has flags and metrics.
const GENERATED: &str = "docs/src/reference";

pub(super) fn check(workspace: &Workspace) -> Result<Findings> {
    let documents = documents::read(workspace)?;
    let exists = |path: &Path| workspace.path(path).exists();
    let mut findings = check_links(&documents, exists);
    findings.extend(check_summary(&documents));
    findings.extend(check_size(&documents));
    Ok(findings)
}

fn check_links(documents: &[Document], exists: impl Fn(&Path) -> bool) -> Findings {
    let anchors: BTreeMap<_, _> =
        documents.iter().map(|document| (document.path.clone(), anchors(&document.text))).collect();
    let mut findings = vec![];
    for document in documents {
        let name = document.path.display();
        for (line, target) in links(&document.text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() {
                document.path.clone()
            } else {
                normalize(&document.path.parent().unwrap_or(Path::new("")).join(file))
            };
            if !exists(&path) && !anchors.contains_key(&path) {
                findings.push(format!("{name}:{line}: link to {target}: no such file"));
            } else if document.path.starts_with(BOOK) && !path.starts_with(BOOK) {
                findings.push(format!("{name}:{line}: link to {target}: outside of the book"));
            } else if !anchor.is_empty()
                && anchors.get(&path).is_some_and(|anchors| !anchors.contains(anchor))
            {
                findings.push(format!("{name}:{line}: link to {target}: no such heading"));
            }
        }
    }
    findings
}

/// Resolves `.` and `..` without looking at the file system.
fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => _ = normal.pop(),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

/// Targets of `[text](target)` and `[name]: target` outside of code, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = vec![];
    for line in documents::lines(text).iter().filter(|line| line.kind == Kind::Text) {
        // Parts at odd positions are code.
        let plain: String = line.text.split('`').step_by(2).collect();
        for (at, _) in plain.match_indices("](") {
            let rest = &plain[at + 2..];
            if let Some(end) = rest.find(')') {
                let target = rest[..end].split_whitespace().next().unwrap_or_default();
                links.push((line.number, target.trim_matches(['<', '>']).to_owned()));
            }
        }
        if let Some((_, target)) = plain.strip_prefix('[').and_then(|rest| rest.split_once("]: ")) {
            links.push((line.number, target.trim().to_owned()));
        }
    }
    links
}

/// The anchors of the headings, as mdBook and GitHub make them, and explicit ones.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in documents::lines(text).iter().filter(|line| line.kind == Kind::Text) {
        for (at, _) in line.text.match_indices("id=\"") {
            anchors.extend(line.text[at + 4..].split('"').next().map(str::to_owned));
        }
        let heading = line.text.trim_start_matches('#');
        if heading.len() == line.text.len() || !heading.starts_with(' ') {
            continue;
        }
        let mut heading = heading.trim();
        if let Some((text, explicit)) = heading.strip_suffix('}').and_then(|rest| rest.split_once("{#")) {
            anchors.insert(explicit.trim().to_owned());
            heading = text.trim();
        }
        let slug: String = heading
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                '-' | '_' => Some(c),
                c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
                _ => None,
            })
            .collect();
        // A repeated heading gets a number.
        let mut anchor = slug.clone();
        let mut count = 1;
        while !anchors.insert(anchor) {
            anchor = format!("{slug}-{count}");
            count += 1;
        }
    }
    anchors
}

/// Every page of the book is in its table of contents.
fn check_summary(documents: &[Document]) -> Findings {
    let summary = Path::new(BOOK).join("SUMMARY.md");
    let Some(contents) = documents.iter().find(|document| document.path == summary) else { return vec![] };
    let listed: BTreeSet<_> = links(&contents.text)
        .into_iter()
        .map(|(_, target)| normalize(&Path::new(BOOK).join(target)))
        .collect();
    documents
        .iter()
        .filter(|document| document.path.starts_with(BOOK) && document.path != summary)
        .filter(|document| !listed.contains(&document.path))
        .map(|document| format!("{}: not in {}", document.path.display(), summary.display()))
        .collect()
}

fn check_size(documents: &[Document]) -> Findings {
    documents
        .iter()
        .filter(|document| document.path.starts_with(BOOK) && !document.path.starts_with(GENERATED))
        .map(|document| (document, document.text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_LINES)
        .map(|(document, lines)| format!("{}: {lines} lines, limit {MAX_LINES}", document.path.display()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(path: &str, text: &str) -> Document {
        Document { path: path.into(), text: text.to_owned() }
    }

    #[test]
    fn broken_links_are_found() {
        let documents = [
            document(
                "docs/src/a.md",
                "# A page\n[b](sub/b.md#two-words) [c](c.md)\n`[code](x.md)` [web](https://a.b/c)",
            ),
            document(
                "docs/src/sub/b.md",
                "## Two *words*\n[a](../a.md#other) [out](../../../README.md) [ok](../a.md#a-page)",
            ),
            document("README.md", "[book](docs/src/a.md)\n\n    [code](y.md)\n"),
        ];
        let expected = [
            "docs/src/a.md:2: link to c.md: no such file",
            "docs/src/sub/b.md:2: link to ../a.md#other: no such heading",
            "docs/src/sub/b.md:2: link to ../../../README.md: outside of the book",
        ];
        assert_eq!(check_links(&documents, |_| false), expected);
    }

    #[test]
    fn a_page_must_be_in_the_contents_and_short() {
        let documents = [
            document("docs/src/SUMMARY.md", "- [A](a.md)\n"),
            document("docs/src/a.md", &"line\n".repeat(401)),
            document("docs/src/b.md", ""),
            document("docs/src/reference/flags.md", &"line\n".repeat(401)),
        ];
        let lost = [
            "docs/src/b.md: not in docs/src/SUMMARY.md",
            "docs/src/reference/flags.md: not in docs/src/SUMMARY.md",
        ];
        assert_eq!(check_summary(&documents), lost);
        assert_eq!(check_size(&documents), ["docs/src/a.md: 401 lines, limit 400"]);
    }
}
