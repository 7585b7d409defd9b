//! A document as a tree in which every value knows where it stands.

use std::{fmt, ops::Range};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::problem::{Code, Problem, shown};

/// Deeper than any rule file, and shallow enough to be walked by functions that call themselves.
pub(super) const DEEPEST: usize = 24;

/// A value and where it begins, in bytes.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: usize,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Text(String),
    /// A whole number from 0 to the largest of TOML's.
    Number(u64),
    Bool(bool),
    List(Vec<Node>),
    Table(Vec<Field>),
    /// What no field takes, as it was written: a fraction, a negative number, a date, `null`.
    Other(String),
    /// What is deeper than [`DEEPEST`].
    TooDeep,
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) name_at: usize,
    pub(super) node: Node,
}

impl Node {
    /// The value, as a problem shows it.
    pub(super) fn shown(&self) -> String {
        match &self.value {
            Value::Text(text) => shown(text),
            Value::Number(number) => number.to_string(),
            Value::Bool(bool) => bool.to_string(),
            Value::List(_) => "a list".into(),
            Value::Table(_) => "a table".into(),
            Value::Other(written) => shown(written).trim_matches('"').into(),
            Value::TooDeep => "something too deep".into(),
        }
    }
}

/// Reads TOML, or says all that keeps it from being TOML.
pub(super) fn from_toml(text: &str) -> Result<Node, Vec<(usize, Problem)>> {
    let (table, errors) = toml::de::DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(Node { at: 0, value: toml_table(table.into_inner(), 0) });
    }
    let problem = |error: toml::de::Error| {
        let at = error.span().map_or(text.len(), |span| span.start);
        (at, Problem::new(Code::Syntax, "", format!("this is no TOML: {}", error.message())))
    };
    Err(errors.into_iter().map(problem).collect())
}

fn toml_table(table: toml::de::DeTable<'_>, depth: usize) -> Value {
    let fields = table.into_iter().map(|(name, value)| Field {
        name_at: name.span().start,
        name: name.into_inner().into_owned(),
        node: toml_node(value.span(), value.into_inner(), depth + 1),
    });
    Value::Table(fields.collect())
}

fn toml_node(span: Range<usize>, value: toml::de::DeValue<'_>, depth: usize) -> Node {
    use toml::de::DeValue;
    let value = match value {
        _ if depth > DEEPEST => Value::TooDeep,
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(integer) => {
            let number = i64::from_str_radix(integer.as_str(), integer.radix());
            let number = number.ok().and_then(|number| u64::try_from(number).ok());
            number.map_or_else(|| Value::Other(integer.to_string()), Value::Number)
        }
        DeValue::Boolean(bool) => Value::Bool(bool),
        DeValue::Float(float) => Value::Other(float.to_string()),
        DeValue::Datetime(datetime) => Value::Other(datetime.to_string()),
        DeValue::Array(list) => {
            let node = |item: toml::Spanned<DeValue<'_>>| toml_node(item.span(), item.into_inner(), depth + 1);
            Value::List(list.into_iter().map(node).collect())
        }
        DeValue::Table(table) => toml_table(table, depth),
    };
    Node { at: span.start, value }
}

/// Reads JSON as RFC 8259 has it, or says what keeps the text from being that.
pub(super) fn from_json(text: &str) -> Result<Node, Vec<(usize, Problem)>> {
    let strict = jsonc_parser::ParseOptions {
        allow_comments: false,
        allow_loose_object_property_names: false,
        allow_trailing_commas: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let wrong = |at: usize, what: &str| vec![(at, Problem::new(Code::Syntax, "", format!("this is no JSON: {what}")))];
    match jsonc_parser::parse_to_ast(text, &jsonc_parser::CollectOptions::default(), &strict) {
        Ok(parsed) => parsed.value.map(|value| json_node(value, 0)).ok_or_else(|| wrong(text.len(), "it is empty")),
        Err(error) => {
            let kind = error.kind().to_string();
            let mut chars = kind.chars();
            let kind: String = chars.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(chars).collect();
            Err(wrong(error.range().start, &kind))
        }
    }
}

fn json_node(value: jsonc_parser::ast::Value<'_>, depth: usize) -> Node {
    use jsonc_parser::{ast::Value as Json, common::Ranged};
    let at = value.range().start;
    let value = match value {
        _ if depth > DEEPEST => Value::TooDeep,
        Json::StringLit(text) => Value::Text(text.value.into_owned()),
        Json::NumberLit(number) => {
            let whole = number.value.bytes().all(|byte| byte.is_ascii_digit());
            let read = whole.then(|| number.value.parse::<u64>().ok()).flatten();
            let read = read.filter(|number| i64::try_from(*number).is_ok());
            read.map_or_else(|| Value::Other(number.value.into()), Value::Number)
        }
        Json::BooleanLit(bool) => Value::Bool(bool.value),
        Json::NullKeyword(_) => Value::Other("null".into()),
        Json::Array(list) => Value::List(list.elements.into_iter().map(|item| json_node(item, depth + 1)).collect()),
        Json::Object(object) => {
            let fields = object.properties.into_iter().map(|property| Field {
                name_at: property.name.range().start,
                name: property.name.into_string(),
                node: json_node(property.value, depth + 1),
            });
            Value::Table(fields.collect())
        }
    };
    Node { at, value }
}

/// A value of any format that `serde` reads, without places.
impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reading)
    }
}

struct Reading;

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        Self { at: 0, value }
    }
}

/// Formats other than ours guard their own depth.
impl<'de> Visitor<'de> for Reading {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the rules of a rate limiter")
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Value::Text(text.into()).into())
    }

    fn visit_bool<E>(self, bool: bool) -> Result<Node, E> {
        Ok(Value::Bool(bool).into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Node, E> {
        let fits = i64::try_from(number).is_ok();
        Ok(if fits { Value::Number(number) } else { Value::Other(number.to_string()) }.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Node, E> {
        let number = u64::try_from(number).map_or_else(|_| Value::Other(number.to_string()), Value::Number);
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Node, E> {
        Ok(Value::Other(number.to_string()).into())
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Value::Other("null".into()).into())
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Value::Other("null".into()).into())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(node);
        }
        Ok(Value::List(nodes).into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some((name, node)) = table.next_entry()? {
            fields.push(Field { name, name_at: 0, node });
        }
        Ok(Value::Table(fields).into())
    }
}
