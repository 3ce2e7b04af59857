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
    stack: u32,
    frames: u32,
    branch: u32,
}

/// Limits of the kernel: stack and frames of a chain of calls, instructions that a branch can skip.
const STACK: u32 = 512;
const FRAMES: u32 = 8;
const BRANCH: u32 = 32_767;

impl Row {
    /// `VERIFIER <program> <instructions processed> <load time in us> <bytes translated> <bytes of machine code> <bytes of stack>
    /// <frames> <longest branch>`.
    pub(super) fn parse(kernel: &str, line: &str) -> Option<Row> {
        let mut words = line[line.find(MARK)? + MARK.len()..].split_whitespace();
        Some(Row {
            kernel: kernel.to_owned(),
            program: words.next()?.to_owned(),
            instructions: words.next()?.parse().ok()?,
            load_us: words.next()?.parse().ok()?,
            xlated: words.next()?.parse().ok()?,
            jited: words.next()?.parse().ok()?,
            stack: words.next()?.parse().ok()?,
            frames: words.next()?.parse().ok()?,
            branch: words.next()?.parse().ok()?,
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

/// Figures of the programs. The last columns are what another stage in the program has left: instructions to process, stack,
/// frames, and length of a branch.
pub(super) fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:16} {:26} {:>12} {:>9} {:>10} {:>10} {:>7} {:>6} {:>8}   left: {:>12} {:>5} {:>6} {:>8}",
        "program",
        "kernel",
        "instructions",
        "load ms",
        "xlated B",
        "jited B",
        "stack B",
        "frames",
        "branch",
        "instructions",
        "stack",
        "frames",
        "branch"
    );
    for row in rows {
        let Row { kernel, program, instructions, load_us, xlated, jited, stack, frames, branch } = row;
        let load = format!("{}.{}", load_us / 1000, load_us % 1000 / 100);
        let left = [(BUDGET, instructions), (STACK, stack), (FRAMES, frames), (BRANCH, branch)];
        let [budget, stack_left, frames_left, branch_left] =
            left.map(|(limit, used)| i64::from(limit) - i64::from(*used));
        // Writing to a String cannot fail.
        _ = write!(
            text,
            "\n{program:16} {kernel:26} {instructions:>12} {load:>9} {xlated:>10} {jited:>10} {stack:>7} {frames:>6} \
             {branch:>8}         {budget:>12} {stack_left:>5} {frames_left:>6} {branch_left:>8}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_beyond_the_budget_is_named_with_its_kernel() {
        let line = "test verifier::table ... VERIFIER ctv_from_pod 60001 41250 20480 11700 416 7 1200";
        let row = Row::parse("6.1.0-56-amd64", line).unwrap();
        assert_eq!(
            beyond_budget(std::slice::from_ref(&row))[0].to_string(),
            "ctv_from_pod on Linux 6.1.0-56-amd64: 60001 instructions processed, limit 60000"
        );
        let table = table(&[row]);
        let words: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().skip(2).collect();
        assert_eq!(words.join(" "), "60001 41.2 20480 11700 416 7 1200 -1 96 1 31567");
        assert_eq!(Row::parse("6.1", "VERIFIER ctv_from_pod many"), None);
    }
}
