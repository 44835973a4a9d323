use allocator::*;
use snapshot::History;
use std::time::Instant;
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let t = Instant::now();
    let snap = snapshot::open(std::path::Path::new(&path)).unwrap();
    let t1 = t.elapsed();
    let history = History::new(&snap, 0);
    let t2 = t.elapsed();
    let recorded = Recorded::new(&snap, &history, Given::default());
    let t3 = t.elapsed();
    println!("load {t1:?} history {:?} follow {:?} ({:.1} M/s) diff {:?}", t2-t1, t3-t2, history.len() as f64/(t3-t2).as_secs_f64()/1e6, recorded.verification().difference);
    for conf in ["", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8"] {
        let conf = Conf::parse(conf, recorded.release).unwrap().conf;
        let what = WhatIf { conf, total: None, available: None, limit: None };
        let mut best = f64::MAX;
        for _ in 0..5 { let t = Instant::now(); let o = recorded.simulate(&what); best = best.min(t.elapsed().as_secs_f64()); std::hint::black_box(o); }
        let o = recorded.simulate(&what);
        println!("{best:.4} s = {:.1} M events/s  {:?} {:?}", history.len() as f64/best/1e6, o.peak_reserved_range, o.device_allocs);
    }
}
