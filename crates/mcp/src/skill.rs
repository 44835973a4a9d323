//! The skill for coding agents: a file that says when and how to use oomph.

use analysis::words::shown_path;
use failure::Failure;
use std::io;
use std::path::{Path, PathBuf};

/// Text of the skill, in the format of <https://agentskills.io>.
pub const TEXT: &str = include_str!("../skill/SKILL.md");
/// Folder of the skill in a project.
pub const PROJECT_FOLDER: &str = ".claude/skills/oomph";
/// How clients start the MCP server.
pub const REGISTRATION: &str = "\
The MCP server, for agents that call tools in place of commands:
  claude mcp add oomph -- oomph mcp
  codex mcp add oomph -- oomph mcp
  others: {\"mcpServers\": {\"oomph\": {\"command\": \"oomph\", \"args\": [\"mcp\"]}}}
It reads files below the folder in which it starts, or those of `--root DIR`.";

/// Name of the file.
const FILE_NAME: &str = "SKILL.md";
/// Line of a file that a later `oomph skill` may replace.
const OWN_LINE: &str =
    "<!-- Written by `oomph skill`, which replaces this file. Without this line it does not. -->";

/// Returns the folder of the skill for all projects of this user.
pub fn user_folder() -> Result<PathBuf, Failure> {
    let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    let home = home.ok_or_else(|| {
        Failure::new("the home folder of this user is unknown", None, Some("name a folder with `--dir`"))
    })?;
    Ok(home.join(PROJECT_FOLDER))
}

/// Writes the skill into a folder. Returns its path. A file that oomph did not write is kept, unless `force`.
pub fn install(folder: &Path, force: bool) -> Result<PathBuf, Failure> {
    let file = folder.join(FILE_NAME);
    let failed = |error: io::Error| {
        let what = format!("`{}` cannot be written", shown_path(&file));
        Failure::new(what, Some(error.to_string()), None).refused(error.kind())
    };
    match std::fs::read_to_string(&file) {
        Ok(found) if !force && !found.lines().any(|line| line == OWN_LINE) => {
            return Err(Failure::new(
                format!("`{}` exists", shown_path(&file)),
                Some("oomph did not write it, or it was changed since".to_owned()),
                Some("choose another folder with `--dir`, or replace it with `--force`"),
            ));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(_) if force => {}
        Err(error) => return Err(failed(error)),
    }
    std::fs::create_dir_all(folder).map_err(failed)?;
    std::fs::write(&file, TEXT).map_err(failed)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_that_of_skills() {
        let (front, body) =
            TEXT.strip_prefix("---\n").expect("front matter").split_once("\n---\n").expect("its end");
        let field = |name: &str| {
            let line = front.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
            line.unwrap_or_else(|| panic!("no field {name}"))
        };
        assert_eq!(field("name"), "oomph", "as its folder");
        assert!((50..1024).contains(&field("description").len()));
        assert!(body.lines().any(|line| line == OWN_LINE) && body.lines().count() < 200);
    }

    #[test]
    fn only_own_files_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("skills/oomph");
        let file = install(&folder, false).expect("written");
        assert_eq!(std::fs::read_to_string(&file).expect("text"), TEXT);
        std::fs::write(&file, format!("an older version\n{OWN_LINE}\n")).expect("written");
        install(&folder, false).expect("replaced");
        assert_eq!(std::fs::read_to_string(&file).expect("text"), TEXT);
        std::fs::write(&file, "mine").expect("written");
        let error = install(&folder, false).expect_err("not ours").message();
        assert!(error.contains("--force"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).expect("text"), "mine");
        install(&folder, true).expect("replaced");
        assert_eq!(std::fs::read_to_string(&file).expect("text"), TEXT);
    }
}
