//! Exports of a command line: the Markdown of the reference, man pages and shell completions.
//!
//! Each binary handles `BINARY reference ...` before it parses its own flags. The command is not part of the help: the
//! build of the documentation and of the packages runs it, so that both always show what the binary accepts.

#![deny(missing_docs)]

mod markdown;

use std::{
    ffi::OsString,
    fmt,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Command;
use clap_complete::Shell;

/// Name of the hidden command.
pub const COMMAND: &str = "reference";

/// A further text that a binary exports, such as its metrics.
pub struct Page {
    /// Word on the command line that selects it.
    pub name: &'static str,
    /// Renders the text.
    pub render: fn() -> Result<String, fmt::Error>,
}

/// An export that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The words after `reference` select nothing.
    #[error("reference {given}: expected one of: {accepted}")]
    Unknown {
        /// What was given.
        given: String,
        /// What is accepted.
        accepted: String,
    },
    /// A page cannot be rendered.
    #[error("render the page {name}")]
    Page {
        /// Name of the page.
        name: &'static str,
        /// The cause.
        source: fmt::Error,
    },
    /// A file of a man page cannot be written.
    #[error("write man pages to {}", directory.display())]
    ManPages {
        /// The directory of `reference man DIR`.
        directory: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The text that `BINARY reference ...` prints; `None` if `arguments`, the whole command line, ask for something else.
///
/// `markdown` prints the flags as Markdown, `man DIR` writes a man page for each command into the directory (section 8
/// for daemons, 1 otherwise, as `command` sets no section), `completion SHELL` prints a completion script, and each of
/// `pages` prints its own text.
///
/// # Errors
///
/// [`Error::Unknown`] if the words select nothing, [`Error::Page`] if a page cannot be rendered, [`Error::ManPages`] if
/// the directory cannot be written.
pub fn export(
    command: Command,
    section: u8,
    pages: &[Page],
    arguments: &[OsString],
) -> Option<Result<String, Error>> {
    let [_, first, words @ ..] = arguments else { return None };
    if first != COMMAND {
        return None;
    }
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    Some(render(command, section, pages, &words))
}

/// [`export`] for `main`: prints the text, or the error on standard error.
pub fn print(command: Command, section: u8, pages: &[Page], arguments: &[OsString]) -> Option<ExitCode> {
    let name = command.get_name().to_owned();
    let text = match export(command, section, pages, arguments)? {
        Ok(text) => text,
        Err(error) => {
            let cause =
                std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            eprintln!("{name}: {error}{cause}");
            return Some(ExitCode::FAILURE);
        }
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("{name}: write to standard output: {error}");
            Some(ExitCode::FAILURE)
        }
    }
}

fn render(mut command: Command, section: u8, pages: &[Page], words: &[&str]) -> Result<String, Error> {
    match words {
        ["markdown"] => Ok(markdown::reference(command)),
        ["man", directory] => {
            let directory = PathBuf::from(directory);
            let result = man_pages(command, section, &directory);
            result.map(|()| String::new()).map_err(|source| Error::ManPages { directory, source })
        }
        ["completion", shell] if shell.parse::<Shell>().is_ok() => {
            let mut script = vec![];
            let name = command.get_name().to_owned();
            if let Ok(shell) = shell.parse::<Shell>() {
                clap_complete::generate(shell, &mut command, name, &mut script);
            }
            Ok(String::from_utf8_lossy(&script).into_owned())
        }
        words => {
            if let [word] = words
                && let Some(Page { name, render }) = pages.iter().find(|page| page.name == *word)
            {
                return render().map_err(|source| Error::Page { name, source });
            }
            let pages = pages.iter().map(|page| page.name);
            let accepted: Vec<_> =
                ["markdown", "man DIR", "completion SHELL"].into_iter().chain(pages).collect();
            Err(Error::Unknown { given: words.join(" "), accepted: accepted.join(", ") })
        }
    }
}

/// A page `NAME-SUBCOMMAND.SECTION` for each command.
fn man_pages(command: Command, section: u8, directory: &Path) -> io::Result<()> {
    fn write(command: &Command, name: &str, section: u8, directory: &Path) -> io::Result<()> {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            write(sub, &format!("{name}-{}", sub.get_name()), section, directory)?;
        }
        let page = clap_mangen::Man::new(command.clone().name(name.to_owned()).disable_help_subcommand(true))
            .section(section.to_string());
        let mut text = vec![];
        page.render(&mut text)?;
        std::fs::write(directory.join(format!("{name}.{section}")), text)
    }
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let name = command.get_name().to_owned();
    write(&command, &name, section, directory)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(Into::into).collect()
    }

    fn command() -> Command {
        Command::new("tool")
            .about("Does things.")
            .arg(Arg::new("speed").long("speed").help("Speed, km/h"))
            .subcommand(Command::new("stop").about("Stops.").arg(Arg::new("when").help("Time")))
    }

    #[test]
    fn other_commands_are_left_alone() {
        for line in ["tool", "tool --speed 3", "tool stop reference"] {
            assert!(export(command(), 1, &[], &words(line)).is_none(), "{line}");
        }
    }

    #[test]
    fn man_pages_are_one_file_per_command() {
        let directory = tempfile::tempdir().unwrap();
        let line = format!("tool reference man {}", directory.path().display());
        export(command(), 8, &[], &words(&line)).unwrap().unwrap();
        let mut names: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["tool-stop.8", "tool.8"]);
        let page = std::fs::read_to_string(directory.path().join("tool.8")).unwrap();
        assert!(page.contains("Speed, km/h"), "{page}");
    }

    #[test]
    fn pages_and_completions_are_selected_by_name() {
        let pages = [
            Page { name: "metrics", render: || Ok("metrics\n".to_owned()) },
            Page { name: "broken", render: || Err(fmt::Error) },
        ];
        let run = |line: &str| export(command(), 1, &pages, &words(line)).unwrap();
        assert_eq!(run("tool reference metrics").unwrap(), "metrics\n");
        assert!(run("tool reference completion bash").unwrap().contains("--speed"));
        assert_eq!(run("tool reference broken").unwrap_err().to_string(), "render the page broken");
        let error = run("tool reference frobnicate").unwrap_err().to_string();
        assert!(
            error.contains("frobnicate") && error.contains("markdown") && error.contains("metrics"),
            "{error}"
        );
    }

    #[test]
    fn a_directory_that_does_not_exist_is_named() {
        let error =
            export(command(), 1, &[], &words("tool reference man /nonexistent/d")).unwrap().unwrap_err();
        assert!(error.to_string().contains("/nonexistent/d"), "{error}");
    }
}
