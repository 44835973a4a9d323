//! What there is to read.

use crate::access::Access;
use crate::exposition::{self, Format};
use crate::metrics;
use live::{ExporterAnswer, Watcher};
use serve::{Request, Response};

const WELCOME: &str = "\
oomph exporter: GPU memory of the PyTorch programs on this machine

/metrics      for Prometheus
/live         the same and more as JSON, for `oomph watch HOST:PORT`
/-/healthy    whether it runs
";

pub fn reply(asked: &Request, access: &Access, followers: &Watcher) -> Response {
    let path = asked.path.split('?').next().unwrap_or_default();
    if let Some(refused) = access.refusal(asked, path) {
        return refused;
    }
    match path {
        "/metrics" => {
            let format = Format::wanted(&asked.accept);
            Response::new(format.content_type(), exposition::text(&metrics::families(followers), format))
        }
        "/live" => {
            Response::new("application/json", serde_json::to_vec(&live(followers)).unwrap_or_default())
        }
        "/" => Response::new("text/plain; charset=utf-8", WELCOME),
        "/-/healthy" => Response::new("text/plain; charset=utf-8", "it runs\n"),
        _ => Response::problem(404, "there is no such page", Some("/ says which there are")),
    }
}

fn live(followers: &Watcher) -> ExporterAnswer {
    followers.forget_exited();
    let recorders = followers.recorders().into_iter().map(|(_, followed)| followed.state_with_steps());
    ExporterAnswer { version: 1, recorders: recorders.collect(), gpus: followers.gpus().unwrap_or_default() }
}
