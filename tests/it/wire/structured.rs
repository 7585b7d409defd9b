//! A reader of structured fields (RFC 9651), as far as limits need it: lists of items with parameters. It shares
//! nothing with the writer it checks.

use base64::{
    Engine,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::Answer;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bare {
    Integer(i64),
    /// In thousandths.
    Decimal(i64),
    String(String),
    Token(String),
    Bytes(Vec<u8>),
    Boolean(bool),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) bare: Bare,
    pub(super) parameters: Vec<(String, Bare)>,
}

impl Item {
    pub(super) fn parameter(&self, key: &str) -> Option<&Bare> {
        self.parameters.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }
}

/// Reads a list of items (RFC 9651, 4.2.1) from a field's lines; one thing wrong and the whole field is.
pub(super) fn list(lines: &[&str]) -> Option<Vec<Item>> {
    let joined = lines.join(", ");
    let mut reader = Reader(joined.trim_matches(' ').as_bytes());
    let mut items = Vec::new();
    while !reader.0.is_empty() {
        items.push(reader.item()?);
        reader.skip(b" \t");
        if reader.0.is_empty() {
            break;
        }
        reader.byte(b',')?;
        reader.skip(b" \t");
        if reader.0.is_empty() {
            return None; // a comma at the end
        }
    }
    Some(items)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn skip(&mut self, bytes: &[u8]) {
        while self.0.first().is_some_and(|byte| bytes.contains(byte)) {
            self.0 = &self.0[1..];
        }
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn take_while(&mut self, fits: impl Fn(&u8) -> bool) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(self.0.iter().take_while(|byte| fits(byte)).count());
        self.0 = rest;
        taken
    }

    fn item(&mut self) -> Option<Item> {
        let mut item = Item { bare: self.bare()?, parameters: Vec::new() };
        while self.0.first() == Some(&b';') {
            self.next();
            self.skip(b" ");
            let key = self.key()?;
            let value = match self.0.first() {
                Some(b'=') => {
                    self.next();
                    self.bare()?
                }
                _ => Bare::Boolean(true),
            };
            match item.parameters.iter_mut().find(|(known, _)| *known == key) {
                Some((_, before)) => *before = value,
                None => item.parameters.push((key, value)),
            }
        }
        Some(item)
    }

    fn key(&mut self) -> Option<String> {
        let first = *self.0.first()?;
        let key = self.take_while(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(byte));
        (first.is_ascii_lowercase() || first == b'*').then(|| String::from_utf8_lossy(key).into_owned())
    }

    fn bare(&mut self) -> Option<Bare> {
        match *self.0.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string().map(Bare::String),
            b':' => self.bytes().map(Bare::Bytes),
            b'?' => {
                self.next();
                match self.next()? {
                    b'0' => Some(Bare::Boolean(false)),
                    b'1' => Some(Bare::Boolean(true)),
                    _ => None,
                }
            }
            first if first.is_ascii_alphabetic() || first == b'*' => {
                let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(byte);
                Some(Bare::Token(String::from_utf8_lossy(self.take_while(fits)).into_owned()))
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Bare> {
        let sign = if self.0.first() == Some(&b'-') { self.next().map(|_| -1)? } else { 1 };
        let number = |digits: &[u8]| String::from_utf8_lossy(digits).parse::<i64>().ok();
        let whole = self.take_while(u8::is_ascii_digit);
        if self.0.first() != Some(&b'.') {
            return (whole.len() <= 15).then(|| number(whole)).flatten().map(|whole| Bare::Integer(sign * whole));
        }
        self.next();
        let fraction = self.take_while(u8::is_ascii_digit);
        if whole.len() > 12 || !(1..=3).contains(&fraction.len()) {
            return None;
        }
        let thousandths = number(fraction)? * 10_i64.pow(3 - fraction.len() as u32);
        Some(Bare::Decimal(sign * (number(whole)? * 1_000 + thousandths)))
    }

    fn string(&mut self) -> Option<String> {
        self.byte(b'"')?;
        let mut text = String::new();
        loop {
            match self.next()? {
                b'"' => return Some(text),
                b'\\' => match self.next()? {
                    escaped @ (b'"' | b'\\') => text.push(escaped.into()),
                    _ => return None,
                },
                plain @ b' '..=b'~' => text.push(plain.into()),
                _ => return None,
            }
        }
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        self.byte(b':')?;
        let encoded = self.take_while(|byte| *byte != b':');
        self.byte(b':')?;
        // RFC 9651, 4.2.7: recipients should take what has no padding, or bits set in it.
        let lenient = GeneralPurposeConfig::new()
            .with_decode_allow_trailing_bits(true)
            .with_decode_padding_mode(DecodePaddingMode::Indifferent);
        GeneralPurpose::new(&STANDARD, lenient).decode(encoded).ok()
    }
}

/// One rule of `RateLimit` (`r`, `t`) or of `RateLimit-Policy` (`q`, `w`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) name: String,
    pub(super) count: u64,
    pub(super) secs: Option<u64>,
}

/// Reads a field of limits as draft-ietf-httpapi-ratelimit-headers-11 defines them (3.1 and 4.1); `None` where it is
/// malformed and so to be ignored (7). Parameters that nobody defined are comments.
pub(super) fn limits(lines: &[&str], count: &str, secs: &str) -> Option<Vec<Told>> {
    let number = |value: &Bare| match value {
        Bare::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    let told = |item: Item| {
        let secs = match item.parameter(secs) {
            Some(secs) => Some(number(secs)?),
            None => None,
        };
        let count = number(item.parameter(count)?)?;
        let Bare::String(name) = item.bare else { return None };
        Some(Told { name, count, secs })
    };
    list(lines)?.into_iter().map(told).collect()
}

impl Answer {
    /// The rules in `RateLimit-Policy` and those in `RateLimit`. Both can be read, or are absent.
    pub(super) fn limits(&self) -> (Vec<Told>, Vec<Told>) {
        let read = |name, count, secs| {
            let lines: Vec<_> = self.headers.get_all(name).iter().map(|line| line.to_str().unwrap()).collect();
            let told = limits(&lines, count, secs).unwrap_or_else(|| panic!("{name}: {lines:?}"));
            assert_eq!(lines.is_empty(), told.is_empty(), "RFC 9651, 3.1: an empty list is not sent");
            told
        };
        (read("ratelimit-policy", "q", "w"), read("ratelimit", "r", "t"))
    }
}

fn item(bare: Bare) -> Item {
    Item { bare, parameters: vec![] }
}

/// Rows of the structured fields working group's own tests, and of the draft's.
#[test]
fn the_reader_of_these_tests_reads_structured_fields_as_they_are_defined() {
    let integers =
        |numbers: &[i64]| Some(numbers.iter().map(|number| item(Bare::Integer(*number))).collect::<Vec<_>>());
    let bytes = |bytes: &[u8]| Some(vec![item(Bare::Bytes(bytes.into()))]);
    const ROWS: usize = 16;
    let rows: [(&[&str], Option<Vec<Item>>); ROWS] = [
        (&["1", "42"], integers(&[1, 42])),
        (&["1\t ,\t42"], integers(&[1, 42])),
        (&["1,,42"], None),
        (&["1, 42,"], None),
        (&["1234567890123456"], None),
        (&["999999999999999"], integers(&[999_999_999_999_999])),
        (&["007, -0, -5"], integers(&[7, 0, -5])),
        (&[":aGVsbG8:"], bytes(b"hello")),
        (&[":iZ==:"], bytes(&[0x89])),
        (&[":_-8=:"], None),
        (&[r#""foo \"bar\" \\ baz""#], Some(vec![item(Bare::String(r#"foo "bar" \ baz"#.into()))])),
        (&[r#""f\oo""#], None),
        (&["\"f\u{fc}\u{fc}\""], None),
        (&["limit=100, remaining=50, reset=5"], None),
        (&["?1"], Some(vec![item(Bare::Boolean(true))])),
        (&[""], Some(vec![])),
    ];
    for (at, (lines, right)) in rows.into_iter().enumerate() {
        assert_eq!(list(lines), right, "row {at}: {lines:?}");
    }
}

#[test]
fn the_reader_of_these_tests_ignores_a_malformed_field_of_limits() {
    let told = |name: &str, count, secs| Some(vec![Told { name: name.into(), count, secs }]);
    const ROWS: usize = 13;
    let rows: [(&str, Option<Vec<Told>>); ROWS] = [
        (r#""a";r=1;t=2"#, told("a", 1, Some(2))),
        (r#""a"; r=1; t=2"#, told("a", 1, Some(2))),
        (r#""a" ;r=1"#, None),
        (r#""a";r = 1"#, None),
        (r#""a";r=1;r=2"#, told("a", 2, None)),
        (r#""a";r=1.5"#, None),
        (r#""a";r=-1"#, None),
        (r#""a";t=5"#, None),
        ("a;r=1", None), // to draft 11 a name is a string
        (r#""a";r=1;acme-x=?1;flag"#, told("a", 1, None)),
        (r#""a";R=1"#, None),
        ("limit=100, remaining=50, reset=5", None),
        ("", Some(vec![])),
    ];
    for (value, right) in rows {
        assert_eq!(limits(&[value], "r", "t"), right, "{value}");
    }
}
