//! The alert rules.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use promql_parser::parser::{self, Expr};
use serde::Deserialize;

use super::{check_template, expressions::Series, read};

const FILE: &str = "deploy/monitoring/contiv-alerts.yaml";
const SEVERITIES: [&str; 3] = ["critical", "warning", "info"];

/// A file of rules as Prometheus reads it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    r#for: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: Annotations,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Annotations {
    summary: String,
    description: String,
    /// Page and section of the documentation.
    runbook: String,
}

impl Rules {
    pub(super) fn read() -> Result<Rules> {
        serde_saphyr::from_str(&read(FILE)?).with_context(|| format!("read {FILE}"))
    }

    fn all(&self) -> impl Iterator<Item = &Rule> {
        self.groups.iter().flat_map(|group| &group.rules)
    }

    /// Fails unless the expressions and templates name only what `series` has.
    pub(super) fn check(&self, series: &Series) -> Result<()> {
        for rule in self.all() {
            let alert = || format!("alert {}", rule.alert);
            let labels = series.check(&rule.expr).with_context(alert)?;
            for text in [&rule.annotations.summary, &rule.annotations.description] {
                check_template(text, "$labels.", &labels).with_context(alert)?;
            }
        }
        Ok(())
    }
}

/// Anchors of the headings of a page, as mdBook and GitHub make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let titles = headings.map(|line| line.trim_start_matches('#').trim());
    let anchor = |title: &str| {
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    titles.map(anchor).collect()
}

#[test]
fn rules_are_well_formed() {
    let rules = Rules::read().unwrap();
    let groups: BTreeSet<&str> = rules.groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(groups.len(), rules.groups.len(), "names of groups");
    let names: BTreeSet<&str> = rules.all().map(|rule| rule.alert.as_str()).collect();
    assert_eq!(names.len(), rules.all().count(), "names of alerts");
    for rule in rules.all() {
        let severity = rule.labels.get("severity").map(String::as_str);
        assert!(severity.is_some_and(|severity| SEVERITIES.contains(&severity)), "{}", rule.alert);
        if let Some(time) = &rule.r#for {
            let number = time.trim_end_matches(['s', 'm', 'h']);
            assert!(
                number.parse::<u32>().is_ok() && time.len() == number.len() + 1,
                "{}: {time}",
                rule.alert
            );
        }
    }
}

#[test]
fn runbooks_are_sections_of_the_documentation() {
    let section = |runbook: &str| -> Result<()> {
        let (page, anchor) = runbook.split_once('#').context("no section")?;
        ensure!(anchors(&read(page)?).contains(anchor), "{page} has no section {anchor}");
        Ok(())
    };
    for rule in Rules::read().unwrap().all() {
        section(&rule.annotations.runbook).with_context(|| rule.alert.clone()).unwrap();
    }
    for missing in
        ["docs/src/operate.md", "docs/src/operate.md#no-such-section", "docs/src/none.md#what-to-watch"]
    {
        assert!(section(missing).is_err(), "{missing}");
    }
    assert!(section("docs/src/operate.md#etcd-compaction-quota-defragmentation").is_ok());
}

/// Whether the result needs values of the past, which a series does not have in its first minutes. With `or`, another value takes
/// their place.
fn needs_past(expression: &Expr) -> bool {
    match expression {
        Expr::VectorSelector(selector) => selector.offset.is_some(),
        Expr::MatrixSelector(matrix) => matrix.vs.offset.is_some(),
        Expr::Subquery(subquery) => subquery.offset.is_some() || needs_past(&subquery.expr),
        Expr::Paren(paren) => needs_past(&paren.expr),
        Expr::Unary(unary) => needs_past(&unary.expr),
        Expr::Call(call) => call.args.args.iter().any(|argument| needs_past(argument)),
        Expr::Aggregate(aggregate) => needs_past(&aggregate.expr),
        Expr::Binary(binary) => {
            let (left, right) = (needs_past(&binary.lhs), needs_past(&binary.rhs));
            if binary.op.to_string() == "or" { left && right } else { left || right }
        }
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => false,
    }
}

#[test]
fn rules_are_evaluated_for_new_series() {
    let needs = |expression: &str| needs_past(&parser::parse(expression).unwrap());
    assert!(needs("rate(a[5m]) > 5 * rate(a[6h] offset 10m)"));
    assert!(!needs("rate(a[5m]) > (rate(a[6h] offset 10m) or 0 * rate(a[5m]))"));
    for rule in Rules::read().unwrap().all() {
        assert!(!needs(&rule.expr), "{}: {}", rule.alert, rule.expr);
    }
}
