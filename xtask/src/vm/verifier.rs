//! Figures of a kernel's verifier.

use std::fmt::{self, Write as _};

/// Limit of processed instructions per program: less than a third of what all may take (`packets::verifier`), because older kernels may see
/// more states than newer ones.
const BUDGET: u32 = 60_000;
/// Starts a line that the packet tests print for each program.
const MARK: &str = "VERIFIER ";

/// One program on one kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    program: String,
    kernel: String,
    instructions: u32,
    load_us: u64,
    xlated: u32,
    jited: u32,
}

impl Row {
    /// `VERIFIER <program> <instructions processed> <load time in us> <bytes translated> <bytes of machine code>`.
    pub(super) fn parse(kernel: &str, line: &str) -> Option<Row> {
        let mut words = line[line.find(MARK)? + MARK.len()..].split_whitespace();
        Some(Row {
            kernel: kernel.to_owned(),
            program: words.next()?.to_owned(),
            instructions: words.next()?.parse().ok()?,
            load_us: words.next()?.parse().ok()?,
            xlated: words.next()?.parse().ok()?,
            jited: words.next()?.parse().ok()?,
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { program, kernel, instructions, .. } = self;
        write!(f, "{program} on Linux {kernel}: {instructions} instructions processed, limit {BUDGET}")
    }
}

pub(super) fn beyond_budget(rows: &[Row]) -> Vec<&Row> {
    rows.iter().filter(|row| row.instructions > BUDGET).collect()
}

pub(super) fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:16} {:26} {:>12} {:>9} {:>10} {:>10}",
        "program", "kernel", "instructions", "load ms", "xlated B", "jited B"
    );
    for Row { kernel, program, instructions, load_us, xlated, jited } in rows {
        let load = format!("{}.{}", load_us / 1000, load_us % 1000 / 100);
        // Writing to a String cannot fail.
        _ = write!(text, "\n{program:16} {kernel:26} {instructions:>12} {load:>9} {xlated:>10} {jited:>10}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_beyond_the_budget_is_named_with_its_kernel() {
        let line = "test verifier::table ... VERIFIER ctv_from_pod 60001 41250 20480 11700";
        let row = Row::parse("6.1.0-56-amd64", line).unwrap();
        assert_eq!(
            beyond_budget(std::slice::from_ref(&row))[0].to_string(),
            "ctv_from_pod on Linux 6.1.0-56-amd64: 60001 instructions processed, limit 60000"
        );
        assert_eq!(table(&[row]).lines().nth(1).unwrap().split_whitespace().nth(3), Some("41.2"));
        assert_eq!(Row::parse("6.1", "VERIFIER ctv_from_pod many"), None);
    }
}
