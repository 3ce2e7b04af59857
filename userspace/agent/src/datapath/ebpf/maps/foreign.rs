//! Entries of maps of another ABI version, read by the names of their fields.

use std::{
    collections::BTreeSet,
    rc::Rc,
    sync::atomic::{Ordering, fence},
};

use aya::{maps::MapData, util::nr_cpus};
use contiv_abi::{Domain, Segment};

use super::{
    btf::{self, Layout},
    mmap::MmapValues,
    pins::Pins,
    syscall,
    usage::capacity,
};
use crate::datapath::{Error, ebpf::failure::failed};

/// A key or a value of another layout, or of a layout that only the programs define.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    layout: Rc<Layout>,
    /// Path of this part of the record, with a dot at its end; empty for the whole record.
    prefix: String,
    bytes: Rc<[u8]>,
}

impl Record {
    /// Returns a record with these fields, one after the other.
    #[cfg(test)]
    pub(crate) fn of(fields: &[(&str, &[u8])]) -> Record {
        let (mut layout, mut bytes) = (Layout::default(), vec![]);
        for (path, value) in fields {
            layout.insert(path, btf::Field { offset: bytes.len(), size: value.len() });
            bytes.extend_from_slice(value);
        }
        layout.size = bytes.len();
        Record::new(&layout.into(), bytes)
    }

    fn new(layout: &Rc<Layout>, bytes: Vec<u8>) -> Record {
        Record { layout: Rc::clone(layout), prefix: String::new(), bytes: bytes.into() }
    }

    /// Returns the part at this path, which has its own fields; without fields if there is no such part.
    pub(crate) fn part(&self, path: &str) -> Record {
        let Record { layout, prefix, bytes } = self.clone();
        Record { layout, prefix: format!("{prefix}{path}."), bytes }
    }

    /// The bytes of a field; `None` if there is no field of this name and size.
    pub(crate) fn bytes<const N: usize>(&self, field: &str) -> Option<[u8; N]> {
        let path = format!("{}{field}", self.prefix);
        let field = self.layout.field(&path).filter(|field| field.size == N)?;
        self.bytes.get(field.offset..)?.first_chunk().copied()
    }

    /// A number of one, two or four bytes.
    pub(crate) fn number(&self, field: &str) -> Option<u32> {
        let byte = || self.bytes(field).map(|[byte]| u32::from(byte));
        let short = || self.bytes(field).map(|bytes| u32::from(u16::from_ne_bytes(bytes)));
        self.bytes(field).map(u32::from_ne_bytes).or_else(short).or_else(byte)
    }

    /// The domain of a key: up to version 6, keys had the network instead.
    pub(crate) fn domain(&self) -> Option<Domain> {
        match self.number("domain") {
            Some(number) => Some(Domain::from_number(number)),
            None => self.segment().map(Domain::of_segment),
        }
    }

    /// The network of a key.
    pub(crate) fn segment(&self) -> Option<Segment> {
        match (self.number("segment.vni")?, self.number("segment.vlan")?) {
            (0, 0) => None,
            (0, vlan) => u16::try_from(vlan).ok().map(Segment::vlan),
            (vni, _) => Some(Segment::vxlan(vni)),
        }
    }
}

/// Returns all entries of a hash map, keys and values. Entries that change meanwhile may be missing.
pub(crate) fn entries(pins: &Pins, name: &'static str) -> Result<Vec<(Record, Record)>, Error> {
    let map = pins.open_data(name)?;
    let what = || format!("read the map {}", pins.map(name).display());
    let [key, value] = btf::layouts(&map).map_err(|error| failed(what(), error))?.map(Rc::new);
    let mut entries = vec![];
    for bytes in keys(&map, key.size, capacity(name, &map)?).map_err(|error| failed(what(), error))? {
        let mut found = vec![0; value.size];
        match syscall::lookup(map.fd(), &bytes, &mut found) {
            Ok(()) => entries.push((Record::new(&key, bytes), Record::new(&value, found))),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(failed(what(), error)),
        }
    }
    Ok(entries)
}

/// Maximum number of attempts to read a value that changes.
const MAX_ATTEMPTS: usize = 5;

/// Returns the values of an array that is mapped into memory, except those that are zero. Values that change during each
/// attempt are missing.
pub(crate) fn values(pins: &Pins, name: &'static str) -> Result<Vec<Record>, Error> {
    let map = pins.open_data(name)?;
    let what = || format!("read the map {}", pins.map(name).display());
    let [_, layout] = btf::layouts(&map).map_err(|error| failed(what(), error))?;
    let len = capacity(name, &map)?;
    let values = MmapValues::new(map, len, layout.size).map_err(|error| failed(what(), error))?;
    let layout = Rc::new(layout);
    let read = |index| stable(|bytes| values.read(index, 0, bytes), layout.size);
    let found = (0..values.len() as u32).filter_map(read).filter(|bytes| bytes.iter().any(|byte| *byte != 0));
    Ok(found.map(|bytes| Record::new(&layout, bytes)).collect())
}

