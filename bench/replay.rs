//! How fast recorded runs are replayed: one core, nothing but the replay itself on the clock.
//!
//!     cargo run --release -p oomph-allocator --example replay -- FILE [ROUNDS]
//!
//! Prints one JSON object: events, seconds to follow the record (what `--verify` does), and for a few settings the
//! seconds of one replay; fastest and median each.

use allocator::{Conf, KnownConditions, RecordedRun, WhatIf};
use snapshot::History;
use std::path::PathBuf;
use std::time::Instant;

const SETTINGS: [&str; 4] =
    ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8"];

#[allow(clippy::print_stdout)] // a program of its own
fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().expect("the path of a snapshot"));
    let rounds: usize = arguments.next().map_or(9, |count| count.parse().expect("a number of rounds"));
    let snapshot = snapshot::open(&path).expect("a snapshot");
    let device = snapshot.devices()[0];
    let history = History::new(&snapshot, device);
    let mut following = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        std::hint::black_box(RecordedRun::new(&snapshot, &history, KnownConditions::default()));
        following.push(start.elapsed().as_secs_f64());
    }
    let recorded = RecordedRun::new(&snapshot, &history, KnownConditions::default());
    let mut replays = serde_json::Map::new();
    for text in SETTINGS {
        let conf = Conf::parse(text, recorded.release).expect("settings").conf;
        let what = WhatIf { conf: conf.into(), total: None, available: None, limit: None };
        let mut seconds = Vec::new();
        for _ in 0..rounds {
            let start = Instant::now();
            std::hint::black_box(recorded.replay_once(&what));
            seconds.push(start.elapsed().as_secs_f64());
        }
        replays.insert(text.to_owned(), figures(seconds));
    }
    println!(
        "{}",
        serde_json::json!({ "events": history.len(), "follow": figures(following), "replay": replays })
    );
}

fn figures(mut seconds: Vec<f64>) -> serde_json::Value {
    seconds.sort_by(f64::total_cmp);
    serde_json::json!({ "fastest": seconds[0], "median": seconds[seconds.len() / 2] })
}
