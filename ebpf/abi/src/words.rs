//! Zeroing by words. For a plain assignment the compiler emits a loop over bytes in a BPF program,
//! which the verifier and every packet have to walk.

/// Sets all bytes of a value to zero.
///
/// # Safety
///
/// `value` must be valid for writes, and all zeros must be a valid value of `T`.
#[inline(always)]
pub unsafe fn clear<T>(value: *mut T) {
    // SAFETY: the caller's promise; words that are no larger than the type's alignment.
    unsafe {
        match align_of::<T>() {
            8 => fill::<u64>(value.cast(), size_of::<T>() / 8),
            4 => fill::<u32>(value.cast(), size_of::<T>() / 4),
            2 => fill::<u16>(value.cast(), size_of::<T>() / 2),
            _ => fill::<u8>(value.cast(), size_of::<T>()),
        }
    }
}

/// Volatile writes, which the compiler does not turn into a loop over bytes.
///
/// # Safety
///
/// `words` must be valid for writes of `count` words.
#[inline(always)]
unsafe fn fill<W: From<u8>>(words: *mut W, count: usize) {
    for word in 0..count {
        // SAFETY: the caller's promise.
        unsafe { words.add(word).write_volatile(W::from(0)) };
    }
}

/// A value of all zeros.
///
/// # Safety
///
/// All zeros must be a valid value of `T`.
#[inline(always)]
pub unsafe fn cleared<T>() -> T {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    // SAFETY: the caller's promise; all of it is written.
    unsafe {
        clear(value.as_mut_ptr());
        value.assume_init()
    }
}
