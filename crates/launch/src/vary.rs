//! Variants of a program: with other values of an argument (`--vary`), or with a memory-saving technique
//! switched on (`--try`).

use crate::predict::predict_variant;
use crate::{
    Job, OutputFolder, Prediction, ProgramOutput, RankPlan, RunFolder, check_not_stopped, in_parallel,
};
use failure::Failure;
use std::collections::BTreeMap;
use std::ffi::OsString;

/// The argument and values of `--vary`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Vary {
    name: String,
    values: Values,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Values {
    Listed(Vec<String>),
    /// Search for the largest number that fits, between these two.
    Between(u64, u64),
}

/// Number of programs that run in parallel: each takes a gigabyte or two of host memory.
const MAX_PARALLEL_RUNS: usize = 2;

/// Results of all variants of a program.
#[derive(Default)]
pub struct Variants {
    /// Runs of `--vary`.
    pub varied: Option<ValueSweep>,
    /// Runs of `--try`, one per technique.
    pub tried: Vec<Variant>,
}

/// Runs with different values of one argument (`--vary`).
pub struct ValueSweep {
    /// Name of the argument.
    pub name: String,
    /// One run per value.
    pub runs: Vec<Variant>,
    /// Largest value that fits, if the values are numbers.
    pub largest: Option<u64>,
    /// Which layouts fit, if the values are layouts of a job's ranks.
    pub layouts: Option<FittingLayouts>,
}

/// Layouts of a job's ranks that fit, of those that were tried.
pub struct FittingLayouts {
    /// The first that fits, in the order of the user.
    pub first: Option<String>,
    /// The one that needs least.
    pub least: Option<String>,
}

/// One run of a changed program.
pub struct Variant {
    /// The value or technique.
    pub label: String,
    /// The prediction, or why the program failed.
    pub outcome: Result<Prediction, String>,
}

impl ValueSweep {
    /// Whether no value changed anything: the program most likely does not read the argument.
    pub fn has_no_effect(&self) -> bool {
        let mut found = self.runs.iter().map(|run| run.outcome.as_ref().map(|found| &found.highest));
        let first = found.next();
        self.runs.len() > 1 && matches!(first, Some(Ok(_))) && found.all(|other| Some(other) == first)
    }
}

impl Vary {
    /// Parses `batch_size=8,16,32` or `batch_size=8..512`.
    pub fn parse(text: &str) -> Result<Vary, String> {
        const EXPECTED: &str =
            "expected NAME=VALUE,VALUE… or NAME=SMALLEST..LARGEST, such as batch_size=8,16,32";
        let (name, values) = text.split_once('=').ok_or(EXPECTED)?;
        let values = match values.split_once("..") {
            Some((low, high)) => {
                let bound = |text: &str| text.parse::<u64>().map_err(|_| EXPECTED.to_owned());
                let (low, high) = (bound(low)?, bound(high)?);
                if low == 0 || low > high {
                    return Err("expected a smallest number of at least 1 and a larger one".to_owned());
                }
                Values::Between(low, high)
            }
            None => Values::Listed(values.split(',').map(|value| value.trim().to_owned()).collect()),
        };
        let is_empty = matches!(&values, Values::Listed(list) if list.iter().any(String::is_empty));
        if name.trim_start_matches('-').is_empty() || is_empty {
            return Err(EXPECTED.to_owned());
        }
        Ok(Vary { name: name.trim_start_matches('-').to_owned(), values })
    }
}

impl Variants {
    /// Runs a program with each value of `vary`, and with each of `techniques`.
    pub fn run(vary: Option<&Vary>, techniques: &[String], job: &Job) -> anyhow::Result<Variants> {
        let varied = vary.map(|vary| varied(vary, job)).transpose()?;
        Ok(Variants { varied, tried: try_techniques(techniques, job) })
    }
}

