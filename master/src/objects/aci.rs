//! Objects that only an ACI fabric uses.

mod app_profile;
mod ext_contracts;
mod gateway;
