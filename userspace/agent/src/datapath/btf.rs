//! BTF, the kernel's description of types (Documentation/bpf/btf.rst): types of its own structures, and of the keys and
//! values of maps.
//!
//! aya does not expose the members of types.

/// File with the BTF of the running kernel, if it was built with `CONFIG_DEBUG_INFO_BTF`.
pub(crate) const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// A member of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Offset in bits from the start of the outermost structure.
    pub(crate) offset: u32,
    /// Number of bits of a bit field; zero for other members.
    pub(crate) bits: u32,
}

/// Kinds of types.
mod kind {
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const PROTOTYPE: u32 = 13;
    pub(super) const INT: u32 = 1;
    pub(super) const VARIABLE: u32 = 14;
    pub(super) const SECTION: u32 = 15;
    pub(super) const DECLARATION_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM_64: u32 = 19;
}

/// Bytes of a type's name, information and size.
const TYPE: usize = 12;
/// Bytes of a member's name, type and offset.
const MEMBER: usize = 12;
/// Maximum nesting of types. Deeper nesting indicates a cycle.
pub(crate) const MAX_DEPTH: u32 = 16;

/// A type, as far as the agent reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Type {
    Int {
        size: usize,
    },
    Struct(Composite),
    Union(Composite),
    Array {
        element: u32,
        len: usize,
    },
    /// Qualifiers and definitions of names.
    Alias(u32),
    Other,
}

/// A structure or union.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Composite {
    pub(crate) size: usize,
    /// Offset of the members in the types.
    members: usize,
    count: usize,
    has_bit_fields: bool,
}

/// Types by their ids. They are parsed on access: the kernel has more than 100,000.
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offsets of the types in `types`. The first type has the id 1.
    starts: Vec<usize>,
}

impl<'a> Btf<'a> {
    /// Finds the types. Returns `None` if the data are invalid, or have kinds of types that this version does not
    /// support.
    pub(crate) fn parse(data: &'a [u8]) -> Option<Btf<'a>> {
        const MAGIC: u32 = 0xeb9f;
        let header = |at: usize| word(data, at).map(|word| word as usize);
        if word(data, 0)? & 0xffff != MAGIC {
            return None;
        }
        let section = |offset: usize, len: usize| {
            let start = header(4)?.checked_add(header(offset)?)?;
            data.get(start..start.checked_add(header(len)?)?)
        };
        let (types, strings) = (section(8, 12)?, section(16, 20)?);
        let mut starts = vec![];
        let mut at = 0;
        while at < types.len() {
            starts.push(at);
            at += TYPE + trailer(word(types, at + 4)?)?;
        }
        (at == types.len()).then_some(Btf { types, strings, starts })
    }

    /// The type with this id; the first one is 1.
    pub(crate) fn get(&self, id: u32) -> Option<Type> {
        self.read(*self.starts.get((id as usize).checked_sub(1)?)?)
    }

    fn read(&self, at: usize) -> Option<Type> {
        let (info, size) = (word(self.types, at + 4)?, word(self.types, at + 8)?);
        let composite = Composite {
            size: size as usize,
            members: at + TYPE,
            count: count(info),
            has_bit_fields: info >> 31 != 0,
        };
        Some(match info >> 24 & 0x1f {
            kind::INT => Type::Int { size: size as usize },
            kind::STRUCT => Type::Struct(composite),
            kind::UNION => Type::Union(composite),
            kind::ARRAY => Type::Array {
                element: word(self.types, at + TYPE)?,
                len: word(self.types, at + TYPE + 8)? as usize,
            },
            8..=11 | kind::TYPE_TAG => Type::Alias(size),
            _ => Type::Other,
        })
    }

    /// Name, type and position of each member; `None` for an invalid one.
    pub(crate) fn members(&self, of: Composite) -> impl Iterator<Item = Option<(&'a [u8], u32, Member)>> {
        (0..of.count).map(move |index| {
            let at = of.members + MEMBER * index;
            let place = word(self.types, at + 8)?;
            let (offset, bits) =
                if of.has_bit_fields { (place & 0xff_ffff, place >> 24) } else { (place, 0) };
            Some((self.name(at)?, word(self.types, at + 4)?, Member { offset, bits }))
        })
    }

    /// Returns the member of a structure, or of one of its anonymous structures and unions.
    pub(crate) fn member(&self, structure: &str, name: &str) -> Option<Member> {
        self.starts.iter().find_map(|at| match self.read(*at)? {
            Type::Struct(found) if self.name(*at) == Some(structure.as_bytes()) => {
                Some(self.find(found, name, 0, 0))
            }
            _ => None,
        })?
    }

    fn find(&self, composite: Composite, name: &str, base: u32, depth: u32) -> Option<Member> {
        if depth > MAX_DEPTH {
            return None;
        }
        for member in self.members(composite) {
            let (own, id, place) = member?;
            let offset = base.checked_add(place.offset)?;
            if own == name.as_bytes() {
                return Some(Member { offset, ..place });
            }
            let inner = own.is_empty().then(|| self.composite(id)).flatten();
            if let Some(found) = inner.and_then(|inner| self.find(inner, name, offset, depth + 1)) {
                return Some(found);
            }
        }
        None
    }

    /// The structure or union with this id, without qualifiers.
    fn composite(&self, mut id: u32) -> Option<Composite> {
        for _ in 0..MAX_DEPTH {
            match self.get(id)? {
                Type::Struct(found) | Type::Union(found) => return Some(found),
                Type::Alias(aliased) => id = aliased,
                _ => return None,
            }
        }
        None
    }

    /// Returns the name of the type or member at `at`, which begins with the offset of its name.
    fn name(&self, at: usize) -> Option<&'a [u8]> {
        let bytes = self.strings.get(word(self.types, at)? as usize..)?;
        bytes.split(|byte| *byte == 0).next()
    }
}

