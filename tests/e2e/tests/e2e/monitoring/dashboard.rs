//! The dashboard.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use super::{check_template, expressions::Series, read};

const FILE: &str = "deploy/monitoring/contiv-dashboard.json";
/// Columns of a dashboard.
const COLUMNS: u32 = 24;
/// Version of the schema of Grafana 10.4.
const SCHEMA: u32 = 39;

/// The part of a Grafana dashboard that the test looks at.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Dashboard {
    schema_version: u32,
    uid: String,
    panels: Vec<Panel>,
    templating: Templating,
}

#[derive(Deserialize)]
struct Templating {
    list: Vec<Variable>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    r#type: String,
    #[serde(default)]
    definition: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Panel {
    id: u32,
    title: String,
    r#type: String,
    grid_pos: Position,
    #[serde(default)]
    description: String,
    #[serde(default)]
    targets: Vec<Target>,
}

#[derive(Clone, Copy, Deserialize)]
struct Position {
    x: u32,
    y: u32,
    w: u32,
    h: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Target {
    expr: String,
    legend_format: String,
    datasource: Source,
}

#[derive(Deserialize)]
struct Source {
    uid: String,
}

impl Dashboard {
    pub(super) fn read() -> Result<Dashboard> {
        serde_json::from_str(&read(FILE)?).with_context(|| format!("read {FILE}"))
    }

    /// Fails unless the expressions, legends and variables name only what `series` has.
    pub(super) fn check(&self, series: &Series) -> Result<()> {
        for panel in &self.panels {
            for target in &panel.targets {
                let what = || format!("panel {:?}", panel.title);
                let labels = self.expanded(&target.expr).and_then(|expr| series.check(&expr));
                let labels = labels.with_context(what)?;
                check_template(&target.legend_format, "", &labels).with_context(what)?;
            }
        }
        for variable in self.templating.list.iter().filter(|variable| variable.r#type == "query") {
            let inside = variable.definition.strip_prefix("label_values(").and_then(|d| d.strip_suffix(')'));
            let (name, label) =
                inside.and_then(|inside| inside.split_once(", ")).context("label_values(A, B)")?;
            ensure!(series.labels_of(name)?.contains(label), "variable {}: no label {label}", variable.name);
        }
        Ok(())
    }

    /// The expression as Prometheus receives it.
    fn expanded(&self, expression: &str) -> Result<String> {
        let mut expanded = String::new();
        let mut parts = expression.split('$');
        expanded.extend(parts.next());
        for part in parts {
            let end = part.find(|c: char| c != '_' && !c.is_ascii_alphanumeric()).unwrap_or(part.len());
            match &part[..end] {
                "__rate_interval" => expanded.push_str("5m"),
                name if self.templating.list.iter().any(|variable| variable.name == name) => {
                    expanded.push_str(".*");
                }
                name => bail!("no variable {name} in {expression}"),
            }
            expanded.push_str(&part[end..]);
        }
        Ok(expanded)
    }
}

#[test]
fn dashboard_is_well_formed() {
    let dashboard = Dashboard::read().unwrap();
    assert!(dashboard.schema_version >= SCHEMA && !dashboard.uid.is_empty());
    let ids: BTreeSet<u32> = dashboard.panels.iter().map(|panel| panel.id).collect();
    assert_eq!(ids.len(), dashboard.panels.len(), "ids of panels");
    let mut taken = BTreeSet::new();
    for panel in &dashboard.panels {
        let Position { x, y, w, h } = panel.grid_pos;
        assert!(w > 0 && h > 0 && x + w <= COLUMNS, "{}", panel.title);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{} overlaps another panel", panel.title);
        }
        let is_row = panel.r#type == "row";
        assert!(is_row != (!panel.targets.is_empty() && !panel.description.is_empty()), "{}", panel.title);
        assert!(
            panel.targets.iter().all(|target| target.datasource.uid == "${datasource}"),
            "{}",
            panel.title
        );
    }
    let rows = dashboard.panels.iter().filter(|panel| panel.r#type == "row");
    let rows: Vec<&str> = rows.map(|panel| panel.title.as_str()).collect();
    assert_eq!(
        rows,
        [
            "Cluster overview",
            "Netmasters",
            "Agents",
            "Datapath: all nodes",
            "Datapath: eBPF",
            "Datapath: OVS"
        ]
    );
}

#[test]
fn unknown_variables_are_refused() {
    let dashboard = Dashboard::read().unwrap();
    let expanded = |expression: &str| dashboard.expanded(expression);
    assert_eq!(
        expanded("rate(a{instance=~\"$agent\"}[$__rate_interval])").unwrap(),
        "rate(a{instance=~\".*\"}[5m])"
    );
    assert!(expanded("a{instance=~\"$node\"}").is_err());
}
