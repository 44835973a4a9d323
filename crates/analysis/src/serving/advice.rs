//! Which way to turn the setting, how far, and why, in words.

use super::figures::EngineLaunch;
use super::plan::{MemoryPlan, ServingPart, assumed_context, assumed_graphs, size};
use super::{Engine, ServingFailure, signed};
use crate::messages::{Message, written};
use crate::words::{grouped, listed};
use snapshot::Bytes;

/// Which way to turn the setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// To a larger value.
    Raise,
    /// To a smaller value.
    Lower,
    /// Neither: the value is right, or no value helps.
    Keep,
}

impl Turn {
    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Turn::Raise => "raise",
            Turn::Lower => "lower",
            Turn::Keep => "keep",
        }
    }
}

/// What failed, and what to change.
#[derive(Clone, PartialEq, Debug)]
pub struct ServingVerdict {
    /// What failed; `None` if nothing did.
    pub failure: Option<ServingFailure>,
    /// Line of the failure, from 1.
    pub line: Option<u64>,
    /// Which way to turn the setting.
    pub turn: Turn,
    /// The value to set; `None` where no value helps or the log lacks the figures for one.
    pub to: Option<f64>,
    /// What happened, in one sentence.
    pub summary: String,
    /// What to change.
    pub fix: String,
    /// Where the value comes from, as sentences.
    pub reasons: Vec<String>,
    /// What else helps.
    pub alternatives: Vec<String>,
}

/// A change of the setting, in words.
struct SettingChange {
    turn: Turn,
    to: Option<f64>,
    fix: String,
    reasons: Vec<String>,
}

impl SettingChange {
    fn keep(fix: String) -> SettingChange {
        SettingChange { turn: Turn::Keep, to: None, fix, reasons: Vec::new() }
    }
}

/// What a log with this launch, plan and failure calls for; `oom` is the first out-of-memory message of
/// PyTorch or CUDA in it.
pub(super) fn verdict(
    launch: &EngineLaunch,
    plan: &MemoryPlan,
    failure: Option<(u64, ServingFailure)>,
    oom: Option<&Message>,
) -> ServingVerdict {
    let case = Case { launch, plan, oom, engine: launch.engine.unwrap_or(Engine::Vllm) };
    let line = failure.map(|(line, _)| line);
    let failure = failure.map(|(_, failure)| failure);
    let SettingChange { turn, to, fix, reasons } = case.change(failure);
    ServingVerdict {
        failure,
        line,
        turn,
        to,
        summary: case.summary(failure),
        fix,
        reasons,
        alternatives: case.alternatives(failure),
    }
}

struct Case<'a> {
    launch: &'a EngineLaunch,
    plan: &'a MemoryPlan,
    oom: Option<&'a Message>,
    engine: Engine,
}