/// Number of members.
const fn count(info: u32) -> usize {
    info as usize & 0xffff
}

/// Bytes that follow a type of this kind.
const fn trailer(info: u32) -> Option<usize> {
    Some(match info >> 24 & 0x1f {
        kind::INT | kind::VARIABLE | kind::DECLARATION_TAG => 4,
        kind::ARRAY => 12,
        kind::STRUCT | kind::UNION | kind::SECTION | kind::ENUM_64 => 12 * count(info),
        kind::ENUM | kind::PROTOTYPE => 8 * count(info),
        // Pointers, forward declarations, definitions of names, qualifiers, functions and floats.
        2 | 7..=12 | 16 | kind::TYPE_TAG => 0,
        _ => return None,
    })
}

/// BTF from the kernel has the kernel's byte order.
fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*data.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// `struct inner { u32 low; };`
    ///
    /// `struct outer { u32 a; const union { u32 b; struct { u32 c : 5; u32 d : 2; }; }; struct inner in; };`
    fn sample() -> Vec<u8> {
        let strings = b"\0u32\0inner\0low\0outer\0a\0b\0c\0d\0in\0";
        let name = |text: &str| {
            let text = format!("\0{text}\0");
            let at = strings.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
            at as u32 + 1
        };
        let kind = |kind: u32, members: u32| kind << 24 | members;
        let with_bit_fields: u32 = 1 << 31;
        let types: Vec<u32> = [
            vec![name("u32"), kind(1, 0), 4, 32],
            vec![name("inner"), kind(4, 1), 4, name("low"), 1, 0],
            vec![0, with_bit_fields | kind(4, 2), 4, name("c"), 1, 5 << 24, name("d"), 1, 2 << 24 | 5],
            vec![0, kind(5, 2), 4, name("b"), 1, 0, 0, 3, 0],
            vec![0, kind(10, 0), 4],
            vec![name("outer"), kind(4, 3), 12, name("a"), 1, 0, 0, 5, 32, name("in"), 2, 64],
        ]
        .concat();
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let len = types.len() as u32;
        let header = [0x0001_eb9f, 24, 0, len, len, strings.len() as u32];
        let header: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
        [header, types, strings.to_vec()].concat()
    }

    #[test]
    fn members_are_found_in_anonymous_structures_and_unions() {
        let data = sample();
        let types = Btf::parse(&data).unwrap();
        for (name, offset, bits) in [("a", 0, 0), ("b", 32, 0), ("c", 32, 5), ("d", 37, 2), ("in", 64, 0)] {
            assert_eq!(types.member("outer", name), Some(Member { offset, bits }), "{name}");
        }
    }

    #[test]
    fn members_of_named_structures_and_unknown_names_are_not_found() {
        let data = sample();
        let types = Btf::parse(&data).unwrap();
        assert_eq!(types.member("outer", "low"), None);
        assert_eq!(types.member("outer", "e"), None);
        assert_eq!(types.member("u32", "a"), None);
        assert_eq!(types.member("other", "a"), None);
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
            let _member = Btf::parse(&wrong).and_then(|types| types.member("outer", "low"));
        }
    }

    #[test]
    fn members_of_the_running_kernel_are_found() {
        let Ok(data) = fs::read(VMLINUX) else {
            testkit::skip!("the kernel has no {VMLINUX}");
        };
        let types = Btf::parse(&data).unwrap();
        let (len, data_len) =
            (types.member("sk_buff", "len").unwrap(), types.member("sk_buff", "data_len").unwrap());
        assert_eq!((len.bits, data_len.offset), (0, len.offset + 32));
        assert_eq!(types.member("sk_buff", "ip_summed").unwrap().bits, 2);
    }
}
