//! Rewrites the arguments to the form that clap parses.
//!
//! The original parsed its flags with Go's `flag` package, and scripts rely on it: one dash is as good as two, an empty
//! value means that the flag is not given, flags take `=true` and `=false`, and the last of several values counts.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

/// Commands that ignore additional arguments, as the original does.
const LENIENT: [&[&str]; 3] = [&["service", "ls"], &["global", "set"], &["bgp", "create"]];

/// The original's short names of several letters.
const NAMES: [(&str, &str); 4] =
    [("s6", "subnetv6"), ("g6", "gatewayv6"), ("tag", "tag"), ("ip", "preferred-ip")];

/// An argument in its order on the command line.
enum Token {
    Word(OsString),
    Flag {
        id: String,
        name: String,
    },
    /// A flag with the value false.
    Off {
        id: String,
    },
    Value {
        id: String,
        name: String,
        value: OsString,
        repeatable: bool,
    },
}

/// A rewritten command line.
pub(super) struct Rewritten {
    /// The whole command line.
    pub(super) words: Vec<OsString>,
    /// Ids of the flags whose last value is false. They are not among the words: clap's flags have no values.
    pub(super) off: Vec<String>,
}

/// Rewrites `arguments`, the whole command line of the program `root`. What is not understood stays as it is, for clap's
/// message.
pub(super) fn rewrite(root: &Command, arguments: impl IntoIterator<Item = OsString>) -> Rewritten {
    let mut arguments = arguments.into_iter();
    let mut tokens = Tokens { root, path: vec![root], words: 0, found: vec![] };
    let program = arguments.next();
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            tokens.found.extend([argument].into_iter().chain(arguments).map(Token::Word));
            break;
        }
        tokens.push(argument, || arguments.next());
    }
    let (words, off) = tokens.finish();
    Rewritten { words: program.into_iter().chain(words).collect(), off }
}

struct Tokens<'a> {
    root: &'a Command,
    /// Commands from the program to the one that runs.
    path: Vec<&'a Command>,
    /// Number of positional arguments of the last command.
    words: usize,
    found: Vec<Token>,
}

