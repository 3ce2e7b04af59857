//! Layouts of the keys and values of pinned maps, by the BTF that the kernel has of them.
//!
//! An agent reads the maps of another ABI version by the names of their fields. So it knows no other version's layout: a field
//! may move or grow, and keeps its name as long as it keeps its meaning.

use std::{collections::BTreeMap, io, os::fd::AsFd as _};

use aya::maps::MapData;

use super::syscall;

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
    let types = Types::parse(&read(info.btf)?).ok_or_else(|| io::Error::other("the BTF is not valid"))?;
    let layout = |id| types.layout(id).ok_or_else(|| io::Error::other("the BTF has unknown types"));
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

/// A type, as far as layouts need it. Others have the size zero.
#[derive(Debug)]
enum Type {
    Int {
        size: usize,
    },
    Struct {
        size: usize,
        members: Vec<(String, u32, usize)>,
    },
    Array {
        element: u32,
        len: usize,
    },
    /// Qualifiers and definitions of names.
    Alias(u32),
    Other,
}

/// Types by their ids; the first one is that with id 1.
struct Types(Vec<Type>);

/// Types are nested less deeply; a cycle would be.
const MAX_DEPTH: usize = 16;

impl Types {
    /// Parses the types (Documentation/bpf/btf.rst). `None` if the data are not valid.
    fn parse(data: &[u8]) -> Option<Types> {
        const MAGIC: u32 = 0xeb9f;
        let header = |at: usize| word(data, at).map(|word| word as usize);
        if word(data, 0)? & 0xffff != MAGIC {
            return None;
        }
        let (start, types, types_len) = (header(4)?, header(8)?, header(12)?);
        let (strings, strings_len) = (start + header(16)?, header(20)?);
        let strings = data.get(strings..strings.checked_add(strings_len)?)?;
        let name = |at: u32| {
            let bytes = strings.get(at as usize..)?;
            let end = bytes.iter().position(|byte| *byte == 0)?;
            Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
        };
        let data = data.get(start + types..(start + types).checked_add(types_len)?)?;
        let mut parsed = vec![];
        let mut at = 0;
        while at < data.len() {
            let (info, size) = (word(data, at + 4)?, word(data, at + 8)?);
            at += 12;
            let members = info as usize & 0xffff;
            let (parsed_type, len) = match info >> 24 & 0x1f {
                1 => (Type::Int { size: size as usize }, 4),
                3 => (Type::Array { element: word(data, at)?, len: word(data, at + 8)? as usize }, 12),
                4 => {
                    let bitfields = info >> 31 != 0;
                    let member = |index: usize| {
                        let at = at + 12 * index;
                        let bits = word(data, at + 8)? & if bitfields { 0xff_ffff } else { u32::MAX };
                        Some((name(word(data, at)?)?, word(data, at + 4)?, bits as usize / 8))
                    };
                    let list = (0..members).map(member).collect::<Option<_>>()?;
                    (Type::Struct { size: size as usize, members: list }, 12 * members)
                }
                8..=11 | 18 => (Type::Alias(size), 0),
                // Pointers, forward declarations, functions and floats.
                2 | 7 | 12 | 16 => (Type::Other, 0),
                // Variables and tags.
                14 | 17 => (Type::Other, 4),
                // Enumerations and prototypes.
                6 | 13 => (Type::Other, 8 * members),
                // Unions, sections and enumerations of 64 bits.
                5 | 15 | 19 => (Type::Other, 12 * members),
                _ => return None,
            };
            parsed.push(parsed_type);
            at += len;
        }
        Some(Types(parsed))
    }

    fn get(&self, id: u32) -> Option<&Type> {
        self.0.get((id as usize).checked_sub(1)?)
    }

    fn layout(&self, id: u32) -> Option<Layout> {
        let mut layout = Layout { size: self.size(id, 0)?, fields: BTreeMap::new() };
        self.collect(id, "", 0, 0, &mut layout.fields)?;
        Some(layout)
    }

    fn size(&self, id: u32, depth: usize) -> Option<usize> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.get(id)? {
            Type::Int { size } | Type::Struct { size, .. } => Some(*size),
            Type::Array { element, len } => self.size(*element, depth + 1)?.checked_mul(*len),
            Type::Alias(id) => self.size(*id, depth + 1),
            Type::Other => Some(0),
        }
    }

    /// Adds the fields below `path`, which begins at `offset`. Elements of arrays are fields if they are structures.
    fn collect(
        &self,
        id: u32,
        path: &str,
        offset: usize,
        depth: usize,
        fields: &mut BTreeMap<String, Field>,
    ) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.get(id)? {
            Type::Struct { members, .. } => {
                for (name, member, at) in members {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    let field = Field { offset: offset + at, size: self.size(*member, 0)? };
                    fields.insert(path.clone(), field);
                    self.collect(*member, &path, field.offset, depth + 1, fields)?;
                }
            }
            Type::Array { element, len } if matches!(self.get(*element)?, Type::Struct { .. }) => {
                let size = self.size(*element, 0)?;
                // Longer arrays are no records.
                for index in 0..(*len).min(64) {
                    let path = format!("{path}[{index}]");
                    self.collect(*element, &path, offset + index * size, depth + 1, fields)?;
                }
            }
            Type::Alias(id) => self.collect(*id, path, offset, depth + 1, fields)?,
            Type::Array { .. } | Type::Int { .. } | Type::Other => {}
        }
        Some(())
    }
}

/// BTF that the kernel reports has its byte order.
fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*data.get(at..)?.first_chunk()?))
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
        let layout = Types::parse(&sample()).unwrap().layout(6).unwrap();
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
            assert!(Types::parse(&sample[..len]).is_none(), "{len}");
        }
        for at in 0..sample.len() {
            let mut wrong = sample.clone();
            wrong[at] ^= 0xff;
            // Whatever it says, it ends.
            let _layout = Types::parse(&wrong).and_then(|types| types.layout(6));
        }
    }
}