/// Returns a value that two reads agree on; `None` if it changes during each attempt.
fn stable(read: impl Fn(&mut [u8]) -> bool, size: usize) -> Option<Vec<u8>> {
    let (mut value, mut again) = (vec![0; size], vec![0; size]);
    for _ in 0..MAX_ATTEMPTS {
        if !read(&mut value) {
            return None;
        }
        fence(Ordering::Acquire);
        read(&mut again);
        if value == again {
            return Some(value);
        }
    }
    None
}

/// Returns this CPU's value of a per-CPU array with one entry.
pub(crate) fn of_cpu(map: &MapData, cpu: usize) -> Result<Record, Error> {
    let what = "read a value of a CPU";
    let [_, layout] = btf::layouts(map).map_err(|error| failed(what, error))?;
    let cpus = nr_cpus().map_err(|(_, error)| failed("count the CPUs", error))?;
    // The kernel pads the value of each CPU to eight bytes.
    let size = layout.size.next_multiple_of(8);
    let mut values = vec![0; cpus * size];
    syscall::read_array(map.fd(), 0, &mut values).map_err(|error| failed(what, error))?;
    let bytes = values.chunks_exact(size).nth(cpu).map(<[u8]>::to_vec).unwrap_or_default();
    Ok(Record::new(&Rc::new(layout), bytes))
}

/// The keys of a hash map.
fn keys(map: &MapData, size: usize, capacity: usize) -> std::io::Result<BTreeSet<Vec<u8>>> {
    let mut keys = BTreeSet::new();
    let mut last: Option<Vec<u8>> = None;
    // If the previous key is removed meanwhile, the kernel starts again at the first key.
    for _ in 0..=2 * capacity {
        let mut next = vec![0; size];
        if !syscall::next_key(map.fd(), last.as_deref(), &mut next)? {
            break;
        }
        keys.insert(next.clone());
        last = Some(next);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn networks_of_earlier_versions_are_domains() {
        let word = |number: u32| number.to_ne_bytes();
        let of_network = |vni: u32, vlan: u32| {
            Record::of(&[("ip", &[1; 16]), ("segment.vni", &word(vni)), ("segment.vlan", &word(vlan))])
                .domain()
        };
        assert_eq!(of_network(7, 0), Some(Domain::of_segment(Segment::vxlan(7))));
        assert_eq!(of_network(0, 7), Some(Domain::of_segment(Segment::vlan(7))));
        assert_eq!(of_network(0, 0), None);
        let domain = Domain::of_vrf(9);
        assert_eq!(Record::of(&[("domain", &word(domain.number()))]).domain(), Some(domain));
        assert_eq!(Record::of(&[("ip", &[1; 16])]).domain(), None);
    }

    #[test]
    fn parts_have_fields_of_their_own() {
        let fields: [(&str, &[u8]); 4] =
            [("a", &[6]), ("list[0].a", &[7]), ("list[1].a", &[8]), ("list[1].b.c", &[9])];
        let record = Record::of(&fields);
        let of = |path: &str| record.part(path).number("a");
        assert_eq!(["list[0]", "list[1]", "list[2]"].map(of), [Some(7), Some(8), None]);
        assert_eq!(record.part("list[1]").part("b").number("c"), Some(9));
        assert_eq!(record.number("a"), Some(6));
    }

    #[test]
    fn a_value_that_changes_is_read_again() {
        let next = Cell::new(0);
        let read = |until: u8| {
            next.set(0);
            stable(
                |bytes| {
                    next.set(next.get() + 1);
                    bytes.fill(until.min(next.get()));
                    true
                },
                2,
            )
        };
        assert_eq!((read(1), read(6), read(u8::MAX)), (Some(vec![1; 2]), Some(vec![6; 2]), None));
        assert_eq!(stable(|_| false, 2), None);
    }

    #[test]
    fn numbers_may_have_grown() {
        let record = Record::of(&[("a", &[6]), ("b", &7_u16.to_ne_bytes()), ("c", &8_u32.to_ne_bytes())]);
        assert_eq!(["a", "b", "c", "d"].map(|field| record.number(field)), [Some(6), Some(7), Some(8), None]);
        assert_eq!((record.bytes("a"), record.bytes::<2>("a")), (Some([6]), None));
    }
}
