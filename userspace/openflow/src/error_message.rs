//! Error messages of the switch (OpenFlow 1.3.5 section 7.4.4).

use std::fmt;

use bytes::BufMut;

use crate::wire::{DecodeError, EXPERIMENTER_NICIRA, EXPERIMENTER_ONF, Reader};

/// An error message (`ofp_error_msg` or `ofp_error_experimenter_msg`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorMessage {
    /// Error type (`ofp_error_type`).
    pub kind: u16,
    /// Code within the type, or within the experimenter.
    pub code: u16,
    /// Experimenter id, for errors of extensions.
    pub experimenter: Option<u32>,
    /// At least the first 64 bytes of the rejected message; text for `OFPET_HELLO_FAILED`.
    pub data: Vec<u8>,
}

const EXPERIMENTER: u16 = 0xffff;
const HELLO_FAILED: u16 = 0;
/// ONF codes of `ofp-errors.h`.
const BUNDLE_BAD_ID: u16 = 2302;
const BUNDLE_TIMEOUT: u16 = 2314;
const BUNDLE_IN_PROGRESS: u16 = 2315;

impl ErrorMessage {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.kind);
        out.put_u16(self.code);
        if let Some(experimenter) = self.experimenter {
            out.put_u32(experimenter);
        }
        out.extend_from_slice(&self.data);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<ErrorMessage, DecodeError> {
        let (kind, code) = (r.u16()?, r.u16()?);
        let experimenter = if kind == EXPERIMENTER { Some(r.u32()?) } else { None };
        Ok(ErrorMessage { kind, code, experimenter, data: r.rest().to_vec() })
    }

    /// Returns whether the error says nothing about the request, so that the same request can succeed later: the switch has dropped the
    /// bundle, which took too long, or another bundle is in progress.
    pub fn is_transient(&self) -> bool {
        let onf = self.kind == EXPERIMENTER && self.experimenter == Some(EXPERIMENTER_ONF);
        onf && [BUNDLE_BAD_ID, BUNDLE_TIMEOUT, BUNDLE_IN_PROGRESS].contains(&self.code)
    }

    /// Returns the name of the error in the specification and its meaning, or `None` for an unknown error.
    pub fn name(&self) -> Option<(&'static str, &'static str)> {
        let table = match (self.kind, self.experimenter) {
            (EXPERIMENTER, Some(EXPERIMENTER_ONF)) => ONF,
            (EXPERIMENTER, Some(EXPERIMENTER_NICIRA)) => NICIRA,
            _ => return STANDARD.iter().find(|e| (e.0, e.1) == (self.kind, self.code)).map(|e| (e.2, e.3)),
        };
        table.iter().find(|e| e.0 == self.code).map(|e| (e.1, e.2))
    }
}

impl fmt::Display for ErrorMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.experimenter) {
            (Some((name, meaning)), _) => write!(f, "{meaning} ({name})")?,
            (None, Some(experimenter)) => {
                write!(f, "error {} of experimenter {experimenter:#010x}", self.code)?;
            }
            (None, None) => write!(f, "error type {}, code {}", self.kind, self.code)?,
        }
        if self.kind == HELLO_FAILED && !self.data.is_empty() {
            write!(f, ": {}", String::from_utf8_lossy(&self.data).trim_end_matches('\0'))?;
        }
        Ok(())
    }
}

impl std::error::Error for ErrorMessage {}

type Standard = (u16, u16, &'static str, &'static str);

