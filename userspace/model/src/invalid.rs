/// A field whose text does not mean what the field needs.
///
/// Names the object, the field, what was found and what is accepted, so that the message can be
/// shown to the person who wrote the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{object}: {field} is {value:?}, expected {expected}")]
pub struct Invalid {
    /// The object that holds the field, e.g. `network blue.default`.
    pub object: String,
    /// The field as it is spelled in the JSON body.
    pub field: &'static str,
    /// What was found.
    pub value: String,
    /// The accepted form.
    pub expected: &'static str,
}

impl Invalid {
    /// An invalid `field` of `object`.
    pub fn new(
        object: impl Into<String>,
        field: &'static str,
        value: impl ToString,
        expected: &'static str,
    ) -> Self {
        Invalid { object: object.into(), field, value: value.to_string(), expected }
    }
}
