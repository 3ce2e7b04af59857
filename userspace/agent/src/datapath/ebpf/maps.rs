//! Access to the pinned BPF maps. From low to high:
//!
//! | module | contents |
//! |---|---|
//! | [`writes`] | count of the changes made in the kernel |
//! | [`rcu`] | wait for programs that may still use removed entries |
//! | [`names`] | names of the rules and services behind the numbers in the maps |
//! | [`syscall`] | commands of `bpf` that aya does not provide |
//! | [`pins`] | paths of pinned maps, programs and links |
//! | [`mmap`] | array maps in the memory of the process |
//! | [`batch`] | batched lookup and delete |
//! | [`table`] | hash maps with a copy in the process |
//! | [`usage`] | number of entries in the maps that programs fill |
//! | [`sizes`] | sizes of the maps that the agent fills |
//! | [`flows`] | the flow table |
//! | [`btf`] | layouts of maps, by the names of their fields |
//! | [`foreign`] | entries of maps of another ABI version |
//! | [`export`] | the flow table of another ABI version, or of another size |

pub(crate) mod batch;
pub(crate) mod btf;
pub(crate) mod export;
pub(crate) mod flows;
pub(crate) mod foreign;
pub(crate) mod mmap;
pub(crate) mod names;
pub(crate) mod pins;
pub(crate) mod rcu;
pub(crate) mod sizes;
pub(crate) mod syscall;
pub(crate) mod table;
pub(crate) mod usage;
pub(crate) mod writes;
