//! The dominator tree of an input.

use crate::documents::{HolderTree, TypedJson};
use crate::question::ExportPart;
use crate::question::Question;
use crate::{Problem, Viewer};
use serde::{Deserialize, Serialize};

/// Asks for the holders of an input.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct HoldersQuery {
    /// Number of the input.
    pub(crate) input: usize,
}

impl Question for HoldersQuery {
    const NAME: &'static str = "holders";
    type Answer = TypedJson<HolderTree>;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<TypedJson<HolderTree>, Problem> {
        viewer.holders(self)
    }

    fn exported(part: &ExportPart<'_>) -> Vec<HoldersQuery> {
        match *part {
            ExportPart::Page { inputs, .. } => inputs.iter().map(|&input| HoldersQuery { input }).collect(),
            _ => Vec::new(),
        }
    }
}

impl Viewer<'_> {
    pub(crate) fn holders(&self, query: &HoldersQuery) -> Result<TypedJson<HolderTree>, Problem> {
        let loaded = self.inputs.get(query.input)?;
        self.commands.holders(loaded.input(), loaded.devices()).ok_or_else(|| Problem {
            what: "This input has no heap file.".to_owned(),
            hint: Some("Record them: `oomph run -o run train.py`.".to_owned()),
        })
    }
}
