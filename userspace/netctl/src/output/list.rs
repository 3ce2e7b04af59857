//! Lists of objects in all formats.

use std::io::Write;

use serde_json::Value;

use crate::{
    error::Error,
    flags::ListFormat,
    output::{
        self, printable,
        table::{self, Cell, Column},
    },
};

/// Whether a table has the columns of the original or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// The columns of the original.
    Normal,
    /// All columns.
    Wide,
}

/// A list, with the parts of its output that depend on the type of its objects.
pub struct List<'a> {
    /// The objects.
    pub objects: &'a [Value],
    /// Returns the name of an object.
    pub name: &'a dyn Fn(&Value) -> String,
    /// Writes the table of all objects.
    pub table: &'a dyn Fn(&mut dyn Write, Width) -> Result<(), Error>,
}

impl List<'_> {
    /// Writes the list.
    pub fn write(&self, format: &ListFormat, out: &mut dyn Write) -> Result<(), Error> {
        let array = || Value::Array(self.objects.to_vec());
        match format {
            ListFormat::Table => (self.table)(out, Width::Normal),
            ListFormat::Wide => (self.table)(out, Width::Wide),
            ListFormat::Json => output::json(out, &array()),
            ListFormat::Yaml => output::yaml(out, &array()),
            ListFormat::JsonPath(template) => output::values(out, template, &array()),
            ListFormat::Name => {
                let mut names = self.objects.iter().map(self.name);
                Ok(names.try_for_each(|name| writeln!(out, "{}", printable(&name)))?)
            }
            ListFormat::Columns(columns) => {
                let titles: Vec<&str> = columns.0.iter().map(|(title, _)| title.as_str()).collect();
                let rows: Vec<Vec<String>> =
                    self.objects.iter().map(|object| columns.cells(object)).collect();
                titled(out, &titles, &rows)
            }
        }
    }
}

/// Writes a table whose lines under the titles are as long as the titles.
pub fn titled(out: &mut dyn Write, titles: &[&str], rows: &[Vec<String>]) -> Result<(), Error> {
    let dashes: Vec<String> = titles.iter().map(|title| "-".repeat(table::width(title))).collect();
    let columns: Vec<Column<'_>> =
        titles.iter().zip(&dashes).map(|(title, dashes)| (*title, dashes.as_str())).collect();
    let rows: Vec<Vec<Cell>> = rows.iter().map(|row| row.iter().cloned().map(Cell::from).collect()).collect();
    Ok(table::write_cells(out, &columns, &rows)?)
}
