//! Tables as the original prints them: columns two blanks apart, a line of dashes under the titles.

use std::io::{self, Write};

/// A column: its title and the dashes under it, both as the original spells them.
pub type Column = (&'static str, &'static str);

/// Writes `rows` under `columns`. The last cell of a row is not padded.
pub fn write(out: &mut dyn Write, columns: &[Column], rows: &[Vec<String>]) -> io::Result<()> {
    let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
    let dashes = columns.iter().map(|(_, dashes)| (*dashes).to_owned()).collect();
    let lines: Vec<Vec<String>> = [titles, dashes].into_iter().chain(rows.iter().cloned()).collect();
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    for line in &lines {
        for (cell, width) in line.iter().zip(&widths).take(columns.len() - 1) {
            write!(out, "{cell:width$}  ")?;
        }
        writeln!(out, "{}", line.last().map_or("", String::as_str))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_like_the_originals() {
        let mut out = Vec::new();
        let columns = [("Tenant", "------"), ("Policy", "------")];
        write(&mut out, &columns, &[vec!["default".into(), "p1".into()]]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "Tenant   Policy\n------   ------\ndefault  p1\n");
    }
}
