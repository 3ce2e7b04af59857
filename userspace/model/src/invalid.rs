/// A field of a body with an invalid value.
///
/// It names the object, the field, the value and the accepted form, so that the message can be
/// shown to the person who wrote the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field} is {value:?}, expected {expected}")]
pub struct Invalid {
    /// Object with the field, e.g. `network blue.default`.
    pub object: String,
    /// Name of the field in the JSON body.
    pub field: &'static str,
    /// Value of the field.
    pub value: String,
    /// The accepted form.
    pub expected: &'static str,
}

impl Invalid {
    /// An error about `field` of `object`.
    pub fn new(
        object: impl Into<String>,
        field: &'static str,
        value: impl ToString,
        expected: &'static str,
    ) -> Self {
        Invalid { object: object.into(), field, value: value.to_string(), expected }
    }
}
