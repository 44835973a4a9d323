//! Metrics as text, in the two formats that scrapers read.
//!
//! The `prometheus-client` crate writes only OpenMetrics, which node_exporter's textfile collector and
//! `promtool check metrics` do not read. Its registry is not needed either: every scrape is computed from
//! the last answers of the recorders.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Text format of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpositionFormat {
    /// Prometheus text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl ExpositionFormat {
    /// Returns the preferred format of a client, by its `Accept` header.
    pub fn wanted(accept: &str) -> ExpositionFormat {
        if accept.contains("application/openmetrics-text") {
            ExpositionFormat::OpenMetrics
        } else {
            ExpositionFormat::Prometheus
        }
    }

    /// Returns the value of the `Content-Type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            ExpositionFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            ExpositionFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Kind of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// May rise and fall.
    Gauge,
    /// Never falls; the name ends in `_total`.
    Counter,
    /// Always 1, with information in the labels; the name ends in `_info`.
    Info,
}

/// Names and values of labels, in the order in which they are written.
pub type MetricLabels = Vec<(&'static str, String)>;

/// A metric with all its series. Each set of labels has one value: Prometheus would reject a scrape with two.
pub struct Family {
    /// Name, with the suffix of its kind.
    pub name: &'static str,
    /// Help text.
    pub help: &'static str,
    /// Kind.
    pub kind: MetricKind,
    series: BTreeMap<MetricLabels, f64>,
}

impl Family {
    /// Returns a metric without series.
    pub fn new(name: &'static str, kind: MetricKind, help: &'static str) -> Family {
        Family { name, help, kind, series: BTreeMap::new() }
    }

    /// Sets the value of a series, unless it has one.
    pub fn set(&mut self, labels: MetricLabels, value: f64) {
        self.series.entry(labels).or_insert(value);
    }
}

/// Returns the metrics as text. Metrics without series are left out.
pub fn text(families: &[Family], format: ExpositionFormat) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.series.is_empty()) {
        // OpenMetrics names a family without the suffix of its samples.
        let (name, kind) = match (format, family.kind) {
            (_, MetricKind::Gauge) | (ExpositionFormat::Prometheus, MetricKind::Info) => {
                (family.name, "gauge")
            }
            (ExpositionFormat::Prometheus, MetricKind::Counter) => (family.name, "counter"),
            (ExpositionFormat::OpenMetrics, MetricKind::Counter) => {
                (family.name.trim_end_matches("_total"), "counter")
            }
            (ExpositionFormat::OpenMetrics, MetricKind::Info) => {
                (family.name.trim_end_matches("_info"), "info")
            }
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {}", family.help);
        let _ = writeln!(text, "# TYPE {name} {kind}");
        for (labels, value) in &family.series {
            text.push_str(family.name);
            for (index, (name, value)) in labels.iter().enumerate() {
                text.push(if index == 0 { '{' } else { ',' });
                let _ = write!(text, "{name}=\"{}\"", escaped(value));
            }
            if !labels.is_empty() {
                text.push('}');
            }
            let _ = writeln!(text, " {value}");
        }
    }
    if format == ExpositionFormat::OpenMetrics {
        text.push_str("# EOF\n");
    }
    text
}

/// Escapes the value of a label. Prometheus treats a zero byte as the end of the text.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families() -> Vec<Family> {
        let mut bytes = Family::new("oomph_bytes", MetricKind::Gauge, "Bytes.");
        bytes.set(vec![("job", "a \"b\"\\\n\0ü.py".to_owned()), ("rank", "0".to_owned())], 139e9);
        bytes.set(vec![("job", "a \"b\"\\\n\0ü.py".to_owned()), ("rank", "0".to_owned())], 7.0);
        let mut count = Family::new("oomph_steps_total", MetricKind::Counter, "Steps.");
        count.set(Vec::new(), 0.25);
        let mut info = Family::new("oomph_recorder_info", MetricKind::Info, "What it is.");
        info.set(vec![("pid", "7".to_owned())], 1.0);
        vec![bytes, Family::new("oomph_nothing", MetricKind::Gauge, "Left out."), count, info]
    }

    #[test]
    fn labels_are_escaped_and_have_one_value() {
        let expected = "\
# HELP oomph_bytes Bytes.
# TYPE oomph_bytes gauge
oomph_bytes{job=\"a \\\"b\\\"\\\\\\n\u{fffd}ü.py\",rank=\"0\"} 139000000000
# HELP oomph_steps_total Steps.
# TYPE oomph_steps_total counter
oomph_steps_total 0.25
# HELP oomph_recorder_info What it is.
# TYPE oomph_recorder_info gauge
oomph_recorder_info{pid=\"7\"} 1
";
        assert_eq!(text(&families(), ExpositionFormat::Prometheus), expected);
    }

    #[test]
    fn open_metrics_names_families_without_their_suffixes() {
        let text = text(&families(), ExpositionFormat::OpenMetrics);
        assert!(text.contains("# TYPE oomph_steps counter\noomph_steps_total 0.25\n"), "{text}");
        assert!(text.contains("# TYPE oomph_recorder info\noomph_recorder_info{"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn the_format_follows_the_accept_header() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(ExpositionFormat::wanted(prometheus), ExpositionFormat::OpenMetrics);
        for accept in ["", "*/*", "text/plain"] {
            assert_eq!(ExpositionFormat::wanted(accept), ExpositionFormat::Prometheus);
        }
    }
}
