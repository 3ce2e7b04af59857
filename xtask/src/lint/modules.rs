//! Imports between the modules of each crate, from the syntax trees of the sources.

mod cycles;
mod dot;
mod imports;
mod rules;
mod table;
mod tree;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::{MetadataCommand, Package, Target, TargetKind};

use super::Findings;
use crate::workspace::Workspace;
use imports::Imports;
use rules::{Rules, Source, check_cycles};
use table::RULES;
use tree::Tree;

pub(super) fn check(workspace: &Workspace) -> Result<Findings> {
    let sources = read(workspace, None)?;
    let mut findings = vec![];
    for source in &sources {
        let cycles = cycles::find(&source.tree, &source.imports);
        match RULES.iter().find(|rules| rules.package == source.name) {
            Some(rules) => findings.extend(rules.check(source, &cycles)),
            None => check_cycles(source, &cycles, &[], &mut findings),
        }
    }
    for Rules { package, .. } in RULES {
        if !sources.iter().any(|source| source.name == *package) {
            findings.push(format!("xtask/src/lint/modules/table.rs: there is no crate {package}"));
        }
    }
    Ok(findings)
}

/// The import graph in Graphviz's language: of one package, or of all.
pub(super) fn graph(workspace: &Workspace, package: Option<&str>) -> Result<String> {
    let sources = read(workspace, package)?;
    if let Some(package) = package {
        ensure!(!sources.is_empty(), "no crate {package}");
    }
    let cycles: Vec<_> = sources.iter().map(|source| cycles::find(&source.tree, &source.imports)).collect();
    let sources: Vec<_> = sources.iter().zip(cycles.iter().map(Vec::as_slice)).collect();
    Ok(dot::render(&sources))
}

/// All crate targets of the workspace and of `ebpf/` except tests, build scripts and examples.
fn read(workspace: &Workspace, only: Option<&str>) -> Result<Vec<Source>> {
    let mut packages = workspace.metadata()?.packages;
    let mut ebpf = MetadataCommand::new();
    ebpf.manifest_path(workspace.path("ebpf/Cargo.toml")).no_deps();
    packages.extend(ebpf.exec().context("cargo metadata of ebpf/")?.packages);
    let mut sources = vec![];
    for package in &packages {
        if only.is_none_or(|only| package.name.as_str() == only) {
            let main = main_target(package);
            for target in package.targets.iter().filter(|target| is_program(target)) {
                let is_main = main.is_some_and(|main| std::ptr::eq(main, target));
                sources.push(read_target(workspace, package, target, is_main)?);
            }
        }
    }
    Ok(sources)
}

fn is_program(target: &Target) -> bool {
    target.kind.iter().any(|kind| matches!(kind, TargetKind::Lib | TargetKind::Bin))
}

/// The target that carries the package's name: its library, or its first binary.
fn main_target(package: &Package) -> Option<&Target> {
    let library = package.targets.iter().find(|target| target.kind.contains(&TargetKind::Lib));
    library.or_else(|| package.targets.iter().find(|target| is_program(target)))
}

fn read_target(workspace: &Workspace, package: &Package, target: &Target, is_main: bool) -> Result<Source> {
    let root = target.src_path.as_std_path();
    let mut tree = Tree::read(root).with_context(|| format!("read the modules of {}", package.name))?;
    for module in &mut tree.modules {
        if let Ok(relative) = module.file.strip_prefix(workspace.root()) {
            module.file = relative.to_owned();
        }
    }
    let dependencies =
        package.dependencies.iter().map(|it| it.rename.as_ref().unwrap_or(&it.name).replace('-', "_"));
    let mut crates: BTreeSet<_> = dependencies.collect();
    crates.extend(["std", "core", "alloc"].map(str::to_owned));
    crates.insert(package.name.replace('-', "_"));
    let imports = Imports::resolve(&tree, &crates);
    let name = if is_main { package.name.to_string() } else { format!("{}/{}", package.name, target.name) };
    Ok(Source { name, tree, imports })
}

#[cfg(test)]
mod tests {
    use super::{
        rules::{Forbidden, Layers},
        *,
    };