impl Case<'_> {
    fn summary(&self, failure: Option<ServingFailure>) -> String {
        let (engine, setting) = (self.engine.title(), self.setting());
        let plan = self.plan;
        let part = |part: ServingPart| plan.part(part).map(written);
        let Some(failure) = failure else { return self.health() };
        match failure {
            ServingFailure::StartupMemory => {
                let free =
                    plan.whole.zip(plan.part(ServingPart::Before)).map(|(whole, before)| whole - before);
                match (plan.whole, free, plan.value) {
                    (Some(whole), Some(free), Some(value)) => format!(
                        "{engine} asked for {} ({setting} of {}), but only {} was free when it started",
                        written(size((whole.0 as f64 * value).round() as i64)),
                        written(whole),
                        written(free)
                    ),
                    _ => format!("less memory was free when {engine} started than {setting} asks for"),
                }
            }
            ServingFailure::NoKvCache => match &plan.shortage {
                Some(shortage) => format!("nothing is left for the KV cache: {shortage} ({setting})"),
                None => format!("nothing is left for the KV cache with {setting}"),
            },
            ServingFailure::ModelLength => self.length_summary(),
            ServingFailure::ProfilingChanged => {
                let released = self.launch.free_after.zip(self.launch.free_before);
                let released = released.map(|(after, before)| size(after - before));
                match released.filter(|&released| released > Bytes::ZERO) {
                    Some(released) => format!(
                        "another process released {} or more while {engine} measured its own memory",
                        written(released)
                    ),
                    None => format!("the GPU's memory changed while {engine} measured its own use of it"),
                }
            }
            ServingFailure::WeightsOom => format!("the weights do not fit: {}", self.oom_words()),
            ServingFailure::ProfilingOom => match part(ServingPart::Weights) {
                Some(weights) => format!(
                    "the activations of {engine}'s profiling run do not fit next to {weights} of weights: {}",
                    self.oom_words()
                ),
                None => {
                    format!("the activations of {engine}'s profiling run do not fit: {}", self.oom_words())
                }
            },
            ServingFailure::KvCacheOom => {
                format!("the KV cache that {setting} asks for does not fit: {}", self.oom_words())
            }
            ServingFailure::GraphsOom => {
                format!("CUDA graphs do not fit next to {}: {}", self.residents(), self.oom_words())
            }
            ServingFailure::WarmUpOom => {
                format!("the warm-up does not fit next to {}: {}", self.residents(), self.oom_words())
            }
            ServingFailure::ServingOom => {
                format!("a request did not fit next to {}: {}", self.residents(), self.oom_words())
            }
            ServingFailure::PoolExhausted => {
                let tokens = self.launch.requested_tokens.map_or_else(|| "some".to_owned(), grouped);
                let held = self
                    .launch
                    .kv_tokens
                    .map_or_else(String::new, |held| format!(" of {} tokens", grouped(held)));
                format!(
                    "the KV cache{held} had no room for {tokens} more tokens; the GPU is not out of memory"
                )
            }
            ServingFailure::Retracted => format!(
                "the KV cache was full {}, and requests that were already running had to wait",
                match self.launch.retractions {
                    1 => "once".to_owned(),
                    times => format!("{} times", grouped(times)),
                }
            ),
        }
    }

    /// The summary where nothing failed.
    fn health(&self) -> String {
        let engine = self.engine.title();
        let Some(kv_cache) = self.plan.part(ServingPart::KvCache) else {
            return format!("{engine} did not fail in this log, which ends before the KV cache is allocated");
        };
        let tokens =
            self.launch.kv_tokens.map_or_else(String::new, |tokens| format!(", {} tokens", grouped(tokens)));
        format!("{engine} did not fail in this log: the KV cache has {}{tokens}", written(kv_cache))
    }

    fn length_summary(&self) -> String {
        let launch = self.launch;
        let longest = launch.max_model_len.map_or_else(|| "the longest".to_owned(), grouped);
        match (launch.needed, launch.kv_available, launch.kv_tokens) {
            (Some(needed), Some(kv_cache), _) => format!(
                "one request of {longest} tokens needs {} of KV cache, and {} is left for it",
                written(size(needed)),
                written(size(kv_cache))
            ),
            (_, _, Some(tokens)) => {
                format!("the KV cache holds {} tokens, and one request may have {longest}", grouped(tokens))
            }
            _ => "the KV cache is smaller than one request".to_owned(),
        }
    }

    /// `14.99 GiB of weights and 52.30 GiB of KV cache`
    fn residents(&self) -> String {
        let of = |part: ServingPart, word: &str| {
            self.plan.part(part).map(|bytes| format!("{} of {word}", written(bytes)))
        };
        let residents: Vec<String> =
            [of(ServingPart::Weights, "weights"), of(ServingPart::KvCache, "KV cache")]
                .into_iter()
                .flatten()
                .collect();
        if residents.is_empty() { "the weights and the KV cache".to_owned() } else { listed(&residents) }
    }

    /// `448.00 MiB was requested, 12.00 MiB was free`
    fn oom_words(&self) -> String {
        let numbers = self.oom.map(|oom| &oom.numbers);
        match numbers.and_then(|numbers| numbers.requested.zip(numbers.free)) {
            Some((requested, free)) => {
                format!("{} was requested, and {} was free", written(requested), written(free))
            }
            None => "the GPU is out of memory".to_owned(),
        }
    }

    /// `gpu_memory_utilization=0.90`
    fn setting(&self) -> String {
        let name = self.engine.setting();
        self.plan.value.map_or_else(|| name.to_owned(), |value| format!("{name}={}", shown(value)))
    }

    fn change(&self, failure: Option<ServingFailure>) -> SettingChange {
        let name = self.engine.setting();
        if self.launch.has_kv_by_hand && failure != Some(ServingFailure::StartupMemory) {
            return SettingChange::keep(format!(
                "change --kv-cache-memory, which sets the KV cache by hand: {name} has no effect with it"
            ));
        }
        match failure {
            None => self.headroom(),
            Some(ServingFailure::PoolExhausted | ServingFailure::Retracted) => self.raise_for_requests(),
            Some(ServingFailure::StartupMemory) => self.lower_to_free(),
            Some(ServingFailure::NoKvCache) => self.raise_for_kv_cache(),
            Some(ServingFailure::ModelLength) => self.raise_for_length(),
            Some(ServingFailure::ProfilingChanged) => SettingChange::keep(format!(
                "start it again when no other process changes its use of this GPU; {name} is not the cause"
            )),
            Some(ServingFailure::WeightsOom) => SettingChange::keep(format!(
                "no value of {name} helps: it is not used yet when the weights are loaded"
            )),
            Some(ServingFailure::ProfilingOom) => SettingChange::keep(format!(
                "no value of {name} helps: it is not used yet in the profiling run. Lower \
                 max_num_batched_tokens or max_num_seqs"
            )),
            Some(ServingFailure::ServingOom) => self.lower_after_oom(0, self.plan.serving_margin),
            Some(ServingFailure::WarmUpOom) => self.lower_after_oom(0, self.plan.startup_margin),
            Some(ServingFailure::KvCacheOom | ServingFailure::GraphsOom) => {
                let captured = self.oom.and_then(|oom| signed(oom.numbers.private_pools)).unwrap_or(0);
                let graphs = if self.launch.is_eager { 0 } else { self.plan.expected_graphs - captured };
                self.lower_after_oom(graphs.max(0), self.plan.startup_margin)
            }
        }
    }

    /// The largest safe value above the one in use, if it gives the KV cache at least this much.
    fn safe_above(&self, kv_cache: i64) -> Option<f64> {
        let safe = rounded_down(self.plan.largest_safe()?, self.plan.value.unwrap_or(0.0))?;
        self.plan.kv_cache_at(safe).is_none_or(|size| size >= kv_cache).then_some(safe)
    }

    /// `0.93 is (79.15 GiB - 0.54 GiB in use before it started - …) / 79.15 GiB, rounded down`
    fn formula(&self, to: f64) -> String {
        let base = written(size(self.plan.base.unwrap_or(0)));
        let reserves = self.plan.reserves.iter();
        let terms: Vec<String> =
            reserves.map(|reserve| format!(" - {} {}", written(size(reserve.bytes)), reserve.what)).collect();
        format!("{} is ({base}{}) / {base}, rounded down", shown(to), terms.concat())
    }

    /// What is missing from the log to compute a value.
    fn missing_figures(&self) -> String {
        let lacks = match self.engine {
            _ if self.plan.value.is_none() => {
                return format!("the log does not have the value of {}", self.engine.setting());
            }
            Engine::Vllm if self.plan.whole.is_none() => {
                return "the log does not say how large the GPU is, which a value depends on: give it with \
                        `oomph explain --gpu NAME`"
                    .to_owned();
            }
            Engine::Vllm => "`Available KV cache memory`",
            Engine::Sglang => "`Load weight begin` and `Load weight end`",
        };
        format!("the log does not have all the figures for a value; those of {lacks} are needed")
    }

    /// Nothing failed: how much more the KV cache could have.
    fn headroom(&self) -> SettingChange {
        let (plan, name) = (self.plan, self.engine.setting());
        let Some((value, safe)) = plan.value.zip(plan.largest_safe()) else {
            return SettingChange {
                reasons: vec![self.missing_figures()],
                ..SettingChange::keep(format!("leave {name} as it is"))
            };
        };
        // Smaller steps are not worth a restart.
        if let Some(to) = self.safe_above(0).filter(|to| to - value > MIN_STEP) {
            return SettingChange {
                turn: Turn::Raise,
                to: Some(to),
                fix: format!(
                    "{name} could be raised from {} to {}{}",
                    shown(value),
                    shown(to),
                    self.more_kv_cache(to)
                ),
                reasons: vec![self.formula(to)],
            };
        }
        let safe = rounded_down(safe, 0.0).unwrap_or(safe);
        let reason = if safe < value {
            format!("it is above the largest safe value: {}", self.formula(safe))
        } else {
            self.formula(safe)
        };
        SettingChange {
            reasons: vec![reason],
            ..SettingChange::keep(format!("leave {} as it is", self.setting()))
        }
    }

    /// `: 6.99 GiB more for the KV cache (28,630 tokens)`
    fn more_kv_cache(&self, to: f64) -> String {
        let Some((after, before)) = self.plan.kv_cache_at(to).zip(self.plan.kv_cache) else {
            return String::new();
        };
        let more = after - before;
        let tokens = self.launch.kv_tokens.filter(|_| before > 0).map_or_else(String::new, |tokens| {
            let tokens = more as f64 * tokens as f64 / before as f64;
            format!(" ({} tokens)", grouped(tokens as u64))
        });
        format!(": {} more for the KV cache{tokens}", written(size(more)))
    }

    /// Requests did not fit into the KV cache while others ran.
    fn raise_for_requests(&self) -> SettingChange {
        let name = self.engine.setting();
        match self.plan.value.zip(self.safe_above(0)) {
            Some((value, to)) => SettingChange {
                turn: Turn::Raise,
                to: Some(to),
                fix: format!("raise {name} from {} to {}{}", shown(value), shown(to), self.more_kv_cache(to)),
                reasons: vec![self.formula(to)],
            },
            None => SettingChange {
                reasons: self.headroom().reasons,
                ..SettingChange::keep("admit fewer requests at a time".to_owned())
            },
        }
    }

    fn raise_for_kv_cache(&self) -> SettingChange {
        let (plan, name) = (self.plan, self.engine.setting());
        if let (Some(minimum), Some(value)) = (self.launch.fraction_minimum, self.launch.fraction)
            && plan.largest_safe().is_none()
        {
            return Self::change_from_minimum(name, minimum, value);
        }
        if plan.anchor.is_none() || plan.largest_safe().is_none() {
            let missing = plan.kv_cache.filter(|&size| size < 0).map_or_else(String::new, |kv_cache| {
                format!(" by at least {} of the GPU's memory", written(size(-kv_cache)))
            });
            return SettingChange {
                turn: Turn::Raise,
                to: None,
                fix: format!("raise {name}{missing}"),
                reasons: vec![self.missing_figures()],
            };
        }
        match self.safe_above(1) {
            Some(to) => SettingChange {
                turn: Turn::Raise,
                to: Some(to),
                fix: format!(
                    "raise {name}{} to {}: leaves {} for the KV cache",
                    plan.value.map_or_else(String::new, |value| format!(" from {}", shown(value))),
                    shown(to),
                    written(size(plan.kv_cache_at(to).unwrap_or(0)))
                ),
                reasons: vec![self.formula(to)],
            },
            None => {
                let safe = plan.largest_safe().and_then(|safe| rounded_down(safe, 0.0)).unwrap_or(0.0);
                let missing = plan.kv_cache_at(safe).map_or(0, |kv_cache| -kv_cache);
                SettingChange {
                    reasons: vec![
                        format!(
                            "at {}, the largest safe value, {} is still missing",
                            shown(safe),
                            written(size(missing))
                        ),
                        self.formula(safe),
                    ],
                    ..SettingChange::keep(format!(
                        "no value of {name} is enough: the model does not fit with a KV cache"
                    ))
                }
            }
        }
    }

    /// The change where SGLang says from which value on the KV cache has any memory.
    fn change_from_minimum(name: &str, minimum: f64, value: f64) -> SettingChange {
        let reasons = vec![format!("the log says that the KV cache begins above {}", shown(minimum))];
        if value > minimum {
            let fix = format!(
                "{name}={} is already above the minimum that SGLang names, so something else takes the \
                 memory: lower --max-running-requests or --max-mamba-cache-size, or shorten --context-length",
                shown(value)
            );
            return SettingChange { reasons, ..SettingChange::keep(fix) };
        }
        let fix = format!("raise {name} from {} to more than {}", shown(value), shown(minimum));
        SettingChange { turn: Turn::Raise, to: None, fix, reasons }
    }

    fn raise_for_length(&self) -> SettingChange {
        let (plan, launch) = (self.plan, self.launch);
        let longest = launch.max_model_len.unwrap_or(0);
        // Without the bytes, the tokens that fit say how much larger the KV cache has to be.
        let needed = launch.needed.or_else(|| {
            let tokens = launch.kv_tokens.filter(|&tokens| tokens > 0)?;
            Some((plan.kv_cache? as f64 * longest as f64 / tokens as f64).ceil() as i64)
        });
        let fitting = launch.fitting_len.or(launch.kv_tokens).filter(|&fitting| fitting > 0);
        let known = plan.value.zip(plan.kv_cache).zip(plan.largest_safe()).zip(needed);
        let Some((((value, kv_cache), safe), needed)) = known else {
            let length = fitting.map_or_else(String::new, |fitting| format!(" to {}", grouped(fitting)));
            return SettingChange {
                turn: Turn::Raise,
                to: None,
                fix: format!("lower max_model_len{length}, or raise {}", self.engine.setting()),
                reasons: vec![self.missing_figures()],
            };
        };
        let raise =
            |to: f64| format!("raise {} from {} to {}", self.engine.setting(), shown(value), shown(to));
        if let Some(to) = self.safe_above(needed) {
            let least = value + (needed - kv_cache) as f64 / plan.base.unwrap_or(1) as f64;
            let leaves = written(size(plan.kv_cache_at(to).unwrap_or(0)));
            return SettingChange {
                turn: Turn::Raise,
                to: Some(to),
                fix: format!("{}: leaves {leaves} for the KV cache", raise(to)),
                reasons: vec![
                    format!(
                        "at least {} is needed for {} tokens",
                        shown(rounded_up(least)),
                        grouped(longest)
                    ),
                    self.formula(to),
                ],
            };
        }
        let to = self.safe_above(0);
        let length = to.and_then(|to| length_at(longest, needed, plan.kv_cache_at(to)?)).or(fitting);
        let length = length.map_or_else(|| "a smaller value".to_owned(), grouped);
        let lower = format!("lower max_model_len to {length}");
        let enough = format!("no value is enough for {} tokens", grouped(longest));
        match to {
            Some(to) => SettingChange {
                turn: Turn::Raise,
                to: Some(to),
                fix: format!("{}, and {lower}: {enough}", raise(to)),
                reasons: vec![self.formula(to)],
            },
            None => SettingChange {
                reasons: vec![self.formula(rounded_down(safe, 0.0).unwrap_or(safe))],
                ..SettingChange::keep(format!("{lower}: {enough}"))
            },
        }
    }

    /// Less was free at startup than vLLM asks for.
    fn lower_to_free(&self) -> SettingChange {
        let (plan, name) = (self.plan, self.engine.setting());
        let to = plan.largest_safe().and_then(|safe| rounded_down(safe, 0.0));
        let Some((value, to)) = plan.value.zip(to).filter(|(value, to)| to < value) else {
            return SettingChange {
                turn: Turn::Lower,
                to: None,
                fix: format!("end the other processes, or lower {name}"),
                reasons: Vec::new(),
            };
        };
        let before = plan.part(ServingPart::Before).unwrap_or_default();
        let mut reasons = vec![self.formula(to)];
        if before >= MIN_OF_OTHERS {
            reasons.push(format!(
                "{} was in use before: other processes, or an earlier run that still holds memory; without \
                 them, {} would be as safe",
                written(before),
                shown(self.without_others().unwrap_or(value))
            ));
        }
        SettingChange {
            turn: Turn::Lower,
            to: Some(to),
            fix: format!("lower {name} from {} to {}", shown(value), shown(to)),
            reasons,
        }
    }

    /// The largest safe value if nothing but this engine used the GPU.
    fn without_others(&self) -> Option<f64> {
        let base = self.plan.base?;
        let before = signed(self.plan.part(ServingPart::Before))?;
        rounded_down(self.plan.largest_safe()? + (before - assumed_context(base)) as f64 / base as f64, 0.0)
    }

    /// Something had no room next to the KV cache. `graphs` is what CUDA graphs may still need, `margin` what
    /// else to keep free.
    fn lower_after_oom(&self, graphs: i64, margin: i64) -> SettingChange {
        let (plan, name) = (self.plan, self.engine.setting());
        let Some((value, base)) = plan.value.zip(plan.base.filter(|&base| base > 0)) else {
            let fix = format!("lower {name}");
            return SettingChange { turn: Turn::Lower, to: None, fix, reasons: vec![self.missing_figures()] };
        };
        let numbers = self.oom.map(|oom| &oom.numbers);
        let missing = numbers.and_then(|numbers| Some(signed(numbers.requested)? - signed(numbers.free)?));
        let (missing, words) = match missing {
            Some(missing) => (missing.max(0), "was missing when it failed"),
            None => (assumed_graphs(base), "is assumed to be missing, since the message has no numbers"),
        };
        let limit = value - (missing + graphs + margin) as f64 / base as f64;
        let to = rounded_down(limit, 0.0).filter(|&to| plan.kv_cache_at(to).is_none_or(|size| size > 0));
        let Some(to) = to else {
            return SettingChange {
                reasons: vec![format!(
                    "{} {words}, and less than that is left for the KV cache",
                    written(size(missing))
                )],
                ..SettingChange::keep(format!("no value of {name} leaves room for it and for a KV cache"))
            };
        };
        let graphs = match graphs {
            0 => String::new(),
            graphs => format!(" + {} for graphs that are not captured yet", written(size(graphs))),
        };
        let mut reasons = vec![
            format!("{} {words}", written(size(missing))),
            format!(
                "{} is {} - ({} missing{graphs} + {} as a margin) / {}, rounded down",
                shown(to),
                shown(value),
                written(size(missing)),
                written(size(margin)),
                written(size(base))
            ),
        ];
        let after = plan.kv_cache_at(to);
        reasons.extend(self.shorter_requests(to, after));
        let kv_cache = plan.kv_cache.zip(after).map_or_else(String::new, |(before, after)| {
            format!(": the KV cache shrinks from {} to {}", written(size(before)), written(size(after)))
        });
        SettingChange {
            turn: Turn::Lower,
            to: Some(to),
            fix: format!("lower {name} from {} to {}{kv_cache}", shown(value), shown(to)),
            reasons,
        }
    }

    /// What the longest request would be with a smaller KV cache, where it no longer fits.
    fn shorter_requests(&self, to: f64, after: Option<i64>) -> Option<String> {
        let longest = self.launch.max_model_len?;
        let needed = (self.plan.kv_cache? as f64 / self.launch.concurrency?).ceil() as i64;
        let length = length_at(longest, needed, after?).filter(|&length| length < longest)?;
        Some(format!(
            "at {}, one request of {} tokens no longer fits: lower max_model_len to {}",
            shown(to),
            grouped(longest),
            grouped(length)
        ))
    }

    fn alternatives(&self, failure: Option<ServingFailure>) -> Vec<String> {
        let Some(failure) = failure else { return Vec::new() };
        let mut ways: Vec<String> = ways(self.engine, failure).iter().map(|&way| way.to_owned()).collect();
        let before = self.plan.part(ServingPart::Before).filter(|&before| before >= MIN_OF_OTHERS);
        if let (Some(before), ServingFailure::NoKvCache | ServingFailure::ModelLength) = (before, failure) {
            ways.insert(
                0,
                format!(
                    "end the other processes on this GPU, or an earlier run that still holds memory: {} was \
                     in use before",
                    written(before)
                ),
            );
        }
        let Some(numbers) = self.oom.map(|oom| &oom.numbers) else { return ways };
        let others = numbers.of_others();
        if others.0 >= 1 << 30 && numbers.this_process.is_some() {
            ways.push(format!("end the other processes, which use {} of this GPU", written(others)));
        }
        let unused = numbers.unallocated().unwrap_or_default();
        if numbers.requested.is_some_and(|requested| unused >= requested) {
            ways.push(format!(
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: PyTorch held {} that no tensor used",
                written(unused)
            ));
        }
        ways
    }
}

