//! `oomph rule`: what the linter looks for.

use crate::ExitCode;
use crate::args::RuleArgs;
use crate::commands::document;
use crate::commands::lint::style;
use crate::terminal::{Failure, Style, Terminal};
use crate::words::{paragraph, wrap};
use documents::RuleDocument;
use lint::{RULES, Rule};
use project::named;
use std::io::Write;

pub(crate) fn run(args: &RuleArgs, terminal: &mut Terminal) -> anyhow::Result<ExitCode> {
    let rules = match &args.rule {
        Some(name) => named(name, None)?,
        None => RULES.to_vec(),
    };
    let shows_pages = args.all || args.rule.is_some();
    if args.json {
        document::print(&RuleDocument::new(&rules), terminal)?;
    } else if !shows_pages && args.markdown {
        let hint = "`oomph rule --markdown --all` prints the pages of all rules";
        return Err(Failure::new("--markdown needs a rule, or --all", None, Some(hint)).into());
    } else if !shows_pages {
        table(&rules, terminal)?;
    } else if args.markdown {
        let pages: Vec<String> = rules.iter().map(|rule| rule.page()).collect();
        write!(terminal.out(), "{}", pages.join("\n"))?;
    } else {
        for (place, rule) in rules.iter().enumerate() {
            if place > 0 {
                writeln!(terminal.out())?;
            }
            page(rule, terminal)?;
        }
    }
    Ok(0)
}

/// A line for each rule, or more where that is too long.
fn table(rules: &[&Rule], terminal: &mut Terminal) -> anyhow::Result<()> {
    let width = rules.iter().map(|rule| rule.name.len()).max().unwrap_or(0);
    let indent = "OOM101  ".len() + width + "  medium  ".len();
    for rule in rules {
        let code = terminal.paint(Style::Bold, rule.code);
        let severity = terminal.paint(style(rule.severity), &format!("{:6}", rule.severity.name()));
        let mut lines = wrap(rule.summary, terminal.width().saturating_sub(indent)).into_iter();
        let first = lines.next().unwrap_or_default();
        writeln!(terminal.out(), "{code}  {:width$}  {severity}  {first}", rule.name)?;
        for line in lines {
            writeln!(terminal.out(), "{:indent$}{line}", "")?;
        }
    }
    Ok(())
}

/// The rule's page, without the marks of Markdown.
fn page(rule: &Rule, terminal: &mut Terminal) -> anyhow::Result<()> {
    let page = rule.page();
    let (mut is_code, mut text) = (false, String::new());
    for line in page.lines() {
        let is_fence = line.starts_with("```");
        let ends_text = line.is_empty() || is_fence || line.starts_with('#');
        if !is_code && !ends_text {
            // Lines of a paragraph are joined, to be broken at the terminal's width.
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(line);
            continue;
        }
        if !text.is_empty() {
            paragraph("", "", &std::mem::take(&mut text).replace("**", ""), None, terminal)?;
        }
        if is_fence {
            is_code = !is_code;
        } else if is_code {
            let code = terminal.paint(Style::Cyan, line);
            writeln!(terminal.out(), "    {code}")?;
        } else {
            let heading = terminal.paint(Style::Bold, line.trim_start_matches('#').trim_start());
            writeln!(terminal.out(), "{}", if line.is_empty() { "" } else { &heading })?;
        }
    }
    Ok(())
}
