//! JSON schemas of what commands print with `--json`, made from the types that are printed.

use crate::args::JsonCommand;
use crate::commands::check::json::CheckDocument;
use crate::commands::diff::json::DiffDocument;
use crate::commands::doctor::DoctorDocument;
use crate::commands::explain::json::ExplainDocument;
use crate::commands::holders::json::HoldersDocument;
use crate::commands::lint::json::LintDocument;
use crate::commands::predict::json::PredictReport;
use crate::commands::report::json::ReportDocument;
use crate::commands::rule::RuleList;
use crate::commands::simulate::json::SimulateDocument;
use crate::commands::watch::json::WatchDocument;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::Value;

/// The schema of a command's JSON; comments of the types are its descriptions.
pub(super) fn schema(command: JsonCommand) -> Schema {
    let make: fn(SchemaGenerator) -> Schema = match command {
        JsonCommand::Check => root::<CheckDocument>,
        JsonCommand::Diff => root::<DiffDocument>,
        JsonCommand::Doctor => root::<DoctorDocument>,
        JsonCommand::Explain => root::<ExplainDocument>,
        JsonCommand::Holders => root::<HoldersDocument>,
        JsonCommand::Lint => root::<LintDocument<'_>>,
        JsonCommand::Predict => root::<PredictReport<'_>>,
        JsonCommand::Report => root::<ReportDocument>,
        JsonCommand::Rule => root::<RuleList>,
        JsonCommand::Simulate => root::<SimulateDocument>,
        JsonCommand::Watch => root::<WatchDocument<'_>>,
    };
    let settings =
        SchemaSettings::draft2020_12().for_serialize().with_transform(RecursiveTransform(join_lines));
    let mut schema = make(settings.into_generator());
    schema.insert("title".to_owned(), format!("oomph {} --json", command.name()).into());
    schema
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
