//! A hash that is the same in every process and version. The hashes of the standard library are not.

/// FNV-1a, 64 bits. Collisions are easy to find, so the hash must not identify objects that tenants name.
pub(super) fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
