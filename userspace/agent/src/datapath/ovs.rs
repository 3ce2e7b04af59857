//! Open vSwitch, programmed over OVSDB and OpenFlow 1.3.