/// What helps besides the setting.
fn ways(engine: Engine, failure: ServingFailure) -> &'static [&'static str] {
    use ServingFailure as F;
    match (engine, failure) {
        (_, F::StartupMemory) => &["end the other processes that use this GPU: nvidia-smi lists them"],
        (Engine::Vllm, F::NoKvCache | F::WeightsOom) => &[
            "more GPUs (tensor_parallel_size), or a quantized model",
            "lower max_num_batched_tokens, for smaller activations",
        ],
        (Engine::Vllm, F::ModelLength) => &["kv_cache_dtype=fp8, for a KV cache of half the size"],
        (Engine::Vllm, F::ProfilingOom) => &[
            "for multimodal models, fewer items per request (limit_mm_per_prompt)",
            "more GPUs (tensor_parallel_size), or a quantized model",
        ],
        (Engine::Vllm, F::KvCacheOom | F::GraphsOom) => &[
            "fewer cudagraph_capture_sizes, or a smaller largest one",
            "enforce_eager=True needs no CUDA graphs, but decodes more slowly",
        ],
        (Engine::Vllm, F::WarmUpOom | F::ServingOom) => &["lower max_num_seqs or max_num_batched_tokens"],
        (Engine::Sglang, F::NoKvCache | F::WeightsOom) => &["more GPUs (--tp), or a quantized model"],
        (Engine::Sglang, F::KvCacheOom | F::GraphsOom | F::WarmUpOom) => {
            &["a smaller --cuda-graph-max-bs captures fewer CUDA graphs"]
        }
        (Engine::Sglang, F::ServingOom) => &[
            "a smaller --chunked-prefill-size, if it fails in prefill",
            "fewer --max-running-requests, if it fails in decode",
        ],
        (_, F::PoolExhausted | F::Retracted) => {
            &["fewer --max-running-requests, or a higher --schedule-conservativeness, such as 1.3"]
        }
        (_, F::ProfilingChanged) | (Engine::Sglang, F::ModelLength | F::ProfilingOom) => &[],
    }
}

