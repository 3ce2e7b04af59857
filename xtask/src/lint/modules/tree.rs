//! The modules of one crate target with their names, imports and paths, read from the sources.
//!
//! Code under `#[cfg(test)]` and `#[test]` is left out: tests may import anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use proc_macro2::{Spacing, TokenStream, TokenTree};
use syn::{Attribute, Ident, Item, ItemUse, Meta, UseTree, visit::Visit};

/// Index into [`Tree::modules`]. The crate root is 0.
pub(super) type Id = usize;
pub(super) const ROOT: Id = 0;

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) modules: Vec<Module>,
}

#[derive(Debug)]
pub(super) struct Module {
    /// Path below the crate root, such as `datapath::ovs`; empty for the root.
    pub(super) path: String,
    pub(super) parent: Option<Id>,
    pub(super) children: BTreeMap<String, Id>,
    pub(super) file: PathBuf,
    /// Names of functions, types, constants and macros that the module defines.
    pub(super) items: BTreeSet<String>,
    /// Names that `use` brings into scope.
    pub(super) imports: Vec<Import>,
    /// Modules and enums of which `use` takes everything.
    pub(super) globs: Vec<CodePath>,
    /// Paths of at least two segments in signatures, types and bodies.
    pub(super) paths: Vec<CodePath>,
}

#[derive(Debug, Clone)]
pub(super) struct Import {
    /// `_` for a trait that is imported without a name.
    pub(super) name: String,
    pub(super) path: CodePath,
}

/// A path as the source has it.
#[derive(Debug, Clone)]
pub(super) struct CodePath {
    pub(super) segments: Vec<String>,
    /// Starts with `::`: the first segment is an external crate.
    pub(super) global: bool,
    pub(super) line: usize,
}

impl Tree {
    /// Reads the crate target with this root file, such as `src/lib.rs`.
    pub(super) fn read(root: &Path) -> Result<Tree> {
        let folder = root.parent().context("a source file has a folder")?;
        let mut tree = Tree { modules: vec![Module::new(String::new(), None, root)] };
        let items = parse(root)?;
        tree.add_items(ROOT, &items, folder, folder)?;
        Ok(tree)
    }

    /// Reads a tree of inline modules.
    #[cfg(test)]
    pub(super) fn parse(source: &str) -> Result<Tree> {
        let file = Path::new("lib.rs");
        let mut tree = Tree { modules: vec![Module::new(String::new(), None, file)] };
        tree.add_items(ROOT, &syn::parse_file(source)?.items, file, file)?;
        Ok(tree)
    }

    /// The module with this path below the root.
    pub(super) fn find(&self, path: &str) -> Option<Id> {
        self.modules.iter().position(|module| module.path == path)
    }

    /// The child of `ancestor` that is or contains `module`; none if `module` is not below `ancestor`.
    pub(super) fn child_towards(&self, ancestor: Id, module: Id) -> Option<Id> {
        let parent = self.modules[module].parent?;
        if parent == ancestor { Some(module) } else { self.child_towards(ancestor, parent) }
    }

    pub(super) fn is_below(&self, module: Id, ancestor: Id) -> bool {
        self.child_towards(ancestor, module).is_some()
    }

    /// Adds the items of one module. `folder` holds the files of its children; `file_folder` holds its own file,
    /// which `#[path]` is relative to.
    fn add_items(&mut self, id: Id, items: &[Item], folder: &Path, file_folder: &Path) -> Result<()> {
        for item in items {
            match item {
                Item::Mod(module) if !is_test(&module.attrs) => {
                    let name = name(&module.ident);
                    let file = self.modules[id].file.clone();
                    let parent = &self.modules[id].path;
                    let path = if parent.is_empty() { name.clone() } else { format!("{parent}::{name}") };
                    let child = self.modules.len();
                    self.modules[id].children.insert(name.clone(), child);
                    if let Some((_, items)) = &module.content {
                        self.modules.push(Module::new(path, Some(id), &file));
                        self.add_items(child, items, &folder.join(&name), file_folder)?;
                        continue;
                    }
                    let (file, children) = match path_attribute(&module.attrs) {
                        Some(relative) => {
                            let file = file_folder.join(relative);
                            let children = file.parent().unwrap_or(file_folder).to_owned();
                            (file, children)
                        }
                        None => module_file(folder, &name)
                            .with_context(|| format!("module {path} in {}", file.display()))?,
                    };
                    let items = parse(&file)?;
                    let own_folder = file.parent().unwrap_or(folder).to_owned();
                    self.modules.push(Module::new(path, Some(id), &file));
                    self.add_items(child, &items, &children, &own_folder)?;
                }
                item => {
                    let module = &mut self.modules[id];
                    if let Some(name) = defined_name(item) {
                        module.items.insert(name);
                    }
                    Names { module }.visit_item(item);
                }
            }
        }
        Ok(())
    }
}

impl Module {
    fn new(path: String, parent: Option<Id>, file: &Path) -> Module {
        Module {
            path,
            parent,
            children: BTreeMap::new(),
            file: file.to_owned(),
            items: BTreeSet::new(),
            imports: vec![],
            globs: vec![],
            paths: vec![],
        }
    }

