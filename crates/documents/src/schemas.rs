//! JSON schemas of the documents, made from their types.

use crate::{
    CheckDocument, DiffDocument, DoctorDocument, ExplainDocument, FitDocument, FleetDocument,
    HoldersDocument, LintDocument, PredictDocument, QueryDocument, ReportDocument, RuleDocument,
    SimulateDocument, WatchDocument,
};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::Value;

/// Makes the schema of a document.
type MakeSchema = fn(SchemaGenerator) -> Schema;

/// Commands with `--json`, and what makes the schema of each. The report of `oomph run` is that of `oomph
/// report`.
const DOCUMENTS: [(&str, MakeSchema); 14] = [
    ("check", root::<CheckDocument>),
    ("diff", root::<DiffDocument>),
    ("doctor", root::<DoctorDocument>),
    ("explain", root::<ExplainDocument>),
    ("fleet", root::<FleetDocument>),
    ("holders", root::<HoldersDocument>),
    ("lint", root::<LintDocument<'_>>),
    ("fit", root::<FitDocument<'_>>),
    ("predict", root::<PredictDocument<'_>>),
    ("query", root::<QueryDocument>),
    ("report", root::<ReportDocument>),
    ("rule", root::<RuleDocument>),
    ("simulate", root::<SimulateDocument>),
    ("watch", root::<WatchDocument<'_>>),
];

/// Returns the names of the commands that have a schema.
pub fn commands() -> impl Iterator<Item = &'static str> {
    DOCUMENTS.iter().map(|(command, _)| *command)
}

/// Returns the schema of a command's document; comments of the types are its descriptions.
pub fn schema(command: &str) -> Option<Schema> {
    let (_, make) = DOCUMENTS.iter().find(|(name, _)| *name == command)?;
    let settings =
        SchemaSettings::draft2020_12().for_serialize().with_transform(RecursiveTransform(join_lines));
    let mut schema = make(settings.into_generator());
    schema.insert("title".to_owned(), format!("oomph {command} --json").into());
    Some(schema)
}

/// A comment of several lines is one paragraph.
fn join_lines(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = text.replace('\n', " ");
    }
}

fn root<T: JsonSchema>(generator: SchemaGenerator) -> Schema {
    generator.into_root_schema_for::<T>()
}
