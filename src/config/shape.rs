/// What a value looks like: for the texts of problems, and for the schema.
#[cfg_attr(not(test), allow(dead_code, reason = "some is only for the schema"))]
pub(super) enum Shape {
    Bool,
    Number { least: u64, most: u64 },
    Text { expected: &'static str, pattern: Option<&'static str> },
    Words(&'static [&'static str]),
    List(fn() -> Shape),
    Map(fn() -> Shape),
    Table { name: &'static str, fields: Vec<FieldShape> },
    Either(Vec<Shape>),
}

/// A field's name, its documentation, and what it looks like.
#[cfg_attr(not(test), allow(dead_code, reason = "some is only for the schema"))]
pub(super) struct FieldShape {
    pub(super) name: &'static str,
    pub(super) doc: &'static [&'static str],
    pub(super) shape: fn() -> Shape,
}

impl Shape {
    /// What is allowed, in words.
    pub(super) fn expected(&self) -> String {
        match self {
            Self::Bool => "true or false".into(),
            Self::Number { least, most } => format!("a whole number from {least} to {most}"),
            Self::Text { expected, .. } => (*expected).into(),
            Self::Words(words) => {
                let quoted: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
                quoted.join(" or ")
            }
            Self::List(item) => format!("a list (of {})", item().expected()),
            Self::Map(_) => "a table".into(),
            Self::Table { fields, .. } => {
                let names: Vec<_> = fields.iter().map(|field| field.name).collect();
                if names.len() > 4 { "a table".into() } else { format!("a table with `{}`", names.join("`, `")) }
            }
            Self::Either(shapes) => {
                let each: Vec<_> = shapes.iter().map(Self::expected).collect();
                each.join(", or ")
            }
        }
    }
}
