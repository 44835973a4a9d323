use allocator::*;
use snapshot::History;
fn main() {
    let (mut n, mut ok) = (0, 0);
    let cases: serde_json::Value = serde_json::from_str(&std::fs::read_to_string("fixtures/traffic/cases.json").unwrap_or("[]".into())).unwrap();
    let with_limit = std::env::var("LIMIT").is_ok();
    for arg in std::env::args().skip(1) {
        let mut snap = match snapshot::open(std::path::Path::new(&arg)) { Ok(s) => s, Err(_) => continue };
        let file = std::path::Path::new(&arg).file_name().unwrap().to_string_lossy().into_owned();
        let case = cases.as_array().unwrap().iter().find(|c| c["file"] == file.as_str());
        let release = file.strip_prefix("2.").and_then(|s| s.split('.').next()).and_then(|s| s.parse().ok()).map(Release);
        let conf = case.filter(|_| release.is_some_and(|r| r.0 < 3)).map(|c| Conf::parse(c["conf"].as_str().unwrap(), release.unwrap()).unwrap().conf);
        let limit = case.filter(|_| with_limit).and_then(|c| c["limit"].as_u64());
        if let Some(c) = &conf { c.replace_in(&mut snap.settings); }
        for device in snap.devices() {
            let history = History::new(&snap, device);
            let recorded = Recorded::new(&snap, &history, Given { release, conf: conf.clone(), limit, total: case.filter(|_| std::env::var("TOTAL").is_ok()).and_then(|c| c["device_total"].as_u64()) });
            let v = recorded.verification();
            n += 1;
            match v.difference { None => ok += 1, Some(d) => println!("{file} {} {} cut{} {}: {d}", case.map(|c| c["conf"].to_string()).unwrap_or_default(), case.map(|c| c["tags"].to_string()).unwrap_or_default(), case.map(|c| c["cut"].to_string()).unwrap_or_default(), v.events) }
        }
    }
    println!("{ok} of {n} identical");
}