/// Runs a program once for each of these techniques, or combinations of them joined by `+`.
pub fn try_techniques(techniques: &[String], job: &Job) -> Vec<Variant> {
    let jobs: Vec<(String, Job)> =
        techniques.iter().map(|name| (name.clone(), with_technique(job, name))).collect();
    run_all(&jobs, "trying techniques")
}

fn varied(vary: &Vary, job: &Job) -> anyhow::Result<ValueSweep> {
    if let Some(layouts) = mesh_layouts(vary, job)? {
        let runs = run_all(&layouts, "trying layouts");
        let needs = |run: &&Variant| run.outcome.as_ref().map_or(u64::MAX, |found| found.highest.total().0);
        let label = |run: &Variant| run.label.clone();
        let layouts = FittingLayouts {
            first: runs.iter().find(|run| run.fits()).map(label),
            least: runs.iter().filter(|run| run.fits()).min_by_key(needs).map(label),
        };
        return Ok(ValueSweep { name: vary.name.clone(), runs, largest: None, layouts: Some(layouts) });
    }
    let with = |value: &str| (value.to_owned(), with_value(job, &vary.name, value));
    let runs = match &vary.values {
        Values::Listed(values) => {
            let jobs: Vec<(String, Job)> = values.iter().map(|value| with(value)).collect();
            run_all(&jobs, "trying values")
        }
        Values::Between(low, high) => search_largest(*low, *high, |value| {
            (job.progress.say)(&format!("trying {} = {value}", vary.name));
            run_one(&with(&value.to_string()))
        })?,
    };
    let fitting = runs.iter().filter(|run| run.fits());
    let largest = fitting.filter_map(|run| run.label.parse::<u64>().ok()).max();
    Ok(ValueSweep { name: vary.name.clone(), runs, largest, layouts: None })
}

/// Returns the job with each layout of `--vary mesh=dp8,dp4tp2`. An argument or variable of the program with
/// that name comes first.
fn mesh_layouts(vary: &Vary, job: &Job) -> anyhow::Result<Option<Vec<(String, Job)>>> {
    let (Some(plan), Values::Listed(values)) = (&job.ranks, &vary.values) else { return Ok(None) };
    let is_own = |word: &OsString| {
        let word = word.to_string_lossy();
        word.trim_start_matches('-').split('=').next() == Some("mesh") && word != "mesh"
    };
    if vary.name != "mesh" || std::env::var_os("mesh").is_some() || job.command.iter().any(is_own) {
        return Ok(None);
    }
    let layout = |value: &String| {
        let mesh = parsed_mesh(value).ok_or_else(|| {
            Failure::new(
                format!("`{value}` is not a layout of ranks"),
                None,
                Some("name the dimensions of the program's device mesh with their sizes, such as dp4tp2"),
            )
        })?;
        let plan = RankPlan { mesh: Some(mesh), layout: None, ..plan.clone() };
        Ok((value.clone(), Job { ranks: Some(plan), template: None, ..job.clone() }))
    };
    values.iter().map(layout).collect::<anyhow::Result<Vec<_>>>().map(Some)
}

/// Parses `dp4tp2`: names with sizes.
fn parsed_mesh(text: &str) -> Option<BTreeMap<String, u32>> {
    let mut mesh = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| letter.is_ascii_digit()).filter(|&at| at > 0)?;
        let (name, after) = rest.split_at(digits);
        let end = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
        let size = after[..end].parse().ok().filter(|&size| size > 0)?;
        if mesh.insert(name.trim_matches(['_', '-', 'x', '*']).to_owned(), size).is_some() {
            return None;
        }
        rest = &after[end..];
    }
    (!mesh.is_empty()).then_some(mesh)
}

impl Variant {
    /// Returns the prediction, or why there is none with all techniques applied, in words.
    pub fn result(&self) -> Result<&Prediction, String> {
        let prediction = self.outcome.as_ref().map_err(|why| format!("the program fails with it: {why}"))?;
        let refusal = prediction.techniques().values().find(|text| text.starts_with("not applied: "));
        refusal.map_or(Ok(prediction), |refusal| Err(refusal.clone()))
    }

