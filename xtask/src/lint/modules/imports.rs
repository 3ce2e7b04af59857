//! Resolves paths to the modules that define what they name.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{CodePath, Id, ROOT, Tree};

/// What the modules of one crate target import.
#[derive(Debug)]
pub(super) struct Imports {
    /// Imports from one module to another, with the first line of the importing file that has it.
    pub(super) modules: BTreeMap<(Id, Id), usize>,
    /// Imports of external crates, by crate name.
    pub(super) crates: BTreeMap<(Id, String), usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Module(Id),
    /// An item that this module defines, or a name below it that the sources do not show, as macros make them.
    Item(Id),
    Crate(String),
}

impl Imports {
    /// `crates` are the names of external crates that paths may start with.
    pub(super) fn resolve(tree: &Tree, crates: &BTreeSet<String>) -> Imports {
        let mut imports = Imports { modules: BTreeMap::new(), crates: BTreeMap::new() };
        let scope = Scope { tree, crates };
        for (from, module) in tree.modules.iter().enumerate() {
            let used = module.imports.iter().map(|import| &import.path);
            for path in used.chain(&module.globs).chain(&module.paths) {
                match scope.resolve(from, path, &mut BTreeSet::new()) {
                    Some(Target::Module(to) | Target::Item(to)) if to != from => {
                        imports.modules.entry((from, to)).or_insert(path.line);
                    }
                    Some(Target::Crate(name)) => {
                        imports.crates.entry((from, name)).or_insert(path.line);
                    }
                    _ => {}
                }
            }
        }
        imports
    }
}

struct Scope<'a> {
    tree: &'a Tree,
    crates: &'a BTreeSet<String>,
}

/// Names whose lookup is under way; a name that leads to itself is not found.
type Pending = BTreeSet<(Id, String, bool)>;

impl Scope<'_> {
    fn resolve(&self, from: Id, path: &CodePath, pending: &mut Pending) -> Option<Target> {
        let (first, mut rest) = path.segments.split_first()?;
        if path.global {
            return Some(Target::Crate(first.clone()));
        }
        let mut target = match first.as_str() {
            "crate" => Target::Module(ROOT),
            "self" => Target::Module(from),
            "super" => {
                let mut module = self.tree.modules[from].parent?;
                while let Some(("super", further)) =
                    rest.split_first().map(|(word, rest)| (word.as_str(), rest))
                {
                    module = self.tree.modules[module].parent?;
                    rest = further;
                }
                Target::Module(module)
            }
            _ => self
                .lookup(from, first, !rest.is_empty(), pending)
                .or_else(|| self.crates.contains(first).then(|| Target::Crate(first.clone())))?,
        };
        while let (Target::Module(module), Some((segment, further))) = (&target, rest.split_first()) {
            target =
                self.lookup(*module, segment, !further.is_empty(), pending).unwrap_or(Target::Item(*module));
            rest = further;
        }
        Some(target)
    }

    /// What `name` means in a module. A name may stand for a module and for an item; `is_prefix` prefers the module.
    fn lookup(&self, module: Id, name: &str, is_prefix: bool, pending: &mut Pending) -> Option<Target> {
        let key = (module, name.to_owned(), is_prefix);
        if !pending.insert(key.clone()) {
            return None;
        }
        let found = self.lookup_once(module, name, is_prefix, pending);
        pending.remove(&key);
        found
    }

    fn lookup_once(&self, id: Id, name: &str, is_prefix: bool, pending: &mut Pending) -> Option<Target> {
        let module = &self.tree.modules[id];
        let child = module.children.get(name).map(|child| Target::Module(*child));
        let item = module.items.contains(name).then_some(Target::Item(id));
        let own = if is_prefix { child.or(item) } else { item.or(child) };
        own.or_else(|| {
            let mut named = module.imports.iter().filter(|import| import.name == name);
            named.find_map(|import| self.resolve(id, &import.path, pending))
        })
        .or_else(|| {
            module.globs.iter().find_map(|glob| match self.resolve(id, glob, pending)? {
                Target::Module(from) => self.lookup(from, name, is_prefix, pending),
                _ => None,
            })
        })
    }
}
