//! A datapath in memory, for tests.
