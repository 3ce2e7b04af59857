//! The machines and the marked shell blocks of a Markdown page.
//!
//! A block that is run begins with `` ```sh,machine=node1 `` or `` ```sh,machine=all ``. The machines and their addresses
//! are the rows `| node1 | 192.0.2.11 |` of a table.

use std::net::Ipv4Addr;

use anyhow::{Result, bail};

const FENCE: &str = "```";
const MARK: &str = "```sh,machine=";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// In the order of the table.
    pub(super) machines: Vec<(String, Ipv4Addr)>,
    pub(super) blocks: Vec<Block>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Line of the page that opens the block, from 1.
    pub(super) line: usize,
    pub(super) machines: Machines,
    pub(super) text: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Machines {
    All,
    One(String),
}

impl Machines {
    pub(super) fn runs_on(&self, machine: &str) -> bool {
        match self {
            Machines::All => true,
            Machines::One(name) => name == machine,
        }
    }
}

impl Block {
    /// Its first command, for messages.
    pub(super) fn title(&self) -> &str {
        self.text.lines().find(|line| !line.starts_with('#')).unwrap_or_default()
    }
}

impl Page {
    pub(super) fn parse(text: &str) -> Result<Page> {
        let mut page = Page { machines: vec![], blocks: vec![] };
        let mut open: Option<Block> = None;
        for (line, content) in (1..).zip(text.lines()) {
            match &mut open {
                Some(_) if content.trim_end() == FENCE => page.blocks.extend(open.take()),
                Some(block) => {
                    block.text.push_str(content);
                    block.text.push('\n');
                }
                None => {
                    if let Some(name) = content.strip_prefix(MARK) {
                        let machines = match name.trim() {
                            "all" => Machines::All,
                            name => Machines::One(name.to_owned()),
                        };
                        open = Some(Block { line, machines, text: String::new() });
                    } else if let Some(machine) = machine(content) {
                        page.machines.push(machine);
                    }
                }
            }
        }
        if let Some(block) = open {
            bail!("line {}: the block has no end", block.line);
        }
        if page.blocks.is_empty() {
            bail!("no block begins with {MARK}NAME");
        }
        Ok(page)
    }

    /// Fails if a block is for a machine that is not one of `machines`.
    pub(super) fn check(&self, machines: &[(String, Ipv4Addr)]) -> Result<()> {
        for block in &self.blocks {
            if let Machines::One(name) = &block.machines
                && !machines.iter().any(|(known, _)| known == name)
            {
                bail!("line {}: machine {name} is not in the table of machines", block.line);
            }
        }
        Ok(())
    }
}

/// `| node1 | 192.0.2.11 | ...`.
fn machine(line: &str) -> Option<(String, Ipv4Addr)> {
    let mut cells = line.strip_prefix('|')?.split('|').map(|cell| cell.trim().trim_matches('`'));
    let name = cells.next()?.to_owned();
    let address = cells.next()?.parse().ok()?;
    Some((name, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
| machine | address |
|---|---|
| node1 | 192.0.2.11 |
| node2 | 192.0.2.12 |

```sh,machine=all
# a comment
true
```

```sh
not run
```

```sh,machine=node2
false
```
";

    #[test]
    fn marked_blocks_and_the_table_of_machines_are_found() {
        let page = Page::parse(TEXT).unwrap();
        let names: Vec<_> = page.machines.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["node1", "node2"]);
        assert_eq!(page.blocks.len(), 2);
        assert_eq!((page.blocks[0].line, page.blocks[0].title()), (6, "true"));
        assert!(page.blocks[0].machines.runs_on("node1") && !page.blocks[1].machines.runs_on("node1"));
    }

    #[test]
    fn a_block_for_an_unknown_machine_is_refused() {
        let page = Page::parse("```sh,machine=node9\ntrue\n```\n").unwrap();
        let error = page.check(&page.machines).unwrap_err();
        assert_eq!(error.to_string(), "line 1: machine node9 is not in the table of machines");
    }

    #[test]
    fn a_block_without_an_end_is_refused() {
        assert!(Page::parse("| node1 | 192.0.2.11 |\n```sh,machine=node1\ntrue\n").is_err());
    }
}
