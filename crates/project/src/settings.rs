//! Which rules are checked where: the options, and `[tool.oomph.lint]` of pyproject.toml.

use crate::LintOptions;
use analysis::words::{printable, shown_path};
use failure::Failure;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use lint::{Applicability, RULES, Rule, RuleSeverity};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) struct LintSettings {
    rules: Vec<&'static Rule>,
    pub(crate) least: RuleSeverity,
    /// The fixes that may be applied.
    pub(crate) allowed: Applicability,
    pub(crate) exclude: Option<Arc<Globs>>,
    /// The rules that are left out of some files.
    per_file: Vec<(Globs, Vec<&'static Rule>)>,
}

/// `[tool.oomph.lint]`
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct LintTable {
    select: Option<Vec<String>>,
    ignore: Option<Vec<String>>,
    #[serde(default)]
    exclude: Vec<String>,
    min_severity: Option<SeverityWord>,
    #[serde(default)]
    per_file_ignores: BTreeMap<String, Vec<String>>,
}

/// A severity as the settings spell it.
#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum SeverityWord {
    Low,
    Medium,
    High,
}

impl From<SeverityWord> for RuleSeverity {
    fn from(word: SeverityWord) -> RuleSeverity {
        match word {
            SeverityWord::Low => RuleSeverity::Low,
            SeverityWord::Medium => RuleSeverity::Medium,
            SeverityWord::High => RuleSeverity::High,
        }
    }
}

impl LintSettings {
    pub(crate) fn new(options: &LintOptions) -> anyhow::Result<LintSettings> {
        let first = &options.paths[0];
        let first = options.stdin_filename.as_ref().filter(|_| first.as_os_str() == "-").unwrap_or(first);
        let (file, table) = configured(first)?.unwrap_or_default();
        let (root, origin) = (file.parent().unwrap_or(Path::new("")), shown_path(&file));
        let (select, of_select) = match &options.select {
            Some(select) => (Some(select), "--select"),
            None => (table.select.as_ref(), &*origin),
        };
        let (ignore, of_ignore) = match &options.ignore {
            Some(ignore) => (Some(ignore), "--ignore"),
            // `--select` overrides what the file ignores.
            None if options.select.is_some() => (None, ""),
            None => (table.ignore.as_ref(), &*origin),
        };
        let mut rules = select.map_or_else(|| Ok(RULES.to_vec()), |names| all_named(names, of_select))?;
        let ignored = ignore.map_or_else(|| Ok(Vec::new()), |names| all_named(names, of_ignore))?;
        rules.retain(|rule| !ignored.contains(rule));
        if rules.is_empty() {
            return Err(Failure::new("no rule is left to check", None, Some("`oomph rule` lists all")).into());
        }
        let exclude = (!table.exclude.is_empty()).then(|| Globs::new(root, &table.exclude)).transpose()?;
        let per_file = table.per_file_ignores.iter().map(|(glob, names)| {
            anyhow::Ok((Globs::new(root, std::slice::from_ref(glob))?, all_named(names, &origin)?))
        });
        let of_table = table.min_severity.map(RuleSeverity::from);
        Ok(LintSettings {
            rules,
            least: options.min_severity.or(of_table).unwrap_or(RuleSeverity::Low),
            allowed: options.allowed,
            exclude: exclude.map(Arc::new),
            per_file: per_file.collect::<anyhow::Result<_>>()?,
        })
    }

    /// The rules for one file.
    pub(crate) fn rules_for(&self, path: &Path) -> Cow<'_, [&'static Rule]> {
        let ignored: Vec<_> = self.per_file.iter().filter(|(globs, _)| globs.match_path(path)).collect();
        if ignored.is_empty() {
            return Cow::Borrowed(&self.rules);
        }
        let is_left = |rule: &&&'static Rule| !ignored.iter().any(|(_, rules)| rules.contains(*rule));
        Cow::Owned(self.rules.iter().filter(is_left).copied().collect())
    }
}

