//! TC programs in the kernel, programmed through their maps.
