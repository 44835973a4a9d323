use analysis::*;
fn main() {
    for file in std::env::args().skip(1) {
        let mut s = snapshot::open(std::path::Path::new(&file)).map_err(|e| e.cause).unwrap();
        if std::env::var("STRIP").is_ok() {
            s.annotations.clear();
        }
        for d in devices(&s) {
            let t = std::time::Instant::now();
            let o = Outline::new(&d);
            let a = t.elapsed();
            let f = findings(&o);
            println!("{{\"name\": {:?}, \"steps\": {}, \"source\": {:?}, \"outline_us\": {}, \"findings_us\": {}, \"cats\": {:?}, \"peakcats\": {:?}, \"findings\": [{}]}}", file.rsplit('/').next().unwrap().split('.').next().unwrap(), o.device.steps.count(), o.device.steps.source.name(), a.as_micros(), (t.elapsed()-a).as_micros(),
              o.course.most.0.map(|b| b.0), o.categories.at(&d.history, d.history.allocated_peak.position).0.map(|b| b.0),
              f.iter().map(|f| { let (file,line) = f.site.map_or(("",0), |x| { let fr=s.stacks.frame(x); (s.strings.get(fr.file).rsplit('/').next().unwrap(), fr.line)});
                format!("{{\"kind\": {:?}, \"severity\": {:?}, \"bps\": {}, \"bytes\": {}, \"count\": {}, \"file\": {:?}, \"line\": {}, \"summary\": {:?}, \"cause\": {:?}}}", f.kind.name(), f.severity.name(), f.bytes_per_step.map_or(0,|b|b.0), f.bytes.0, f.count, file, line, f.summary, f.cause.map_or("", |c| c.name())) }).collect::<Vec<_>>().join(", "));
        }
    }
}