/// Memory in use before the engine started that is more than its own CUDA context.
const MIN_OF_OTHERS: Bytes = Bytes(2 << 30);

/// Smallest change of the setting that is suggested where nothing failed.
const MIN_STEP: f64 = 0.009;

/// Tokens of the longest request that fits, if `longest` tokens need `needed` bytes of KV cache.
fn length_at(longest: u64, needed: i64, kv_cache: i64) -> Option<u64> {
    let tokens = longest as f64 * kv_cache as f64 / needed.max(1) as f64;
    // Engines allocate blocks of 16 tokens or a multiple of that.
    Some(tokens as u64 / 16 * 16).filter(|&tokens| tokens > 0)
}

/// A value of the setting, rounded down to hundredths, or to thousandths where only that is above `least`.
fn rounded_down(value: f64, least: f64) -> Option<f64> {
    let down = |steps: f64| (value * steps + 1e-6).floor() / steps;
    [down(100.0), down(1000.0)].into_iter().find(|&rounded| rounded > least + 1e-6)
}

/// A value of the setting, rounded up to thousandths.
fn rounded_up(value: f64) -> f64 {
    (value * 1000.0 - 1e-6).ceil() / 1000.0
}

/// `0.90`, `0.935`
fn shown(value: f64) -> String {
    let thousandths = format!("{value:.3}");
    thousandths.strip_suffix('0').map_or(thousandths.clone(), str::to_owned)
}