    fn source(text: &str) -> Source {
        let tree = Tree::parse(text).unwrap();
        let crates = ["std", "tokio"].map(str::to_owned).into();
        let imports = Imports::resolve(&tree, &crates);
        Source { name: "sample".to_owned(), tree, imports }
    }

    /// The imports between modules and of crates, each as `from -> to`.
    fn imports(text: &str) -> Vec<String> {
        let source = source(text);
        let path = |id: usize| source.tree.modules[id].path.clone();
        let modules =
            source.imports.modules.keys().map(|&(from, to)| format!("{} -> {}", path(from), path(to)));
        let crates = source.imports.crates.keys().map(|(from, name)| format!("{} -> {name}", path(*from)));
        modules.chain(crates).collect()
    }

    const NO_RULES: Rules = Rules { package: "sample", layers: &[], forbidden: &[], known_cycles: &[] };

    fn findings(text: &str, rules: &Rules) -> Vec<String> {
        let source = source(text);
        rules.check(&source, &cycles::find(&source.tree, &source.imports))
    }

    #[test]
    fn a_group_of_imports_is_taken_apart() {
        let text = "mod a { pub struct B; } mod c { pub mod d { pub struct E; } }
                    mod user { use crate::{a::B, c, c::{self as other, d::{E as F}}}; }";
        assert_eq!(imports(text), ["user -> a", "user -> c", "user -> c::d"]);
    }

