//! Meters: limits of the rate of packets (OpenFlow 1.3.5 sections 5.7 and 7.3.4.4).

use bytes::BufMut;

use crate::wire::{DecodeError, Reader, patch_length};

/// A meter that drops the packets above a rate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Meter {
    /// Number of the meter, from 1 to 0xffff0000 (`OFPM_MAX`).
    pub id: u32,
    /// Unit of the rates.
    pub unit: MeterUnit,
    /// Limits. The one of the highest rate that is exceeded applies.
    pub bands: Vec<DropBand>,
}

/// Unit of the rate of a meter (`ofp_meter_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MeterUnit {
    /// Kilobits per second (`OFPMF_KBPS`).
    Kilobits,
    /// Packets per second (`OFPMF_PKTPS`).
    Packets,
}

/// Limit that drops packets (`ofp_meter_band_drop`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DropBand {
    /// Rate above which packets are dropped, per second in the unit of the meter.
    pub rate: u32,
    /// Packets, or kilobits, that may pass at once; 0 for the default of the switch (`OFPMF_BURST` is not set then).
    pub burst: u32,
}

const KILOBITS: u16 = 1;
const PACKETS: u16 = 2;
const BURST: u16 = 4;
const DROP: u16 = 1;
/// Length of a band in bytes.
const BAND: u16 = 16;

/// Command of a meter modification (`ofp_meter_mod_command`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterCommand {
    /// Adds a meter. The switch rejects it if the number is in use.
    Add,
    /// Replaces an existing meter.
    Modify,
    /// Deletes the meter and every flow that uses it.
    Delete,
}

/// Meter modification message (`ofp_meter_mod`). It is not valid in a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterMod {
    /// Operation.
    pub command: MeterCommand,
    /// Meter to write; for a delete only its number is used.
    pub meter: Meter,
}

impl MeterMod {
    /// Returns a message that adds `meter`.
    pub fn add(meter: Meter) -> MeterMod {
        MeterMod { command: MeterCommand::Add, meter }
    }

    /// Returns a message that replaces the meter with the same number.
    pub fn modify(meter: Meter) -> MeterMod {
        MeterMod { command: MeterCommand::Modify, meter }
    }

    /// Returns a message that deletes the meter `id` and every flow that uses it.
    pub fn delete(id: u32) -> MeterMod {
        let meter = Meter { id, unit: MeterUnit::Packets, bands: vec![] };
        MeterMod { command: MeterCommand::Delete, meter }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let Meter { id, unit, bands } = &self.meter;
        out.put_u16(match self.command {
            MeterCommand::Add => 0,
            MeterCommand::Modify => 1,
            MeterCommand::Delete => 2,
        });
        let unit = match unit {
            MeterUnit::Kilobits => KILOBITS,
            MeterUnit::Packets => PACKETS,
        };
        let has_burst = bands.iter().any(|band| band.burst != 0);
        out.put_u16(if has_burst { unit | BURST } else { unit });
        out.put_u32(*id);
        for band in bands {
            let start = out.len();
            out.put_u16(DROP);
            out.put_u16(0);
            out.put_u32(band.rate);
            out.put_u32(band.burst);
            out.put_bytes(0, 4);
            patch_length(out, start, 2);
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<MeterMod, DecodeError> {
        let command = match r.u16()? {
            0 => MeterCommand::Add,
            1 => MeterCommand::Modify,
            2 => MeterCommand::Delete,
            other => return Err(DecodeError::Value { what: "meter-mod command", value: other.into() }),
        };
        let flags = r.u16()?;
        let unit = match flags & !BURST {
            KILOBITS => MeterUnit::Kilobits,
            PACKETS => MeterUnit::Packets,
            _ => return Err(DecodeError::Value { what: "meter flags", value: flags.into() }),
        };
        let id = r.u32()?;
        let mut bands = vec![];
        while !r.is_empty() {
            let (kind, length) = (r.u16()?, r.u16()?);
            if kind != DROP {
                return Err(DecodeError::Value { what: "meter band", value: kind.into() });
            }
            if length != BAND {
                return Err(DecodeError::Length { what: "meter band", length: length.into() });
            }
            let (rate, burst) = (r.u32()?, r.u32()?);
            r.skip(4)?;
            bands.push(DropBand { rate, burst: if flags & BURST == 0 { 0 } else { burst } });
        }
        Ok(MeterMod { command, meter: Meter { id, unit, bands } })
    }
}
