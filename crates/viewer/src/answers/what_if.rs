//! A replay with other settings or on another GPU, and the run that it gives.

use super::overview::RunOverview;
use crate::documents::{ReplayReport, TypedJson};
use crate::no_such_run;
use crate::question::Question;
use crate::run::runs::{LoadedInput, RunInput};
use crate::{Problem, Viewer, WhatIf};
use recording::Recording;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, PoisonError};

/// Asks for a replay.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ts_rs::TS), ts(optional_fields))]
pub(crate) struct WhatIfQuery {
    /// Number of the recorded run.
    pub(crate) run: usize,
    /// Settings as in `PYTORCH_CUDA_ALLOC_CONF`; the recorded ones if absent.
    pub(crate) conf: Option<String>,
    /// Memory of the GPU in bytes; the recorded limit if absent.
    pub(crate) gpu: Option<u64>,
    /// Share of the GPU that the process may use.
    pub(crate) fraction: Option<f64>,
}

impl Question for WhatIfQuery {
    const NAME: &'static str = "whatif";
    type Answer = WhatIfAnswer;

    fn answer(&self, viewer: &Viewer<'_>) -> Result<WhatIfAnswer, Problem> {
        viewer.what_if(self)
    }
}

/// The outcome of a replay.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
pub(crate) struct WhatIfAnswer {
    /// What `oomph simulate --json` prints.
    answer: TypedJson<ReplayReport>,
    /// Remarks of the command.
    notes: Vec<String>,
    /// The replayed run, for every other view.
    #[cfg_attr(test, ts(as = "RunOverview"))]
    run: Option<RunOverview>,
}

impl Viewer<'_> {
    pub(crate) fn what_if(&self, query: &WhatIfQuery) -> Result<WhatIfAnswer, Problem> {
        let WhatIfQuery { run, conf, gpu, fraction } = query.clone();
        let recorded = self.loaded(run)?;
        let view = recorded.view(run).ok_or_else(no_such_run)?;
        let replayed = self.commands.what_if(view.device(), &WhatIf { conf, gpu, fraction })?;
        let name = name_of(&replayed.snapshot.settings.conf, gpu);
        let input = RunInput { name, snapshot: replayed.snapshot, recording: Recording::default() };
        // Explaining the replay takes a while; other questions are answered meanwhile, so the lock is taken
        // twice.
        let numbers = self.what_ifs.write().unwrap_or_else(PoisonError::into_inner).number(&input);
        let added = Arc::new(LoadedInput::new(input, true, numbers));
        self.what_ifs.write().unwrap_or_else(PoisonError::into_inner).add(added.clone());
        Ok(WhatIfAnswer {
            answer: replayed.report,
            notes: replayed.notes,
            run: RunOverview::all_of(&added).next(),
        })
    }
}

/// Name of a replayed run: `what if: expandable_segments:True on 24.0 GiB`.
fn name_of(conf: &str, gpu: Option<u64>) -> String {
    let settings = if conf.is_empty() { "PyTorch's defaults" } else { conf };
    let gpu = gpu.map(|bytes| format!(" on {}", snapshot::Bytes(bytes))).unwrap_or_default();
    format!("what if: {settings}{gpu}")
}
