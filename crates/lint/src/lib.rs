//! Finds code that keeps or wastes GPU memory, in Python source that is read and never run.
//!
//! ruff's parser reads a file (`syntax`), `walk` follows tensors through each function, `checked` answers what rules ask,
//! and each rule is a file of its own in `rules`. A rule speaks only where the code shows what happens; what it says of bytes
//! was measured.

mod checked;
mod facts;
mod file;
mod fix;
mod names;
mod rule;
mod rules;
mod source;
mod stores;
mod suppress;
mod syntax;
mod torch;
mod tree;
mod walk;

pub use fix::{Fixed, fix};
pub use rule::{Applicability, Diagnostic, Edit, Fix, Rule, Severity};
pub use rules::RULES;
pub use source::{Place, Source};
pub use stores::{Store, Storing, stores};
pub use syntax::SyntaxError;
pub use tree::Range;

/// What the rules say of a source, by place; lines with a comment `# oomph: ignore` are left out.
pub fn check(source: &Source, rules: &[&'static Rule]) -> Result<Vec<Diagnostic>, SyntaxError> {
    if !concerns_memory(source.text().as_bytes()) {
        return Ok(Vec::new());
    }
    let program = syntax::parse(source.text(), source.is_notebook())?;
    let file = file::File::new(source.text(), &program.body);
    let facts = walk::walk(&file);
    let checked = checked::Checked::new(&file, facts);
    let mut found = Vec::new();
    for rule in rules {
        (rule.check)(&checked, &mut found);
    }
    let ignored = suppress::Ignored::new(source, &program.comments);
    found.retain(|diagnostic| !ignored.covers(source, diagnostic));
    found.sort_by(|a, b| (a.range, a.rule.code).cmp(&(b.range, b.rule.code)));
    found.dedup_by(|a, b| a.range == b.range && a.rule == b.rule);
    Ok(found)
}

/// Whether a file says anything that a rule could be about. Most files of a tree do not, and need no parsing.
fn concerns_memory(source: &[u8]) -> bool {
    ["torch", "backward", "transformers"]
        .iter()
        .any(|word| memchr::memmem::find(source, word.as_bytes()).is_some())
}
