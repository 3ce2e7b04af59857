//! Zeros, written by words: a loop over bytes, which the compiler makes of a plain assignment in a BPF program, is walked by
//! the verifier and by every packet.

/// Makes all of a value zero.
///
/// # Safety
///
/// Zeros are a value of the type.
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

/// Volatile, or the compiler makes a loop over bytes of this, too.
///
/// # Safety
///
/// There are so many words.
#[inline(always)]
unsafe fn fill<W: From<u8>>(words: *mut W, count: usize) {
    for word in 0..count {
        // SAFETY: the caller's promise.
        unsafe { words.add(word).write_volatile(W::from(0)) };
    }
}

/// A value that is all zeros.
///
/// # Safety
///
/// As of [`clear`].
#[inline(always)]
pub unsafe fn cleared<T>() -> T {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    // SAFETY: the caller's promise; all of it is written.
    unsafe {
        clear(value.as_mut_ptr());
        value.assume_init()
    }
}
