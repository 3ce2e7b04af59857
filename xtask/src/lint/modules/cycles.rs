//! Import cycles.
//!
//! Modules form a tree, so a cycle is defined between the children of one module: child `a` imports child `b` if any
//! module of the subtree `a` imports any module of the subtree `b`. Imports between a module and its own ancestors or
//! descendants do not count: a parent file is the table of contents of its children, and children use the types of
//! the parent. Every other cycle of modules shows as a cycle between the children of their closest common ancestor.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    imports::Imports,
    tree::{Id, Tree},
};

/// Siblings that import each other, directly or through other siblings.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cycle {
    /// Sorted by path.
    pub(super) members: Vec<Id>,
    /// A shortest cycle: each import with the modules and the line that cause it.
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) from: Id,
    pub(super) to: Id,
    pub(super) line: usize,
}

type Graph = BTreeMap<Id, BTreeMap<Id, Step>>;

pub(super) fn find(tree: &Tree, imports: &Imports) -> Vec<Cycle> {
    let mut cycles = vec![];
    for (parent, module) in tree.modules.iter().enumerate() {
        if module.children.len() > 1 {
            let graph = between_children(tree, imports, parent);
            cycles.extend(components(&graph).into_iter().map(|members| cycle(tree, &graph, members)));
        }
    }
    cycles
}

/// Whether an import is part of a cycle.
pub(super) fn contains(tree: &Tree, cycles: &[Cycle], from: Id, to: Id) -> bool {
    cycles.iter().any(|cycle| {
        let Some(parent) = tree.modules[cycle.members[0]].parent else { return false };
        let ends = [from, to].map(|id| tree.child_towards(parent, id));
        ends[0] != ends[1] && ends.iter().all(|end| end.is_some_and(|end| cycle.members.contains(&end)))
    })
}

fn between_children(tree: &Tree, imports: &Imports, parent: Id) -> Graph {
    let mut graph = Graph::new();
    for (&(from, to), &line) in &imports.modules {
        if let (Some(a), Some(b)) = (tree.child_towards(parent, from), tree.child_towards(parent, to))
            && a != b
        {
            graph.entry(a).or_default().entry(b).or_insert(Step { from, to, line });
        }
    }
    graph
}

/// The strongly connected components of more than one node.
fn components(graph: &Graph) -> Vec<Vec<Id>> {
    let reach: BTreeMap<Id, BTreeSet<Id>> =
        graph.keys().map(|&node| (node, reachable(graph, node))).collect();
    let mut seen = BTreeSet::new();
    let mut components = vec![];
    for (&node, ahead) in &reach {
        if ahead.contains(&node) && !seen.contains(&node) {
            let back = |other: &Id| reach.get(other).is_some_and(|reach| reach.contains(&node));
            let members: Vec<_> = ahead.iter().copied().filter(back).collect();
            seen.extend(members.iter().copied());
            components.push(members);
        }
    }
    components
}

fn reachable(graph: &Graph, start: Id) -> BTreeSet<Id> {
    let mut reached = BTreeSet::new();
    let mut next = vec![start];
    while let Some(node) = next.pop() {
        next.extend(graph.get(&node).into_iter().flat_map(BTreeMap::keys).filter(|to| reached.insert(**to)));
    }
    reached
}

fn cycle(tree: &Tree, graph: &Graph, mut members: Vec<Id>) -> Cycle {
    let steps = members.iter().filter_map(|&start| shortest(graph, start)).min_by_key(Vec::len);
    members.sort_by(|a, b| tree.modules[*a].path.cmp(&tree.modules[*b].path));
    Cycle { members, steps: steps.unwrap_or_default() }
}

/// The shortest cycle through `start`.
fn shortest(graph: &Graph, start: Id) -> Option<Vec<Step>> {
    let mut came_from: BTreeMap<Id, (Id, Step)> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(node) = queue.pop_front() {
        for (&to, &step) in graph.get(&node).into_iter().flatten() {
            if came_from.contains_key(&to) {
                continue;
            }
            came_from.insert(to, (node, step));
            if to == start {
                let mut steps = vec![];
                let mut at = start;
                loop {
                    let (previous, step) = came_from.get(&at)?;
                    steps.push(*step);
                    at = *previous;
                    if at == start {
                        steps.reverse();
                        return Some(steps);
                    }
                }
            }
            queue.push_back(to);
        }
    }
    None
}
