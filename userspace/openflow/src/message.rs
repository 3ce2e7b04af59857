//! OpenFlow messages: header and typed body (OpenFlow 1.3.5 sections 7.1 and 7.3 to 7.5).

use bytes::BufMut;

use crate::action::check_list;
use crate::bundle::BundleControl;
use crate::error_message::ErrorMessage;
use crate::flow::{FlowMod, FlowRemoved};
use crate::group::GroupMod;
use crate::meter::MeterMod;
use crate::multipart::{MultipartReply, MultipartRequest};
use crate::packed::PackedMod;
use crate::packet::{PacketIn, PacketOut};
use crate::port::PortStatus;
use crate::switch::{AsyncConfig, Features, Hello, RoleMessage, SwitchConfig, VERSION};
use crate::wire::{DecodeError, EXPERIMENTER_NICIRA, EXPERIMENTER_ONF, EncodeError, Reader};

/// Length of the header (`ofp_header`) in bytes.
pub const HEADER: usize = 8;

/// An OpenFlow message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Transaction id. A reply has that of its request.
    pub xid: u32,
    /// Typed content after the header.
    pub body: Body,
}

/// Typed body of a message (`ofp_type`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body {
    /// Version negotiation (`OFPT_HELLO`).
    Hello(Hello),
    /// Error report (`OFPT_ERROR`).
    Error(ErrorMessage),
    /// Liveness probe with arbitrary data (`OFPT_ECHO_REQUEST`).
    EchoRequest(Vec<u8>),
    /// Answer to a probe, with its data (`OFPT_ECHO_REPLY`).
    EchoReply(Vec<u8>),
    /// Request for the features (`OFPT_FEATURES_REQUEST`).
    FeaturesRequest,
    /// Features of the switch (`OFPT_FEATURES_REPLY`).
    FeaturesReply(Features),
    /// Request for the configuration (`OFPT_GET_CONFIG_REQUEST`).
    GetConfigRequest,
    /// Configuration of the switch (`OFPT_GET_CONFIG_REPLY`).
    GetConfigReply(SwitchConfig),
    /// New configuration (`OFPT_SET_CONFIG`).
    SetConfig(SwitchConfig),
    /// Packet for the controller (`OFPT_PACKET_IN`).
    PacketIn(PacketIn),
    /// Removal of a flow (`OFPT_FLOW_REMOVED`).
    FlowRemoved(FlowRemoved),
    /// Change of a port (`OFPT_PORT_STATUS`).
    PortStatus(PortStatus),
    /// Packet for the switch to send (`OFPT_PACKET_OUT`).
    PacketOut(PacketOut),
    /// Flow modification (`OFPT_FLOW_MOD`).
    FlowMod(FlowMod),
    /// The same with a packed flow. It is only sent; the decoder returns [`Body::FlowMod`].
    PackedMod(PackedMod),
    /// Group modification (`OFPT_GROUP_MOD`).
    GroupMod(GroupMod),
    /// Meter modification (`OFPT_METER_MOD`).
    MeterMod(MeterMod),
    /// Request for statistics or descriptions (`OFPT_MULTIPART_REQUEST`).
    MultipartRequest(MultipartRequest),
    /// One part of the answer (`OFPT_MULTIPART_REPLY`).
    MultipartReply(MultipartReply),
    /// Request to finish all earlier messages (`OFPT_BARRIER_REQUEST`).
    BarrierRequest,
    /// All earlier messages are processed (`OFPT_BARRIER_REPLY`).
    BarrierReply,
    /// Request for a controller role (`OFPT_ROLE_REQUEST`).
    RoleRequest(RoleMessage),
    /// Current controller role (`OFPT_ROLE_REPLY`).
    RoleReply(RoleMessage),
    /// Request for the asynchronous configuration (`OFPT_GET_ASYNC_REQUEST`).
    GetAsyncRequest,
    /// Asynchronous configuration (`OFPT_GET_ASYNC_REPLY`).
    GetAsyncReply(AsyncConfig),
    /// New asynchronous configuration (`OFPT_SET_ASYNC`).
    SetAsync(AsyncConfig),
    /// Bundle operation (`ONFT_BUNDLE_CONTROL`).
    BundleControl(BundleControl),
    /// Message that the switch applies when the bundle is committed (`onf_bundle_add_msg`).
    BundleAdd {
        /// Bundle id.
        bundle: u32,
        /// Flags of the bundle.
        flags: u16,
        /// Message to add. It needs the transaction id of the outer message.
        message: Box<Message>,
    },
    /// Request to forget all tracked connections of a zone (`NXT_CT_FLUSH_ZONE` of `nicira-ext.h`).
    FlushZone(u16),
    /// A message that this library does not decode.
    Other {
        /// Message type.
        kind: u8,
        /// Bytes after the header.
        body: Vec<u8>,
    },
}

