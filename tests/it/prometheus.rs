//! A strict reader of Prometheus' text format, version 0.0.4: what it takes, a scraper takes.

use std::collections::BTreeMap;

/// What a page of metrics says: the type of each family, and the value of each series by its name and sorted labels.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) types: BTreeMap<String, String>,
    pub(crate) series: BTreeMap<String, f64>,
}

impl Page {
    /// Reads a page, or says what is wrong with it.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut page = Self::default();
        if !text.is_empty() && !text.ends_with('\n') {
            return Err("the last line does not end".into());
        }
        for line in text.lines().filter(|line| !line.is_empty()) {
            page.line(line).map_err(|why| format!("{why}: {line}"))?;
        }
        Ok(page)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(comment) = line.strip_prefix("# ") {
            return match comment.split_once(' ') {
                Some(("HELP", help)) => is_name(help.split(' ').next().unwrap_or("")),
                Some(("TYPE", of)) => {
                    let (name, kind) = of.split_once(' ').ok_or("a type of nothing")?;
                    is_name(name)?;
                    if !["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind) {
                        return Err("no such type".into());
                    }
                    if self.series.keys().any(|series| family_of(series) == name) {
                        return Err("a type after its series".into());
                    }
                    match self.types.insert(name.into(), kind.into()) {
                        Some(_) => Err("two types of one name".into()),
                        None => Ok(()),
                    }
                }
                _ => Ok(()),
            };
        }
        let (name, rest) = line.split_at(line.find(['{', ' ']).ok_or("no value")?);
        is_name(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Vec::new(), rest),
        };
        let value = value.strip_prefix(' ').ok_or("no blank before the value")?;
        let number: f64 = match value {
            "+Inf" | "-Inf" | "NaN" => return Err("no count is that".into()),
            value => value.parse().map_err(|_| "no number")?,
        };
        let known = |suffix: &str| name.strip_suffix(suffix).is_some_and(|family| self.types.contains_key(family));
        if !self.types.contains_key(name) && !["_sum", "_count", "_bucket"].into_iter().any(known) {
            return Err("a series without a type".into());
        }
        match self.series.insert(series(name, labels), number) {
            Some(_) => Err("one series twice".into()),
            None => Ok(()),
        }
    }

    /// The value of the series `name` with `labels`, if there is one.
    pub(crate) fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|(label, value)| ((*label).into(), (*value).into())).collect();
        self.series.get(&series(name, labels)).copied()
    }
}

fn series(name: &str, mut labels: Vec<(String, String)>) -> String {
    labels.sort();
    format!("{name}{labels:?}")
}

fn family_of(series: &str) -> &str {
    series.split('[').next().unwrap_or(series)
}

fn is_name(name: &str) -> Result<(), String> {
    let fits = |(at, char): (usize, char)| {
        matches!(char, 'a'..='z' | 'A'..='Z' | '_' | ':') || at > 0 && char.is_ascii_digit()
    };
    if !name.is_empty() && name.char_indices().all(fits) { Ok(()) } else { Err(format!("`{name}` is no name")) }
}

/// What a line says of its labels, and what follows them.
type Labels<'a> = (Vec<(String, String)>, &'a str);

fn labels(mut rest: &str) -> Result<Labels<'_>, String> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        let (label, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        is_name(label)?;
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next().ok_or("a value does not end")? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, char @ ('\\' | '"'))) => char,
                    _ => return Err("no such escape".into()),
                }),
                (_, char) => value.push(char),
            }
        };
        labels.push((label.into(), value));
        rest = &after[end + 1..];
        rest = match rest.strip_prefix(',') {
            Some(rest) => rest,
            None if rest.starts_with('}') => rest,
            None => return Err("labels that are not apart".into()),
        };
    }
}

#[test]
fn takes_pages_that_are_well_formed_and_no_others() {
    let page = Page::read(
        "# HELP a_total How many\n# TYPE a_total counter\na_total{rule=\"x\",outcome=\"a\\\"b\"} 3\n\n# TYPE g gauge\ng 1.5\n\
         # TYPE s summary\ns{quantile=\"0.5\"} 0.25\ns_sum 2\ns_count 4\n",
    )
    .unwrap();
    assert_eq!(page.get("a_total", &[("outcome", "a\"b"), ("rule", "x")]), Some(3.0));
    assert_eq!((page.get("g", &[]), page.get("s_count", &[]), page.get("h", &[])), (Some(1.5), Some(4.0), None));
    for (text, why) in [
        ("a 1", "does not end"),
        ("a 1\n", "without a type"),
        ("# TYPE a counter\na\n", "no value"),
        ("# TYPE a counter\na{b=c} 1\n", "without a value"),
        ("# TYPE a counter\na{b=\"c\"d=\"e\"} 1\n", "not apart"),
        ("# TYPE a counter\na{b=\"c} 1\n", "does not end"),
        ("# TYPE a counter\na one\n", "no number"),
        ("# TYPE a counter\na 1\na 1\n", "twice"),
        ("# TYPE a counter\n# TYPE a gauge\n", "two types"),
        ("# TYPE a number\n", "no such type"),
        ("# TYPE 1a counter\n", "no name"),
    ] {
        let error = Page::read(text).unwrap_err();
        assert!(error.contains(why), "{text:?}: {error}");
    }
}
