//! The forms that data has in a rule file: texts, words, tables, and either of two.

/// A text that `$check` has found to be one: a type of its own for each kind.
macro_rules! texts {
    ($($(#[$meta:meta])* $name:ident: $code:ident, $expected:expr, $pattern:expr, $check:expr;)+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub(super) struct $name(pub(super) String);

        impl Read for $name {
            fn shape() -> Shape {
                Shape::Text { expected: $expected, pattern: $pattern }
            }

            fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
                let Value::Text(text) = &node.value else {
                    reader.wrong_type::<Self>(node);
                    return None;
                };
                let check: fn(&str) -> Result<(), String> = $check;
                match check(text) {
                    Ok(()) => Some(Self(text.clone())),
                    Err(problem) => {
                        reader.wrong(node.at, Code::$code, problem);
                        None
                    }
                }
            }
        }
    )+};
}

/// One of a few words: an enumeration of them.
macro_rules! words {
    ($($(#[$meta:meta])* $name:ident $(or $other:literal)? { $($(#[$of:meta])* $variant:ident = $word:literal,)+ })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
        pub(super) enum $name {
            $($(#[$of])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            const WORDS: &'static [&'static str] = &[$($word),+];
        }

        impl Read for $name {
            fn shape() -> Shape {
                Shape::Words(Self::WORDS)
            }

            fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
                let Value::Text(text) = &node.value else {
                    reader.wrong_type::<Self>(node);
                    return None;
                };
                match text.as_str() {
                    $($word => Some(Self::$variant),)+
                    _ => {
                        let other = closest(text, Self::WORDS).map_or(concat!("" $(, ", or ", $other)?), |_| "");
                        let text = format!("there is no {}; {}{other}", shown(text), instead(text, Self::WORDS));
                        reader.wrong(node.at, Code::UnknownWord, text);
                        None
                    }
                }
            }
        }
    )+};
}

/// A table: each field is optional here, and what has to be there is found when the whole is checked.
macro_rules! tables {
    ($($(#[$meta:meta])* $name:ident {
        $($(#[doc = $doc:literal])+ $field:ident = $key:literal: $type:ty,)+
    })+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize)]
        pub(super) struct $name {
            $(
                $(#[doc = $doc])+
                #[serde(rename = $key, skip_serializing_if = "Option::is_none")]
                pub(super) $field: Option<$type>,
            )+
        }

        impl $name {
            pub(super) const NAMES: &'static [&'static str] = &[$($key),+];

            pub(super) fn fields() -> Vec<FieldShape> {
                vec![$(FieldShape { name: $key, doc: &[$($doc),+], shape: <$type as Read>::shape }),+]
            }

            pub(super) fn of(fields: &Fields<'_>, reader: &mut Reader) -> Self {
                Self { $($field: fields.read($key, reader)),+ }
            }
        }

        impl Read for $name {
            fn shape() -> Shape {
                Shape::Table { name: stringify!($name), fields: Self::fields() }
            }

            fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
                let fields = reader.table::<Self>(node, Self::NAMES)?;
                Some(Self::of(&fields, reader))
            }
        }
    )+};
}

/// One of two forms: a text, or a table.
macro_rules! either {
    ($($(#[$meta:meta])* $name:ident { $one:ident($one_type:ty), $two:ident($two_type:ty) } $expected:literal;)+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(untagged)]
        pub(super) enum $name {
            $one($one_type),
            $two($two_type),
        }

        impl Read for $name {
            fn shape() -> Shape {
                Shape::Either(vec![<$one_type>::shape(), <$two_type>::shape()])
            }

            fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
                match &node.value {
                    Value::Text(_) => <$one_type>::read(node, reader).map(Self::$one),
                    Value::Table(_) => <$two_type>::read(node, reader).map(Self::$two),
                    Value::TooDeep => {
                        reader.wrong_type::<Self>(node);
                        None
                    }
                    _ => {
                        reader.wrong(node.at, Code::WrongType, is_not(node, $expected));
                        None
                    }
                }
            }
        }
    )+};
}

pub(super) use {either, tables, texts, words};