    #[test]
    fn super_goes_up_as_often_as_it_is_written() {
        let text = "mod a { pub fn f() {} } mod b { pub fn g() {} pub mod c { pub mod d {
                        use super::super::super::a; fn h() { super::super::g(); self::i() } fn i() {} } } }";
        assert_eq!(imports(text), ["b::c::d -> a", "b::c::d -> b"]);
    }

    #[test]
    fn paths_in_expressions_types_patterns_and_macros_are_imports() {
        let text = "mod a { pub fn f() {} } mod b { pub struct T; } mod c { pub enum E { V } } mod d { pub fn m() {} }
                    mod user {
                        fn f(x: Option<&crate::b::T>) { if true { crate::a::f() } }
                        impl Iterator for u8 { fn next(&mut self) { match self { super::c::E::V => {} } } }
                        fn g() { println!(\"{}\", vec![1, crate::d::m()]); tokio::spawn(()); ::std::mem::drop(1) }
                    }";
        let found = ["user -> a", "user -> b", "user -> c", "user -> d", "user -> std", "user -> tokio"];
        assert_eq!(imports(text), found);
    }

    #[test]
    fn a_name_from_use_leads_to_the_module_that_it_names() {
        let text = "mod a { pub mod b { pub fn f() {} } } mod user { use crate::a; fn g() { a::b::f() } }";
        assert_eq!(imports(text), ["user -> a", "user -> a::b"]);
    }

    #[test]
    fn re_exports_lead_to_the_defining_module() {
        let text =
            "mod a { mod b { pub struct T; } pub mod c { pub struct U; } pub use b::T as S; pub use c::*; }
                    mod user { use crate::a::{S, U}; }
                    mod other { use super::a::*; fn f(_: S) {} }";
        assert_eq!(imports(text), ["a -> a::b", "a -> a::c", "user -> a::b", "user -> a::c", "other -> a"]);
    }

    #[test]
    fn tests_are_left_out() {
        let text = "mod a {} #[cfg(test)] mod tests { use crate::a; }
                    mod user { #[cfg(all(test, unix))] use crate::a; #[test] fn f() { crate::a::f() } }";
        assert_eq!(imports(text), <[&str; 0]>::default());
    }

    #[test]
    fn modules_are_read_from_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        write("lib.rs", "mod a; mod b; #[path = \"elsewhere/file.rs\"] mod c;");
        write("a.rs", "mod inner; use crate::c;");
        write("a/inner.rs", "use crate::b::T;");
        write("b/mod.rs", "pub struct T;");
        write("elsewhere/file.rs", "mod beside;");
        write("elsewhere/beside.rs", "use crate::b;");
        let tree = Tree::read(&folder.path().join("lib.rs")).unwrap();
        let source =
            Source { name: "files".to_owned(), imports: Imports::resolve(&tree, &BTreeSet::new()), tree };
        let path = |id: usize| source.tree.modules[id].path.as_str();
        let found: Vec<_> = source.imports.modules.keys().map(|&(from, to)| (path(from), path(to))).collect();
        assert_eq!(found, [("a", "c"), ("a::inner", "b"), ("c::beside", "b")]);
        write("b/mod.rs", "mod missing;");
        let error = Tree::read(&folder.path().join("lib.rs")).unwrap_err();
        assert!(format!("{error:#}").contains("no file missing.rs"), "{error:#}");
    }

    #[test]
    fn a_cycle_of_siblings_is_found_through_their_subtrees() {
        let text =
            "mod a { pub mod b { use crate::c::T; } } mod c { pub struct T; pub mod d { use crate::a; } }";
        let found = findings(text, &NO_RULES);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("sample: import cycle of a, c:\n    lib.rs:1: a::b imports c"),
            "{found:?}"
        );
        let known = Rules { known_cycles: &[&["a", "c"]], ..NO_RULES };
        assert_eq!(findings(text, &known), <[&str; 0]>::default());
    }

    #[test]
    fn a_known_cycle_that_is_gone_is_a_finding() {
        let known = Rules { known_cycles: &[&["a", "c"]], ..NO_RULES };
        assert_eq!(findings("mod a {} mod c {}", &known).len(), 1);
    }

    #[test]
    fn a_parent_and_its_children_are_no_cycle() {
        let text = "mod a { pub struct T; mod b { use super::{T, c::U}; } mod c { pub struct U; } fn f() { b::g() } }";
        assert_eq!(findings(text, &NO_RULES), <[&str; 0]>::default());
    }

    #[test]
    fn imports_go_to_lower_layers_only() {
        let layers: &[Layers] = &[Layers { parent: "", order: &[&["top"], &["left", "right"], &["low"]] }];
        let rules = Rules { layers, ..NO_RULES };
        let text = "mod top { use crate::low::T; } mod left { use crate::right; } mod right {}
                    mod low { pub struct T; fn f() { crate::left::g() } } mod new {}";
        let found = findings(text, &rules);
        let expected = [
            "sample: the module new has no layer in xtask/src/lint/modules/table.rs",
            "lib.rs:1: left imports right, but right is in the same layer",
            "lib.rs:2: low imports left, but left is in a higher layer",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_forbidden_import_is_found_in_every_form() {
        let forbidden: &[Forbidden] = &[Forbidden { module: "plan", imports: &["tokio", "crate::state"] }];
        let rules = Rules { forbidden, ..NO_RULES };
        let text = "mod state { pub mod x { pub struct S; } }
                    mod plan { mod inner { use crate::{state::x::S}; } fn f() { tokio::spawn(1) } }";
        let expected = [
            "lib.rs:2: plan imports tokio, which is forbidden",
            "lib.rs:2: plan::inner imports state::x, which is forbidden",
        ];
        let mut found = findings(text, &rules);
        found.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_rule_whose_module_is_missing_is_a_finding() {
        let layers: &[Layers] =
            &[Layers { parent: "", order: &[&["a"], &["gone"]] }, Layers { parent: "vanished", order: &[] }];
        let forbidden: &[Forbidden] = &[
            Forbidden { module: "missing", imports: &["tokio"] },
            Forbidden { module: "a", imports: &["crate::absent"] },
        ];
        let found = findings("mod a {}", &Rules { layers, forbidden, ..NO_RULES });
        let expected = ["gone", "vanished", "missing", "absent"]
            .map(|module| format!("sample: a rule names the module {module}, which does not exist"));
        assert_eq!(found, expected);
    }

    #[test]
    fn the_graph_has_clusters_and_red_cycles() {
        let source =
            source("mod a { mod b {} use crate::c; } mod c { use crate::a; } mod d { use crate::c; }");
        let cycles = cycles::find(&source.tree, &source.imports);
        let dot = dot::render(&[(&source, &cycles)]);
        assert!(dot.contains("subgraph \"cluster_sample::a\""), "{dot}");
        assert!(dot.contains("\"sample::a\" -> \"sample::c\" [color=red, penwidth=2];"), "{dot}");
        assert!(dot.contains("\"sample::d\" -> \"sample::c\";"), "{dot}");
    }
}