    /// Returns whether the variant ran and fits for the steps that ran.
    pub fn fits(&self) -> bool {
        self.outcome.as_ref().is_ok_and(|prediction| prediction.verdict.fits_now())
    }
}

/// Searches for the largest number that fits, to within 1/16 of it. Tries next the number at which a straight
/// line through the memory of the nearest two runs reaches the memory of the GPU.
fn search_largest(low: u64, high: u64, mut run: impl FnMut(u64) -> Variant) -> anyhow::Result<Vec<Variant>> {
    let first = run(low);
    if let Err(why) = &first.outcome {
        return Err(Failure::new(format!("the program fails with {low}"), Some(why.clone()), None).into());
    }
    let mut runs = BTreeMap::from([(low, first)]);
    if low < high && runs[&low].fits() {
        runs.insert(high, run(high));
    }
    let (mut fits, mut fails) = (low, high);
    while runs[&low].fits()
        && !runs[&high].fits()
        && fails - fits > (fits / 16).max(1)
        && check_not_stopped().is_ok()
    {
        let next = interpolated(&runs[&fits], fits, &runs[&fails], fails)
            .map_or(fits + (fails - fits) / 2, |number| number.max(fits + (fits / 16).max(1)));
        let variant = run(next);
        if variant.fits() {
            fits = next
        } else {
            fails = next
        }
        runs.insert(next, variant);
    }
    let mut runs: Vec<Variant> = runs.into_values().collect();
    runs.retain(|variant| variant.outcome.is_ok() || check_not_stopped().is_ok());
    Ok(runs)
}

/// Returns the number at which a straight line through the memory of two runs reaches the memory of the
/// GPU, if it lies between them.
fn interpolated(fits: &Variant, low: u64, fails: &Variant, high: u64) -> Option<u64> {
    let (Ok(fits), Ok(fails)) = (&fits.outcome, &fails.outcome) else { return None };
    let (below, above) = (fits.highest.total().0 as f64, fails.highest.total().0 as f64);
    let share = (fits.memory as f64 - below) / (above - below);
    let number = low as f64 + share * (high - low) as f64;
    ((low as f64)..(high as f64)).contains(&number).then_some(number as u64)
}

/// Runs programs; without those that a signal to this process has kept from running to their end.
fn run_all(jobs: &[(String, Job)], what: &'static str) -> Vec<Variant> {
    let Some((_, first)) = jobs.first() else { return Vec::new() };
    let advance = (first.progress.steps)(what, jobs.len());
    let mut variants = in_parallel(jobs, MAX_PARALLEL_RUNS, |job| {
        let variant = run_one(job);
        advance();
        variant
    });
    variants.retain(|variant| variant.outcome.is_ok() || check_not_stopped().is_ok());
    variants
}

fn run_one((label, job): &(String, Job)) -> Variant {
    let job = Job { output: ProgramOutput::Captured, ..job.clone() };
    let outcome = RunFolder::new(OutputFolder::Temporary).and_then(|folder| predict_variant(&job, &folder));
    Variant { label: label.clone(), outcome: outcome.map_err(why) }
}

fn why(error: anyhow::Error) -> String {
    let failure = Failure::from(error);
    failure.cause().map_or_else(|| failure.to_string(), str::to_owned)
}

/// Returns the program with another value of an argument: an option in its command, `name=value` as
/// configuration frameworks take it, an environment variable that is set, or a new option.
fn with_value(job: &Job, name: &str, value: &str) -> Job {
    let mut job = job.clone();
    let same = |text: &str| text.trim_start_matches('-').replace('-', "_") == name.replace('-', "_");
    let words = job.command.clone();
    for (index, word) in words.iter().enumerate().skip(1) {
        let word = word.to_string_lossy();
        match word.split_once('=') {
            Some((key, _)) if same(key) => {
                job.command[index] = OsString::from(format!("{key}={value}"));
                return job;
            }
            None if word.starts_with('-') && same(&word) && index + 1 < words.len() => {
                job.command[index + 1] = value.into();
                return job;
            }
            _ => {}
        }
    }
    if std::env::var_os(name).is_some() {
        job.environment.push((name.to_owned(), value.to_owned()));
    } else {
        job.command.push(format!("--{}={value}", spelled(name, &words)).into());
    }
    job
}