const STANDARD: &[Standard] = &[
    (0, 0, "OFPHFC_INCOMPATIBLE", "no common OpenFlow version"),
    (0, 1, "OFPHFC_EPERM", "hello not permitted"),
    (1, 0, "OFPBRC_BAD_VERSION", "OpenFlow version not supported"),
    (1, 1, "OFPBRC_BAD_TYPE", "message type not supported"),
    (1, 2, "OFPBRC_BAD_MULTIPART", "multipart type not supported"),
    (1, 3, "OFPBRC_BAD_EXPERIMENTER", "experimenter not supported"),
    (1, 4, "OFPBRC_BAD_EXP_TYPE", "experimenter message not supported"),
    (1, 5, "OFPBRC_EPERM", "request not permitted"),
    (1, 6, "OFPBRC_BAD_LEN", "wrong length for the message type"),
    (1, 7, "OFPBRC_BUFFER_EMPTY", "buffer already used"),
    (1, 8, "OFPBRC_BUFFER_UNKNOWN", "no such buffer"),
    (1, 9, "OFPBRC_BAD_TABLE_ID", "no such table"),
    (1, 10, "OFPBRC_IS_SLAVE", "not permitted for a secondary controller"),
    (1, 11, "OFPBRC_BAD_PORT", "invalid port"),
    (1, 12, "OFPBRC_BAD_PACKET", "invalid packet"),
    (1, 13, "OFPBRC_MULTIPART_BUFFER_OVERFLOW", "multipart request too large"),
    (2, 0, "OFPBAC_BAD_TYPE", "unknown action"),
    (2, 1, "OFPBAC_BAD_LEN", "wrong length in actions"),
    (2, 2, "OFPBAC_BAD_EXPERIMENTER", "action of an unknown experimenter"),
    (2, 3, "OFPBAC_BAD_EXP_TYPE", "unknown action of this experimenter"),
    (2, 4, "OFPBAC_BAD_OUT_PORT", "invalid output port"),
    (2, 5, "OFPBAC_BAD_ARGUMENT", "bad argument of an action"),
    (2, 6, "OFPBAC_EPERM", "action not permitted"),
    (2, 7, "OFPBAC_TOO_MANY", "too many actions"),
    (2, 8, "OFPBAC_BAD_QUEUE", "invalid queue"),
    (2, 9, "OFPBAC_BAD_OUT_GROUP", "invalid group in an action"),
    (2, 10, "OFPBAC_MATCH_INCONSISTENT", "action inconsistent with the match, or a prerequisite is missing"),
    (2, 11, "OFPBAC_UNSUPPORTED_ORDER", "order of actions not supported"),
    (2, 12, "OFPBAC_BAD_TAG", "tag not supported"),
    (2, 13, "OFPBAC_BAD_SET_TYPE", "unknown field in an action"),
    (2, 14, "OFPBAC_BAD_SET_LEN", "wrong width for a field in an action"),
    (2, 15, "OFPBAC_BAD_SET_ARGUMENT", "invalid value, or field that cannot be set"),
    (3, 0, "OFPBIC_UNKNOWN_INST", "unknown instruction"),
    (3, 1, "OFPBIC_UNSUP_INST", "instruction not supported"),
    (3, 2, "OFPBIC_BAD_TABLE_ID", "invalid table in goto_table"),
    (3, 3, "OFPBIC_UNSUP_METADATA", "metadata value not supported"),
    (3, 4, "OFPBIC_UNSUP_METADATA_MASK", "metadata mask not supported"),
    (3, 5, "OFPBIC_BAD_EXPERIMENTER", "instruction of an unknown experimenter"),
    (3, 6, "OFPBIC_BAD_EXP_TYPE", "unknown instruction of this experimenter"),
    (3, 7, "OFPBIC_BAD_LEN", "wrong length in instructions"),
    (3, 8, "OFPBIC_EPERM", "instruction not permitted"),
    (4, 0, "OFPBMC_BAD_TYPE", "unknown match type"),
    (4, 1, "OFPBMC_BAD_LEN", "wrong length in the match"),
    (4, 2, "OFPBMC_BAD_TAG", "tag not supported in a match"),
    (4, 3, "OFPBMC_BAD_DL_ADDR_MASK", "mask of an Ethernet address not supported"),
    (4, 4, "OFPBMC_BAD_NW_ADDR_MASK", "mask of an IP address not supported"),
    (4, 5, "OFPBMC_BAD_WILDCARDS", "wildcards not supported"),
    (4, 6, "OFPBMC_BAD_FIELD", "field not supported in a match"),
    (4, 7, "OFPBMC_BAD_VALUE", "value not supported in a match"),
    (4, 8, "OFPBMC_BAD_MASK", "mask not supported in a match"),
    (4, 9, "OFPBMC_BAD_PREREQ", "a prerequisite of a match field is missing"),
    (4, 10, "OFPBMC_DUP_FIELD", "duplicate match field"),
    (4, 11, "OFPBMC_EPERM", "match not permitted"),
    (5, 0, "OFPFMFC_UNKNOWN", "flow modification failed"),
    (5, 1, "OFPFMFC_TABLE_FULL", "the flow table is full"),
    (5, 2, "OFPFMFC_BAD_TABLE_ID", "no such flow table"),
    (5, 3, "OFPFMFC_OVERLAP", "flow overlaps another of the same priority"),
    (5, 4, "OFPFMFC_EPERM", "flow modification not permitted"),
    (5, 5, "OFPFMFC_BAD_TIMEOUT", "timeout not supported"),
    (5, 6, "OFPFMFC_BAD_COMMAND", "unknown flow command"),
    (5, 7, "OFPFMFC_BAD_FLAGS", "unknown flow flags"),
    (6, 0, "OFPGMFC_GROUP_EXISTS", "group already exists"),
    (6, 1, "OFPGMFC_INVALID_GROUP", "invalid group"),
    (6, 2, "OFPGMFC_WEIGHT_UNSUPPORTED", "unequal weights not supported"),
    (6, 3, "OFPGMFC_OUT_OF_GROUPS", "the group table is full"),
    (6, 4, "OFPGMFC_OUT_OF_BUCKETS", "too many buckets"),
    (6, 5, "OFPGMFC_CHAINING_UNSUPPORTED", "chained groups not supported"),
    (6, 6, "OFPGMFC_WATCH_UNSUPPORTED", "watch not supported"),
    (6, 7, "OFPGMFC_LOOP", "loop of groups"),
    (6, 8, "OFPGMFC_UNKNOWN_GROUP", "no such group"),
    (6, 9, "OFPGMFC_CHAINED_GROUP", "another group uses this group"),
    (6, 10, "OFPGMFC_BAD_TYPE", "unknown group type"),
    (6, 11, "OFPGMFC_BAD_COMMAND", "unknown group command"),
    (6, 12, "OFPGMFC_BAD_BUCKET", "error in a bucket"),
    (6, 13, "OFPGMFC_BAD_WATCH", "error in a bucket's watch"),
    (6, 14, "OFPGMFC_EPERM", "group modification not permitted"),
    (10, 0, "OFPSCFC_BAD_FLAGS", "unknown configuration flags"),
    (10, 1, "OFPSCFC_BAD_LEN", "invalid length in the configuration"),
    (10, 2, "OFPSCFC_EPERM", "configuration not permitted"),
    (11, 0, "OFPRRFC_STALE", "stale role request"),
    (11, 1, "OFPRRFC_UNSUP", "role change not supported"),
    (11, 2, "OFPRRFC_BAD_ROLE", "unknown role"),
    (12, 0, "OFPMMFC_UNKNOWN", "meter modification failed"),
    (12, 1, "OFPMMFC_METER_EXISTS", "meter already exists"),
    (12, 2, "OFPMMFC_INVALID_METER", "invalid meter"),
    (12, 3, "OFPMMFC_UNKNOWN_METER", "no such meter"),
    (12, 4, "OFPMMFC_BAD_COMMAND", "unknown meter command"),
    (12, 5, "OFPMMFC_BAD_FLAGS", "meter flags not supported"),
    (12, 6, "OFPMMFC_BAD_RATE", "rate not supported"),
    (12, 7, "OFPMMFC_BAD_BURST", "burst size not supported"),
    (12, 8, "OFPMMFC_BAD_BAND", "meter band not supported"),
    (12, 9, "OFPMMFC_BAD_BAND_VALUE", "value of a meter band not supported"),
    (12, 10, "OFPMMFC_OUT_OF_METERS", "no more meters"),
    (12, 11, "OFPMMFC_OUT_OF_BANDS", "too many meter bands"),
];

