//! How fast one snapshot is decoded: from the bytes of a file in the page cache to tables, without analysis.
//!
//!     cargo run --release -p oomph-snapshot --example decode -- FILE [ROUNDS]
//!
//! Prints one line of JSON: cores that it may use, bytes, events, and seconds of the fastest and the median
//! round. Limit the cores with `taskset -c 0-3`.

use std::path::PathBuf;
use std::time::Instant;

#[allow(clippy::print_stdout)] // a program of its own
fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().expect("the path of a snapshot"));
    let rounds: usize = arguments.next().map_or(5, |count| count.parse().expect("a number of rounds"));
    let bytes = std::fs::metadata(&path).expect("a file").len();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (mut seconds, mut events) = (Vec::new(), 0);
    for _ in 0..rounds {
        let start = Instant::now();
        let snapshot = snapshot::open(&path).expect("a snapshot");
        seconds.push(start.elapsed().as_secs_f64());
        events = snapshot.events.len();
    }
    seconds.sort_by(f64::total_cmp);
    let (fastest, median) = (seconds[0], seconds[seconds.len() / 2]);
    let rate = bytes as f64 / fastest / 1e9;
    println!(
        "{{\"cores\": {cores}, \"bytes\": {bytes}, \"events\": {events}, \
         \"fastest\": {fastest:.4}, \"median\": {median:.4}, \"gb_per_second\": {rate:.2}}}"
    );
}