const EXPERIMENTER: u8 = 4;
const PACKET_IN: u8 = 10;
const FLOW_REMOVED: u8 = 11;
const PORT_STATUS: u8 = 12;
const BUNDLE_CONTROL: u32 = 2300;
const BUNDLE_ADD: u32 = 2301;
const FLUSH_ZONE: u32 = 29;

/// Returns whether the switch sends messages of this type on its own.
pub(crate) fn is_notification(kind: u8) -> bool {
    matches!(kind, PACKET_IN | FLOW_REMOVED | PORT_STATUS)
}

impl Body {
    fn kind(&self) -> u8 {
        match self {
            Body::Hello(_) => 0,
            Body::Error(_) => 1,
            Body::EchoRequest(_) => 2,
            Body::EchoReply(_) => 3,
            Body::BundleControl(_) | Body::BundleAdd { .. } | Body::FlushZone(_) => EXPERIMENTER,
            Body::FeaturesRequest => 5,
            Body::FeaturesReply(_) => 6,
            Body::GetConfigRequest => 7,
            Body::GetConfigReply(_) => 8,
            Body::SetConfig(_) => 9,
            Body::PacketIn(_) => PACKET_IN,
            Body::FlowRemoved(_) => FLOW_REMOVED,
            Body::PortStatus(_) => PORT_STATUS,
            Body::PacketOut(_) => 13,
            Body::FlowMod(_) | Body::PackedMod(_) => 14,
            Body::GroupMod(_) => 15,
            Body::MultipartRequest(_) => 18,
            Body::MultipartReply(_) => 19,
            Body::BarrierRequest => 20,
            Body::BarrierReply => 21,
            Body::RoleRequest(_) => 24,
            Body::RoleReply(_) => 25,
            Body::GetAsyncRequest => 26,
            Body::GetAsyncReply(_) => 27,
            Body::SetAsync(_) => 28,
            Body::MeterMod(_) => 29,
            Body::Other { kind, .. } => *kind,
        }
    }

