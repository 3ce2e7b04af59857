//! Checks PromQL expressions against the series of real scrapes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use promql_parser::{
    label::MatchOp,
    parser::{
        self, AggregateExpr, BinaryExpr, Call, Expr, LabelModifier, VectorMatchCardinality, VectorSelector,
        value::ValueType,
    },
};

pub(super) type Labels = BTreeSet<String>;

/// Labels that Prometheus adds to the series of a target.
const TARGET: [&str; 2] = ["instance", "job"];
/// The series that Prometheus makes for each target.
const UP: &str = "up";

/// Series by name, each with the labels and their values that occur.
#[derive(Debug, Default)]
pub(super) struct Series(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Series {
    /// Adds the series of a scrape in the OpenMetrics text format.
    pub(super) fn add(&mut self, exposition: &str) -> Result<()> {
        for line in exposition.lines().filter(|line| !line.starts_with('#')) {
            let end = line.find(['{', ' ']).with_context(|| format!("series {line:?}"))?;
            let labels = self.0.entry(line[..end].to_owned()).or_default();
            let mut rest = &line[end..];
            while let Some(pair) = rest.strip_prefix(['{', ',']) {
                let (name, value) = pair.split_once("=\"").with_context(|| format!("label of {line:?}"))?;
                let end = closing_quote(value).with_context(|| format!("label {name} of {line:?}"))?;
                labels.entry(name.to_owned()).or_default().insert(value[..end].to_owned());
                rest = &value[end + 1..];
            }
        }
        Ok(())
    }

    /// Labels of the result of `expression`.
    ///
    /// # Errors
    ///
    /// Fails if it is no PromQL, or names a series, a label or, with `=`, a value that does not occur.
    pub(super) fn check(&self, expression: &str) -> Result<Labels> {
        let parsed = parser::parse(expression).map_err(anyhow::Error::msg);
        parsed.and_then(|parsed| self.labels(&parsed)).with_context(|| format!("expression {expression}"))
    }

    /// Labels of the series `name`.
    pub(super) fn labels_of(&self, name: &str) -> Result<Labels> {
        let own = match self.0.get(name) {
            Some(labels) => labels.keys().cloned().collect(),
            None if name == UP => Labels::new(),
            None => bail!("no daemon has the series {name}"),
        };
        Ok(own.into_iter().chain(TARGET.map(str::to_owned)).collect())
    }

    fn labels(&self, expression: &Expr) -> Result<Labels> {
        match expression {
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) => Ok(Labels::new()),
            Expr::VectorSelector(selector) => self.selected(selector),
            Expr::MatrixSelector(matrix) => self.selected(&matrix.vs),
            Expr::Subquery(subquery) => self.labels(&subquery.expr),
            Expr::Paren(paren) => self.labels(&paren.expr),
            Expr::Unary(unary) => self.labels(&unary.expr),
            Expr::Call(call) => self.returned(call),
            Expr::Aggregate(aggregate) => self.aggregated(aggregate),
            Expr::Binary(binary) => self.joined(binary),
            Expr::Extension(_) => bail!("an extension of PromQL"),
        }
    }

    fn selected(&self, selector: &VectorSelector) -> Result<Labels> {
        let name = selector.name.as_ref().context("a selector without a name")?;
        let labels = self.labels_of(name)?;
        ensure!(selector.matchers.or_matchers.is_empty(), "{name}: alternatives of matchers");
        for matcher in &selector.matchers.matchers {
            require(&labels, &matcher.name).context(name.clone())?;
            if matcher.op == MatchOp::Equal && !TARGET.contains(&matcher.name.as_str()) {
                let known = self.0.get(name).and_then(|labels| labels.get(&matcher.name));
                let occurs = known.is_some_and(|values| values.contains(&matcher.value));
                ensure!(occurs, "{name}: no series with {}={:?}", matcher.name, matcher.value);
            }
        }
        Ok(labels)
    }

    fn returned(&self, call: &Call) -> Result<Labels> {
        let mut labels = Labels::new();
        for argument in &call.args.args {
            labels.extend(self.labels(argument)?);
        }
        if call.func.name == "histogram_quantile" {
            ensure!(labels.remove("le"), "histogram_quantile of series without le");
        }
        Ok(labels)
    }

    fn aggregated(&self, aggregate: &AggregateExpr) -> Result<Labels> {
        let inner = self.labels(&aggregate.expr)?;
        let named = aggregate.modifier.as_ref().map(|modifier| modifier.labels().labels.clone());
        let named: Labels = named.unwrap_or_default().into_iter().collect();
        named.iter().try_for_each(|label| require(&inner, label))?;
        Ok(match &aggregate.modifier {
            _ if ["topk", "bottomk"].contains(&aggregate.op.to_string().as_str()) => inner,
            Some(LabelModifier::Exclude(_)) => &inner - &named,
            Some(LabelModifier::Include(_)) | None => named,
        })
    }

    fn joined(&self, binary: &BinaryExpr) -> Result<Labels> {
        let (left, right) = (self.labels(&binary.lhs)?, self.labels(&binary.rhs)?);
        if binary.lhs.value_type() == ValueType::Scalar || binary.rhs.value_type() == ValueType::Scalar {
            return Ok(&left | &right);
        }
        let modifier = binary.modifier.as_ref();
        match modifier.and_then(|modifier| modifier.matching.as_ref()) {
            Some(matching) => {
                for label in &matching.labels().labels {
                    require(&left, label).and_then(|()| require(&right, label))?;
                }
            }
            // `or` adds series; everything else finds no partner if the labels differ.
            None if binary.op.to_string() == "or" => return Ok(&left | &right),
            None => ensure!(left == right, "labels differ: {left:?} and {right:?}"),
        }
        Ok(match modifier.map(|modifier| &modifier.card) {
            Some(VectorMatchCardinality::ManyToOne(more) | VectorMatchCardinality::OneToMany(more)) => {
                more.labels.iter().try_for_each(|label| require(&(&left | &right), label))?;
                left.into_iter().chain(more.labels.clone()).collect()
            }
            _ => left,
        })
    }
}

