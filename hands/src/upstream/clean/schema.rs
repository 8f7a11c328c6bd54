//! JSON Schemas that come from a server: bounded, and without references that lead out of them.

use serde_json::{Map, Value};

use crate::mcp::Object;

/// Deepest nesting of a schema.
const DEPTH_MAX: usize = 64;
/// Most objects and lists in a schema.
const NODES_MAX: usize = 10_000;
/// Members whose values are data and no schemas.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// Takes away every reference that does not point into the schema itself. `called` is the schema's name in a sentence.
pub(super) fn clean(schema: &mut Object, called: &str, changes: &mut Vec<String>) -> Result<(), String> {
    let mut walk = Walk { nodes: 0, removed: Vec::new() };
    walk.object(schema, 1).map_err(|why| format!("its {called} {why}"))?;
    changes.extend(
        walk.removed.into_iter().map(|reference| {
            format!("its {called} refers to {reference:?}, which is not followed: taken away")
        }),
    );
    Ok(())
}

struct Walk {
    nodes: usize,
    removed: Vec<String>,
}

impl Walk {
    fn object(&mut self, object: &mut Map<String, Value>, depth: usize) -> Result<(), String> {
        self.step(depth)?;
        for key in ["$ref", "$dynamicRef", "$recursiveRef"] {
            if let Some(Value::String(reference)) = object.get(key)
                && !reference.starts_with('#')
            {
                self.removed.push(reference.clone());
                object.remove(key);
            }
        }
        let schemas = object.iter_mut().filter(|(key, _)| !DATA.contains(&key.as_str()));
        for (_, value) in schemas {
            self.value(value, depth + 1)?;
        }
        Ok(())
    }

    fn value(&mut self, value: &mut Value, depth: usize) -> Result<(), String> {
        match value {
            Value::Object(object) => self.object(object, depth),
            Value::Array(items) => {
                self.step(depth)?;
                items.iter_mut().try_for_each(|item| self.value(item, depth + 1))
            }
            _ => Ok(()),
        }
    }

    fn step(&mut self, depth: usize) -> Result<(), String> {
        self.nodes += 1;
        if depth > DEPTH_MAX {
            return Err(format!("is nested deeper than {DEPTH_MAX}"));
        }
        if self.nodes > NODES_MAX {
            return Err(format!("has more than {NODES_MAX} parts"));
        }
        Ok(())
    }
}