/// The nearest pyproject.toml above a path that has settings for us, and these.
fn configured(path: &Path) -> anyhow::Result<Option<(PathBuf, LintTable)>> {
    let path = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path))?;
    for folder in path.ancestors() {
        let file = folder.join("pyproject.toml");
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        // Errors in files without settings for oomph are not reported.
        if !text.contains("oomph") {
            continue;
        }
        let failure = |error: toml::de::Error| {
            let cause = error.to_string().trim_end().replace('\n', "\n    ");
            Failure::new(format!("`{}` has invalid settings", shown_path(&file)), Some(cause), None)
        };
        #[derive(Deserialize)]
        struct Project {
            tool: Option<Tools>,
        }
        #[derive(Deserialize)]
        struct Tools {
            oomph: Option<Oomph>,
        }
        #[derive(Deserialize)]
        struct Oomph {
            lint: Option<LintTable>,
        }
        let project: Project = toml::from_str(&text).map_err(failure)?;
        if let Some(table) = project.tool.and_then(|tools| tools.oomph?.lint) {
            return Ok(Some((file, table)));
        }
    }
    Ok(None)
}

/// Patterns of paths below a folder.
pub(crate) struct Globs {
    root: PathBuf,
    set: GlobSet,
}

impl Globs {
    /// A pattern without `/` means any file or folder of that name, and a folder means everything in it.
    fn new(root: &Path, patterns: &[String]) -> anyhow::Result<Globs> {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            let plain = pattern.strip_prefix("./").unwrap_or(pattern).trim_end_matches('/');
            let plain = if plain.contains('/') { plain.to_owned() } else { format!("**/{plain}") };
            for glob in [format!("{plain}/**"), plain] {
                let glob = GlobBuilder::new(&glob).literal_separator(true).build().map_err(|error| {
                    let what = format!("`{pattern}` is not a valid path pattern");
                    Failure::new(what, Some(error.kind().to_string()), None)
                })?;
                set.add(glob);
            }
        }
        Ok(Globs { root: root.to_owned(), set: set.build()? })
    }

    pub(crate) fn match_path(&self, path: &Path) -> bool {
        let Ok(path) = std::fs::canonicalize(path).or_else(|_| std::path::absolute(path)) else {
            return false;
        };
        self.set.is_match(path.strip_prefix(&self.root).unwrap_or(&path))
    }
}

fn all_named(names: &[String], origin: &str) -> anyhow::Result<Vec<&'static Rule>> {
    let mut rules = Vec::new();
    for name in names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()) {
        rules.extend(named(name, Some(origin))?);
    }
    rules.sort_by_key(|rule| rule.code);
    rules.dedup();
    Ok(rules)
}

/// Returns the rules that a code, the beginning of codes, or a name means.
pub fn named(name: &str, origin: Option<&str>) -> Result<Vec<&'static Rule>, Failure> {
    let rules: Vec<&Rule> = RULES.iter().copied().filter(|rule| rule.is_selected_by(name)).collect();
    if !rules.is_empty() {
        return Ok(rules);
    }
    let lower = name.to_ascii_lowercase();
    let spellings = RULES.iter().flat_map(|rule| [rule.name.to_owned(), rule.code.to_ascii_lowercase()]);
    let near = |spelling: String| (strsim::jaro_winkler(&lower, &spelling), spelling);
    let nearest = spellings.map(near).max_by(|(a, _), (b, _)| a.total_cmp(b));
    let hint = match nearest {
        Some((closeness, spelling)) if closeness > 0.8 => {
            let spelling = if spelling.starts_with("oom") { spelling.to_uppercase() } else { spelling };
            format!("did you mean `{spelling}`? `oomph rule` lists all")
        }
        _ => "`oomph rule` lists all".to_owned(),
    };
    let cause = origin.map(|origin| format!("{origin} names it"));
    Err(Failure::new(format!("there is no rule `{}`", printable(name)), cause, Some(&hint)))
}