/// Returns `batch_size` or `batch-size`, whichever is an option of the script; otherwise `name` itself.
fn spelled(name: &str, command: &[OsString]) -> String {
    let script = command.get(1).and_then(|script| std::fs::read_to_string(script).ok()).unwrap_or_default();
    [name.to_owned(), name.replace('_', "-"), name.replace('-', "_")]
        .into_iter()
        .find(|spelling| script.contains(&format!("--{spelling}")))
        .unwrap_or_else(|| name.to_owned())
}

/// Returns the program with techniques switched on, several joined by `+`.
fn with_technique(job: &Job, names: &str) -> Job {
    const EXPANDABLE: &str = "expandable";
    const SETTING: &str = "expandable_segments:True";
    let mut job = job.clone();
    for name in names.split('+') {
        if name == EXPANDABLE {
            // The newer name wins where both are set.
            let variable = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"]
                .into_iter()
                .find(|name| std::env::var_os(name).is_some());
            let variable = variable.unwrap_or("PYTORCH_CUDA_ALLOC_CONF");
            let others = std::env::var(variable).unwrap_or_default();
            let conf = if others.is_empty() { SETTING.to_owned() } else { format!("{others},{SETTING}") };
            job.environment.push((variable.to_owned(), conf));
        } else {
            job.techniques.push(name.to_owned());
        }
    }
    job
}

#[cfg(test)]
mod tests {
    use super::*;
    use inputs::ProgressReporter;

    fn job(command: &str) -> Job {
        Job::new(
            command.split_whitespace().map(OsString::from).collect(),
            None,
            None,
            ProgressReporter::SILENT,
        )
    }

    fn changed(command: &str, name: &str, value: &str) -> String {
        crate::command_text(&with_value(&job(command), name, value).command)
    }

    #[test]
    fn a_value_goes_where_the_program_takes_it() {
        assert_eq!(
            changed("python t.py --batch-size 4 -v", "batch_size", "8"),
            "python t.py --batch-size 8 -v"
        );
        assert_eq!(changed("python t.py --batch_size=4", "batch-size", "8"), "python t.py --batch_size=8");
        assert_eq!(changed("python t.py train.batch=4", "train.batch", "8"), "python t.py train.batch=8");
        assert_eq!(changed("python t.py", "bs", "8"), "python t.py --bs=8");
    }

    #[test]
    fn values_and_ranges_are_parsed() {
        assert!(Vary::parse("batch=1,2").is_ok() && Vary::parse("--batch=1..64").is_ok());
        for wrong in ["batch", "batch=", "=3", "batch=5..2", "batch=a..b", "batch=1,,2"] {
            assert!(Vary::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn layouts_are_names_with_sizes() {
        let mesh = |text: &str| parsed_mesh(text).map(|mesh| mesh.into_iter().collect::<Vec<_>>());
        assert_eq!(mesh("dp4tp2"), Some(vec![("dp".to_owned(), 4), ("tp".to_owned(), 2)]));
        assert_eq!(mesh("dp_shard16"), Some(vec![("dp_shard".to_owned(), 16)]));
        for wrong in ["", "8", "dp", "dp0", "dp2dp4", "4dp"] {
            assert_eq!(mesh(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn techniques_join() {
        let job = with_technique(&job("python t.py"), "amp+checkpoint+expandable");
        assert_eq!(job.techniques, ["amp", "checkpoint"]);
        assert!(job.environment[0].1.ends_with("expandable_segments:True"));
    }
}
