//! The reference page of a daemon's metrics, from the text that Prometheus reads.

use std::collections::BTreeMap;
use std::fmt::Write as _;

#[derive(Default)]
struct Family<'t> {
    kind: &'t str,
    help: &'t str,
    labels: Vec<&'t str>,
}

/// Markdown with a row per metric family of `exposition`, in the OpenMetrics text format: name with its suffix, type,
/// labels and help. Labels are those of the samples, so each family needs one.
pub fn page(title: &str, exposition: &str) -> String {
    let mut families = BTreeMap::<&str, Family<'_>>::new();
    for line in exposition.lines() {
        let comment = |start| line.strip_prefix(start).and_then(|rest: &str| rest.split_once(' '));
        if let Some((name, help)) = comment("# HELP ") {
            families.entry(name).or_default().help = help;
        } else if let Some((name, kind)) = comment("# TYPE ") {
            families.entry(name).or_default().kind = kind;
        } else if let Some((sample, rest)) = line.split_once('{') {
            let family = families.iter_mut().filter(|(name, _)| sample.starts_with(**name));
            let labels =
                rest.split("=\"").map(|part| part.rsplit(['{', ',', '"']).next().unwrap_or_default());
            let labels: Vec<_> = labels.filter(|label| !label.is_empty() && *label != "le").collect();
            // The longest name that the sample begins with is its family's.
            if let Some((_, family)) = family.max_by_key(|(name, _)| name.len()) {
                family.labels = labels[..labels.len().saturating_sub(1)].to_vec();
            }
        }
    }
    let mut page = format!("# {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for (name, Family { kind, help, labels }) in families {
        let suffix = if kind == "counter" { "_total" } else { "" };
        let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        // The writer of the format ends each help text with a full stop.
        let help = help.trim_end_matches('.').replace('|', "\\|");
        let _ = writeln!(page, "| `{name}{suffix}` | {kind} | {labels} | {help} |");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_per_family() {
        let exposition = "# HELP a_ops Operations.\n# TYPE a_ops counter\na_ops_total 3\n\
            # HELP a_ops_failed Failed | refused.\n# TYPE a_ops_failed counter\n\
            a_ops_failed_total{reason=\"full\",table=\"ct,nat\"} 3\n\
            # HELP a_seconds Duration.\n# TYPE a_seconds histogram\na_seconds_bucket{le=\"1.0\",verb=\"Add\"} 1\n# EOF\n";
        assert_eq!(
            page("Metrics", exposition),
            "# Metrics\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n\
             | `a_ops_total` | counter |  | Operations |\n\
             | `a_ops_failed_total` | counter | `reason`, `table` | Failed \\| refused |\n\
             | `a_seconds` | histogram | `verb` | Duration |\n"
        );
    }
}