    /// Checks what is encoded without an error. The message in a bundle is checked when it is encoded.
    fn check(&self) -> Result<(), EncodeError> {
        match self {
            Body::PacketOut(packet) => check_list(&packet.actions),
            Body::FlowMod(change) => change.flow.check(),
            Body::PackedMod(change) => change.check(),
            Body::GroupMod(change) => change.group.check(),
            Body::PacketIn(packet) => packet.matching.check_values(),
            Body::FlowRemoved(removed) => removed.flow.check(),
            Body::MultipartRequest(request) => request.check(),
            Body::MultipartReply(reply) => reply.check(),
            _ => Ok(()),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.check()?;
        match self {
            Body::Hello(hello) => hello.encode(out),
            Body::Error(error) => error.encode(out),
            Body::EchoRequest(data) | Body::EchoReply(data) => out.extend_from_slice(data),
            Body::FeaturesRequest
            | Body::GetConfigRequest
            | Body::BarrierRequest
            | Body::BarrierReply
            | Body::GetAsyncRequest => {}
            Body::FeaturesReply(features) => features.encode(out),
            Body::GetConfigReply(config) | Body::SetConfig(config) => config.encode(out),
            Body::PacketIn(packet) => packet.encode(out),
            Body::FlowRemoved(removed) => removed.encode(out),
            Body::PortStatus(status) => status.encode(out),
            Body::PacketOut(packet) => packet.encode(out),
            Body::FlowMod(change) => change.encode(out),
            Body::PackedMod(change) => change.encode(out),
            Body::GroupMod(change) => change.encode(out),
            Body::MeterMod(change) => change.encode(out),
            Body::MultipartRequest(request) => request.encode(out),
            Body::MultipartReply(reply) => reply.encode(out),
            Body::RoleRequest(role) | Body::RoleReply(role) => role.encode(out),
            Body::GetAsyncReply(config) | Body::SetAsync(config) => config.encode(out),
            Body::BundleControl(control) => {
                out.put_u32(EXPERIMENTER_ONF);
                out.put_u32(BUNDLE_CONTROL);
                control.encode(out);
            }
            Body::BundleAdd { bundle, flags, message } => {
                out.put_u32(EXPERIMENTER_ONF);
                out.put_u32(BUNDLE_ADD);
                out.put_u32(*bundle);
                out.put_u16(0);
                out.put_u16(*flags);
                message.encode(out)?;
            }
            Body::FlushZone(zone) => {
                out.put_u32(EXPERIMENTER_NICIRA);
                out.put_u32(FLUSH_ZONE);
                out.put_bytes(0, 6);
                out.put_u16(*zone);
            }
            Body::Other { body, .. } => out.extend_from_slice(body),
        }
        Ok(())
    }

    fn decode(version: u8, kind: u8, mut r: Reader<'_>) -> Result<Body, DecodeError> {
        if kind != 0 && version != VERSION {
            return Err(DecodeError::Value { what: "OpenFlow version", value: version.into() });
        }
        let r = &mut r;
        Ok(match kind {
            0 => Body::Hello(Hello::decode(version, r)),
            1 => Body::Error(ErrorMessage::decode(r)?),
            2 => Body::EchoRequest(r.rest().to_vec()),
            3 => Body::EchoReply(r.rest().to_vec()),
            EXPERIMENTER => Body::decode_experimenter(r)?,
            5 => Body::FeaturesRequest,
            6 => Body::FeaturesReply(Features::decode(r)?),
            7 => Body::GetConfigRequest,
            8 => Body::GetConfigReply(SwitchConfig::decode(r)?),
            9 => Body::SetConfig(SwitchConfig::decode(r)?),
            PACKET_IN => Body::PacketIn(PacketIn::decode(r)?),
            FLOW_REMOVED => Body::FlowRemoved(FlowRemoved::decode(r)?),
            PORT_STATUS => Body::PortStatus(PortStatus::decode(r)?),
            13 => Body::PacketOut(PacketOut::decode(r)?),
            14 => Body::FlowMod(FlowMod::decode(r)?),
            15 => Body::GroupMod(GroupMod::decode(r)?),
            18 => Body::MultipartRequest(MultipartRequest::decode(r)?),
            19 => Body::MultipartReply(MultipartReply::decode(r)?),
            20 => Body::BarrierRequest,
            21 => Body::BarrierReply,
            24 => Body::RoleRequest(RoleMessage::decode(r)?),
            25 => Body::RoleReply(RoleMessage::decode(r)?),
            26 => Body::GetAsyncRequest,
            27 => Body::GetAsyncReply(AsyncConfig::decode(r)?),
            28 => Body::SetAsync(AsyncConfig::decode(r)?),
            29 => Body::MeterMod(MeterMod::decode(r)?),
            kind => Body::Other { kind, body: r.rest().to_vec() },
        })
    }

    fn decode_experimenter(r: &mut Reader<'_>) -> Result<Body, DecodeError> {
        let mut whole = *r;
        let kind = (r.u32()?, r.u32()?);
        Ok(match kind {
            (EXPERIMENTER_ONF, BUNDLE_CONTROL) => Body::BundleControl(BundleControl::decode(r)?),
            (EXPERIMENTER_ONF, BUNDLE_ADD) => {
                let bundle = r.u32()?;
                r.skip(2)?;
                let flags = r.u16()?;
                let inner = r.rest();
                // A bundle message inside a bundle message is invalid. Rejecting it also bounds the recursion.
                if inner.get(1) == Some(&EXPERIMENTER) {
                    return Err(DecodeError::Value {
                        what: "message in a bundle",
                        value: EXPERIMENTER.into(),
                    });
                }
                Body::BundleAdd { bundle, flags, message: Box::new(Message::decode(inner)?) }
            }
            (EXPERIMENTER_NICIRA, FLUSH_ZONE) => {
                r.skip(6)?;
                Body::FlushZone(r.u16()?)
            }
            _ => Body::Other { kind: EXPERIMENTER, body: whole.rest().to_vec() },
        })
    }
}

impl Message {
    /// Returns a message with the transaction id `xid`.
    pub fn new(xid: u32, body: Body) -> Message {
        Message { xid, body }
    }

    /// Appends the encoded message to `out`, in network byte order.
    ///
    /// # Errors
    ///
    /// Returns [`EncodeError`] if the message exceeds 65535 bytes, or if the encoding has no room for a value of a match or an action. `out` is
    /// unchanged then.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        let version = if let Body::Hello(hello) = &self.body { hello.version } else { VERSION };
        out.put_u8(version);
        out.put_u8(self.body.kind());
        out.put_u16(0);
        out.put_u32(self.xid);
        let body = self.body.encode(out);
        let length = out.len() - start;
        let fits = if length > usize::from(u16::MAX) { Err(EncodeError::TooLong { length }) } else { Ok(()) };
        let encoded = body.and(fits);
        match encoded {
            Ok(()) => crate::wire::patch_length(out, start, 2),
            Err(_) => out.truncate(start),
        }
        encoded
    }

    /// Returns the encoded message, in network byte order.
    ///
    /// # Errors
    ///
    /// As [`Message::encode`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, EncodeError> {
        let mut out = vec![];
        self.encode(&mut out)?;
        Ok(out)
    }

    /// Decodes one message. Bytes after the length in its header are ignored.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError`] if the bytes are truncated, a length is inconsistent, or a value or match field is unknown.
    pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
        let mut r = Reader::new(bytes, "message");
        let (version, kind) = (r.u8()?, r.u8()?);
        let length = usize::from(r.u16()?);
        let xid = r.u32()?;
        let body = length.checked_sub(HEADER).ok_or(DecodeError::Length { what: "message", length })?;
        let body = Body::decode(version, kind, r.take(body, "message")?)?;
        Ok(Message { xid, body })
    }
}
