//! The program that inserts flows of another table.

use aya::{
    Ebpf, EbpfLoader,
    maps::Map,
    programs::{SchedClassifier, TestRun as _, TestRunOptions},
};
use bytemuck::Zeroable as _;
use contiv_abi::{
    FlowBatch, FlowImport,
    maps::{ALL, FLOW_IMPORTS, IMPORT},
};

use super::load::{OBJECT, retry_interrupted};
use crate::datapath::{
    Error,
    ebpf::{
        failure::{errno, failed},
        maps::{mmap::MmapArray, pins::Pins},
    },
};

/// The loaded program, which changes the pinned flow table.
pub(crate) struct Importer {
    batch: MmapArray<FlowBatch>,
    /// Keeps the program loaded.
    object: Ebpf,
}

impl Importer {
    /// Loads the program with the pinned maps, all of which must exist.
    pub(crate) fn load(pins: &Pins) -> Result<Importer, Error> {
        let what = || format!("load the program {IMPORT}");
        let mut loader = EbpfLoader::new();
        for name in ALL {
            loader.map_pin_path(name, pins.map(name));
        }
        let mut object = loader.load(OBJECT).map_err(|error| failed(what(), error))?;
        let program = program(&mut object)?;
        retry_interrupted(|| program.load()).map_err(|error| failed(what(), error))?;
        let missing = || failed(what(), format!("the object does not contain the map {FLOW_IMPORTS}"));
        let map = object.take_map(FLOW_IMPORTS).ok_or_else(missing)?;
        let Map::Array(data) = map else { return Err(missing()) };
        let batch = MmapArray::new(data, 1)
            .map_err(|error| failed(format!("map {FLOW_IMPORTS} into memory"), error))?;
        Ok(Importer { batch, object })
    }

    /// Imports flows. Returns the result of each, one of `ImportResult`.
    pub(crate) fn run(&mut self, imports: &[FlowImport]) -> Result<Vec<u64>, Error> {
        let mut results = Vec::with_capacity(imports.len());
        for part in imports.chunks(FlowBatch::LEN) {
            self.execute(part)?;
            let batch = self.batch.get(0).unwrap_or_else(FlowBatch::zeroed);
            results.extend(batch.imports.iter().take(part.len()).map(|import| import.result));
        }
        Ok(results)
    }

    /// Executes up to [`FlowBatch::LEN`] operations.
    fn execute(&mut self, imports: &[FlowImport]) -> Result<(), Error> {
        let what = || format!("run the program {IMPORT}");
        let mut batch = FlowBatch { count: imports.len() as u32, ..FlowBatch::zeroed() };
        for (place, import) in batch.imports.iter_mut().zip(imports) {
            *place = *import;
        }
        self.batch.set(0, batch);
        let program = program(&mut self.object)?;
        let mut next = 0;
        while next < batch.count {
            // The program reads no packet; the kernel requires one with at least an Ethernet header.
            let options = TestRunOptions {
                data_in: Some(&[0; 64]),
                repeat: batch.count - next,
                ..TestRunOptions::new()
            };
            let interrupted = match program.test_run(options) {
                Ok(_) => false,
                Err(error) if errno(&error) == Some(libc::EINTR) => true,
                Err(error) => return Err(failed(what(), error)),
            };
            let reached = self.batch.get(0).map_or(0, |batch| batch.next);
            if reached == next && !interrupted {
                return Err(failed(what(), "it has executed nothing"));
            }
            next = reached;
        }
        Ok(())
    }
}

fn program(object: &mut Ebpf) -> Result<&mut SchedClassifier, Error> {
    let what = || format!("load the program {IMPORT}");
    let missing = || failed(what(), "the object does not contain it");
    object.program_mut(IMPORT).ok_or_else(missing)?.try_into().map_err(|error| failed(what(), error))
}
