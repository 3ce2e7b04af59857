//! A hash that is the same in every process and version. The hashes of the standard library are not.

/// FNV-1a, 64 bits. A name with the hash of another one is easily found, so it is no identity of what tenants name.
pub(super) fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