impl<'a> Tokens<'a> {
    fn command(&self) -> &'a Command {
        self.path.last().copied().unwrap_or(self.root)
    }

    fn push(&mut self, argument: OsString, next: impl FnOnce() -> Option<OsString>) {
        let Some(text) = argument.to_str() else { return self.found.push(Token::Word(argument)) };
        let Some(option) = text.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
            return self.word(argument);
        };
        let option = option.strip_prefix('-').unwrap_or(option);
        let (name, given) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (option, None),
        };
        let Some(arg) = self.find(name) else {
            let is_version = text == "-v" && self.path.len() == 1;
            return self.found.push(Token::Word(if is_version { "--version".into() } else { argument }));
        };
        let (id, name) = (arg.get_id().to_string(), spelled(arg));
        match arg.get_action() {
            ArgAction::SetTrue => match given.as_deref() {
                None | Some("1" | "t" | "T" | "true" | "TRUE" | "True") => {
                    self.found.push(Token::Flag { id, name });
                }
                Some("0" | "f" | "F" | "false" | "FALSE" | "False") => self.found.push(Token::Off { id }),
                Some(_) => self.found.push(Token::Word(argument)),
            },
            action @ (ArgAction::Set | ArgAction::Append) => {
                let repeatable = matches!(action, ArgAction::Append);
                match given.map(OsString::from).or_else(next) {
                    Some(value) if value.is_empty() => {}
                    Some(value) => self.found.push(Token::Value { id, name, value, repeatable }),
                    None => self.found.push(Token::Word(argument)),
                }
            }
            _ => self.found.push(Token::Word(argument)),
        }
    }

    /// A subcommand or a positional argument.
    fn word(&mut self, argument: OsString) {
        let subcommand = argument.to_str().and_then(|name| self.command().find_subcommand(name));
        if let Some(subcommand) = subcommand.filter(|_| self.words == 0) {
            self.path.push(subcommand);
            return self.found.push(Token::Word(argument));
        }
        self.words += 1;
        let names: Vec<&str> = self.path.iter().skip(1).map(|command| command.get_name()).collect();
        let excess = self.words > self.command().get_positionals().count();
        if !(excess && LENIENT.contains(&names.as_slice())) {
            self.found.push(Token::Word(argument));
        }
    }

    /// The option with this short or long name, of the command or of the program.
    fn find(&self, name: &str) -> Option<&'a Arg> {
        let mut letters = name.chars();
        let letter = letters.next().filter(|_| letters.next().is_none());
        let long = NAMES.iter().find(|(other, _)| *other == name).map_or(name, |(_, long)| *long);
        let is_it = |arg: &&Arg| match letter {
            Some(letter) => arg.get_short_and_visible_aliases().is_some_and(|all| all.contains(&letter)),
            None => arg.get_long_and_visible_aliases().is_some_and(|all| all.contains(&long)),
        };
        let global = self.root.get_arguments().filter(|arg| arg.is_global_set());
        self.command().get_arguments().chain(global).find(is_it)
    }

    /// The arguments, of repeated ones the last; and the flags that are off.
    fn finish(self) -> (Vec<OsString>, Vec<String>) {
        let mut seen: Vec<String> = vec![];
        let mut off: Vec<String> = vec![];
        let mut reversed: Vec<Vec<OsString>> = vec![];
        for token in self.found.into_iter().rev() {
            let is_off = matches!(token, Token::Off { .. });
            let (once, words) = match token {
                Token::Word(word) => (None, vec![word]),
                Token::Flag { id, name } => (Some(id), vec![name.into()]),
                Token::Off { id } => (Some(id), vec![]),
                // In one word: the value may begin with a dash.
                Token::Value { id, name, value, repeatable } => {
                    let mut word = OsString::from(name);
                    word.push("=");
                    word.push(value);
                    ((!repeatable).then_some(id), vec![word])
                }
            };
            if let Some(id) = once {
                if seen.contains(&id) {
                    continue;
                }
                if is_off {
                    off.push(id.clone());
                }
                seen.push(id);
            }
            reversed.push(words);
        }
        (reversed.into_iter().rev().flatten().collect(), off)
    }
}

/// The option as clap parses it, without a value.
fn spelled(arg: &Arg) -> String {
    match (arg.get_long(), arg.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    fn rewritten(line: &str) -> String {
        let mut root = Cli::command();
        root.build();
        let words = line.split(' ').map(|word| OsString::from(word.replace("''", "")));
        let words = rewrite(&root, words).words;
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn arguments_are_rewritten() {
        for (given, expected) in [
            (
                "netctl group create -policy=x -policy y -tag=t net g",
                "netctl group create --policy=x --policy=y --epg-tag=t net g",
            ),
            (
                "netctl policy rule-add -direction=in -priority 0x10 p 1",
                "netctl policy rule-add --direction=in --priority=0x10 p 1",
            ),
            (
                "netctl -netmaster http://a:1 net create -subnet 10.2.1.0/24 -s6 fd00::/64 n",
                "netctl --netmaster=http://a:1 net create --subnet=10.2.1.0/24 --subnetv6=fd00::/64 n",
            ),
            ("netctl net ls --json=true -j -q=false --tenant ''", "netctl net ls --json"),
            ("netctl net ls --json --json=false", "netctl net ls"),
            ("netctl net ls --json=false --json", "netctl net ls --json"),
            ("netctl apply -dry-run -f a --dry-run=0", "netctl apply --file=a"),
            ("netctl net create -s 10.0.0.0/8 -s 10.1.0.0/16 n", "netctl net create --subnet=10.1.0.0/16 n"),
            ("netctl policy rule-add -P -1 p 1", "netctl policy rule-add --port=-1 p 1"),
            ("netctl -v", "netctl --version"),
            ("netctl global set -v '' more", "netctl global set"),
            ("netctl service ls a b", "netctl service ls"),
            ("netctl net rm net", "netctl net rm net"),
            ("netctl net rm -- -policy", "netctl net rm -- -policy"),
            ("netctl net rm -nonsense n", "netctl net rm -nonsense n"),
        ] {
            assert_eq!(rewritten(given), expected, "{given}");
        }
    }
}