    fn add_use(&mut self, item: &ItemUse) {
        let mut prefix = vec![];
        self.add_use_tree(&item.tree, &mut prefix, item.leading_colon.is_some());
    }

    fn add_use_tree(&mut self, tree: &UseTree, prefix: &mut Vec<String>, global: bool) {
        let import = |prefix: &[String], ident: &Ident, alias: Option<&Ident>| {
            let mut segments = prefix.to_vec();
            let last = name(ident);
            // `use a::{self}` imports `a`.
            if last != "self" || segments.is_empty() {
                segments.push(last);
            }
            let name = alias.map(name).or_else(|| segments.last().cloned()).unwrap_or_default();
            Import { name, path: CodePath { segments, global, line: ident.span().start().line } }
        };
        match tree {
            UseTree::Path(path) => {
                prefix.push(name(&path.ident));
                self.add_use_tree(&path.tree, prefix, global);
                prefix.pop();
            }
            UseTree::Name(leaf) => self.imports.push(import(prefix, &leaf.ident, None)),
            UseTree::Rename(leaf) => self.imports.push(import(prefix, &leaf.ident, Some(&leaf.rename))),
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.globs.push(CodePath { segments: prefix.clone(), global, line });
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use_tree(tree, prefix, global);
                }
            }
        }
    }
}

/// Collects the imports and paths of one item.
struct Names<'a> {
    module: &'a mut Module,
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes(item).is_some_and(is_test) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.module.add_use(item);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let test = match item {
            syn::ImplItem::Fn(function) => is_test(&function.attrs),
            syn::ImplItem::Const(constant) => is_test(&constant.attrs),
            _ => false,
        };
        if !test {
            syn::visit::visit_impl_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.module.paths.push(CodePath {
                segments: path.segments.iter().map(|segment| name(&segment.ident)).collect(),
                global: path.leading_colon.is_some(),
                line: path.segments[0].ident.span().start().line,
            });
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        add_paths(invocation.tokens.clone(), &mut self.module.paths);
    }

    // `pub(in path)` and attributes import nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// Finds `a::b::c` in the tokens of a macro, which have no syntax tree.
fn add_paths(tokens: TokenStream, paths: &mut Vec<CodePath>) {
    let mut path: Option<CodePath> = None;
    // Colons since the last identifier.
    let mut colons = 0;
    let mut end = |path: &mut Option<CodePath>| {
        paths.extend(path.take().filter(|path| path.segments.len() > 1));
    };
    let mut groups = vec![];
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                if colons != 2 {
                    end(&mut path);
                }
                let line = ident.span().start().line;
                let path = path.get_or_insert(CodePath { segments: vec![], global: colons == 2, line });
                path.segments.push(name(&ident));
                colons = 0;
            }
            TokenTree::Punct(punct)
                if punct.as_char() == ':' && (colons == 1 || punct.spacing() == Spacing::Joint) =>
            {
                colons += 1;
            }
            other => {
                end(&mut path);
                colons = 0;
                if let TokenTree::Group(group) = other {
                    groups.push(group.stream());
                }
            }
        }
    }
    end(&mut path);
    for group in groups {
        add_paths(group, paths);
    }
}

fn parse(file: &Path) -> Result<Vec<Item>> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    Ok(syn::parse_file(&text).with_context(|| format!("parse {}", file.display()))?.items)
}

/// The file of a module that is declared without `#[path]`, and the folder of its children.
fn module_file(folder: &Path, name: &str) -> Result<(PathBuf, PathBuf)> {
    let children = folder.join(name);
    for file in [folder.join(format!("{name}.rs")), children.join("mod.rs")] {
        if file.is_file() {
            return Ok((file, children));
        }
    }
    bail!("no file {name}.rs or {name}/mod.rs in {}", folder.display())
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let Meta::NameValue(meta) = &attribute.meta else { return None };
        if !meta.path.is_ident("path") {
            return None;
        }
        let syn::Expr::Lit(literal) = &meta.value else { return None };
        let syn::Lit::Str(text) = &literal.lit else { return None };
        Some(text.value())
    })
}

/// Whether the item is compiled for tests only: `#[test]`, `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => requires_test(list.tokens.clone()),
        _ => false,
    })
}

fn requires_test(condition: TokenStream) -> bool {
    let tokens: Vec<_> = condition.into_iter().collect();
    match &tokens[..] {
        [TokenTree::Ident(word)] => word == "test",
        [TokenTree::Ident(word), TokenTree::Group(group)] if word == "all" => {
            let tokens: Vec<_> = group.stream().into_iter().collect();
            tokens
                .split(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ','))
                .any(|part| requires_test(part.iter().cloned().collect()))
        }
        _ => false,
    }
}

/// The name that an item other than a module or `use` adds to its module.
fn defined_name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name(ident))
}

fn attributes(item: &Item) -> Option<&[Attribute]> {
    Some(match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return None,
    })
}

fn name(ident: &Ident) -> String {
    let name = ident.to_string();
    name.strip_prefix("r#").map(str::to_owned).unwrap_or(name)
}
