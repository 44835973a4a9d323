//! Arguments of tools: their schema, how they are read, and the command lines that they mean.

use crate::answers::{CallError, NEXT_CALLS, NextCall, PAGE, PagePosition};
use crate::roots::AllowedPath;
use rmcp::model::JsonObject;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Returns the schema of a tool's arguments. An argument that may be left out has no `null`, which models
/// would have to know how to write.
pub(crate) fn input_schema<T: JsonSchema>() -> JsonObject {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.remove("title");
    schema.remove("description");
    for field in fields_mut(&mut schema) {
        if let Some(kinds) = field.get_mut("type").and_then(Value::as_array_mut) {
            kinds.retain(|kind| kind != "null");
            let only = kinds.first().cloned().filter(|_| kinds.len() == 1);
            field.extend(only.map(|kind| ("type".to_owned(), kind)));
        }
        if field.get("default").is_some_and(Value::is_null) {
            field.remove("default");
        }
        if let Some(Value::String(text)) = field.get_mut("description") {
            *text = text.replace('\n', " ");
        }
    }
    object(schema)
}

fn fields_mut(schema: &mut Schema) -> impl Iterator<Item = &mut serde_json::Map<String, Value>> {
    let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
    fields.into_iter().flat_map(|fields| fields.values_mut()).filter_map(Value::as_object_mut)
}

/// Returns the schema of a tool's structured content: that of its command, and the fields that all tools add.
/// A command that prints a list has it in the field `list`.
pub(crate) fn output_schema(command: &str, list: Option<&str>) -> JsonObject {
    let mut schema = object(documents::schema(command).unwrap_or_default());
    if let Some(list) = list {
        let definitions = schema.remove("$defs").unwrap_or_default();
        let items = std::mem::take(&mut schema);
        let content = json!({"properties": {list: items}, "required": [list], "$defs": definitions});
        schema.extend(content.as_object().cloned().unwrap_or_default());
    }
    with_added_fields(schema)
}

/// Returns the schema of a document that no command prints.
pub(crate) fn schema_of<T: JsonSchema>() -> JsonObject {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    with_added_fields(object(settings.into_generator().into_root_schema_for::<T>()))
}

fn with_added_fields(mut schema: JsonObject) -> JsonObject {
    let settings = || SchemaSettings::draft2020_12().for_serialize().with(|to| to.inline_subschemas = true);
    let plain = |schema: Schema| {
        let mut schema = object(schema);
        schema.remove("$schema");
        Value::from(schema)
    };
    let page = plain(settings().into_generator().into_root_schema_for::<PagePosition>());
    let next = plain(settings().into_generator().into_root_schema_for::<Vec<NextCall>>());
    let fields = schema.entry("properties").or_insert_with(|| json!({}));
    if let Some(fields) = fields.as_object_mut() {
        fields.insert(PAGE.to_owned(), page);
        fields.insert(NEXT_CALLS.to_owned(), next);
    }
    schema.insert("type".to_owned(), "object".into());
    schema
}

fn object(schema: Schema) -> JsonObject {
    schema.as_object().cloned().unwrap_or_default()
}

/// Reads the arguments of a tool; those that it does not know are errors that list its own.
pub(crate) fn read<T: DeserializeOwned + JsonSchema>(
    tool: &str,
    arguments: JsonObject,
) -> Result<T, CallError> {
    serde_json::from_value(Value::Object(arguments)).map_err(|error| {
        let schema = input_schema::<T>();
        let names = |list: &Value| list.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>());
        let known = schema.get("properties").and_then(names).unwrap_or_default();
        CallError::new(&format!("invalid arguments of `{tool}`"), &error.to_string())
            .hinting(&format!("its arguments are {}", known.join(", ")))
    })
}

/// A command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CommandLine {
    words: Vec<OsString>,
    has_options: bool,
}

impl CommandLine {
    pub(crate) fn new(command: &str) -> CommandLine {
        CommandLine { words: vec![command.into()], has_options: true }
    }

    /// Adds an option with a value, which cannot be taken for another option.
    pub(crate) fn option(mut self, name: &str, value: impl ToString) -> CommandLine {
        self.words.push(format!("--{name}={}", value.to_string()).into());
        self
    }

    /// Adds an option if there is a value for it.
    pub(crate) fn optional(self, name: &str, value: Option<impl ToString>) -> CommandLine {
        match value {
            Some(value) => self.option(name, value),
            None => self,
        }
    }

    /// Adds an option without a value.
    pub(crate) fn flag(mut self, name: &str, is_set: bool) -> CommandLine {
        self.words.extend(is_set.then(|| format!("--{name}").into()));
        self
    }

    /// Adds an option whose value is a path.
    pub(crate) fn path_option(mut self, name: &str, path: Option<&Path>) -> CommandLine {
        self.words.extend(path.map(|path| {
            let mut word = OsString::from(format!("--{name}="));
            word.push(path);
            word
        }));
        self
    }

    /// Adds a word that is not an option, whatever it begins with.
    pub(crate) fn operand(mut self, word: impl Into<OsString>) -> CommandLine {
        if std::mem::take(&mut self.has_options) {
            self.words.push("--".into());
        }
        self.words.push(word.into());
        self
    }

    /// Returns the words, with an option more.
    pub(crate) fn words_with(&self, option: Option<&str>) -> Vec<OsString> {
        let mut words = self.words.clone();
        words.splice(1..1, option.map(OsString::from));
        words
    }

    /// Returns the command line as people would write it.
    pub(crate) fn shown(&self) -> String {
        let words = self.words.iter().filter(|word| *word != "--").map(|word| word.to_string_lossy());
        let quoted =
            words.map(|word| if word.contains(' ') { format!("'{word}'") } else { word.into_owned() });
        format!("`oomph {}`", quoted.collect::<Vec<_>>().join(" "))
    }
}

/// Returns how a command that works in `root` names a path.
pub(crate) fn word_for(path: &AllowedPath, root: &Path) -> PathBuf {
    if path.root == root { path.inner.clone() } else { path.whole() }
}
