//! The schema of rule files, as an editor uses it.

use std::{fs, path::Path};

use serde_json::Value as Json;
use tollgate::config::Rules;

use super::data::published;

fn schema() -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/rules/schema.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Of JSON Schema what is in use there; another word is a failure. Returns whether `value` is as `wanted`.
fn fits(value: &Json, wanted: &Json, whole: &Json) -> bool {
    wanted.as_object().unwrap().iter().all(|(word, wanted_too)| match (word.as_str(), wanted_too) {
        ("$schema" | "title" | "description" | "$defs", _) => true,
        ("$ref", Json::String(to)) => fits(value, whole.pointer(to.trim_start_matches('#')).unwrap(), whole),
        ("type", Json::String(name)) => match name.as_str() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_u64() || value.is_i64(),
            "boolean" => value.is_boolean(),
            other => panic!("type {other}"),
        },
        ("minimum", least) => value.as_u64().is_none_or(|number| number >= least.as_u64().unwrap()),
        ("maximum", most) => value.as_u64().is_none_or(|number| number <= most.as_u64().unwrap()),
        ("pattern", Json::String(pattern)) => {
            let pattern = regex::Regex::new(pattern).unwrap();
            value.as_str().is_none_or(|text| pattern.is_match(text))
        }
        ("enum", Json::Array(words)) => words.contains(value),
        ("anyOf", Json::Array(forms)) => forms.iter().any(|form| fits(value, form, whole)),
        ("items", item) => value.as_array().into_iter().flatten().all(|value| fits(value, item, whole)),
        ("required", Json::Array(names)) => names.iter().all(|name| value.get(name.as_str().unwrap()).is_some()),
        ("properties", properties) => {
            let mut fields = value.as_object().into_iter().flatten();
            fields.all(|(name, value)| properties.get(name).is_none_or(|wanted| fits(value, wanted, whole)))
        }
        ("additionalProperties", others) => {
            let known = |name: &String| wanted.get("properties").is_some_and(|known| known.get(name).is_some());
            let mut fields = value.as_object().into_iter().flatten().filter(|(name, _)| !known(name));
            fields.all(|(_, value)| others != false && fits(value, others, whole))
        }
        other => panic!("{other:?}"),
    })
}

fn json(toml: &str) -> Json {
    serde_json::to_value(toml::from_str::<toml::Value>(toml).unwrap()).unwrap()
}

#[test]
fn the_published_rule_sets_are_as_the_schema_says() {
    for (name, text) in published() {
        assert!(fits(&json(&text), &schema(), &schema()), "{name}");
    }
}

/// The parts of rule files that the README and the guide show, each with its page.
fn shown() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_dir(root.join("src/guide")).unwrap().map(|page| page.unwrap().path());
    let mut files = Vec::new();
    for page in guide.chain([root.join("README.md")]) {
        let text = fs::read_to_string(&page).unwrap();
        let blocks = text.split("```toml\n").skip(1).map(|block| block.split("```").next().unwrap());
        let blocks = blocks.filter(|block| !block.contains("[dependencies]"));
        files.extend(blocks.map(|block| (page.display().to_string(), block.to_owned())));
    }
    files
}

#[test]
fn what_the_pages_show_of_rule_files_can_be_pasted() {
    let files = shown();
    assert!(files.len() >= 6, "{}", files.len());
    for (page, text) in files {
        let policies = if text.contains("[[policies]]") { "" } else { "policies = []\n" };
        let text = format!("{policies}{text}");
        assert_eq!(Rules::from_toml(&text).map(drop).map_err(|why| why.to_string()), Ok(()), "{page}\n{text}");
        assert!(fits(&json(&text), &schema(), &schema()), "{page}\n{text}");
    }
}

#[test]
fn what_an_editor_can_see_is_wrong_is_not_as_the_schema_says() {
    let broken = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules/broken");
    for name in ["slips", "limits", "durations", "words", "names", "wrong_types", "top_level_slip", "nested_entries"] {
        let text = fs::read_to_string(broken.join(format!("{name}.toml"))).unwrap();
        assert!(!fits(&json(&text), &schema(), &schema()), "{name}");
    }
}

#[test]
fn every_field_is_documented() {
    let schema = schema();
    let tables = schema["$defs"].as_object().unwrap().values().chain([&schema]);
    let fields: Vec<_> = tables.flat_map(|table| table["properties"].as_object().unwrap()).collect();
    assert!(fields.len() > 50, "{}", fields.len());
    for (name, field) in fields {
        assert!(field["description"].as_str().is_some_and(|text| text.ends_with('.')), "{name}: {field}");
    }
}
