//! The schema, made of the same types that a file is read into.

use std::{env, fs, path::Path};

use serde_json::{Map, Value as Json, json};

use super::{data::File, read::Read, shape::Shape};

/// The schema of a shape; tables are defined once, since a key may have keys in it.
fn schema(shape: &Shape, tables: &mut Map<String, Json>) -> Json {
    match shape {
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Number { least, most } => json!({"type": "integer", "minimum": least, "maximum": most}),
        Shape::Text { pattern: Some(pattern), .. } => json!({"type": "string", "pattern": pattern}),
        Shape::Text { pattern: None, .. } => json!({"type": "string"}),
        Shape::Words(words) => json!({"enum": words}),
        Shape::List(item) => json!({"type": "array", "items": schema(&item(), tables)}),
        Shape::Map(value) => json!({"type": "object", "additionalProperties": schema(&value(), tables)}),
        Shape::Either(shapes) => json!({"anyOf": shapes.iter().map(|shape| schema(shape, tables)).collect::<Vec<_>>()}),
        Shape::Table { name, .. } => {
            if !tables.contains_key(*name) {
                tables.insert((*name).into(), Json::Null);
                let made = table(shape, tables);
                tables.insert((*name).into(), made);
            }
            json!({"$ref": format!("#/$defs/{name}")})
        }
    }
}

fn table(shape: &Shape, tables: &mut Map<String, Json>) -> Json {
    let Shape::Table { fields, .. } = shape else { unreachable!("only tables have fields") };
    let mut properties = Map::new();
    for field in fields {
        let mut property = schema(&(field.shape)(), tables);
        let doc: Vec<_> = field.doc.iter().map(|line| line.trim()).collect();
        property.as_object_mut().unwrap().insert("description".into(), doc.join(" ").into());
        properties.insert(field.name.into(), property);
    }
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

fn whole() -> String {
    let mut tables = Map::new();
    let Json::Object(file) = table(&File::shape(), &mut tables) else { unreachable!("a file is a table") };
    let mut whole = Map::new();
    whole.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
    whole.insert("title".into(), "Rules of a rate limiter".into());
    whole.extend(file);
    whole.insert("required".into(), json!(["policies"]));
    whole.insert("$defs".into(), tables.into());
    serde_json::to_string_pretty(&whole).unwrap() + "\n"
}

/// With `TOLLGATE_WRITE` set it writes the file instead.
#[test]
fn the_schema_in_the_tree_is_that_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/rules/schema.json");
    if env::var_os("TOLLGATE_WRITE").is_some() {
        fs::write(&path, whole()).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == whole(),
        "{} is not current; write it anew: TOLLGATE_WRITE=1 cargo test --all-features --lib config",
        path.display()
    );
}
