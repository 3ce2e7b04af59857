//! Layouts of the keys and values of pinned maps, by the BTF that the kernel has of them.
//!
//! An agent reads the maps of another ABI version by the names of their fields. So it does not depend on the layouts of
//! other versions: a field may move or grow, and keeps its name as long as it keeps its meaning.

use std::{collections::BTreeMap, io, os::fd::AsFd as _};

use aya::maps::MapData;

use super::syscall;
use crate::datapath::btf::{Btf, MAX_DEPTH, Type};

/// A field of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Offset in bytes.
    pub(crate) offset: usize,
    /// Size in bytes.
    pub(crate) size: usize,
}

/// Fields of a type by their paths, such as `head.generation` or `halves[1].seen`. Fields of fields are included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Size of the type in bytes.
    pub(crate) size: usize,
    fields: BTreeMap<String, Field>,
}

impl Layout {
    #[cfg(test)]
    pub(crate) fn insert(&mut self, path: &str, field: Field) {
        self.fields.insert(path.to_owned(), field);
    }

    pub(crate) fn field(&self, path: &str) -> Option<Field> {
        self.fields.get(path).copied()
    }
}

/// Layouts of a map's keys and values.
///
/// # Errors
/// The map has no BTF, or BTF that this version does not know.
pub(crate) fn layouts(map: &MapData) -> io::Result<[Layout; 2]> {
    let fd = map.fd().as_fd();
    let mut info = MapInfo::default();
    // SAFETY: integers only.
    unsafe { syscall::info(fd, &mut info) }?;
    if info.btf == 0 || info.value_type == 0 {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the map has no BTF"));
    }
    let data = read(info.btf)?;
    let btf = Btf::parse(&data).ok_or_else(|| io::Error::other("the BTF is not valid"))?;
    let layout = |id| Layout::of(&btf, id).ok_or_else(|| io::Error::other("the BTF has unknown types"));
    Ok([layout(info.key_type)?, layout(info.value_type)?])
}

/// Whether keys and values of two maps have the same layout. False if it is unknown.
pub(crate) fn are_alike(one: &MapData, other: &MapData) -> bool {
    matches!((layouts(one), layouts(other)), (Ok(one), Ok(other)) if one == other)
}

/// The beginning of `struct bpf_map_info`.
#[derive(Default)]
#[repr(C)]
struct MapInfo {
    numbers: [u32; 6],
    name: [u8; 16],
    devices: [u32; 2],
    namespace: [u64; 2],
    btf: u32,
    key_type: u32,
    value_type: u32,
    zero: u32,
}
const _: () = assert!(std::mem::offset_of!(MapInfo, btf) == 64);

/// `struct bpf_btf_info`.
#[derive(Default)]
#[repr(C)]
struct BtfInfo {
    data: u64,
    size: u32,
    id: u32,
    name: u64,
    name_len: u32,
    kernel: u32,
}

fn read(id: u32) -> io::Result<Vec<u8>> {
    let btf = syscall::open_btf(id)?;
    let mut info = BtfInfo::default();
    // SAFETY: without addresses the kernel reports the size only.
    unsafe { syscall::info(btf.as_fd(), &mut info) }?;
    let mut data = vec![0; info.size as usize];
    let mut info = BtfInfo { data: data.as_mut_ptr() as u64, size: info.size, ..BtfInfo::default() };
    // SAFETY: the buffer has `size` bytes.
    unsafe { syscall::info(btf.as_fd(), &mut info) }?;
    Ok(data)
}

impl Layout {
    fn of(btf: &Btf<'_>, id: u32) -> Option<Layout> {
        let mut layout = Layout { size: size(btf, id, 0)?, fields: BTreeMap::new() };
        layout.collect(btf, id, "", 0, 0)?;
        Some(layout)
    }