const ONF: &[(u16, &str, &str)] = &[
    (2300, "OFPBFC_UNKNOWN", "bundle failed"),
    (2301, "OFPBFC_EPERM", "bundle not permitted"),
    (2302, "OFPBFC_BAD_ID", "no such bundle"),
    (2303, "OFPBFC_BUNDLE_EXIST", "bundle already exists"),
    (2304, "OFPBFC_BUNDLE_CLOSED", "the bundle is closed"),
    (2305, "OFPBFC_OUT_OF_BUNDLES", "too many bundles"),
    (2306, "OFPBFC_BAD_TYPE", "unknown bundle control"),
    (2307, "OFPBFC_BAD_FLAGS", "bundle flags not supported or inconsistent"),
    (2308, "OFPBFC_MSG_BAD_LEN", "wrong length of a message in the bundle"),
    (2309, "OFPBFC_MSG_BAD_XID", "wrong xid of a message in the bundle"),
    (2310, "OFPBFC_MSG_UNSUP", "message not supported in a bundle"),
    (2311, "OFPBFC_MSG_CONFLICT", "conflicting messages in the bundle"),
    (2312, "OFPBFC_MSG_TOO_MANY", "too many messages in the bundle"),
    (2313, "OFPBFC_MSG_FAILED", "a message of the bundle failed"),
    (2314, "OFPBFC_TIMEOUT", "bundle timed out"),
    (2315, "OFPBFC_BUNDLE_IN_PROGRESS", "another bundle is in progress"),
    (2600, "OFPBIC_DUP_INST", "duplicate instruction"),
    (4250, "OFPBAC_BAD_SET_MASK", "masked set_field not supported"),
];

const NICIRA: &[(u16, &str, &str)] = &[
    (2, "NXBRC_NXM_INVALID", "invalid match"),
    (3, "NXBRC_NXM_BAD_TYPE", "field not supported in a match"),
    (4, "NXBRC_MUST_BE_ZERO", "a field that must be zero is not"),
    (10, "NXBRC_UNENCODABLE_ERROR", "error without an OpenFlow 1.3 code"),
    (11, "NXBAC_MUST_BE_ZERO", "an argument that must be zero is not"),
    (12, "NXFMFC_HARDWARE", "hardware error"),
    (15, "NXBAC_BAD_CONJUNCTION", "conjunction must be the only action, with 1 <= k <= n and 2 <= n <= 64"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_the_state_of_a_bundle_are_transient() {
        let error = |kind, code, experimenter| ErrorMessage { kind, code, experimenter, data: vec![] };
        let transient: Vec<_> = ONF
            .iter()
            .filter(|(code, ..)| error(EXPERIMENTER, *code, Some(EXPERIMENTER_ONF)).is_transient())
            .map(|(_, name, _)| *name)
            .collect();
        assert_eq!(transient, ["OFPBFC_BAD_ID", "OFPBFC_TIMEOUT", "OFPBFC_BUNDLE_IN_PROGRESS"]);
        assert!(!error(EXPERIMENTER, BUNDLE_TIMEOUT, Some(EXPERIMENTER_NICIRA)).is_transient());
        assert!(!error(4, BUNDLE_TIMEOUT, None).is_transient());
    }
}
