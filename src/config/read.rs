//! From a tree to data, with everything that is wrong told at once.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use super::{
    node::{Field, Node, Value},
    problem::{Code, Problem, closest, instead, shown},
    shape::Shape,
};

/// No list or table of a rule file is longer.
const LONGEST: usize = 10_000;

/// Data that is read from a node.
pub(super) trait Read: Sized {
    /// What it looks like.
    fn shape() -> Shape;

    /// Reads it, or tells the reader what is wrong.
    fn read(node: &Node, reader: &mut Reader) -> Option<Self>;
}

/// What is said of a value of another type.
pub(super) fn is_not(node: &Node, expected: &str) -> String {
    format!("{} is not {expected}", node.shown())
}

/// Collects what is wrong, and where each value stands.
#[derive(Debug, Default)]
pub(super) struct Reader {
    path: String,
    found: Vec<(usize, Problem)>,
    places: BTreeMap<String, usize>,
}

impl Reader {
    /// Returns what was wrong, and the place of each value by its path.
    pub(super) fn into_parts(self) -> (Vec<(usize, Problem)>, BTreeMap<String, usize>) {
        (self.found, self.places)
    }

    pub(super) fn wrong(&mut self, at: usize, code: Code, text: impl Into<String>) {
        self.found.push((at, Problem::new(code, self.path.clone(), text)));
    }

    /// Says that the value is of another type than `T`.
    pub(super) fn wrong_type<T: Read>(&mut self, node: &Node) {
        match node.value {
            Value::TooDeep => self.wrong(node.at, Code::TooLarge, "nothing in a rule file is so deep"),
            _ => self.wrong(node.at, Code::WrongType, is_not(node, &T::shape().expected())),
        }
    }

    /// Reads a part of the value that is being read; `step` is its part of the path.
    pub(super) fn part<T: Read>(&mut self, step: &str, node: &Node) -> Option<T> {
        let before = self.path.len();
        self.path.push_str(step);
        self.places.insert(self.path.clone(), node.at);
        let read = T::read(node, self);
        self.path.truncate(before);
        read
    }

    fn field<T: Read>(&mut self, name: &str, node: &Node) -> Option<T> {
        self.part(&step(name, self.path.is_empty()), node)
    }

    /// Whether there are few enough.
    fn fits(&mut self, at: usize, count: usize) -> bool {
        if count > LONGEST {
            self.wrong(at, Code::TooLarge, format!("{count} items are more than {LONGEST}, the most there may be"));
        }
        count <= LONGEST
    }

    /// Returns the fields of a table, each once, after telling of those that are not among `known`.
    pub(super) fn table<'n, T: Read>(&mut self, node: &'n Node, known: &[&str]) -> Option<Fields<'n>> {
        let Value::Table(fields) = &node.value else {
            self.wrong_type::<T>(node);
            return None;
        };
        let fields = self.distinct(fields);
        for field in fields.iter().filter(|field| !known.contains(&field.name.as_str())) {
            let before = self.path.len();
            self.path.push_str(&step(&field.name, self.path.is_empty()));
            let text = format!("there is no field {}; {}", shown(&field.name), instead(&field.name, known));
            self.wrong(field.name_at, Code::UnknownField, text);
            self.path.truncate(before);
            // What was meant is not missing too.
            if let Some(meant) = closest(&field.name, known) {
                let path = format!("{}{}", self.path, step(meant, self.path.is_empty()));
                self.places.entry(path).or_insert(field.name_at);
            }
        }
        Some(Fields(fields))
    }

    /// The fields without those that are there again, which it tells of.
    fn distinct<'n>(&mut self, fields: &'n [Field]) -> Vec<&'n Field> {
        let (mut seen, mut distinct) = (HashSet::new(), Vec::new());
        for field in fields {
            if seen.insert(field.name.as_str()) {
                distinct.push(field);
            } else {
                let text = format!("{} is there twice; keep one of them", shown(&field.name));
                self.wrong(field.name_at, Code::RepeatedField, text);
            }
        }
        distinct
    }
}

/// A field's part of a path.
pub(super) fn step(name: &str, first: bool) -> String {
    let plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-$".contains(&byte));
    let dot = if first { "" } else { "." };
    if plain { format!("{dot}{name}") } else { format!("{dot}{}", shown(name)) }
}

/// The fields of one table.
pub(super) struct Fields<'n>(Vec<&'n Field>);

impl Fields<'_> {
    /// Reads the field, where it is there.
    pub(super) fn read<T: Read>(&self, name: &str, reader: &mut Reader) -> Option<T> {
        let field = self.0.iter().find(|field| field.name == name)?;
        reader.field(name, &field.node)
    }
}

impl Read for bool {
    fn shape() -> Shape {
        Shape::Bool
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        match node.value {
            Value::Bool(bool) => Some(bool),
            _ => {
                reader.wrong_type::<Self>(node);
                None
            }
        }
    }
}

/// A whole number from `LEAST` to `MOST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct Number<const LEAST: u64, const MOST: u64>(pub(super) u64);

/// Permits, costs and the like. TOML's numbers end at 2^63 - 1.
pub(super) type Count = Number<1, { i64::MAX as u64 }>;

impl<const LEAST: u64, const MOST: u64> Read for Number<LEAST, MOST> {
    fn shape() -> Shape {
        Shape::Number { least: LEAST, most: MOST }
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        match node.value {
            Value::Number(number) if (LEAST..=MOST).contains(&number) => return Some(Self(number)),
            Value::Number(_) | Value::Other(_) => {
                let text = format!("{} is not {}", node.shown(), Self::shape().expected());
                reader.wrong(node.at, Code::OutOfRange, text);
            }
            _ => reader.wrong_type::<Self>(node),
        }
        None
    }
}

impl<T: Read> Read for Vec<T> {
    fn shape() -> Shape {
        Shape::List(T::shape)
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let Value::List(items) = &node.value else {
            reader.wrong_type::<Self>(node);
            return None;
        };
        if !reader.fits(node.at, items.len()) {
            return None;
        }
        let mut read = Vec::with_capacity(items.len());
        for (at, item) in items.iter().enumerate() {
            read.push(reader.part(&format!("[{at}]"), item));
        }
        // One that is missing would shift the numbers of those behind it, which later problems give.
        read.into_iter().collect()
    }
}

/// One, or a list of several.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub(super) struct Many<T>(pub(super) Vec<T>);

impl<T: Read> Read for Many<T> {
    fn shape() -> Shape {
        Shape::Either(vec![T::shape(), Shape::List(T::shape)])
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        match &node.value {
            Value::List(items) if items.is_empty() => {
                reader.wrong(
                    node.at,
                    Code::CannotWork,
                    "an empty list would match nothing; leave the field out, or fill it",
                );
                None
            }
            Value::List(_) => Vec::read(node, reader).map(Self),
            _ => T::read(node, reader).map(|one| Self(vec![one])),
        }
    }
}

impl<T: Read> Read for BTreeMap<String, T> {
    fn shape() -> Shape {
        Shape::Map(T::shape)
    }

    fn read(node: &Node, reader: &mut Reader) -> Option<Self> {
        let Value::Table(fields) = &node.value else {
            reader.wrong_type::<Self>(node);
            return None;
        };
        if !reader.fits(node.at, fields.len()) {
            return None;
        }
        let mut read = Self::new();
        for field in reader.distinct(fields) {
            if let Some(value) = reader.field(&field.name, &field.node) {
                read.insert(field.name.clone(), value);
            }
        }
        Some(read)
    }
}