    /// Adds the fields below `path`, which begins at `offset`. Elements of arrays are fields if they are structures.
    fn collect(&mut self, btf: &Btf<'_>, id: u32, path: &str, offset: usize, depth: u32) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match btf.get(id)? {
            Type::Struct(composite) => {
                for member in btf.members(composite) {
                    let (name, id, place) = member?;
                    let name = String::from_utf8_lossy(name);
                    let path = if path.is_empty() { name.into_owned() } else { format!("{path}.{name}") };
                    let field = Field { offset: offset + place.offset as usize / 8, size: size(btf, id, 0)? };
                    self.fields.insert(path.clone(), field);
                    self.collect(btf, id, &path, field.offset, depth + 1)?;
                }
            }
            Type::Array { element, len } if matches!(btf.get(element)?, Type::Struct(_)) => {
                let size = size(btf, element, 0)?;
                // Longer arrays do not contain structures of interest.
                for index in 0..len.min(64) {
                    let path = format!("{path}[{index}]");
                    self.collect(btf, element, &path, offset + index * size, depth + 1)?;
                }
            }
            Type::Alias(id) => self.collect(btf, id, path, offset, depth + 1)?,
            Type::Array { .. } | Type::Int { .. } | Type::Union(_) | Type::Other => {}
        }
        Some(())
    }
}

/// Size in bytes; zero for types that layouts do not need.
fn size(btf: &Btf<'_>, id: u32, depth: u32) -> Option<usize> {
    if depth > MAX_DEPTH {
        return None;
    }
    match btf.get(id)? {
        Type::Int { size } => Some(size),
        Type::Struct(composite) => Some(composite.size),
        Type::Array { element, len } => size(btf, element, depth + 1)?.checked_mul(len),
        Type::Alias(id) => size(btf, id, depth + 1),
        Type::Union(_) | Type::Other => Some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct outer { u16 a; struct inner { u8 x; u8 y[3]; } list[2]; }`
    fn sample() -> Vec<u8> {
        let strings = b"\0u8\0u16\0a\0inner\0x\0y\0list\0outer\0";
        let name = |text: &str| {
            let text = format!("\0{text}\0");
            let at = strings.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
            at as u32 + 1
        };
        let kind = |kind: u32, members: u32| kind << 24 | members;
        let types: Vec<u32> = [
            vec![name("u8"), kind(1, 0), 1, 8],
            vec![name("u16"), kind(1, 0), 2, 16],
            vec![0, kind(3, 0), 0, 1, 2, 3],
            vec![name("inner"), kind(4, 2), 4, name("x"), 1, 0, name("y"), 3, 8],
            vec![0, kind(3, 0), 0, 4, 2, 2],
            vec![name("outer"), kind(4, 2), 10, name("a"), 2, 0, name("list"), 5, 16],
        ]
        .concat();
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let len = types.len() as u32;
        let header = [0x0001_eb9f, 24, 0, len, len, strings.len() as u32];
        let header: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
        [header, types, strings.to_vec()].concat()
    }

    #[test]
    fn fields_are_found_by_their_paths() {
        let data = sample();
        let layout = Layout::of(&Btf::parse(&data).unwrap(), 6).unwrap();
        assert_eq!(layout.size, 10);
        for (path, offset, size) in [("a", 0, 2), ("list", 2, 8), ("list[0].x", 2, 1), ("list[1].y", 7, 3)] {
            assert_eq!(layout.field(path), Some(Field { offset, size }), "{path}");
        }
        assert_eq!(layout.field("b"), None);
    }

    #[test]
    fn invalid_data_are_refused() {
        let sample = sample();
        for len in 0..sample.len() - 1 {
            assert!(Btf::parse(&sample[..len]).is_none(), "{len}");
        }
        for at in 0..sample.len() {
            let mut wrong = sample.clone();
            wrong[at] ^= 0xff;
            // Parsing ends for any input.
            let _layout = Btf::parse(&wrong).and_then(|btf| Layout::of(&btf, 6));
        }
    }
}
