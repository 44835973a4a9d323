//! Routes of the exporter.

use crate::access::Access;
use crate::exposition::{self, ExpositionFormat};
use crate::metrics;
use live::{ExporterAnswer, Watcher};
use serve::{Request, Response};

/// Text of the start page.
const INDEX_PAGE: &str = "\
oomph exporter: GPU memory of the PyTorch programs on this machine

/metrics      for Prometheus
/live         the same and more as JSON, for `oomph watch HOST:PORT`
/-/healthy    health check
";

/// Answers a request.
pub fn respond(request: &Request, access: &Access, watcher: &Watcher) -> Response {
    let path = request.path.split('?').next().unwrap_or_default();
    if let Some(refused) = access.refusal(request, path) {
        return refused;
    }
    match path {
        "/metrics" => {
            let format = ExpositionFormat::wanted(&request.accept);
            Response::new(format.content_type(), exposition::text(&metrics::families(watcher), format))
        }
        "/live" => Response::new("application/json", serde_json::to_vec(&live(watcher)).unwrap_or_default()),
        "/" => Response::new("text/plain; charset=utf-8", INDEX_PAGE),
        "/-/healthy" => Response::new("text/plain; charset=utf-8", "ok\n"),
        _ => Response::problem(404, "no such page", Some("/ lists the pages")),
    }
}

fn live(watcher: &Watcher) -> ExporterAnswer {
    watcher.forget_exited();
    let recorders = watcher.recorders().into_iter().map(|(_, recorder)| recorder.state_with_steps());
    ExporterAnswer { version: 1, recorders: recorders.collect(), gpus: watcher.gpus().unwrap_or_default() }
}
