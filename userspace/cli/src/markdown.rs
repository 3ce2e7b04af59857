//! The reference page of a command line.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

/// Markdown with a section for each command: purpose, usage, and a table of its flags.
pub(crate) fn reference(command: Command) -> String {
    let mut command = command.disable_help_subcommand(true).max_term_width(0);
    command.build();
    let mut page = String::new();
    let name = command.get_name().to_owned();
    section(&mut page, &command, &name, 1);
    page
}

/// Writing into a `String` does not fail, so results of `write!` are dropped.
fn section(page: &mut String, command: &Command, name: &str, level: usize) {
    let heading = "#".repeat(level.min(3));
    let _ = writeln!(page, "{heading} {name}\n");
    let about = command.get_long_about().or_else(|| command.get_about());
    if let Some(about) = about {
        let _ = writeln!(page, "{}\n", about.to_string().trim());
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim().trim_start_matches("Usage:").trim();
    let _ = writeln!(page, "```text\n{usage}\n```\n");
    let aliases: Vec<_> = command.get_visible_aliases().collect();
    if !aliases.is_empty() {
        let _ = writeln!(page, "Alias: `{}`\n", aliases.join("`, `"));
    }
    // Global flags are listed once, with the program.
    let shown: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && (level == 1 || !arg.is_global_set()))
        .filter(|arg| {
            !matches!(
                arg.get_action(),
                ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
            )
        })
        .collect();
    if !shown.is_empty() {
        let environment = shown.iter().any(|arg| arg.get_env().is_some());
        page.push_str(if environment {
            "| flag | environment | default | meaning |\n|---|---|---|---|\n"
        } else {
            "| flag | default | meaning |\n|---|---|---|\n"
        });
        for arg in shown {
            let _ = writeln!(page, "{}", row(arg, environment));
        }
        page.push('\n');
    }
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        section(page, sub, &format!("{name} {}", sub.get_name()), level + 1);
    }
}

fn row(arg: &Arg, environment: bool) -> String {
    let code = |text: &str| format!("`{}`", text.replace('|', "\\|"));
    let mut cells = vec![code(&spelling(arg))];
    if environment {
        cells.push(arg.get_env().map(|name| code(&name.to_string_lossy())).unwrap_or_default());
    }
    let flag = matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse | ArgAction::Count);
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    cells.push(match defaults.is_empty() || flag {
        true if arg.is_required_set() => "required".to_owned(),
        true => String::new(),
        false => code(&defaults.join(" ")),
    });
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;");
    let values: Vec<_> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| code(value.get_name()))
        .collect();
    cells.push(match values.is_empty() || flag {
        true => help,
        false => format!("{help} ({})", values.join(", ")),
    });
    format!("| {} |", cells.join(" | "))
}

/// `-o, --output FORMAT`, or `NAME` of a positional argument.
fn spelling(arg: &Arg) -> String {
    let values = || match arg.get_value_names() {
        Some(names) if !names.is_empty() => names.join(" "),
        _ => arg.get_id().as_str().to_uppercase(),
    };
    let mut names = vec![];
    names.extend(arg.get_short().map(|short| format!("-{short}")));
    names.extend(arg.get_long().map(|long| format!("--{long}")));
    names.extend(arg.get_visible_aliases().unwrap_or_default().into_iter().map(|alias| format!("--{alias}")));
    if names.is_empty() {
        return match arg.get_action() {
            ArgAction::Append => format!("{}...", values()),
            _ => values(),
        };
    }
    let names = names.join(", ");
    if arg.get_action().takes_values() { format!("{names} {}", values()) } else { names }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_per_command_and_a_row_per_flag() {
        let command = Command::new("tool")
            .version("1")
            .about("Does things.")
            .arg(
                Arg::new("master")
                    .long("master")
                    .env("MASTER")
                    .default_value("http://m")
                    .global(true)
                    .help("URL of the master"),
            )
            .subcommand(
                Command::new("ls")
                    .visible_alias("list")
                    .about("Lists.")
                    .arg(
                        Arg::new("output")
                            .short('o')
                            .long("output")
                            .value_parser(["json", "yaml"])
                            .help("Format"),
                    )
                    .arg(Arg::new("name").required(true).help("Name | key")),
            );
        assert_eq!(
            reference(command),
            "# tool\n\nDoes things.\n\n```text\ntool [OPTIONS] [COMMAND]\n```\n\n\
             | flag | environment | default | meaning |\n|---|---|---|---|\n\
             | `--master MASTER` | `MASTER` | `http://m` | URL of the master |\n\n\
             ## tool ls\n\nLists.\n\n```text\ntool ls [OPTIONS] <name>\n```\n\nAlias: `list`\n\n\
             | flag | default | meaning |\n|---|---|---|\n\
             | `-o, --output OUTPUT` |  | Format (`json`, `yaml`) |\n\
             | `NAME` | required | Name \\| key |\n\n"
        );
    }
}
