//! Values of actions that the encoding has no room for.

use super::nicira::{Ct, Zone};
use super::{Action, Instructions};
use crate::port::Port;
use crate::wire::EncodeError;

const SLICE: &str = "1 to 64 bits from an offset of at most 1023 are possible";
const WIDTHS: &str = "source and destination have different widths";
const FIELD: &str = "the value exceeds the width of the field";
const PORT: &str = "the port does not fit into 16 bits";
const TABLE: &str = "table 255 stands for no table";

impl Action {
    /// Checks that the encoding of the action has room for its values. Messages with other actions are not encoded.
    ///
    /// # Errors
    ///
    /// Returns [`EncodeError::Action`] with the first action, here or inside, that cannot be encoded.
    pub fn check(&self) -> Result<(), EncodeError> {
        match self {
            Action::Clone(actions) => check_list(actions)?,
            Action::Ct(ct) => check_list(&ct.exec)?,
            _ => {}
        }
        self.misfit().map_or(Ok(()), |why| Err(EncodeError::Action { action: self.to_string(), why }))
    }

    /// Returns what the encoding of this action alone has no room for.
    fn misfit(&self) -> Option<&'static str> {
        let (fits, why) = match self {
            Action::OutputField { port, .. } => (port.is_packable(), SLICE),
            Action::Load { to, .. } => (to.is_packable(), SLICE),
            Action::Multipath(multipath) => (multipath.to.is_packable(), SLICE),
            Action::Ct(Ct { zone: Zone::From(from), .. }) if !from.is_packable() => (false, SLICE),
            Action::Ct(ct) => (ct.has_encodable_table(), TABLE),
            Action::Move { from, to } => (from.width == to.width, WIDTHS),
            Action::SetField { field, value } => (value & !field.mask() == 0, FIELD),
            Action::SetMasked { field, value, mask } => ((value | mask) & !field.mask() == 0, FIELD),
            Action::Resubmit { port: Some(port), .. } => (Port::from_short(port.short()) == *port, PORT),
            Action::Learn(learn) => return learn.misfit(),
            _ => return None,
        };
        (!fits).then_some(why)
    }
}

pub(crate) fn check_list(actions: &[Action]) -> Result<(), EncodeError> {
    actions.iter().try_for_each(Action::check)
}

impl Instructions {
    /// Checks the actions as [`Action::check`] does.
    ///
    /// # Errors
    ///
    /// As [`Action::check`].
    pub fn check(&self) -> Result<(), EncodeError> {
        check_list(&self.apply)?;
        check_list(&self.write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::nicira::{HashFields, LinkAlgorithm};
    use crate::action::nicira::{Learn, LearnSpec, Multipath, Slice};
    use crate::field::Field;

    fn why(action: &Action) -> Option<&'static str> {
        match action.check() {
            Ok(()) => None,
            Err(EncodeError::Action { why, .. }) => Some(why),
            Err(error) => panic!("{error}"),
        }
    }

    fn learn(spec: LearnSpec) -> Action {
        Action::Learn(Learn { specs: vec![spec], ..Learn::default() })
    }

    #[test]
    fn slices_that_six_bits_cannot_describe_are_rejected() {
        let bad =
            [Slice::whole(Field::CtLabel), Slice::bits(Field::Reg0, 0, 0), Slice::bits(Field::Reg0, 1024, 1)];
        let multipath = |to| Multipath {
            fields: HashFields::IpSrc,
            basis: 0,
            algorithm: LinkAlgorithm::Modulo,
            max_link: 1,
            arg: 0,
            to,
        };
        let users = |slice| {
            [
                Action::load(5, slice),
                Action::OutputField { port: slice, max_len: 0 },
                Action::Multipath(multipath(slice)),
                Action::Ct(Ct { zone: Zone::From(slice), ..Ct::default() }),
            ]
        };
        assert!(bad.into_iter().flat_map(users).all(|action| why(&action) == Some(SLICE)));
        let good = [
            Slice::bits(Field::CtLabel, 64, 64),
            Slice::bits(Field::Reg0, 31, 1),
            Slice::whole(Field::TcpFlags),
        ];
        assert!(good.into_iter().flat_map(users).all(|action| why(&action).is_none()));
    }

    #[test]
    fn values_that_would_be_cut_off_are_rejected() {
        let reg = |width| Slice::bits(Field::Reg0, 0, width);
        for (action, expected) in [
            (Action::Move { from: reg(8), to: reg(9) }, WIDTHS),
            (Action::SetField { field: Field::IpDscp, value: 64 }, FIELD),
            (Action::SetMasked { field: Field::Reg0, value: 0, mask: 1 << 32 }, FIELD),
            (Action::Resubmit { port: Some(Port(0x1_0005)), table: 1 }, PORT),
            (Action::Ct(Ct { table: Some(255), ..Ct::default() }), TABLE),
        ] {
            assert_eq!(why(&action), Some(expected), "{action}");
        }
        assert_eq!(why(&Action::Resubmit { port: Some(Port::LOCAL), table: 1 }), None);
    }

    #[test]
    fn parts_of_learned_flows_that_would_shift_the_next_are_rejected() {
        let whole = |width| Slice::bits(Field::EthType, 0, width);
        let value = |length: usize, to| LearnSpec::MatchValue { value: vec![0; length], to };
        for spec in [
            value(2, whole(17)),
            value(1, whole(8)),
            value(4, whole(16)),
            LearnSpec::Output { from: whole(0x800) },
            LearnSpec::MatchField { from: whole(0), to: whole(0) },
            LearnSpec::LoadField { from: whole(16), to: whole(8) },
        ] {
            assert!(why(&learn(spec.clone())).is_some(), "{spec:?}");
        }
        assert_eq!(why(&learn(value(2, whole(9)))), None);
        let result = Learn { flags: 4, limit: 1, ..Learn::default() };
        assert!(why(&Action::Learn(result)).is_some());
    }

    #[test]
    fn the_action_inside_is_named() {
        let inner = Action::load(5, Field::CtLabel);
        let text = Action::Clone(vec![inner]).check().unwrap_err().to_string();
        assert_eq!(text, format!("encode action load:0x5->NXM_NX_CT_LABEL[]: {SLICE}"));
    }
}
