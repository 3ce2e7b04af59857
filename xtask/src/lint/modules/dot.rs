//! The modules as a Graphviz graph.

use std::fmt::Write as _;

use super::{
    cycles::{self, Cycle},
    rules::Source,
    tree::{Id, ROOT},
};

/// One digraph with a cluster per crate and per module with children. Imports that are part of a cycle are red.
pub(super) fn render(sources: &[(&Source, &[Cycle])]) -> String {
    let mut text = String::from(
        "digraph modules {\n  rankdir=LR;\n  node [shape=box, style=filled, fillcolor=white, fontname=sans];\n  \
         graph [fontname=sans, style=filled, fillcolor=\"#00000008\"];\n",
    );
    for (source, cycles) in sources {
        cluster(&mut text, source, ROOT, 1);
        for &(from, to) in source.imports.modules.keys() {
            let tree = &source.tree;
            let color =
                if cycles::contains(tree, cycles, from, to) { " [color=red, penwidth=2]" } else { "" };
            // A String takes all that is written.
            _ = writeln!(text, "  {} -> {}{color};", node(source, from), node(source, to));
        }
    }
    text.push_str("}\n");
    text
}

fn node(source: &Source, id: Id) -> String {
    format!("\"{}::{}\"", source.name, source.tree.modules[id].path)
}

fn cluster(text: &mut String, source: &Source, id: Id, depth: usize) {
    let module = &source.tree.modules[id];
    let indent = "  ".repeat(depth);
    let label = match module.path.rsplit("::").next() {
        Some("") | None => &source.name,
        Some(name) => name,
    };
    let node = node(source, id);
    if module.children.is_empty() {
        _ = writeln!(text, "{indent}{node} [label=\"{label}\"];");
        return;
    }
    _ = writeln!(
        text,
        "{indent}subgraph \"cluster_{}\" {{\n{indent}  label=\"{label}\";",
        node.trim_matches('"')
    );
    _ = writeln!(text, "{indent}  {node} [label=\"{label}\", shape=ellipse];");
    for &child in module.children.values() {
        cluster(text, source, child, depth + 1);
    }
    _ = writeln!(text, "{indent}}}");
}
