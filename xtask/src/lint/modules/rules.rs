//! Which module of a crate may import which other one.

use super::{
    cycles::Cycle,
    imports::Imports,
    tree::{Id, Tree},
};

/// The rules of one crate. Every module that they name must exist.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) package: &'static str,
    pub(super) layers: &'static [Layers],
    pub(super) forbidden: &'static [Forbidden],
    /// Cycles that are accepted for now, each with its members sorted by path. One that is gone must be removed here.
    pub(super) known_cycles: &'static [&'static [&'static str]],
}

/// The children of one module from top to bottom. A child may import from lower layers only; children in one layer do
/// not import each other. Every child has a layer.
#[derive(Debug)]
pub(super) struct Layers {
    /// Empty for the crate root.
    pub(super) parent: &'static str,
    pub(super) order: &'static [&'static [&'static str]],
}

/// What a module and everything below it must not import.
#[derive(Debug)]
pub(super) struct Forbidden {
    pub(super) module: &'static str,
    /// `crate::a::b` is a module of the same crate with everything below it, any other name an external crate.
    pub(super) imports: &'static [&'static str],
}

impl Rules {
    pub(super) fn check(&self, source: &Source, cycles: &[Cycle]) -> Vec<String> {
        let mut findings = vec![];
        for layers in self.layers {
            layers.check(source, &mut findings);
        }
        for forbidden in self.forbidden {
            forbidden.check(source, &mut findings);
        }
        check_cycles(source, cycles, self.known_cycles, &mut findings);
        findings
    }
}

/// One crate target with what its modules import.
#[derive(Debug)]
pub(super) struct Source {
    /// Of the package, or `package/binary`.
    pub(super) name: String,
    pub(super) tree: Tree,
    pub(super) imports: Imports,
}

impl Source {
    fn path(&self, id: Id) -> &str {
        let path = &self.tree.modules[id].path;
        if path.is_empty() { "crate" } else { path }
    }

    /// `file:line: a imports b`.
    fn import(&self, from: Id, to: &str, line: usize) -> String {
        format!("{}:{line}: {} imports {to}", self.tree.modules[from].file.display(), self.path(from))
    }

    fn unknown(&self, module: &str) -> String {
        format!("{}: a rule names the module {module}, which does not exist", self.name)
    }
}

impl Layers {
    fn check(&self, source: &Source, findings: &mut Vec<String>) {
        let tree = &source.tree;
        let Some(parent) = tree.find(self.parent) else {
            findings.push(source.unknown(self.parent));
            return;
        };
        let children = &tree.modules[parent].children;
        let place = match self.parent {
            "" => source.name.clone(),
            parent => format!("{}, {parent}", source.name),
        };
        for name in self.order.iter().copied().flatten() {
            if !children.contains_key(*name) {
                let path = if self.parent.is_empty() {
                    (*name).to_owned()
                } else {
                    format!("{}::{name}", self.parent)
                };
                findings.push(source.unknown(&path));
            }
        }
        let layer = |child: Id| {
            let name = children.iter().find(|(_, id)| **id == child)?.0;
            self.order.iter().position(|layer| layer.contains(&name.as_str()))
        };
        for (name, &child) in children {
            if layer(child).is_none() {
                findings.push(format!(
                    "{place}: the module {name} has no layer in xtask/src/lint/modules/table.rs"
                ));
            }
        }
        for (&(from, to), &line) in &source.imports.modules {
            let (Some(a), Some(b)) = (tree.child_towards(parent, from), tree.child_towards(parent, to))
            else {
                continue;
            };
            if let (true, Some(upper), Some(lower)) = (a != b, layer(a), layer(b))
                && upper >= lower
            {
                let import = source.import(from, source.path(to), line);
                let relation = if upper == lower { "is in the same layer" } else { "is in a higher layer" };
                findings.push(format!("{import}, but {} {relation}", source.path(b)));
            }
        }
    }
}

impl Forbidden {
    fn check(&self, source: &Source, findings: &mut Vec<String>) {
        let tree = &source.tree;
        let Some(module) = tree.find(self.module) else {
            findings.push(source.unknown(self.module));
            return;
        };
        let is_within = |id: Id, ancestor: Id| id == ancestor || tree.is_below(id, ancestor);
        for forbidden in self.imports {
            if let Some(path) = forbidden.strip_prefix("crate::") {
                let Some(target) = tree.find(path) else {
                    findings.push(source.unknown(path));
                    continue;
                };
                let imports = source.imports.modules.iter();
                findings.extend(
                    imports.filter(|((from, to), _)| is_within(*from, module) && is_within(*to, target)).map(
                        |(&(from, to), &line)| {
                            format!("{}, which is forbidden", source.import(from, source.path(to), line))
                        },
                    ),
                );
            } else {
                let imports = source.imports.crates.iter();
                findings.extend(
                    imports.filter(|((from, name), _)| is_within(*from, module) && name == forbidden).map(
                        |((from, name), line)| {
                            format!("{}, which is forbidden", source.import(*from, name, *line))
                        },
                    ),
                );
            }
        }
    }
}

pub(super) fn check_cycles(source: &Source, cycles: &[Cycle], known: &[&[&str]], findings: &mut Vec<String>) {
    let members = |cycle: &Cycle| cycle.members.iter().map(|id| source.path(*id)).collect::<Vec<_>>();
    for cycle in cycles.iter().filter(|cycle| !known.contains(&&members(cycle)[..])) {
        let steps = cycle.steps.iter().map(|step| source.import(step.from, source.path(step.to), step.line));
        findings.push(format!(
            "{}: import cycle of {}:\n    {}",
            source.name,
            members(cycle).join(", "),
            steps.collect::<Vec<_>>().join("\n    ")
        ));
    }
    for gone in known.iter().filter(|known| !cycles.iter().any(|cycle| members(cycle) == **known)) {
        findings.push(format!(
            "{}: remove the known cycle of {}: it is gone or has changed",
            source.name,
            gone.join(", ")
        ));
    }
}
