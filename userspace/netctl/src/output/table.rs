//! Tables in the format of the original: columns two spaces apart, a line of dashes under the titles.

use std::io::{self, Write};

use anstyle::Style;
use unicode_width::UnicodeWidthChar as _;

use crate::output::{printable, style};

/// Title of a column and the dashes under it, both as in the original.
pub type Column<'a> = (&'a str, &'a str);

/// Text of a cell, printable, and its style.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// A cell in a style.
    pub fn styled(style: Style, text: &str) -> Cell {
        Cell { text: printable(text).into_owned(), style }
    }

    fn width(&self) -> usize {
        width(&self.text)
    }

    fn painted(&self) -> String {
        if self.style.is_plain() { self.text.clone() } else { style::paint(self.style, &self.text) }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::styled(Style::new(), &text)
    }
}

/// Writes rows of plain text under `columns`; see [`write_cells`].
pub fn write(out: &mut dyn Write, columns: &[Column<'_>], rows: &[Vec<String>]) -> io::Result<()> {
    let rows: Vec<Vec<Cell>> = rows.iter().map(|row| row.iter().cloned().map(Cell::from).collect()).collect();
    write_cells(out, columns, &rows)
}

/// Writes `rows` under `columns` as Go's tabwriter does: the last cell of a line is not padded, and a column is as wide as
/// its widest cell in consecutive lines that have a cell after it. Widths are those of a terminal.
pub fn write_cells(out: &mut dyn Write, columns: &[Column<'_>], rows: &[Vec<Cell>]) -> io::Result<()> {
    let titles = columns.iter().map(|(title, _)| Cell::from((*title).to_owned())).collect();
    let dashes = columns.iter().map(|(_, dashes)| Cell::from((*dashes).to_owned())).collect();
    let lines: Vec<Vec<Cell>> = [titles, dashes].into_iter().chain(rows.to_vec()).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<Vec<usize>> = (0..columns).map(|column| column_widths(&lines, column)).collect();
    for (at, line) in lines.iter().enumerate() {
        let Some((last, padded)) = line.split_last() else { continue };
        for (cell, widths) in padded.iter().zip(&widths) {
            let blanks = widths.get(at).copied().unwrap_or(0).saturating_sub(cell.width());
            write!(out, "{}{:blanks$}  ", cell.painted(), "")?;
        }
        writeln!(out, "{}", last.painted())?;
    }
    Ok(())
}

/// Number of columns of a terminal that a printable text takes. Terminals add up the widths of the characters: few know the
/// ligatures of scripts and emoji.
pub fn width(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// The width of a column in each line.
fn column_widths(lines: &[Vec<Cell>], column: usize) -> Vec<usize> {
    let padded = |line: &Vec<Cell>| line.len() > column + 1;
    let mut widths = Vec::with_capacity(lines.len());
    for block in lines.chunk_by(|a, b| padded(a) == padded(b)) {
        let width = block.iter().filter_map(|line| line.get(column)).map(Cell::width).max();
        widths.extend(block.iter().map(|_| width.unwrap_or(0)));
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 2] = [("Tenant", "------"), ("Policy", "------")];

    fn table(rows: &[Vec<Cell>]) -> String {
        let mut out = Vec::new();
        write_cells(&mut out, &COLUMNS, rows).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn table_has_the_format_of_the_original() {
        let text = table(&[vec!["default".to_owned().into(), "p1".to_owned().into()]]);
        assert_eq!(text, "Tenant   Policy\n------   ------\ndefault  p1\n");
    }

    #[test]
    fn columns_do_not_shift_by_wide_characters_colours_or_control_characters() {
        let text = table(&[
            vec!["日本語".to_owned().into(), "p1".to_owned().into()],
            vec![Cell::styled(style::GOOD, "up"), "p2".to_owned().into()],
            vec!["e\u{301}t\n".to_owned().into(), "p3".to_owned().into()],
            vec!["a\u{200b}b".to_owned().into(), "p4".to_owned().into()],
            // A terminal that knows no ligatures shows two characters.
            vec!["\u{644}\u{627}".to_owned().into(), "p5".to_owned().into()],
            vec!["\u{1f469}\u{1f3fb}".to_owned().into(), "p6".to_owned().into()],
        ]);
        let plain = anstream::adapter::strip_str(&text).to_string();
        let columns: Vec<usize> =
            plain.lines().map(|line| width(&line[..line.rfind(' ').unwrap()])).collect();
        assert_eq!(columns, [11; 8], "{plain}");
    }
}