fn require(labels: &Labels, label: &str) -> Result<()> {
    ensure!(labels.contains(label), "no label {label}; there are {labels:?}");
    Ok(())
}

/// Index of the quote that ends a label's value.
fn closing_quote(value: &str) -> Option<usize> {
    let mut escaped = false;
    value.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

const SCRAPE: &str = "# TYPE contiv_drops counter
contiv_drops_total{reason=\"policy\",rule=\"a\\\\\\\"b,c\"} 3
contiv_drops_total{reason=\"spoofed-ip\",rule=\"\"} 0
contiv_capacity 7
contiv_lag_seconds_bucket{le=\"0.5\"} 1
# EOF
";

fn series() -> Series {
    let mut series = Series::default();
    series.add(SCRAPE).unwrap();
    series
}

#[test]
fn results_have_the_labels_of_their_series() {
    for (expression, labels) in [
        ("sum(contiv_capacity) or vector(0)", &[][..]),
        ("up{job=\"a\"} == 0", &["instance", "job"]),
        (
            "sum by (instance, reason) (rate(contiv_drops_total{reason=\"policy\"}[5m]))",
            &["instance", "reason"],
        ),
        ("topk(3, contiv_capacity)", &["instance", "job"]),
        ("sum without (rule) (contiv_drops_total)", &["instance", "job", "reason"]),
        ("histogram_quantile(0.9, sum by (le) (rate(contiv_lag_seconds_bucket[5m])))", &[]),
        ("contiv_drops_total and on (instance) contiv_capacity", &["instance", "job", "reason", "rule"]),
    ] {
        let expected: Labels = labels.iter().map(|label| (*label).to_owned()).collect();
        assert_eq!(series().check(expression).unwrap(), expected, "{expression}");
    }
}

#[test]
fn unknown_names_are_refused() {
    for (expression, why) in [
        ("contiv_renamed_total", "no daemon has the series contiv_renamed_total"),
        ("sum(rate(contiv_drops[5m]))", "no daemon has the series contiv_drops"),
        ("contiv_drops_total{cause=\"policy\"}", "no label cause"),
        ("contiv_drops_total{reason=\"rule\"}", "no series with reason=\"rule\""),
        ("sum by (node) (contiv_drops_total)", "no label node"),
        ("histogram_quantile(0.9, sum(rate(contiv_lag_seconds_bucket[5m])))", "without le"),
        ("contiv_drops_total / contiv_capacity", "labels differ"),
        ("contiv_capacity and on (reason) contiv_drops_total", "no label reason"),
        ("sum(contiv_capacity", "expression"),
    ] {
        let error = format!("{:#}", series().check(expression).unwrap_err());
        assert!(error.contains(why), "{expression}: {error}");
    }
}
