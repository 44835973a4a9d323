//! Linter for code that keeps or wastes GPU memory, in Python source that is parsed and never run.
//!
//! ruff's parser reads a file (`syntax`), `walk` follows tensors through each function, `checked` answers the
//! questions of rules, and each rule is a file in `rules`. A rule reports only what the code proves, and its
//! figures in bytes were measured.
//!
//! ```
//! let source = lint::PythonSource::python(
//!     b"import torch, gc\n\nfor x, y in loader:\n    model(x).sum().backward()\n    gc.collect()\n",
//! );
//! let findings = lint::check(&source, lint::RULES).expect("valid Python");
//! let found: Vec<_> = findings.iter().map(|one| (source.line(one.range.start), one.rule.name)).collect();
//! assert_eq!(found, [(5, "collect-in-loop")]);
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod asked;
mod checked;
mod edit;
mod facts;
mod file;
mod fix;
mod names;
mod notebook;
mod rewrite;
mod rule;
mod rules;
mod severity;
mod source;
mod stores;
mod summary;
mod suppress;
mod syntax;
mod torch;
mod tree;
mod walk;

pub use asked::AskedImport;
pub use edit::{Applicability, Edit, Fix};
pub use fix::{Fixed, fix};
pub use rewrite::Rewrite;
pub use rule::{Diagnostic, Rule};
pub use rules::RULES;
pub use severity::RuleSeverity;
pub use source::{PythonSource, SourcePosition};
pub use stores::{Storing, StoringLine, stores};
pub use summary::{Definition, Imports, ModuleSummary};
pub use suppress::{ignore_comment, rules_ignored_at};
pub use syntax::SyntaxError;
pub use tree::SourceRange;

/// Checks a source with these rules and returns the findings by position; lines with a comment `# oomph:
/// ignore` are left out.
pub fn check(source: &PythonSource, rules: &[&'static Rule]) -> Result<Vec<Diagnostic>, SyntaxError> {
    check_module(source, rules, &Imports::default()).map(|report| report.found)
}

/// Findings of a file of a package, what its other files need to know about it, and what it needs to know
/// about them.
#[derive(Default, Debug)]
pub struct ModuleReport {
    /// Findings by position.
    pub found: Vec<Diagnostic>,
    /// What callers in other files need to know.
    pub summary: ModuleSummary,
    /// Imports that were not given, and might make a difference, by path.
    pub asked: Vec<AskedImport>,
    /// Whether it makes a difference that another file of the project mentions CUDA.
    pub asks_for_cuda: bool,
}

/// Checks a source with these rules and with what is known about its imports.
pub fn check_module(
    source: &PythonSource,
    rules: &[&'static Rule],
    imports: &Imports,
) -> Result<ModuleReport, SyntaxError> {
    if !concerns_memory(source.text().as_bytes()) {
        return Ok(ModuleReport::default());
    }
    let program = syntax::parse(source.text(), source.is_notebook())?;
    let file = file::PythonFile::new(source.text(), &program.body);
    if file.is_of_other_framework() {
        return Ok(ModuleReport::default());
    }
    let (facts, mut asked, mentioned) = walk::walk(&file, imports);
    let checked = checked::Checked::new(&file, facts, imports);
    let mut found = Vec::new();
    for rule in rules {
        (rule.check)(&checked, &mut found);
    }
    let ignored = suppress::Ignored::new(source, &program.comments);
    found.retain(|diagnostic| !ignored.covers(source, diagnostic));
    found.sort_by(|a, b| (a.range, a.rule.code).cmp(&(b.range, b.rule.code)));
    found.dedup_by(|a, b| a.range == b.range && a.rule == b.rule);
    asked.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    let asks_for_cuda = !file.knows_cuda() && checked.calls().any(|(_, call)| call.is("torch.load"));
    Ok(ModuleReport { found, summary: ModuleSummary::of(&checked, mentioned), asked, asks_for_cuda })
}

/// Returns why a source is not Python. [`check`] reports it as well, but only for sources that it parses:
/// those that mention PyTorch.
pub fn syntax_error(source: &PythonSource) -> Option<SyntaxError> {
    syntax::parse(source.text(), source.is_notebook()).err()
}

/// Returns whether a file contains anything that a rule could be about. Most files of a tree do not, and need
/// no parsing.
fn concerns_memory(source: &[u8]) -> bool {
    ["torch", "backward", "transformers"]
        .iter()
        .any(|word| memchr::memmem::find(source, word.as_bytes()).is_some())
}
