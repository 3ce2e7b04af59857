//! Tables in the format of the original: columns two spaces apart, a line of dashes under the titles.

use std::io::{self, Write};

/// Title of a column and the dashes under it, both as in the original.
pub type Column = (&'static str, &'static str);

/// Writes `rows` under `columns` as Go's tabwriter does: the last cell of a line is not padded, and a column is as wide as
/// its widest cell in consecutive lines that have a cell after it.
pub fn write(out: &mut dyn Write, columns: &[Column], rows: &[Vec<String>]) -> io::Result<()> {
    let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    let dashes = columns.iter().map(|(_, dashes)| (*dashes).to_owned()).collect();
    let lines: Vec<Vec<String>> = [titles, dashes].into_iter().chain(rows.iter().cloned()).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<Vec<usize>> = (0..columns).map(|column| column_widths(&lines, column)).collect();
    for (at, line) in lines.iter().enumerate() {
        let Some((last, padded)) = line.split_last() else { continue };
        for (cell, widths) in padded.iter().zip(&widths) {
            let blanks = widths.get(at).copied().unwrap_or(0).saturating_sub(width(cell));
            write!(out, "{cell}{:blanks$}  ", "")?;
        }
        writeln!(out, "{last}")?;
    }
    Ok(())
}

/// The width of a column in each line.
fn column_widths(lines: &[Vec<String>], column: usize) -> Vec<usize> {
    let padded = |line: &Vec<String>| line.len() > column + 1;
    let mut widths = Vec::with_capacity(lines.len());
    for block in lines.chunk_by(|a, b| padded(a) == padded(b)) {
        let width = block.iter().filter_map(|line| line.get(column)).map(|cell| width(cell)).max();
        widths.extend(block.iter().map(|_| width.unwrap_or(0)));
    }
    widths
}

/// Width in characters, without colours.
fn width(cell: &str) -> usize {
    anstream::adapter::strip_str(cell).map(|text| text.chars().count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_the_format_of_the_original() {
        let mut out = Vec::new();
        let columns = [("Tenant", "------"), ("Policy", "------")];
        write(&mut out, &columns, &[vec!["default".into(), "p1".into()]]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "Tenant   Policy\n------   ------\ndefault  p1\n");
    }
}
