//! Moves the flows of another table to the pinned one, while packets change the other table, and later this one.

use std::collections::HashMap;

use bytemuck::Zeroable as _;
use contiv_abi::{Flow, FlowBatch, FlowImport, ImportOperation, ImportResult};

use super::import::Importer;
use crate::datapath::{
    Error,
    ebpf::maps::{
        export::{ExportedFlow, FlowExport},
        pins::Pins,
    },
};

/// The table that packets change during the import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Only the other table: its flows take precedence.
    Before,
    /// This table: its flows take precedence. The other table only has flows that were created before.
    After,
}

/// Numbers of flows that were moved, and that could not be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Flows of the other table that are now in this one.
    pub(crate) flows: usize,
    /// Flows that did not fit into this table.
    pub(crate) lost: usize,
}

/// An import of all flows of another table.
pub(crate) struct FlowMigration {
    source: FlowExport,
    importer: Importer,
    /// By the number of the record in the other table.
    imported: HashMap<u32, Imported>,
    /// Rule numbers have the same meaning in both tables.
    same_rules: bool,
    /// Networks whose domain in this table differs from that in the other table.
    domains: MovedDomains,
}

/// Domains of networks, as numbers in flows: the number in the other table, and the current one.
pub(crate) type MovedDomains = HashMap<u32, u32>;

/// A flow that was imported.
#[derive(Clone, Copy, Debug)]
struct Imported {
    /// Generation of the record in the other table.
    generation: u16,
    /// Packets of both directions.
    packets: [u64; 2],
    /// One of [`ImportResult`].
    result: u64,
}

impl Imported {
    fn is_present(&self) -> bool {
        self.result > ImportResult::TAKEN
    }
}

impl FlowMigration {
    /// Opens the table of `source`, and loads the program that inserts into the table of `pins`.
    pub(crate) fn open(
        pins: &Pins,
        source: &Pins,
        same_rules: bool,
        domains: MovedDomains,
    ) -> Result<FlowMigration, Error> {
        let source = FlowExport::open(source)?;
        let importer = Importer::load(pins)?;
        Ok(FlowMigration { source, importer, imported: HashMap::new(), same_rules, domains })
    }

    /// Imports what has changed in the other table since the last pass.
    pub(crate) fn run(&mut self, pass: Pass) -> Result<(), Error> {
        let operation = match pass {
            Pass::Before => ImportOperation::PUT,
            Pass::After => ImportOperation::MERGE,
        };
        let mut gone = self.imported.clone();
        let mut changed = vec![];
        for ExportedFlow { record, flow } in self.source.read() {
            let previous = self.imported.get(&record);
            if previous.is_some_and(|previous| previous.generation == flow.head.generation) {
                gone.remove(&record);
                if previous.is_some_and(|previous| previous.packets == packets(&flow)) {
                    continue;
                }
            }
            changed.push(record);
        }
        // This comes first: another flow of the other table may have the tuple by now.
        let gone: Vec<(u32, Imported)> =
            gone.into_iter().filter(|(_, imported)| imported.is_present()).collect();
        for part in gone.chunks(FlowBatch::LEN) {
            let removals: Vec<FlowImport> = part.iter().map(|(_, imported)| removal(imported)).collect();
            self.importer.run(&removals)?;
        }
        for (record, _) in gone {
            self.imported.remove(&record);
        }
        for part in changed.chunks(FlowBatch::LEN) {
            self.import(part, operation)?;
        }
        Ok(())
    }

    /// Imports the flows in these records of the other table.
    fn import(&mut self, records: &[u32], operation: u32) -> Result<(), Error> {
        let flows: Vec<ExportedFlow> = records
            .iter()
            .filter_map(|record| Some(ExportedFlow { record: *record, flow: self.source.record(*record)? }))
            .collect();
        let imports: Vec<FlowImport> =
            flows.iter().map(|exported| self.insertion(exported.flow, operation)).collect();
        let results = self.importer.run(&imports)?;
        for (ExportedFlow { record, flow }, result) in flows.into_iter().zip(results) {
            let imported = Imported { generation: flow.head.generation, packets: packets(&flow), result };
            self.imported.insert(record, imported);
        }
        Ok(())
    }

    fn insertion(&self, mut flow: Flow, operation: u32) -> FlowImport {
        flow.head.flags &= Flow::NAT | Flow::HAIRPIN;
        flow.head.domain = self.domains.get(&flow.head.domain).copied().unwrap_or(flow.head.domain);
        if !self.same_rules {
            for half in &mut flow.halves {
                half.rule = 0;
            }
        }
        FlowImport { flow, operation, ..FlowImport::zeroed() }
    }

    /// Returns the number of moved and lost flows.
    pub(crate) fn moved(&self) -> Moved {
        let lost = [ImportResult::NONE, ImportResult::FULL, ImportResult::TAKEN];
        let lost = self.imported.values().filter(|imported| lost.contains(&imported.result)).count();
        Moved { flows: self.imported.len() - lost, lost }
    }
}

fn packets(flow: &Flow) -> [u64; 2] {
    flow.halves.each_ref().map(|half| half.packets)
}

fn removal(imported: &Imported) -> FlowImport {
    let mut import =
        FlowImport { operation: ImportOperation::REMOVE, record: imported.result, ..FlowImport::zeroed() };
    for (half, packets) in import.flow.halves.iter_mut().zip(imported.packets) {
        half.packets = packets;
    }
    import
}
